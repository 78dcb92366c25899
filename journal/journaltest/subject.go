package journaltest

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Journal is what the suite needs of a journal; *journal.Journal implements and documents it.
type Journal interface {
	Append(a *journalpb.Append, done func(error))
	Attempt(a *journalpb.Attempt, done func(error))
	Purge(p *journalpb.Purge, done func(purged int, err error))
	Barrier(ctx context.Context) error
	IsLeader() bool
	Epoch() uint64
	Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error]
	Close() error
}

// Subject is a journal under test.
type Subject struct {
	// Open opens the journal in a directory: a new one if the directory is empty, otherwise as it
	// was left. As a single node it leads, or will soon.
	Open func(dir string) (Journal, error)
	// Durable means that what was acknowledged is still there after the same directory is opened
	// again.
	Durable bool
	// OpenFaulty opens the journal on a disk with a fault; nil if that is not supported.
	OpenFaulty func(dir string, fault Fault) (Journal, error)
}

// Fault makes one write of the log, or its sync, fail, and all later ones.
type Fault struct {
	Call     int  // which call fails: 1 is the first since the journal was opened
	Torn     bool // a part of the failed write is on disk
	DiskFull bool // it fails with ENOSPC, and later writes succeed
}

// waitTimeout bounds every wait.
const waitTimeout = 2 * time.Minute

// openedJournal is an open journal in a test.
type openedJournal struct {
	Journal
	t     testing.TB
	epoch uint64
}

// open opens a journal, waits until it leads, and closes it at the end of the test.
func (s Subject) open(t testing.TB, dir string) *openedJournal {
	t.Helper()
	j, err := s.Open(dir)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { mustClose(t, j) })
	if !waitFor(j.IsLeader) {
		t.Fatalf("it does not lead after %v", waitTimeout)
	}
	return &openedJournal{Journal: j, t: t, epoch: j.Epoch()}
}

func mustClose(t testing.TB, j Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// waitFor waits for a condition, at most for waitTimeout.
func waitFor(holds func() bool) bool {
	for deadline := time.Now().Add(waitTimeout); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// awaitResult waits for the outcome of a proposal.
func awaitResult(t testing.TB, propose func(done func(error))) error {
	t.Helper()
	result := make(chan error, 2)
	propose(func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-time.After(waitTimeout):
		t.Fatalf("no answer after %v", waitTimeout)
		return nil
	}
}

func (o *openedJournal) append(a *journalpb.Append) error {
	o.t.Helper()
	return awaitResult(o.t, func(done func(error)) { o.Append(a, done) })
}

func (o *openedJournal) mustAppend(a *journalpb.Append) {
	o.t.Helper()
	if err := o.append(a); err != nil {
		o.t.Fatalf("append to %s: %v", a.Instance, err)
	}
}

func (o *openedJournal) attempt(a *journalpb.Attempt) error {
	o.t.Helper()
	return awaitResult(o.t, func(done func(error)) { o.Attempt(a, done) })
}

func (o *openedJournal) purge(epoch uint64, instances ...string) (purged int, err error) {
	o.t.Helper()
	err = awaitResult(o.t, func(done func(error)) {
		o.Purge(&journalpb.Purge{Epoch: epoch, Instances: instances}, func(n int, err error) {
			purged = n
			done(err)
		})
	})
	return purged, err
}

// wantEvents checks how many events an instance has, and that they have no gaps. 0 means that the
// instance is unknown.
func (o *openedJournal) wantEvents(instance string, want uint64) {
	o.t.Helper()
	last, err := lastEvent(o.Journal, instance)
	if err != nil {
		o.t.Errorf("%s: %v", instance, err)
	}
	if last != want {
		o.t.Errorf("%s has %d events, want %d", instance, last, want)
	}
}

func lastEvent(j Journal, instance string) (uint64, error) {
	last := uint64(0)
	for e, err := range j.Events(instance, 0, 1) {
		if err != nil {
			return last, ignoreNotFound(err)
		}
		if last++; e.EventId != last {
			return last, errors.New("there is a gap in its events")
		}
	}
	return last, nil
}

// beginAppend is the append that begins an instance, with an activity.
func (o *openedJournal) beginAppend(instance string) *journalpb.Append {
	return newAppend(o.epoch, instance, 1, startedEvent(), scheduledEvent())
}

// stepAppend is the append that completes the activity at first-1 and schedules the next.
func (o *openedJournal) stepAppend(instance string, first uint64) *journalpb.Append {
	return newAppend(o.epoch, instance, first, completedEvent(first-1), scheduledEvent())
}

// endAppend is the append that completes the activity at first-1 and the instance.
func (o *openedJournal) endAppend(instance string, first uint64) *journalpb.Append {
	return newAppend(o.epoch, instance, first, completedEvent(first-1), endedEvent())
}

func startedEvent() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "test"}}}
}

func scheduledEvent() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityScheduled{ActivityScheduled: &journalpb.ActivityScheduled{
		Name: "activity", Input: &journalpb.Payload{Data: []byte(`{"order":17}`)},
	}}}
}

func completedEvent(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{
		Result: &journalpb.Payload{Data: []byte(`"done"`)},
	}}}
}

func endedEvent() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{OrchestrationCompleted: &journalpb.OrchestrationCompleted{}}}
}

func newAppend(epoch uint64, instance string, first uint64, events ...*journalpb.Event) *journalpb.Append {
	s := &journalpb.Segment{Execution: 1, FirstEventId: first}
	for i, e := range events {
		e.EventId = first + uint64(i)
		encoded, err := proto.Marshal(e)
		if err != nil {
			panic(err) // these events can be encoded
		}
		s.Events = append(s.Events, encoded)
	}
	return &journalpb.Append{Instance: instance, Epoch: epoch, Segments: []*journalpb.Segment{s}}
}
