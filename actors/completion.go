package actors

import (
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Completion is the end of an attempt that comes from outside.
type Completion struct {
	Ref     *journalpb.OperationRef // of the activity
	Attempt int                     // its number
	Result  *journalpb.Payload
	Error   *journalpb.Error // what it failed with, instead of a result
}

// event returns the event that the completion makes of the activity.
func (c *Completion) event() *journalpb.Event {
	if c.Error == nil {
		return completed(c.Result, c.Attempt)
	}
	return failedWith(c.Error, c.Attempt)
}

// is tells whether an event says the same as the completion.
func (p *Partition) is(event *journalpb.Event, c *Completion) bool {
	said, claimed := p.plain(event), p.plain(c.event())
	if done := claimed.GetActivityCompleted(); done != nil {
		return proto.Equal(said.GetActivityCompleted(), done)
	}
	recorded, failed := said.GetActivityFailed(), claimed.GetActivityFailed()
	if recorded == nil || recorded.Attempts != failed.Attempts {
		return false
	}
	// The second if another attempt would have come too late.
	return proto.Equal(recorded.Error, failed.Error) || proto.Equal(recorded.Error.GetCause(), failed.Error)
}

// plain returns the body of an event with what the codec makes of it undone: that
// need not make the same of the same twice. What cannot be undone is compared as
// it is.
func (p *Partition) plain(event *journalpb.Event) *journalpb.Event {
	body := &journalpb.Event{Body: event.GetBody()}
	if opened, err := p.system.config.Registry.Payloads().OpenEvent(body); err == nil {
		return opened
	}
	return body
}

// CompleteActivity ends an attempt, whether its body has returned that it is
// pending or still runs. An error fails it, as if the body had returned that: the
// retry policy decides. done is called once, without an error when the end is
// committed; it must not block. It is [ErrActivityClosed] if the attempt does not
// count any more, unless it has ended with the very same, and no later attempt has failed
// or has ended the activity since. Other errors are ErrStopped and those of the journal.
func (p *Partition) CompleteActivity(c Completion, done func(error)) {
	// As its record will have it.
	c.Error = replay.EncodeError(replay.DecodeError(c.Error))
	if p.postpone(c.Ref.Instance, func() { p.CompleteActivity(c, done) }) {
		return
	}
	p.system.activities.locked(func() func() {
		if p.context.Err() != nil {
			return func() { done(ErrStopped) }
		}
		t := p.system.activities.tasks[p][keyOf(c.Ref)]
		if t == nil {
			return func() { done(p.ended(&c)) }
		}
		t.presume(c.Attempt)
		switch {
		case t.state == ActivityEnding && p.is(t.outcome, &c):
			t.waiters = append(t.waiters, done)
			return nil
		case t.current != nil && t.current.info.Number == c.Attempt:
			t.waiters = append(t.waiters, done)
			if c.Error != nil {
				return t.fail(replay.DecodeError(c.Error), replay.ErrGivenUp)
			}
			return t.end(completed(c.Result, c.Attempt), replay.ErrGivenUp)
		case !t.over() && c.Error != nil && t.failed == c.Attempt && p.is(failedWith(t.lastError, t.failed), &c):
			t.waiters = append(t.waiters, done)
			t.record()
			return nil
		}
		return func() { done(ErrActivityClosed) }
	})
}

// ended answers a completion of an activity that is not open.
func (p *Partition) ended(c *Completion) error {
	if event := p.outcome(c.Ref); event != nil && p.is(event, c) {
		return nil
	}
	return ErrActivityClosed
}

// outcome returns the event that ended an operation, nil if there is none.
func (p *Partition) outcome(ref *journalpb.OperationRef) *journalpb.Event {
	if !hasRun(p.journal, ref) {
		return nil
	}
	for event, err := range p.journal.Events(ref.Instance, ref.Execution, ref.EventId+1) {
		if err != nil {
			return nil
		}
		if event.SourceEventId == ref.EventId {
			return event
		}
	}
	return nil
}

// hasOutcome tells whether that very event has ended the operation.
func (p *Partition) hasOutcome(ref *journalpb.OperationRef, event *journalpb.Event) bool {
	recorded := p.outcome(ref)
	if recorded == nil {
		return false
	}
	return proto.Equal(p.plain(recorded), p.plain(event))
}
