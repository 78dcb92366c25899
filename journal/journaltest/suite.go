package journaltest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Run runs the whole suite, each part as a subtest.
func Run(t *testing.T, s Subject) {
	t.Run("AppendIsWholeAndInPlaceOrRejected", s.testAppendRule)
	t.Run("ProposalsOfOneCallerKeepTheirOrder", s.testOrder)
	t.Run("RejectionsSayWhatTheyAre", s.testRejections)
	t.Run("PurgedIsAsIfItHadNeverBeen", s.testPurge)
	t.Run("EveryProposalIsAnsweredOnce", s.testResolvesOnce)
	t.Run("ClosedRejects", s.testClosed)
	if s.Durable {
		t.Run("RestartKeepsWhatWasAcknowledged", s.testRestart)
		t.Run("EarlierEpochsAreLockedOut", s.testEpochFencing)
	}
	if s.Durable && s.OpenFaulty != nil {
		t.Run("FaultAtEveryCallLosesNothingAcknowledged", s.testFaults)
	}
}

// ignoreNotFound returns nil for the error of an unknown instance.
func ignoreNotFound(err error) error {
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	return err
}

func wantError[E error](t testing.TB, what string, err error) {
	t.Helper()
	var kind E
	if !errors.As(err, &kind) {
		t.Errorf("%s: %v, want a %T", what, err, kind)
	}
}

func (s Subject) testAppendRule(t *testing.T) {
	j := s.open(t, t.TempDir())
	wantError[*state.ConflictError](t, "a second append before the first", j.append(j.stepAppend("a", 3)))
	j.wantEvents("a", 0)
	j.mustAppend(j.beginAppend("a"))
	wantError[*state.ConflictError](t, "the first append again", j.append(j.beginAppend("a")))
	wantError[*state.ConflictError](t, "a gap", j.append(j.stepAppend("a", 4)))
	wantError[*state.ConflictError](t, "an event that exists", j.append(j.stepAppend("a", 2)))
	j.wantEvents("a", 2)

	half := j.stepAppend("a", 3) // its first event is in order, the second is not
	half.Segments[0].Events[1] = newAppend(j.epoch, "a", 5, scheduledEvent()).Segments[0].Events[0]
	wantError[*state.InvalidAppendError](t, "a gap within an append", j.append(half))
	j.wantEvents("a", 2)
	j.mustAppend(j.stepAppend("a", 3))
	j.mustAppend(j.beginAppend("b"))
	j.wantEvents("a", 4)
	j.wantEvents("b", 2)
	if err := j.Barrier(t.Context()); err != nil {
		t.Errorf("barrier: %v", err)
	}
}

