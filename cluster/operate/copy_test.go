package operate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var renewed = replay.Orchestration[bool, string]("renewed")

// renewedBody sets a status, continues as new, and waits for a signal.
func renewedBody(ctx *replay.Context, isRenewed bool) (string, error) {
	if !isRenewed {
		if err := replay.SetStatus(ctx, "published"); err != nil {
			return "", err
		}
		return "", renewed.ContinueAsNew(ctx, true)
	}
	return signal.Wait(ctx)
}

var steps = replay.Orchestration[string, string]("steps")

// stepsBody calls counted, waits for a signal, calls a child with a derived ID, and calls counted
// again.
func stepsBody(ctx *replay.Context, name string) (string, error) {
	first, err := counted.Call(ctx, name)
	if err != nil {
		return "", err
	}
	second, err := signal.Wait(ctx)
	if err != nil {
		return "", err
	}
	third, err := child.Call(ctx, "")
	if err != nil {
		return "", err
	}
	last, err := counted.Call(ctx, third)
	return strings.Join([]string{first, second, last}, " "), err
}

// The events of steps: OrchestrationStarted, call (2, 3), signal (4, 5), child (6, 7), call (8, 9),
// end.
const eventsOfSteps = 10

func newCopyCluster(t *testing.T, s *service, configure ...func(i int, config *cluster.Config)) *clustertest.Cluster {
	definitions := append(s.definitions(), steps.Bind(stepsBody), renewed.Bind(renewedBody))
	return clustertest.New(t, 3, clustertest.Definitions(definitions...), clustertest.Configure(func(i int, config *cluster.Config) {
		config.Partitions = testPartitions
		for _, change := range configure {
			change(i, config)
		}
	}))
}

func startSteps(t *testing.T, client *cluster.Client, id string) {
	t.Helper()
	if _, err := cluster.StartRun(t.Context(), client, steps, id, "x"); err != nil {
		t.Fatal(err)
	}
}

func sendSignal(t *testing.T, client *cluster.Client, id, value string) {
	t.Helper()
	if err := cluster.Send(t.Context(), client, id, signal, value); err != nil {
		t.Fatal(err)
	}
}

// runSteps runs steps to its end.
func runSteps(t *testing.T, c *clustertest.Cluster, client *cluster.Client, id string) {
	t.Helper()
	startSteps(t, client, id)
	sendSignal(t, client, id, "go")
	sendSignal(t, client, childOf(t, c, client, id), "child")
	expectSteps(t, client, id, "x go child")
}

// childOf returns the ID of the child for which an instance waits, after the child has started.
func childOf(t *testing.T, c *clustertest.Cluster, client *cluster.Client, id string) string {
	t.Helper()
	childID := awaitOpen(t, c, client, id, func(o *cluster.OpenOperation) bool { return o.ChildID != "" }).ChildID
	c.Eventually("the child of "+id+" has started", func() bool {
		_, err := client.Get(t.Context(), childID)
		return err == nil
	})
	return childID
}

func expectSteps(t *testing.T, client *cluster.Client, id, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := cluster.StartRun(ctx, client, steps, id, "", cluster.Attach())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != want {
		t.Errorf("%s returned %q, %v; want %q", id, got, err, want)
	}
}

func expectReason(t *testing.T, err error, reason operate.CopyReason) {
	t.Helper()
	if refused, ok := errors.AsType[*operate.CopyError](err); !ok || refused.Reason != reason {
		t.Errorf("%v; want %q", err, reason)
	}
}

// idIn returns an ID with a prefix in the partition of another, or in another partition.
func idIn(prefix, of string, same bool) string {
	for i := 0; ; i++ {
		id := fmt.Sprint(prefix, i)
		if (slots.Partition(id, testPartitions) == slots.Partition(of, testPartitions)) == same {
			return id
		}
	}
}

