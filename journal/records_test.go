package journal

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The tests of the records beside the histories, attempts and chained starts, and of purges.

func orchestrationChained(instance string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationChained{OrchestrationChained: &journalpb.OrchestrationChained{
		Name: "next", Instance: instance,
	}}}
}

func orchestrationCompleted() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{OrchestrationCompleted: &journalpb.OrchestrationCompleted{}}}
}

func newAttempt(epoch uint64, instance string, event uint64, failed uint32) *journalpb.Attempt {
	return &journalpb.Attempt{
		Ref:   &journalpb.OperationRef{Instance: instance, Execution: 1, EventId: event},
		Epoch: epoch, Failed: failed, LastError: &journalpb.Error{Message: "no answer"}, NextAt: 17,
		Heartbeat: &journalpb.Payload{Data: []byte(`"half"`)},
	}
}

// proposeAttempt proposes an attempt and returns the outcome.
func proposeAttempt(t testing.TB, j *Journal, a *journalpb.Attempt) error {
	t.Helper()
	result := make(chan error, 2)
	j.Attempt(a, func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-time.After(waittest.Timeout):
		t.Fatal("no answer to an attempt")
		return nil
	}
}

// proposePurge proposes a purge and returns the outcome.
func proposePurge(t testing.TB, j *Journal, epoch uint64, instances ...string) (purged int, err error) {
	t.Helper()
	type answer struct {
		purged int
		err    error
	}
	result := make(chan answer, 2)
	j.Purge(&journalpb.Purge{Epoch: epoch, Instances: instances}, func(purged int, err error) { result <- answer{purged, err} })
	select {
	case a := <-result:
		return a.purged, a.err
	case <-time.After(waittest.Timeout):
		t.Fatal("no answer to a purge")
		return 0, nil
	}
}

func mustPurge(t testing.TB, j *Journal, want int, epoch uint64, instances ...string) {
	t.Helper()
	if got, err := proposePurge(t, j, epoch, instances...); err != nil || got != want {
		t.Fatalf("%d of %v purged, want %d: %v", got, instances, want, err)
	}
}

// dumpReads is the result of all reads, as text.
func dumpReads(j *Journal) []string {
	var all []string
	for in := range j.Instances() {
		all = append(all, fmt.Sprintf("%s %d.%d", in.Instance, in.Execution, in.LastEventId))
	}
	for in := range j.Unbegun() {
		all = append(all, "unbegun "+in.Instance)
	}
	for in := range j.Orphans() {
		all = append(all, "orphan "+in.Instance)
	}
	for c := range j.Chained() {
		all = append(all, fmt.Sprintf("chained %s by %s/%d", c.Chained.Instance, c.Ref.Instance, c.Ref.EventId))
	}
	for op := range j.OpenOperations() {
		all = append(all, fmt.Sprintf("open %s/%d failed %d %s %s", op.Ref.Instance, op.Ref.EventId,
			op.Attempt.GetFailed(), op.Attempt.GetLastError().GetMessage(), op.Attempt.GetHeartbeat().GetData()))
	}
	return all
}

func wantReads(t *testing.T, j *Journal, want ...string) {
	t.Helper()
	if got := dumpReads(j); !slices.Equal(got, want) {
		t.Errorf("reads show %q\nwant %q", got, want)
	}
}

func TestRestart_KeepsAttemptsAndChainedStarts(t *testing.T) {
	for name, snapshot := range map[string]bool{"from the log": false, "from a snapshot and the log": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := openJournal(t, Config{Dir: dir})
			epoch := awaitLeadership(t, j)
			mustAppend(t, j, newStartAppend(epoch, "a"))
			mustAppend(t, j, newStartAppend(epoch, "asker"))
			mustAppend(t, j, newAppend(epoch, "asker", 3, orchestrationChained("x"), orchestrationChained("y"), orchestrationCompleted()))
			mustAppend(t, j, newStartAppend(epoch, "y"))
			mustAppend(t, j, newAppend(epoch, "y", 3, orchestrationCompleted()))
			for _, event := range []uint64{2, 4} {
				if event == 4 {
					mustAppend(t, j, newStepAppend(epoch, "a", 3))
				}
				if err := proposeAttempt(t, j, newAttempt(epoch, "a", event, 2)); err != nil {
					t.Fatal(err)
				}
			}
			mustPurge(t, j, 2, epoch, "asker", "y", "a", "unknown")
			if snapshot {
				if err := j.raft.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
			}
			mustAppend(t, j, newStartAppend(epoch, "b"))
			mustAppend(t, j, newAppend(epoch, "b", 3, orchestrationCompleted()))
			mustPurge(t, j, 1, epoch, "b")
			if err := proposeAttempt(t, j, newAttempt(epoch, "a", 4, 3)); err != nil {
				t.Fatal(err)
			}
			want := []string{"a 1.4", "chained x by asker/3", `open a/4 failed 3 no answer "half"`}
			wantReads(t, j, want...)
			closeJournal(t, j)

			again := openJournal(t, Config{Dir: dir})
			epoch = awaitLeadership(t, again)
			wantReads(t, again, want...)
			mustAppend(t, again, newStartAppend(epoch, "b")) // as if it had never existed
			mustAppend(t, again, newStartAppend(epoch, "x"))
			mustAppend(t, again, newStepAppend(epoch, "a", 5))
			wantReads(t, again, "a 1.6", "b 1.2", "x 1.2", "open a/6 failed 0  ", "open b/2 failed 0  ", "open x/2 failed 0  ")
		})
	}
}

