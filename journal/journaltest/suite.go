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

// Run runs the whole suite, each part as a test of its own.
func Run(t *testing.T, s Subject) {
	t.Run("AppendIsWholeAndInPlaceOrRefused", s.appendRule)
	t.Run("ProposalsOfOneCallerKeepTheirOrder", s.order)
	t.Run("RefusalsSayWhatTheyAre", s.refusals)
	t.Run("PurgedIsAsIfItHadNeverBeen", s.purges)
	t.Run("EveryProposalIsAnsweredOnce", s.answersOnce)
	t.Run("ClosedRefuses", s.closedRefuses)
	if s.Durable {
		t.Run("RestartKeepsWhatWasAcknowledged", s.restart)
		t.Run("EarlierEpochsAreLockedOut", s.epochs)
	}
	if s.Durable && s.OpenFaulty != nil {
		t.Run("FaultAtEveryCallLosesNothingAcknowledged", s.faults)
	}
}

// unlessUnknown is nil for the error of an instance that is not known.
func unlessUnknown(err error) error {
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	return err
}

func want[E error](t testing.TB, what string, err error) {
	t.Helper()
	var kind E
	if !errors.As(err, &kind) {
		t.Errorf("%s: %v, want a %T", what, err, kind)
	}
}

func (s Subject) appendRule(t *testing.T) {
	j := s.open(t, t.TempDir())
	want[*state.ConflictError](t, "a second append before the first", j.append(j.step("a", 3)))
	j.wantEvents("a", 0)
	j.mustAppend(j.begin("a"))
	want[*state.ConflictError](t, "the first append again", j.append(j.begin("a")))
	want[*state.ConflictError](t, "a gap", j.append(j.step("a", 4)))
	want[*state.ConflictError](t, "an event that is there", j.append(j.step("a", 2)))
	j.wantEvents("a", 2)

	half := j.step("a", 3) // its first event is in order, the second is not
	half.Segments[0].Events[1] = appendOf(j.epoch, "a", 5, scheduled()).Segments[0].Events[0]
	want[*state.InvalidAppendError](t, "a gap within an append", j.append(half))
	j.wantEvents("a", 2)
	j.mustAppend(j.step("a", 3))
	j.mustAppend(j.begin("b"))
	j.wantEvents("a", 4)
	j.wantEvents("b", 2)
	if err := j.Barrier(t.Context()); err != nil {
		t.Errorf("barrier: %v", err)
	}
}

