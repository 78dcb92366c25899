package actors

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A sender sends what actors send each other, to instances of this partition and of others.
type sender struct {
	context context.Context // of the partition
	journal Journal
	others  OtherPartitions // nil if there are none
	timers  *timerActor
	local   deliverer
}

// A deliverer delivers messages to the instances of this partition.
type deliverer interface{ Deliver(id string, m Message) }

// nudge makes an instance take a turn with an empty message. An instance whose code has not run
// yet has no open operation that would wake it.
func (s *sender) nudge(instance string) {
	s.deliverReliably(instance, Message{Message: engine.Message{Event: new(journalpb.Event)}, Internal: true})
}

// deliverReliably delivers an internal message until it is recorded or no longer needed. After the
// partition is closed, the next leader delivers it.
func (s *sender) deliverReliably(instance string, m Message) {
	s.deliverReliablyAfter(instance, m, sched.BackoffMin)
}

// deliverReliablyAfter is deliverReliably with the delay before the first repetition.
func (s *sender) deliverReliablyAfter(instance string, m Message, delay time.Duration) {
	if s.isInOtherPartition(instance) {
		s.sendReliably(&CrossMessage{Instance: instance, Execution: m.Execution, Incarnation: m.Incarnation, Event: m.Event, Attach: m.Attach}, m.Done, delay)
		return
	}
	sent := m
	sent.Done = func(a Answer) {
		switch {
		case a.Err == nil && m.Done != nil:
			m.Done(a)
		case a.Err != nil && s.context.Err() == nil:
			again := m
			again.Event = &journalpb.Event{SourceEventId: m.Event.SourceEventId, Origin: m.Event.Origin, Body: m.Event.Body}
			s.timers.ScheduleAfter(delay, func() { s.deliverReliablyAfter(instance, again, sched.NextBackoff(delay)) })
		}
	}
	s.local.Deliver(instance, sent)
}

// sendReliably sends a message to an instance of another partition until it is answered without an
// error.
func (s *sender) sendReliably(c *CrossMessage, done func(Answer), delay time.Duration) {
	s.others.Send(c, func(a Answer) {
		switch {
		case a.Err == nil && done != nil:
			done(a)
		case a.Err != nil && s.context.Err() == nil:
			s.timers.ScheduleAfter(delay, func() { s.sendReliably(c, done, sched.NextBackoff(delay)) })
		}
	})
}

// isInOtherPartition reports whether an instance belongs to another partition.
func (s *sender) isInOtherPartition(instance string) bool {
	return s.others != nil && s.others.Owns(instance)
}

// replica returns what this node can read of an instance. For this partition it is the journal.
func (s *sender) replica(instance string) Replica {
	if s.isInOtherPartition(instance) {
		return s.others.Replica(instance)
	}
	return s.journal
}
