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

// Journal is what the suite asks of a journal; *journal.Journal has it all, and
// documents it.
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
	// Open opens the journal in a directory: a new one if that is empty, as it
	// was left otherwise. It leads, or will soon, as a group of one.
	Open func(dir string) (Journal, error)
	// Durable says that what was acknowledged is there again when the same
	// directory is opened once more.
	Durable bool
	// OpenFaulty opens it on a disk with a fault. Nil if that cannot be made.
	OpenFaulty func(dir string, fault Fault) (Journal, error)
}

// Fault is a write of the log, or its sync, that fails, and with it all later
// ones.
type Fault struct {
	Call int  // which call fails: 1 is the first since the journal was opened
	Torn bool // a part of what was to be written is on disk all the same
	Full bool // it fails with ENOSPC, and later ones succeed: there is room again
}

// patience bounds every wait.
const patience = 2 * time.Minute

// subject is a journal that is open in a test.
type subject struct {
	Journal
	t     testing.TB
	epoch uint64
}

// open opens a journal, waits until it leads, and closes it with the test.
func (s Subject) open(t testing.TB, dir string) *subject {
	t.Helper()
	j, err := s.Open(dir)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { closed(t, j) })
	if !until(j.IsLeader) {
		t.Fatalf("it does not lead after %v", patience)
	}
	return &subject{Journal: j, t: t, epoch: j.Epoch()}
}

func closed(t testing.TB, j Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// until waits for a condition, in vain after patience.
func until(holds func() bool) bool {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// answered waits for the answer to a proposal.
func answered(t testing.TB, propose func(done func(error))) error {
	t.Helper()
	result := make(chan error, 2)
	propose(func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		t.Fatalf("no answer after %v", patience)
		return nil
	}
}

func (s *subject) append(a *journalpb.Append) error {
	s.t.Helper()
	return answered(s.t, func(done func(error)) { s.Append(a, done) })
}

func (s *subject) mustAppend(a *journalpb.Append) {
	s.t.Helper()
	if err := s.append(a); err != nil {
		s.t.Fatalf("append to %s: %v", a.Instance, err)
	}
}

func (s *subject) attempt(a *journalpb.Attempt) error {
	s.t.Helper()
	return answered(s.t, func(done func(error)) { s.Attempt(a, done) })
}

func (s *subject) purge(epoch uint64, instances ...string) (purged int, err error) {
	s.t.Helper()
	err = answered(s.t, func(done func(error)) {
		s.Purge(&journalpb.Purge{Epoch: epoch, Instances: instances}, func(n int, err error) {
			purged = n
			done(err)
		})
	})
	return purged, err
}

// wantEvents checks how many events an instance has, and that they are gapless.
// None means that it is not known.
func (s *subject) wantEvents(instance string, want uint64) {
	s.t.Helper()
	last, err := lastEvent(s.Journal, instance)
	if err != nil {
		s.t.Errorf("%s: %v", instance, err)
	}
	if last != want {
		s.t.Errorf("%s has %d events, want %d", instance, last, want)
	}
}

func lastEvent(j Journal, instance string) (uint64, error) {
	last := uint64(0)
	for e, err := range j.Events(instance, 0, 1) {
		if err != nil {
			return last, unlessUnknown(err)
		}
		if last++; e.EventId != last {
			return last, errors.New("there is a gap in its events")
		}
	}
	return last, nil
}

// begin is the append that begins an instance, with an activity.
func (s *subject) begin(instance string) *journalpb.Append {
	return appendOf(s.epoch, instance, 1, started(), scheduled())
}

// step is the append that completes the activity at first-1 and schedules the
// next.
func (s *subject) step(instance string, first uint64) *journalpb.Append {
	return appendOf(s.epoch, instance, first, completed(first-1), scheduled())
}

// end is the append that completes the activity at first-1 and the instance.
func (s *subject) end(instance string, first uint64) *journalpb.Append {
	return appendOf(s.epoch, instance, first, completed(first-1), ended())
}

func started() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "test"}}}
}

func scheduled() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityScheduled{ActivityScheduled: &journalpb.ActivityScheduled{
		Name: "activity", Input: &journalpb.Payload{Data: []byte(`{"order":17}`)},
	}}}
}

func completed(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{
		Result: &journalpb.Payload{Data: []byte(`"done"`)},
	}}}
}

func ended() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{OrchestrationCompleted: &journalpb.OrchestrationCompleted{}}}
}

func appendOf(epoch uint64, instance string, first uint64, events ...*journalpb.Event) *journalpb.Append {
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