func TestRewind_ToEachEvent(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := newCopyCluster(t, s)
	client := c.Client((c.Leader() + 1) % 3)
	ctx := operate.WithPrincipal(t.Context(), "alice")
	runSteps(t, c, client, "a")
	for upTo := range uint64(eventsOfSteps + 1) {
		counts := s.counts.Load()
		before, err := client.Get(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		run, err := operate.Rewind(ctx, client, "a", operate.ToEvent(upTo), "incident", operate.OfExecution(1))
		switch upTo {
		case 0:
			if !errors.As(err, new(*replay.InvalidError)) {
				t.Errorf("no point: %v", err)
			}
			continue
		case 6:
			expectReason(t, err, operate.CopyOpenChild)
			continue
		case eventsOfSteps:
			expectReason(t, err, operate.CopyEnded)
			continue
		}
		if err != nil || run.InstanceID != "a" || run.Execution != before.Execution+1 || run.EventID != upTo {
			t.Fatalf("up to %d: %+v, %v", upTo, run, err)
		}
		if upTo < 6 {
			sendSignal(t, client, childOf(t, c, client, "a"), "child")
		}
		expectSteps(t, client, "a", "x go child")
		want := map[uint64]int64{1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 7: 1, 8: 1, 9: 0}[upTo]
		if made := s.counts.Load() - counts; made != want {
			t.Errorf("up to %d: counted was called %d times, want %d", upTo, made, want)
		}
	}
	var records []string
	for record, err := range operate.Audit(ctx, client, operate.AuditFilter{Instances: cluster.Filter{IDPrefix: "a"}}) {
		if err != nil {
			t.Fatal(err)
		}
		if record.Event.Type == history.HistoryCopied {
			records = append(records, fmt.Sprint(record.Event.Principal, " ", record.Event.Reason))
		}
	}
	leaderOf := "node n" + fmt.Sprint((c.Leader()+1)%3) + " for alice incident"
	if len(records) != 8 || slices.ContainsFunc(records, func(r string) bool { return !strings.HasSuffix(r, "for alice incident") }) {
		t.Errorf("audit: %q, want 8 times %q", records, leaderOf)
	}
}

// The reads show the deadline, the times and the custom status of the copy.
func TestRewind_IsShown(t *testing.T) {
	c := newCopyCluster(t, new(service))
	client, ctx := c.Client(0), t.Context()
	started := time.Now()
	if _, err := cluster.StartRun(ctx, client, renewed, "a", false, cluster.Deadline(started.Add(time.Hour))); err != nil {
		t.Fatal(err)
	}
	awaitOpen(t, c, client, "a", func(o *cluster.OpenOperation) bool { return o.Name == "deadline" && o.Execution == 2 })
	// Events 2 and 3 are the timer of the deadline and the subscription.
	if _, err := operate.Rewind(ctx, client, "a", operate.ToEvent(3), ""); err != nil {
		t.Fatal(err)
	}
	var names []string
	c.Eventually("the copy has replaced the timer of the deadline", func() bool {
		names = nil
		pending, err := client.Pending(ctx, "a")
		for _, open := range pending {
			names = append(names, open.Name)
		}
		return err == nil && len(pending) == 2 && pending[0].Execution == 3 && pending[1].EventID > 4
	})
	if !slices.Equal(names, []string{"signal", "deadline"}) {
		t.Errorf("open: %q", names)
	}
	status, err := client.Get(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	var custom string
	if err := status.CustomStatus(&custom); err != nil || custom != "published" {
		t.Errorf("custom status %q, %v", custom, err)
	}
	executions, err := client.Executions(ctx, "a")
	if err != nil || len(executions) != 3 || !slices.ContainsFunc(executions, func(e cluster.Execution) bool { return e.StartedAt.Equal(status.CreatedAt) }) {
		t.Errorf("created at %v: %+v, %v", status.CreatedAt, executions, err)
	}
}

func TestRewind_RunningInstanceBeforeCall(t *testing.T) {
	s := new(service)
	c := newCopyCluster(t, s)
	client := c.Client(0)
	startSteps(t, client, "a")
	sendSignal(t, client, "a", "go")
	abandoned := childOf(t, c, client, "a")
	waited := make(chan error, 1)
	first, err := cluster.StartRun(t.Context(), client, steps, "a", "", cluster.Attach())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := first.Wait(t.Context())
		waited <- err
	}()
	if _, err := operate.Rewind(t.Context(), client, "a", operate.BeforeCall("child", 1), "", operate.DropEvents()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, replay.ErrTerminated) {
		t.Errorf("the caller that waited for the terminated run got %v", err)
	}
	status, err := client.Wait(t.Context(), abandoned)
	if err != nil || status.State != cluster.Canceled {
		t.Errorf("the child of the terminated run: %v, %v", status, err)
	}
	next := childOf(t, c, client, "a")
	if next == abandoned {
		t.Error("the new run has the child of the old one")
	}
	sendSignal(t, client, next, "child")
	expectSteps(t, client, "a", "x go child")
	_, err = operate.Rewind(t.Context(), client, "a", operate.BeforeCall("counted", 3), "")
	expectReason(t, err, operate.CopyNoCall)
	if _, err := operate.Rewind(t.Context(), client, "none", operate.ToEvent(1), ""); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("an unknown instance: %v", err)
	}
}

