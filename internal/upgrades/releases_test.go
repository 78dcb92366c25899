package upgrades

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

// releasesDir has a directory for each release: the Dir of its node (node.tar.gz), and the
// histories that it has exported (ID.json). They are never changed. "make release-data NAME=v1.2.3"
// adds one.
const releasesDir = "testdata/releases"

// recorded are the instances with an exported history.
var recorded = []string{"order-ended", "order-failed", "order-waits", "order-suspended", "transfer", "shipment-of-transfer", "reminder", "delivery", "account"}

// TestReleases_Record records the data of the present build, if TENUTO_RELEASE names it.
func TestReleases_Record(t *testing.T) {
	name := os.Getenv("TENUTO_RELEASE")
	if name == "" {
		t.Skip("records test data: run \"make release-data NAME=v1.2.3\"")
	}
	if _, err := os.Stat(filepath.Join(releasesDir, name)); err == nil {
		t.Fatalf("%s has data, which never change", name)
	}
	dir, to := t.TempDir(), t.TempDir()
	r := &release{T: t, node: startRelease(t, dir, true, 0)}
	client := r.node.Client()
	r.begin(client)
	for _, id := range recorded {
		var text bytes.Buffer
		if err := errors.Join(client.Export(t.Context(), id, 0, &text), os.WriteFile(filepath.Join(to, id+".json"), text.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	r.close()
	if err := pack(dir, filepath.Join(to, "node.tar.gz")); err != nil {
		t.Fatal(err)
	}
	if !t.Failed() {
		r.must("keep the data", os.CopyFS(filepath.Join(releasesDir, name), os.DirFS(to)))
	}
}

// Every kept release is continued by the present build, also after it has begun to use its
// protocol, and what the present build has written is continued again.
func TestReleases_Continue(t *testing.T) {
	for _, name := range releases(t) {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unpack(filepath.Join(releasesDir, name, "node.tar.gz"), dir); err != nil {
				t.Fatal(err)
			}
			r := &release{T: t, node: startRelease(t, dir, false, 2*time.Hour)}
			r.expectRecorded(name)
			r.expectEnded()
			r.expectTimers()
			r.finalize()
			r.expectInputs()
			r.close()
			r.node = startRelease(t, dir, false, 3*time.Hour)
			r.expectEnded()
			r.expectAnswers()
			r.expectIntact()
			r.close()
		})
	}
}

// The code fits the histories of every kept release.
func TestReleases_Replay(t *testing.T) {
	for _, name := range releases(t) {
		replaytest.Replay(t, filepath.Join(releasesDir, name, "*.json"), releaseDefinitions(false)...)
	}
}

// releases returns the names of the kept releases.
func releases(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(releasesDir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("no kept release: %v", err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// A release is a node with the data of a release.
type release struct {
	*testing.T
	node *cluster.Node
}

// startRelease starts a node with a wall clock that is ahead. The time that the data were not in
// use passes at once.
func startRelease(t *testing.T, dir string, recording bool, ahead time.Duration) *cluster.Node {
	t.Helper()
	ctx := harness.NewContext(t.Context(), harness.Overrides{WallClock: func() time.Time { return time.Now().Add(ahead) }})
	node, err := cluster.Start(ctx, cluster.Config{
		Dir: dir, Partitions: 2, Definitions: releaseDefinitions(recording), Logger: slog.New(slog.DiscardHandler),
		Settings: cluster.Settings{FinalizeProtocolAfter: 24 * time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	return node
}

func (r *release) close() {
	r.Helper()
	if err := r.node.Close(); err != nil {
		r.Fatal(err)
	}
}

func (r *release) must(what string, err error) {
	r.Helper()
	if err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

func (r *release) eventually(what string, holds func() bool) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), waitMax)
	defer cancel()
	for tick := time.NewTicker(20 * time.Millisecond); !holds(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.Fatalf("not in %v: %s", waitMax, what)
		}
	}
}

// begin starts all instances and waits until each is where the data are to have it.
func (r *release) begin(client *cluster.Client) {
	r.Helper()
	ctx := r.Context()
	for id, item := range map[string]string{"order-ended": "book", "order-failed": "", "order-waits": "pen", "order-suspended": "ink"} {
		_, err := cluster.StartRun(ctx, client, order, id, item)
		r.must(id, err)
	}
	for id, handle := range map[string]replay.OrchestrationHandle[string, string]{"transfer": transfer, "reminder": reminder, "delivery": delivery} {
		_, err := cluster.StartRun(ctx, client, handle, id, "Ada")
		r.must(id, err)
	}
	_, err := cluster.StartRun(ctx, client, account, "account", 0)
	r.must("account", err)
	r.must("schedule", schedule.Create(ctx, client, "schedule", schedule.Spec{Every: 5 * time.Second}, ticked, "tick"))

	r.must("order-ended", cluster.Send(ctx, client, "order-ended", approval, "Ada"))
	for _, amount := range []int{5, 7} {
		_, err := cluster.CallUpdate(ctx, client, "account", deposit, amount)
		r.must("deposit", err)
	}
	r.awaitPending(client, "order-waits", "approval")
	r.awaitPending(client, "order-suspended", "approval")
	r.must("suspend", client.Suspend(ctx, "order-suspended", "to be recorded"))
	r.awaitPending(client, "shipment-of-transfer", "approval")
	r.eventually("the delivery has failed once", func() bool {
		pending, err := client.Pending(ctx, "delivery")
		return err == nil && len(pending) == 1 && pending[0].FailedAttempts == 1
	})
	r.eventually("the reminder sleeps", func() bool {
		pending, err := client.Pending(ctx, "reminder")
		return err == nil && len(pending) == 1
	})
	r.eventually("the account has its third execution", func() bool {
		status, err := client.Get(ctx, "account")
		return err == nil && status.Execution == 3 && r.balance() == 12
	})
	r.eventually("the schedule has started a run", func() bool { return r.started() > 0 })
	r.expectEnded()
}

// awaitPending waits until an instance waits for an event.
func (r *release) awaitPending(client *cluster.Client, id, name string) {
	r.Helper()
	r.eventually(id+" waits for "+name, func() bool {
		pending, err := client.Pending(r.Context(), id)
		return err == nil && len(pending) == 1 && pending[0].Name == name
	})
}

// balance returns what the account says, -1 if it does not answer.
func (r *release) balance() int {
	got, err := cluster.Query(r.Context(), r.node.Client(), "account", balance, struct{}{})
	if err != nil {
		return -1
	}
	return got
}

// started returns how many runs the schedule has started.
func (r *release) started() int {
	r.Helper()
	description, err := schedule.Describe(r.Context(), r.node.Client(), "schedule")
	r.must("describe", err)
	if description.Problem != "" || description.Orchestration != ticked.Name() {
		r.Fatalf("the schedule: %+v", description)
	}
	return description.Started
}

// expectRecorded fails the test unless the node has each history as the release has exported it. It
// may have continued.
func (r *release) expectRecorded(name string) {
	r.Helper()
	for _, id := range recorded {
		file, err := os.ReadFile(filepath.Join(releasesDir, name, id+".json"))
		r.must(id, err)
		want, err := history.Read(bytes.NewReader(file))
		r.must(id, err)
		var text bytes.Buffer
		r.must(id, r.node.Client().Export(r.Context(), id, want.Execution, &text))
		got, err := history.Read(&text)
		r.must(id, err)
		if len(got.Events) < len(want.Events) || len(want.Events) == 0 {
			r.Fatalf("%s has %d events, exported were %d", id, len(got.Events), len(want.Events))
		}
		for i := range want.Events {
			was, err := json.Marshal(want.Events[i])
			r.must(id, err)
			is, err := json.Marshal(got.Events[i])
			r.must(id, err)
			if !bytes.Equal(was, is) {
				r.Errorf("%s: event %d is\n%s\nwas\n%s", id, i+1, is, was)
			}
		}
	}
}

// expectOutput waits for the end of an instance and checks its output.
func expectOutput[T comparable](r *release, id string, want T) {
	r.Helper()
	var got T
	status, err := r.node.Client().Wait(r.Context(), id)
	if err == nil {
		err = status.Output(&got)
	}
	if err != nil || got != want {
		r.Errorf("%s: %v, %v; want %v", id, got, err, want)
	}
}

// expectEnded checks the instances that had ended when the data were recorded.
func (r *release) expectEnded() {
	r.Helper()
	expectOutput(r, "order-ended", "book approved by Ada")
	status, err := r.node.Client().Wait(r.Context(), "order-failed")
	if err != nil || status.State != cluster.Failed || !errors.Is(status.Err, errUnknownItem) {
		r.Errorf("the failed order: %+v, %v", status, err)
	}
	listed, err := r.node.Client().List(r.Context(), cluster.Filter{Attributes: map[string]string{"shop": "north"}, Name: order.Name()}, "", 10)
	if err != nil || len(listed.Instances) != 4 {
		r.Errorf("by attribute: %+v, %v", listed, err)
	}
}

// expectTimers checks what continues by itself: a timer, a retry, and a schedule.
func (r *release) expectTimers() {
	r.Helper()
	expectOutput(r, "reminder", "remember Ada")
	expectOutput(r, "delivery", "delivered to Ada")
	began := r.started()
	r.eventually("the schedule continues", func() bool { return r.started() > began })
}

// finalize makes the node use the protocol of the present build.
func (r *release) finalize() {
	r.Helper()
	_, err := operate.Finalize(r.Context(), r.node.Client(), "kept data")
	r.must("finalize", err)
	for _, of := range append(r.node.Health().Partitions, r.node.Health().PartitionHealth) {
		if of.Protocol < newProtocol {
			r.eventually("each partition uses the protocol", func() bool {
				return r.node.Health().Partitions[0].Protocol >= newProtocol && r.node.Health().Partitions[1].Protocol >= newProtocol
			})
		}
	}
}

// expectInputs checks what continues with an input: events, a child, an update, a suspended
// instance.
func (r *release) expectInputs() {
	r.Helper()
	ctx, client := r.Context(), r.node.Client()
	if got := r.balance(); got != 12 {
		r.Errorf("the account has %d", got)
	}
	if got, err := cluster.CallUpdate(ctx, client, "account", deposit, 30); err != nil || got != 42 {
		r.Errorf("after a deposit it has %d, %v", got, err)
	}
	r.must("close", cluster.Send(ctx, client, "account", closing, "now"))
	for _, id := range []string{"order-waits", "shipment-of-transfer", "order-suspended"} {
		r.must(id, cluster.Send(ctx, client, id, approval, "Bo"))
	}
	if status, err := client.Get(ctx, "order-suspended"); err != nil || status.State != cluster.Suspended {
		r.Errorf("the suspended order: %+v, %v", status, err)
	}
	r.must("resume", client.Resume(ctx, "order-suspended", "to be continued"))
	r.expectAnswers()
	if got, err := cluster.Call(ctx, client, ticked, "new", "fresh"); err != nil || got != "fresh" {
		r.Errorf("a new instance: %q, %v", got, err)
	}
}

// expectAnswers checks the ends of the instances that got an input.
func (r *release) expectAnswers() {
	r.Helper()
	expectOutput(r, "account", 42)
	expectOutput(r, "order-waits", "pen approved by Bo")
	expectOutput(r, "order-suspended", "ink approved by Bo")
	expectOutput(r, "transfer", "Ada by Bo")
}

// expectIntact checks the hash chains of all histories.
func (r *release) expectIntact() {
	r.Helper()
	results, err := operate.Verify(r.Context(), r.node.Client(), nil)
	if err != nil || len(results) != 2 {
		r.Fatalf("%d partitions, %v", len(results), err)
	}
	for _, of := range results {
		if !of.Done || of.Instances == 0 || len(of.Differences) > 0 {
			r.Errorf("%+v", of)
		}
	}
}

// pack writes the regular files below dir to an archive.
func pack(dir, file string) error {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	if err := errors.Join(archive.AddFS(os.DirFS(dir)), archive.Close(), compressed.Close()); err != nil {
		return err
	}
	return os.WriteFile(file, packed.Bytes(), 0o644)
}

// unpack unpacks an archive. Only its owner has access to what a node has written.
func unpack(file, dir string) error {
	packed, err := os.Open(file)
	if err != nil {
		return err
	}
	defer packed.Close()
	compressed, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.HasSuffix(header.Name, "/") {
			continue
		}
		content, err := io.ReadAll(archive)
		at := filepath.Join(dir, filepath.FromSlash(header.Name))
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(at), 0o700)); err != nil {
			return err
		}
		if err := os.WriteFile(at, content, 0o600); err != nil {
			return err
		}
	}
}