func TestRestart_KeepsUnbegunAndOrphans(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, Config{Dir: dir})
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newAppend(epoch, "p", 1,
		&journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "p"}}},
		&journalpb.Event{Body: &journalpb.Event_SubOrchestrationScheduled{SubOrchestrationScheduled: &journalpb.SubOrchestrationScheduled{Instance: "c"}}}))
	mustAppend(t, j, newAppend(epoch, "c", 1,
		&journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{
			Name: "c", Parent: &journalpb.OperationRef{Instance: "p", Execution: 1, EventId: 2},
		}}}))
	wantReads(t, j, "c 1.1", "p 1.2", "unbegun c", "open p/2 failed 0  ")
	mustAppend(t, j, newAppend(epoch, "p", 3, orchestrationCompleted()))
	want := []string{"c 1.1", "p 1.3", "unbegun c", "orphan c"}
	wantReads(t, j, want...)
	if err := j.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	closeJournal(t, j)
	again := openJournal(t, Config{Dir: dir})
	awaitLeadership(t, again)
	wantReads(t, again, want...)
}

func TestPropose_ReturnsAttemptAndPurgeErrors(t *testing.T) {
	j := openJournal(t, Config{AppendBytesMax: 1500})
	var stale *state.StaleEpochError
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(epoch, "a"))
	if err := proposeAttempt(t, j, newAttempt(epoch-1, "a", 2, 1)); !errors.As(err, &stale) {
		t.Error(err)
	}
	if n, err := proposePurge(t, j, epoch-1, "a"); !errors.As(err, &stale) || n != 0 {
		t.Error(n, err)
	}
	var over *state.ClosedError
	if err := proposeAttempt(t, j, newAttempt(epoch, "a", 3, 1)); !errors.As(err, &over) || over.EventID != 3 {
		t.Error(err)
	}
	var invalid *state.InvalidAppendError
	if err := proposeAttempt(t, j, newAttempt(epoch, "a", 2, 2)); err != nil {
		t.Error(err)
	}
	if err := proposeAttempt(t, j, newAttempt(epoch, "a", 2, 1)); !errors.As(err, &invalid) {
		t.Error(err)
	}
	bad := newAttempt(epoch, "a", 2, 3)
	bad.LastError.Message = "\xff"
	if err := proposeAttempt(t, j, bad); err == nil || j.Err() != nil {
		t.Errorf("not UTF-8: %v, node error %v", err, j.Err())
	}
	var large *TooLargeError
	if n, err := proposePurge(t, j, epoch, string(make([]byte, 2000))); !errors.As(err, &large) || n != 0 {
		t.Error(n, err)
	}
	wantReads(t, j, "a 1.2", `open a/2 failed 2 no answer "half"`)
	closeJournal(t, j)
	if err := proposeAttempt(t, j, newAttempt(epoch, "a", 2, 3)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if n, err := proposePurge(t, j, epoch, "a"); !errors.Is(err, ErrClosed) || n != 0 {
		t.Error(n, err)
	}
}

func TestPropose_KeepsCallerOrderAcrossKinds(t *testing.T) {
	j := openJournal(t, Config{})
	epoch := awaitLeadership(t, j)
	results := make(chan error, 4)
	answered := func(err error) { results <- err }
	for range 200 {
		j.Append(newStartAppend(epoch, "a"), answered)
		j.Attempt(newAttempt(epoch, "a", 2, 1), answered)
		j.Append(newAppend(epoch, "a", 3, orchestrationCompleted()), answered)
		j.Purge(&journalpb.Purge{Epoch: epoch, Instances: []string{"a"}}, func(purged int, err error) {
			if purged != 1 {
				t.Errorf("%d purged", purged)
			}
			results <- err
		})
		for range 4 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
	}
	wantReads(t, j)
}

func TestReplication_CopiesAttemptsAndChainedStarts(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		j := g.nodes[g.leader(t)]
		epoch := awaitLeadership(t, j)
		for i := range 20 {
			id := fmt.Sprintf("i-%02d", i)
			mustAppend(t, j, newStartAppend(epoch, id))
			if err := proposeAttempt(t, j, newAttempt(epoch, id, 2, uint32(i))); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				mustAppend(t, j, newAppend(epoch, id, 3, orchestrationChained("next-"+id), orchestrationCompleted()))
			}
			if i%4 == 0 {
				mustPurge(t, j, 1, epoch, id)
			}
		}
		g.awaitEqualStates(t)
		want := dumpReads(j)
		for i, other := range g.nodes {
			if got := dumpReads(other); !slices.Equal(got, want) {
				t.Errorf("node %d shows %q\nthe leader %q", i, got, want)
			}
		}
	})
}
