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

// A testJournal is the journal's own state machine without the Raft group
// around it. An append is decided before Append returns, unless a test wants it
// otherwise.
type testJournal struct {
	*state.Machine
	changed chan struct{} // closed and replaced whenever an append was decided

	readPace time.Duration // what it takes to read an open operation
	search   time.Duration // what it takes to look for orphans

	mu     sync.Mutex
	judge  func(*journalpb.Append) error // refuses an append, or panics
	after  func(*journalpb.Append) error // makes a lie of an append that was applied
	dead   func() bool                   // nothing is taken any more
	garble func(instance string) iter.Seq2[*journalpb.Event, error]
	broken string               // reading this instance's entry panics
	pace   func() time.Duration // what a commit takes
	hold   bool
	held   []proposal
	log    []*journalpb.Append // committed

	refuseAttempts int // how many are refused
	refusedAt      []time.Time
	attempted      int // how many were kept
}

type proposal struct {
	append *journalpb.Append
	done   func(error)
}

// steady is a pace that does not change.
func steady(pace time.Duration) func() time.Duration { return func() time.Duration { return pace } }

func newTestJournal() *testJournal {
	j := &testJournal{Machine: state.New(), changed: make(chan struct{})}
	newest := &journalpb.GroupChange{Protocol: state.NewestProtocol}
	if _, err := j.apply(&journalpb.Record{Command: &journalpb.Record_GroupChange{GroupChange: newest}}); err != nil {
		panic(err)
	}
	return j
}

// reign begins an epoch, as a journal does before it gives anybody the lead.
func (j *testJournal) reign(t testing.TB) uint64 {
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
	hold, pause := j.hold, time.Duration(0)
	if j.pace != nil {
		pause = j.pace()
	}
	if hold {
		j.held = append(j.held, proposal{a, done})
	}
	j.mu.Unlock()
	switch {
	case hold:
	case pause > 0:
		time.AfterFunc(pause, func() { done(j.decide(a)) })
	default:
		done(j.decide(a))
	}
}

// decide commits an append or refuses it.
func (j *testJournal) decide(a *journalpb.Append) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer func() {
		close(j.changed)
		j.changed = make(chan struct{})
	}()
	if j.judge != nil {
		if err := j.judge(a); err != nil {
			return err
		}
	}
	if _, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Append{Append: a}}); err != nil {
		return err
	}
	j.log = append(j.log, a)
	if j.after != nil {
		return j.after(a)
	}
	return nil
}

func (j *testJournal) SetCondition(c *journalpb.SetCondition, done func(error)) {
	j.mu.Lock()
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_SetCondition{SetCondition: c}})
	j.mu.Unlock()
	done(err)
}

func (j *testJournal) Attempt(a *journalpb.Attempt, done func(error)) {
	done(j.keep(a))
}

func (j *testJournal) keep(a *journalpb.Attempt) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.dead != nil && j.dead() {
		return errCrashed
	}
	if len(j.refusedAt) < j.refuseAttempts {
		j.refusedAt = append(j.refusedAt, time.Now())
		return errRefused
	}
	_, err := j.apply(&journalpb.Record{Command: &journalpb.Record_Attempt{Attempt: a}})
	if err == nil {
		j.attempted++
	}
	return err
}

// attempts returns how many records of attempts were kept.
func (j *testJournal) attempts() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.attempted
}

func (j *testJournal) Open() iter.Seq[*journalpb.Operation] {
	return func(yield func(*journalpb.Operation) bool) {
		for open := range j.Machine.Open() {
			if !yield(open) {
				return
			}
			time.Sleep(j.readPace)
		}
	}
}

func (j *testJournal) Orphans() iter.Seq[*journalpb.Instance] {
	return func(yield func(*journalpb.Instance) bool) {
		time.Sleep(j.search)
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
	if id != "" && id == j.broken {
		panic("a bug in the journal")
	}
	return j.Machine.Instance(id)
}

func (j *testJournal) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.garble != nil {
		if garbage := j.garble(instance); garbage != nil {
			return garbage
		}
	}
	return j.Machine.Events(instance, execution, from)
}

// set changes the switches.
func (j *testJournal) set(change func(*testJournal)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(j)
}

// holdAll keeps appends undecided from now on.
func (j *testJournal) holdAll() { j.set(func(j *testJournal) { j.hold = true }) }

// waiting returns the appends that are undecided.
func (j *testJournal) waiting() []*journalpb.Append {
	j.mu.Lock()
	defer j.mu.Unlock()
	var appends []*journalpb.Append
	for _, p := range j.held {
		appends = append(appends, p.append)
	}
	return appends
}

// letGo decides what is held: with nil it is committed, if it can be.
func (j *testJournal) letGo(outcome error) {
	j.mu.Lock()
	held := j.held
	j.held = nil
	j.mu.Unlock()
	for _, p := range held {
		if outcome != nil {
			p.done(outcome)
		} else {
			p.done(j.decide(p.append))
		}
	}
}

// flow lets everything pass, held or not.
func (j *testJournal) flow() {
	j.set(func(j *testJournal) { j.hold = false })
	j.letGo(nil)
}

func (j *testJournal) committed() []*journalpb.Append {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.log[:len(j.log):len(j.log)]
}

func (j *testJournal) onChange() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

// eventsIn decodes the events of an append.
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
