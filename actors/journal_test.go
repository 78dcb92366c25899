package actors_test

import (
	"iter"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A testJournal is the journal's state machine without a Raft group. An append is decided before
// Append returns, unless a test sets a switch.
type testJournal struct {
	*state.Machine
	changed chan struct{} // closed and replaced after each decided append

	readDelay       time.Duration // the time to read an open operation
	orphanScanDelay time.Duration // the time to look for orphans

	mu            sync.Mutex
	check         func(*journalpb.Append) error // rejects an append, or panics
	afterApply    func(*journalpb.Append) error // returns an error for an append that was applied
	isDown        func() bool                   // nothing is accepted any more
	corruptEvents func(instance string) iter.Seq2[*journalpb.Event, error]
	panicOn       string               // reading this instance's entry panics
	commitDelay   func() time.Duration // the time of a commit
	hold          bool
	undecided     []proposal
	log           []*journalpb.Append // committed

	rejectAttempts int // how many are rejected
	rejectedAt     []time.Time
	attemptRecords int // how many were recorded
}

type proposal struct {
	append *journalpb.Append
	done   func(error)
}

func constantDelay(delay time.Duration) func() time.Duration {
	return func() time.Duration { return delay }
}

func newTestJournal() *testJournal {
	j := &testJournal{Machine: state.New(), changed: make(chan struct{})}
	newest := &journalpb.MetadataChange{Protocol: state.NewestProtocol}
	if _, err := j.apply(&journalpb.Record{Command: &journalpb.Record_MetadataChange{MetadataChange: newest}}); err != nil {
		panic(err)
	}
	return j
}

// newEpoch begins an epoch, as a journal does before leadership begins.
func (j *testJournal) newEpoch(t testing.TB) uint64 {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	epoch, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Epoch{Epoch: new(journalpb.Epoch)}})
	if err != nil {
		t.Fatal(err)
	}
	return epoch
}

func (j *testJournal) apply(record *journalpb.Record) (epoch uint64, err error) {
	encoded, err := proto.Marshal(record)
	if err != nil {
		return 0, err
	}
	return j.Machine.Apply(encoded)
}

func (j *testJournal) Append(a *journalpb.Append, done func(error)) {
	a = proto.CloneOf(a)
	j.mu.Lock()
	hold, delay := j.hold, time.Duration(0)
	if j.commitDelay != nil {
		delay = j.commitDelay()
	}
	if hold {
		j.undecided = append(j.undecided, proposal{a, done})
	}
	j.mu.Unlock()
	switch {
	case hold:
	case delay > 0:
		time.AfterFunc(delay, func() { done(j.decide(a)) })
	default:
		done(j.decide(a))
	}
}

// decide commits or rejects an append.
func (j *testJournal) decide(a *journalpb.Append) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer func() {
		close(j.changed)
		j.changed = make(chan struct{})
	}()
	if j.check != nil {
		if err := j.check(a); err != nil {
			return err
		}
	}
	if _, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Append{Append: a}}); err != nil {
		return err
	}
	j.log = append(j.log, a)
	if j.afterApply != nil {
		return j.afterApply(a)
	}
	return nil
}

func (j *testJournal) SetCondition(c *journalpb.SetCondition, done func(error)) {
	j.mu.Lock()
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_SetCondition{SetCondition: c}})
	j.mu.Unlock()
	done(err)
}

func (j *testJournal) CopyHistory(c *journalpb.CopyHistory, done func(error)) {
	done(j.decideCopy(c))
}

// decideCopy commits or rejects a copy. For the switches it is an append to its target.
func (j *testJournal) decideCopy(c *journalpb.CopyHistory) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer func() {
		close(j.changed)
		j.changed = make(chan struct{})
	}()
	a := &journalpb.Append{Instance: c.Target, Epoch: c.Epoch}
	if j.check != nil {
		if err := j.check(a); err != nil {
			return err
		}
	}
	if _, err := j.apply(&journalpb.Record{Command: &journalpb.Record_CopyHistory{CopyHistory: c}}); err != nil {
		return err
	}
	j.log = append(j.log, a)
	if j.afterApply != nil {
		return j.afterApply(a)
	}
	return nil
}

func (j *testJournal) Attempt(a *journalpb.Attempt, done func(error)) {
	done(j.recordAttempt(a))
}

func (j *testJournal) recordAttempt(a *journalpb.Attempt) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.isDown != nil && j.isDown() {
		return errCrashed
	}
	if len(j.rejectedAt) < j.rejectAttempts {
		j.rejectedAt = append(j.rejectedAt, time.Now())
		return errRejected
	}
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: a}})
	if err == nil {
		j.attemptRecords++
	}
	return err
}

// attemptRecordCount returns how many records of attempts were committed.
func (j *testJournal) attemptRecordCount() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.attemptRecords
}

func (j *testJournal) OpenOperations() iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		for open := range j.Machine.OpenOperations() {
			if !yield(open) {
				return
			}
			time.Sleep(j.readDelay)
		}
	}
}

func (j *testJournal) Orphans() iter.Seq[*journalpb.Instance] {
	return func(yield func(*journalpb.Instance) bool) {
		time.Sleep(j.orphanScanDelay)
		for orphan := range j.Machine.Orphans() {
			if !yield(orphan) {
				return
			}
		}
	}
}

func (j *testJournal) Instance(id string) (*journalpb.Instance, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if id != "" && id == j.panicOn {
		panic("a bug in the journal")
	}
	return j.Machine.Instance(id)
}

func (j *testJournal) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.corruptEvents != nil {
		if garbage := j.corruptEvents(instance); garbage != nil {
			return garbage
		}
	}
	return j.Machine.Events(instance, execution, from)
}

func (j *testJournal) configure(change func(*testJournal)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(j)
}

// holdAppends keeps appends undecided from now on.
func (j *testJournal) holdAppends() { j.configure(func(j *testJournal) { j.hold = true }) }

// undecidedAppends returns the undecided appends.
func (j *testJournal) undecidedAppends() []*journalpb.Append {
	j.mu.Lock()
	defer j.mu.Unlock()
	var appends []*journalpb.Append
	for _, p := range j.undecided {
		appends = append(appends, p.append)
	}
	return appends
}

// decideHeld decides the held appends: with nil they are committed if possible.
func (j *testJournal) decideHeld(outcome error) {
	j.mu.Lock()
	pending := j.undecided
	j.undecided = nil
	j.mu.Unlock()
	for _, p := range pending {
		if outcome != nil {
			p.done(outcome)
		} else {
			p.done(j.decide(p.append))
		}
	}
}

// releaseAppends decides all held appends, and holds no more.
func (j *testJournal) releaseAppends() {
	j.configure(func(j *testJournal) { j.hold = false })
	j.decideHeld(nil)
}

func (j *testJournal) committedAppends() []*journalpb.Append {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.log[:len(j.log):len(j.log)]
}

func (j *testJournal) changes() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

func eventsIn(t testing.TB, a *journalpb.Append) []*journalpb.Event {
	t.Helper()
	var events []*journalpb.Event
	for _, segment := range a.Segments {
		for _, encoded := range segment.Events {
			event := new(journalpb.Event)
			if err := proto.Unmarshal(encoded, event); err != nil {
				t.Fatal(err)
			}
			events = append(events, event)
		}
	}
	return events
}