func (s Subject) order(t *testing.T) {
	const instances, steps = 20, 30
	j := s.open(t, t.TempDir())
	var all sync.WaitGroup
	for i := range instances {
		all.Go(func() {
			id := fmt.Sprintf("i-%02d", i)
			results := make(chan error, steps)
			j.Append(j.begin(id), func(err error) { results <- err })
			for n := 1; n < steps; n++ { // none waits for the one before
				j.Append(j.step(id, uint64(2*n+1)), func(err error) { results <- err })
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

func attemptOf(epoch uint64, instance string, event uint64, failed uint32) *journalpb.Attempt {
	return &journalpb.Attempt{
		Ref:   &journalpb.OperationRef{Instance: instance, Execution: 1, EventId: event},
		Epoch: epoch, Failed: failed, LastError: &journalpb.Error{Message: "no answer"},
	}
}

func (s Subject) refusals(t *testing.T) {
	j := s.open(t, t.TempDir())
	j.mustAppend(j.begin("a"))
	stale := j.step("a", 3)
	stale.Epoch--
	want[*state.StaleEpochError](t, "an append of an earlier epoch", j.append(stale))
	want[*state.StaleEpochError](t, "an attempt of an earlier epoch", j.attempt(attemptOf(j.epoch-1, "a", 2, 1)))
	_, err := j.purge(j.epoch-1, "a")
	want[*state.StaleEpochError](t, "a purge of an earlier epoch", err)
	want[*state.ClosedError](t, "an attempt of what is not open", j.attempt(attemptOf(j.epoch, "a", 3, 1)))
	if err := j.attempt(attemptOf(j.epoch, "a", 2, 2)); err != nil {
		t.Errorf("attempt: %v", err)
	}
	want[*state.InvalidAppendError](t, "fewer attempts than before", j.attempt(attemptOf(j.epoch, "a", 2, 1)))
	j.wantEvents("a", 2)
}

func (s Subject) purges(t *testing.T) {
	j := s.open(t, t.TempDir())
	j.mustAppend(j.begin("running"))
	j.mustAppend(j.begin("ended"))
	j.mustAppend(j.end("ended", 3))
	if n, err := j.purge(j.epoch, "running", "ended", "ended", "nobody"); err != nil || n != 1 {
		t.Errorf("%d purged, error %v; want 1", n, err)
	}
	j.wantEvents("running", 2)
	j.wantEvents("ended", 0)
	j.mustAppend(j.begin("ended"))
	j.wantEvents("ended", 2)
}

func (s Subject) answersOnce(t *testing.T) {
	const callers, appends = 8, 200
	j := s.open(t, t.TempDir())
	var mu sync.Mutex
	answers := map[string]int{}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range appends {
				id := fmt.Sprintf("i-%d-%d", i, n)
				j.Append(j.begin(id), func(error) {
					mu.Lock()
					defer mu.Unlock()
					answers[id]++
				})
			}
		})
	}
	closed(t, j) // while they are at it
	all.Wait()
	closed(t, j)
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

func (s Subject) closedRefuses(t *testing.T) {
	j := s.open(t, t.TempDir())
	j.mustAppend(j.begin("a"))
	closed(t, j)
	_, purge := j.purge(j.epoch, "a")
	for what, err := range map[string]error{
		"append":  j.append(j.step("a", 3)),
		"attempt": j.attempt(attemptOf(j.epoch, "a", 2, 1)),
		"purge":   purge,
		"barrier": j.Barrier(t.Context()),
	} {
		if !errors.Is(err, journal.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func (s Subject) restart(t *testing.T) {
	dir := t.TempDir()
	for round := range uint64(4) {
		j := s.open(t, dir)
		if round > 0 {
			j.wantEvents("a", 2*round)
			j.wantEvents("purged", 0)
			j.wantEvents(fmt.Sprintf("i-%d", round-1), 2)
			want[*state.InvalidAppendError](t, "fewer attempts than before the restart", j.attempt(attemptOf(j.epoch, fmt.Sprintf("i-%d", round-1), 2, 1)))
		}
		if round == 0 {
			j.mustAppend(j.begin("a"))
		} else {
			j.mustAppend(j.step("a", 2*round+1))
		}
		id := fmt.Sprintf("i-%d", round)
		j.mustAppend(j.begin(id))
		if err := j.attempt(attemptOf(j.epoch, id, 2, 2)); err != nil {
			t.Errorf("attempt: %v", err)
		}
		j.mustAppend(j.begin("purged"))
		j.mustAppend(j.end("purged", 3))
		if n, err := j.purge(j.epoch, "purged"); err != nil || n != 1 {
			t.Errorf("%d purged, error %v", n, err)
		}
		closed(t, j)
	}
}

func (s Subject) epochs(t *testing.T) {
	dir := t.TempDir()
	first := s.open(t, dir)
	first.mustAppend(first.begin("a"))
	closed(t, first)
	second := s.open(t, dir)
	if second.epoch <= first.epoch {
		t.Errorf("epoch %d after epoch %d", second.epoch, first.epoch)
	}
	want[*state.StaleEpochError](t, "an append of the reign before", second.append(first.step("a", 3)))
	second.mustAppend(second.step("a", 3))
	second.wantEvents("a", 4)
}

// faultCalls is how many calls are made to fail, one after another. The first few
// are those of a group that begins.
const faultCalls = 12

func (s Subject) faults(t *testing.T) {
	all := os.Getenv("TENUTO_FAULTS") != ""
	for _, f := range []Fault{{}, {Torn: true}, {Full: true}, {Torn: true, Full: true}} {
		for f.Call = 1; f.Call <= faultCalls; f.Call++ {
			if !all && f.Call%4 != 1 {
				continue // "make faults" runs these too
			}
			t.Run(fmt.Sprintf("torn=%t/full=%t/call=%d", f.Torn, f.Full, f.Call), func(t *testing.T) { s.fault(t, f) })
		}
	}
}

// fault appends until a write fails. All that was acknowledged before is there
// when the fault is gone, and nothing that was not proposed.
func (s Subject) fault(t *testing.T, fault Fault) {
	dir := t.TempDir()
	acknowledged := uint64(0)
	if j, err := s.OpenFaulty(dir, fault); err == nil {
		acknowledged = appendUntilRefused(t, j, fault.Full)
		closed(t, j)
	}
	again := s.open(t, dir)
	last, err := lastEvent(again.Journal, "a")
	if err != nil || last != acknowledged && last != acknowledged+2 {
		t.Errorf("%d events, error %v; %d were acknowledged, and 2 more proposed", last, err, acknowledged)
	}
}

// appendUntilRefused appends until that fails, or if the fault passes, and may
// have met what the journal writes by itself, until it is over for certain.
func appendUntilRefused(t *testing.T, opened Journal, passes bool) (acknowledged uint64) {
	j := &subject{Journal: opened, t: t}
	for deadline := time.Now().Add(patience); ; {
		if time.Now().After(deadline) {
			t.Fatalf("the fault was not met in %v", patience)
		}
		a := j.begin("a")
		if acknowledged > 0 {
			a = j.step("a", acknowledged+1)
		}
		a.Epoch = opened.Epoch()
		err := j.append(a)
		var (
			stale  *state.StaleEpochError
			fenced *journal.FencedError
		)
		switch {
		case err == nil:
			if acknowledged += 2; passes && acknowledged > 4*faultCalls {
				return acknowledged
			}
		case errors.Is(err, journal.ErrUnknownOutcome), errors.As(err, &fenced):
			return acknowledged
		case errors.Is(err, journal.ErrNotLeader), errors.As(err, &stale):
			time.Sleep(time.Millisecond) // it does not lead yet
		default:
			t.Fatalf("append: %v", err)
		}
	}
}
