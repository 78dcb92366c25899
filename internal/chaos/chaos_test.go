package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/check"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The nodes of these tests are processes of this test binary.
func TestMain(m *testing.M) {
	if config := os.Getenv(host.Env); config != "" {
		exit(host.Run(config))
	}
	os.Exit(m.Run())
}

// testLimit ends a failed test. It is no measure of speed.
const testLimit = 15 * time.Minute

func TestCampaign_LeaderKilledRepeatedly(t *testing.T) {
	for _, partitions := range []int{1, 3} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) { killLeaderRepeatedly(t, partitions) })
	}
}

func killLeaderRepeatedly(t *testing.T, partitions int) {
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	kill, err := selectFaults("kill-leader")
	if err != nil {
		t.Fatal(err)
	}
	kill[0].minDuration, kill[0].maxDuration = 0, shortTime
	var out bytes.Buffer
	const kills = 3
	record, shortcomings, err := runCampaign(ctx, options{
		dir: t.TempDir(), seed: 1, out: &out, small: true, network: networkAuto, nodes: fleetSize, faults: kill, count: kills, rate: 1, partitions: partitions,
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	result := checkRecord(t, record, shortcomings, &out)
	led := 0
	for _, f := range record.Faults {
		if f.LeaderAfter != "" && f.LeaderAfter != f.LeaderBefore && f.Gap > 0 {
			led++
		}
	}
	if led != kills {
		t.Errorf("%d of %d kills had another node lead and acknowledge writes", led, kills)
	}
	if result.Counts["leaderships"] <= kills {
		t.Errorf("the logs report %d leaderships", result.Counts["leaderships"])
	}
	if n := acknowledgedProbes(record); n < kills {
		t.Errorf("%d events of probes were acknowledged: no gap can be measured", n)
	}
}

func acknowledgedProbes(record *evidence.Record) int {
	n := 0
	for _, call := range record.Calls {
		if call.Kind == evidence.Send && call.Outcome == evidence.Acked && strings.HasPrefix(call.Instance, "probe-") {
			n++
		}
	}
	return n
}

func TestSelectFaults_ByName(t *testing.T) {
	all, err := selectFaults("")
	if err != nil || len(all) == 0 || slices.ContainsFunc(all, func(f fault) bool { return f.disabledReason != "" }) {
		t.Errorf("no names: %v, %v", joinNames(all), err)
	}
	for _, f := range faults {
		if chosen, err := selectFaults(f.name); err != nil || len(chosen) != 1 || chosen[0].name != f.name {
			t.Errorf("%s: %v, %v", f.name, chosen, err)
		}
		if f.maxDuration <= f.minDuration {
			t.Errorf("%s lasts from %v to %v", f.name, f.minDuration, f.maxDuration)
		}
	}
	if _, err := selectFaults("kill-leader,nonsense"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("nonsense: %v", err)
	}
}

func TestOutcomeOf_AfterRetries(t *testing.T) {
	acked := evidence.Answer{Outcome: evidence.Acked}
	rejected := evidence.Answer{Outcome: evidence.Rejected, Code: evidence.Ended}
	busy := evidence.Answer{Outcome: evidence.Rejected, Code: evidence.Busy}
	none := evidence.Answer{Outcome: evidence.NotExecuted}
	unknown := evidence.Answer{Outcome: evidence.Unknown}
	named := evidence.Request{Kind: evidence.Send, RequestID: "1/1"}
	nameless := evidence.Request{Kind: evidence.Terminate}
	for _, c := range []struct {
		name     string
		request  evidence.Request
		last     evidence.Answer
		doubtful bool
		want     evidence.Outcome
	}{
		{"acknowledged at once", named, acked, false, evidence.Acked},
		{"acknowledged in the end", nameless, acked, true, evidence.Acked},
		{"rejected at once", nameless, rejected, false, evidence.Rejected},
		{"rejected after a try that may have executed it", nameless, rejected, true, evidence.Unknown},
		{"rejected, and a repetition would have been recognized", named, rejected, true, evidence.Rejected},
		{"busy to the end", named, busy, false, evidence.NotExecuted},
		{"busy after a try that may have executed it", named, busy, true, evidence.Unknown},
		{"never taken", named, none, false, evidence.NotExecuted},
		{"no answer at all", named, evidence.Answer{}, false, evidence.NotExecuted},
		{"no answer to the last try", named, unknown, false, evidence.Unknown},
		{"not executed after a try that may have executed it", named, none, true, evidence.Unknown},
	} {
		call := evidence.Call{Request: c.request, Answer: c.last, MaybeExecuted: c.doubtful}
		if got := outcomeOf(call); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

func TestCoverageShortfalls(t *testing.T) {
	result := &check.Result{}
	idle := len(result.Uncovered())
	phase := evidence.Fault{Name: "a", End: time.Second}
	met := evidence.Fault{Name: "b", End: time.Second, InFlight: 1}
	skipped := evidence.Fault{Name: "c", Skipped: "no root"}
	failed := evidence.Fault{Name: "d"}
	for _, c := range []struct {
		name   string
		faults []evidence.Fault
		want   int
	}{
		{"all that it takes", []evidence.Fault{met, phase, skipped}, 0},
		{"too few met calls", []evidence.Fault{met, phase, phase}, 1},
		{"too few injected", []evidence.Fault{met, failed}, 1},
		{"too many skipped of a kind that is possible", []evidence.Fault{met, phase, {Name: "b", End: time.Second, Skipped: "no trace"}}, 1},
	} {
		if got := coverageShortfalls(&evidence.Record{Faults: c.faults}, result); len(got)-idle != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestReportFaults_ShowsSkipped(t *testing.T) {
	var out bytes.Buffer
	reportFaults(&out, []evidence.Fault{
		{Name: "kill-leader", End: time.Second, Gap: 300 * time.Millisecond, InFlight: 2},
		{Name: "kill-leader", End: time.Second, Gap: 500 * time.Millisecond},
		{Name: "full-disk", Skipped: "no root"},
	})
	for _, want := range [][]string{{"kill-leader", "2", "0", "1", "500ms", "500ms"}, {"full-disk", "0", "1", "0"}} {
		if !slices.ContainsFunc(strings.Split(out.String(), "\n"), func(line string) bool {
			fields := strings.Fields(line)
			return len(fields) >= len(want) && slices.Equal(fields[:len(want)], want)
		}) {
			t.Errorf("no line %v in\n%s", want, &out)
		}
	}
	if line := describeFault(evidence.Fault{Name: "full-disk", Skipped: "no root"}); !strings.Contains(line, "SKIPPED: no root") {
		t.Error(line)
	}
}

func TestBit_FlipAndRestore(t *testing.T) {
	dir := t.TempDir()
	want := []byte("some bytes of a journal")
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := &injection{random: newRandom(1)}
	for range 50 {
		name, offset, err := s.randomByte(dir)
		if err != nil {
			t.Fatal(err)
		}
		b := &bit{name: name, offset: offset, mask: 1 << 3}
		for i, step := range []func() error{b.flip, b.restore} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(name); err != nil || bytes.Equal(got, want) != (i == 1) {
				t.Fatalf("after %d flips: %q, %v", i+1, got, err)
			}
		}
	}
	if _, _, err := s.randomByte(t.TempDir()); err == nil {
		t.Error("a byte of nothing")
	}
}

// A table of a snapshot is also a file of the state, and stays one after the snapshot is deleted.
func TestBit_RestoresUnlinkedFile(t *testing.T) {
	dir := t.TempDir()
	want := []byte("some bytes of a table")
	table, ofSnapshot := filepath.Join(dir, "table"), filepath.Join(dir, "snapshot")
	if err := errors.Join(os.WriteFile(table, want, 0o600), os.Link(table, ofSnapshot)); err != nil {
		t.Fatal(err)
	}
	b := &bit{name: ofSnapshot, offset: 5, mask: 1}
	if err := errors.Join(b.flip(), os.Remove(ofSnapshot), b.restore()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(table); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q is left, %v", got, err)
	}
}

// restore must not damage bytes that a node has written over the flipped bit.
func TestBit_SkipsOverwrittenFile(t *testing.T) {
	for name, write := range map[string]func(name string) error{
		"removed": os.Remove,
		"cut":     func(name string) error { return os.Truncate(name, 3) },
		"written over": func(name string) error {
			return os.WriteFile(name, []byte("other bytes than before"), 0o600)
		},
		"made anew": func(name string) error {
			content, err := os.ReadFile(name)
			return errors.Join(err, os.WriteFile(name+".new", content, 0o600), os.Rename(name+".new", name))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bit{name: filepath.Join(t.TempDir(), "file"), offset: 5, mask: 1}
			if err := os.WriteFile(b.name, []byte("some bytes of a journal"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(b.flip(), write(b.name)); err != nil {
				t.Fatal(err)
			}
			want, _ := os.ReadFile(b.name)
			err := b.restore()
			if got, _ := os.ReadFile(b.name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%q became %q, %v", want, got, err)
			}
		})
	}
}

func TestInjection_HealsInReverseOrder(t *testing.T) {
	broken := errors.New("as wanted")
	var undone []int
	s := new(injection)
	for i := range 3 {
		s.onHeal(func(context.Context) error {
			undone = append(undone, i)
			return broken
		})
	}
	if err := s.heal(t.Context()); !errors.Is(err, broken) || !slices.Equal(undone, []int{2, 1, 0}) {
		t.Errorf("%v, %v", undone, err)
	}
}

func TestParseLeadership_LogLine(t *testing.T) {
	for line, want := range map[string]evidence.Leadership{
		`time=2026-01-01T00:00:00.000Z level=INFO msg=leading node=n1 epoch=11 term=18`:             {Epoch: 11, Term: 18},
		`time=2026-01-01T00:00:00.000Z level=INFO msg=leading node=n1 partition=3 epoch=11 term=18`: {Partition: 3, Epoch: 11, Term: 18},
		`time=2026-01-01T00:00:00.000Z level=INFO msg="leadership lost" node=n1 epoch=11 term=1`:    {},
		`time=2026-01-01T00:00:00.000Z level=INFO msg=leading node=n1`:                              {},
	} {
		got, ok := parseLeadership(line)
		if ok != (want.Epoch > 0) || ok && got != want {
			t.Errorf("%s: %+v, %v", line, got, ok)
		}
	}
}

func TestParseInstall_LogLine(t *testing.T) {
	for line, want := range map[string]evidence.Install{
		`time=2026-01-01T00:00:00.000Z level=INFO msg="state replaced by snapshot" node=n1 index=17`:             {Index: 17},
		`time=2026-01-01T00:00:00.000Z level=INFO msg="state replaced by snapshot" node=n1 partition=2 index=17`: {Partition: 2, Index: 17},
		`time=2026-01-01T00:00:00.000Z level=INFO msg="state rebuilt from snapshot" index=17`:                    {},
		`time=2026-01-01T00:00:00.000Z level=INFO msg="state replaced by snapshot" node=n1`:                      {},
	} {
		if got, ok := parseInstall(line); ok != (want.Index > 0) || ok && got != want {
			t.Errorf("%s: %+v, %v", line, got, ok)
		}
	}
}

// A request to a failed node may wait for a leader forever, while the node keeps reporting its old
// state.
func TestReport_StopsForFailedNode(t *testing.T) {
	f := &fleet{sockets: t.TempDir(), log: evidence.NewLog(1)}
	f.http = &http.Client{Transport: &http.Transport{DialContext: f.dialSocket}}
	defer f.http.CloseIdleConnections()
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+host.NodePath, func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(host.NodeStatus{ID: "n1", Err: "its disk"})
	})
	mux.HandleFunc("POST "+host.ReportPath, func(w http.ResponseWriter, r *http.Request) {
		var request host.ReportRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			t.Error(err)
		}
		if !request.Stale {
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(evidence.Replica{Applied: []uint64{7}})
	})
	listener, err := net.Listen("unix", filepath.Join(f.sockets, "n1"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	}()
	node := &process{id: "n1", fleet: f, running: &processRun{number: 1, socket: "n1"}}
	var nodeFailed *nodeFailedError
	if _, err := f.report(t.Context(), node, host.ReportRequest{}); !errors.As(err, &nodeFailed) || nodeFailed.node != "n1" {
		t.Errorf("a question to all: %v", err)
	}
	nodeFailed = nil
	c := &campaign{log: f.log, fleet: f}
	if err := c.collectOwn(t.Context(), node, []uint64{8}); !errors.As(err, &nodeFailed) {
		t.Errorf("more than it will ever have: %v", err)
	}
}

// checkRecord checks the evidence of a campaign, logs the report, and fails the test for each
// violation and each shortcoming.
func checkRecord(t *testing.T, record *evidence.Record, shortcomings []string, out *bytes.Buffer) *check.Result {
	t.Helper()
	registry, err := engine.NewRegistry(host.Orchestrations()...)
	if err != nil {
		t.Fatal(err)
	}
	result := check.Run(record, registry)
	result.Report(out)
	t.Log(out.String())
	for _, violation := range result.Violations {
		t.Errorf("%s: %s", violation.Invariant, violation.Detail)
	}
	if len(shortcomings) > 0 {
		t.Error(shortcomings)
	}
	return result
}