func TestRerunAndFork(t *testing.T) {
	s := new(service)
	c := newCopyCluster(t, s)
	client := c.Client(0)
	ctx := t.Context()
	runSteps(t, c, client, "a")
	run, err := operate.Rerun(ctx, client, "a", "again", operate.DropEvents(), operate.CopyRequestID("r"))
	if err != nil || run.Execution != 2 || run.EventID != 1 {
		t.Fatalf("%+v, %v", run, err)
	}
	fork, err := operate.Fork(ctx, client, "a", "", operate.BeforeCall("child", 1), "what if", operate.OfExecution(1))
	if err != nil || fork.Execution != 1 || fork.EventID != 5 {
		t.Fatalf("%+v, %v", fork, err)
	}
	other, err := operate.Fork(ctx, client, "a", idIn("b", "a", true), operate.ToEvent(1), "", operate.OtherInput("y"), operate.DropEvents())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", other.InstanceID} {
		sendSignal(t, client, id, "again")
	}
	for id, want := range map[string]string{"a": "x again child", fork.InstanceID: "x go child", other.InstanceID: "y again child"} {
		sendSignal(t, client, childOf(t, c, client, id), "child")
		expectSteps(t, client, id, want)
	}
	_, err = operate.Fork(ctx, client, "a", other.InstanceID, operate.ToEvent(1), "")
	expectReason(t, err, operate.CopyTargetExists)
	_, err = operate.Fork(ctx, client, "a", idIn("b", "a", false), operate.ToEvent(1), "")
	expectReason(t, err, operate.CopyOtherPartition)
	_, err = operate.Fork(ctx, client, "a", "", operate.ToEvent(3), "", operate.OtherInput("y"))
	if !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("another input later: %v", err)
	}
	if again, err := operate.Rerun(ctx, client, "a", "again", operate.CopyRequestID("r")); err != nil || *again != *run {
		t.Errorf("repeated: %+v, %v; want %+v", again, err, run)
	}
	if _, err := client.Purge(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := operate.Rerun(ctx, client, "a", ""); !errors.Is(err, cluster.ErrNotFound) {
		t.Errorf("a purged instance: %v", err)
	}
}

// A copy survives its leader, and a node that restarts has it.
func TestRewind_LeaderKilled(t *testing.T) {
	t.Parallel()
	s := new(service)
	c := newCopyCluster(t, s)
	leader := c.Leader()
	client := c.Client((leader + 1) % 3)
	for _, id := range []string{"a", "b", "c", "d"} { // of both partitions
		runSteps(t, c, client, id)
		if _, err := operate.Rewind(t.Context(), client, id, operate.BeforeCall("child", 1), ""); err != nil {
			t.Fatal(err)
		}
	}
	c.Kill(leader)
	for _, id := range []string{"a", "b", "c", "d"} {
		sendSignal(t, client, childOf(t, c, client, id), "late")
		expectSteps(t, client, id, "x go late")
	}
	c.Restart(leader)
	restarted := c.Client(leader)
	c.Eventually("the restarted node has the copies", func() bool {
		status, err := restarted.Get(t.Context(), "a", cluster.Stale())
		return err == nil && status.Execution == 2 && status.State == cluster.Completed
	})
}

// The leader refuses a copy before it abandons or evicts the target's code. A child whose end is
// not recorded by its parent, which may be in another partition, still belongs to the parent.
func TestCopy_RefusedBeforeCodeIsAbandoned(t *testing.T) {
	t.Parallel()
	s, release := new(service), make(chan struct{})
	var bodies atomic.Int64
	hangs := replay.Orchestration[string, string]("hangs")
	definitions := append(s.definitions(), hangs.Bind(func(ctx *replay.Context, kid string) (string, error) {
		bodies.Add(1)
		end := child.Start(ctx, "", replay.ChildID(kid))
		if _, err := signal.Wait(ctx); err != nil {
			return "", err
		}
		if _, err := counted.Call(ctx, ""); err != nil {
			return "", err
		}
		<-release
		return end.Await(ctx)
	}))
	c := clustertest.New(t, 1, clustertest.Definitions(definitions...), clustertest.Configure(func(_ int, config *cluster.Config) {
		config.Partitions = testPartitions
	}))
	client, ctx := c.Client(0), t.Context()
	parents := map[string]string{idIn("p", "a", true): idIn("k", "a", true), idIn("q", "a", true): idIn("k", "a", false)}
	for parent, kid := range parents {
		if _, err := cluster.StartRun(ctx, client, hangs, parent, kid); err != nil {
			t.Fatal(err)
		}
		childOf(t, c, client, parent)
		sendSignal(t, client, parent, "hang")
		c.Eventually(parent+" is hung", func() bool {
			status, err := client.Get(ctx, parent)
			return err == nil && status.State == cluster.Hung
		})
		sendSignal(t, client, kid, "end")
		if status, err := client.Wait(ctx, kid); err != nil || status.State != cluster.Completed {
			t.Fatalf("%+v, %v", status, err)
		}
		_, err := operate.Rerun(ctx, client, kid, "")
		expectReason(t, err, operate.CopyHasParent)
		_, err = operate.Rewind(ctx, client, parent, operate.ToEvent(1000), "")
		expectReason(t, err, operate.CopyBeyondEnd)
	}
	_, err := operate.Fork(ctx, client, idIn("p", "a", true), idIn("q", "a", true), operate.ToEvent(1), "")
	expectReason(t, err, operate.CopyTargetExists)
	close(release)
	for parent, kid := range parents {
		if status, err := client.Wait(ctx, parent); err != nil || status.State != cluster.Completed {
			t.Errorf("%+v, %v", status, err)
		}
		if _, err := operate.Rerun(ctx, client, kid, ""); err != nil {
			t.Errorf("%s, whose parent has its end: %v", kid, err)
		}
	}
	if made := bodies.Load(); made != int64(len(parents)) {
		t.Errorf("the code of %d parents has begun %d times", len(parents), made)
	}
}