func (s Subject) testOrder(t *testing.T) {
	const instances, steps = 20, 30
	j := s.open(t, t.TempDir())
	var all sync.WaitGroup
	for i := range instances {
		all.Go(func() {
			id := fmt.Sprintf("i-%02d", i)
			results := make(chan error, steps)
			j.Append(j.beginAppend(id), func(err error) { results <- err })
			for n := 1; n < steps; n++ { // does not wait for the previous append
				j.Append(j.stepAppend(id, uint64(2*n+1)), func(err error) { results <- err })
			}
			for range steps {
				if err := <-results; err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	all.Wait()
	for i := range instances {
		j.wantEvents(fmt.Sprintf("i-%02d", i), 2*steps)
	}
}

func newAttempt(epoch uint64, instance string, event uint64, failed uint32) *journalpb.Attempt {
	return &journalpb.Attempt{
		Ref:   &journalpb.OperationRef{Instance: instance, Execution: 1, EventId: event},
		Epoch: epoch, Failed: failed, LastError: &journalpb.Error{Message: "no answer"},
	}
}

func (s Subject) testRejections(t *testing.T) {
	j := s.open(t, t.TempDir())
	j.mustAppend(j.beginAppend("a"))
	stale := j.stepAppend("a", 3)
	stale.Epoch--
	wantError[*state.StaleEpochError](t, "an append of an earlier epoch", j.append(stale))
	wantError[*state.StaleEpochError](t, "an attempt of an earlier epoch", j.attempt(newAttempt(j.epoch-1, "a", 2, 1)))
	_, err := j.purge(j.epoch-1, "a")
	wantError[*state.StaleEpochError](t, "a purge of an earlier epoch", err)
	wantError[*state.ClosedError](t, "an attempt of an operation that is not open", j.attempt(newAttempt(j.epoch, "a", 3, 1)))
	if err := j.attempt(newAttempt(j.epoch, "a", 2, 2)); err != nil {
		t.Errorf("attempt: %v", err)
	}
	wantError[*state.InvalidAppendError](t, "fewer attempts than before", j.attempt(newAttempt(j.epoch, "a", 2, 1)))
	j.wantEvents("a", 2)
}

func (s Subject) testPurge(t *testing.T) {
	j := s.open(t, t.TempDir())
	j.mustAppend(j.beginAppend("running"))
	j.mustAppend(j.beginAppend("ended"))
	j.mustAppend(j.endAppend("ended", 3))
	if n, err := j.purge(j.epoch, "running", "ended", "ended", "nobody"); err != nil || n != 1 {
		t.Errorf("%d purged, error %v; want 1", n, err)
	}
	j.wantEvents("running", 2)
	j.wantEvents("ended", 0)
	j.mustAppend(j.beginAppend("ended"))
	j.wantEvents("ended", 2)
}

func (s Subject) testResolvesOnce(t *testing.T) {
	const callers, appends = 8, 200
	j := s.open(t, t.TempDir())
	var mu sync.Mutex
	answers := map[string]int{}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range appends {
				id := fmt.Sprintf("i-%d-%d", i, n)
				j.Append(j.beginAppend(id), func(error) {
					mu.Lock()
					defer mu.Unlock()
					answers[id]++
				})
			}
		})
	}
	mustClose(t, j) // while appends are running
	all.Wait()
	mustClose(t, j)
	mu.Lock()
	defer mu.Unlock()
	for id, n := range answers {
		if n != 1 {
			t.Errorf("%s was answered %d times", id, n)
		}
	}
	if len(answers) != callers*appends {
		t.Errorf("%d of %d were answered", len(answers), callers*appends)
	}
}

func (s Subject) testClosed(t *testing.T) {
	j := s.open(t, t.TempDir())
	j.mustAppend(j.beginAppend("a"))
	mustClose(t, j)
	_, purge := j.purge(j.epoch, "a")
	for what, err := range map[string]error{
		"append":  j.append(j.stepAppend("a", 3)),
		"attempt": j.attempt(newAttempt(j.epoch, "a", 2, 1)),
		"purge":   purge,
		"barrier": j.Barrier(t.Context()),
	} {
		if !errors.Is(err, journal.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func (s Subject) testRestart(t *testing.T) {
	dir := t.TempDir()
	for round := range uint64(4) {
		j := s.open(t, dir)
		if round > 0 {
			j.wantEvents("a", 2*round)
			j.wantEvents("purged", 0)
			j.wantEvents(fmt.Sprintf("i-%d", round-1), 2)
			wantError[*state.InvalidAppendError](t, "fewer attempts than before the restart", j.attempt(newAttempt(j.epoch, fmt.Sprintf("i-%d", round-1), 2, 1)))
		}
		if round == 0 {
			j.mustAppend(j.beginAppend("a"))
		} else {
			j.mustAppend(j.stepAppend("a", 2*round+1))
		}
		id := fmt.Sprintf("i-%d", round)
		j.mustAppend(j.beginAppend(id))
		if err := j.attempt(newAttempt(j.epoch, id, 2, 2)); err != nil {
			t.Errorf("attempt: %v", err)
		}
		j.mustAppend(j.beginAppend("purged"))
		j.mustAppend(j.endAppend("purged", 3))
		if n, err := j.purge(j.epoch, "purged"); err != nil || n != 1 {
			t.Errorf("%d purged, error %v", n, err)
		}
		mustClose(t, j)
	}
}

func (s Subject) testEpochFencing(t *testing.T) {
	dir := t.TempDir()
	first := s.open(t, dir)
	first.mustAppend(first.beginAppend("a"))
	mustClose(t, first)
	second := s.open(t, dir)
	if second.epoch <= first.epoch {
		t.Errorf("epoch %d after epoch %d", second.epoch, first.epoch)
	}
	wantError[*state.StaleEpochError](t, "an append of the previous leadership", second.append(first.stepAppend("a", 3)))
	second.mustAppend(second.stepAppend("a", 3))
	second.wantEvents("a", 4)
}

// faultCallsMax is how many different calls fail. The first few are those that found a partition.
const faultCallsMax = 12

func (s Subject) testFaults(t *testing.T) {
	all := os.Getenv("TENUTO_FAULTS") != ""
	for _, f := range []Fault{{}, {Torn: true}, {DiskFull: true}, {Torn: true, DiskFull: true}} {
		for f.Call = 1; f.Call <= faultCallsMax; f.Call++ {
			if !all && f.Call%4 != 1 {
				continue // "make faults" runs these too
			}
			t.Run(fmt.Sprintf("torn=%t/full=%t/call=%d", f.Torn, f.DiskFull, f.Call), func(t *testing.T) { s.testFault(t, f) })
		}
	}
}

// testFault appends until a write fails. After the fault is removed, everything acknowledged must
// be there, and nothing that was not proposed.
func (s Subject) testFault(t *testing.T, fault Fault) {
	dir := t.TempDir()
	acknowledged := uint64(0)
	if j, err := s.OpenFaulty(dir, fault); err == nil {
		acknowledged = appendUntilRejected(t, j, fault.DiskFull)
		mustClose(t, j)
	}
	again := s.open(t, dir)
	last, err := lastEvent(again.Journal, "a")
	if err != nil || last != acknowledged && last != acknowledged+2 {
		t.Errorf("%d events, error %v; %d were acknowledged, and 2 more proposed", last, err, acknowledged)
	}
}

// appendUntilRejected appends until an append fails. A transient fault may have hit the journal's
// own writes instead; then it stops after enough appends.
func appendUntilRejected(t *testing.T, opened Journal, isTransient bool) (acknowledged uint64) {
	j := &openedJournal{Journal: opened, t: t}
	for deadline := time.Now().Add(waitTimeout); ; {
		if time.Now().After(deadline) {
			t.Fatalf("the fault was not met in %v", waitTimeout)
		}
		a := j.beginAppend("a")
		if acknowledged > 0 {
			a = j.stepAppend("a", acknowledged+1)
		}
		a.Epoch = opened.Epoch()
		err := j.append(a)
		var (
			stale      *state.StaleEpochError
			nodeFailed *journal.NodeFailedError
		)
		switch {
		case err == nil:
			if acknowledged += 2; isTransient && acknowledged > 4*faultCallsMax {
				return acknowledged
			}
		case errors.Is(err, journal.ErrUnknownOutcome), errors.As(err, &nodeFailed):
			return acknowledged
		case errors.Is(err, journal.ErrNotLeader), errors.As(err, &stale):
			time.Sleep(time.Millisecond) // it does not lead yet
		default:
			t.Fatalf("append: %v", err)
		}
	}
}
