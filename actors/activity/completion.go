package activity

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// ErrClosed is returned if the attempt does not count: the activity has ended or was canceled, this
// attempt has failed, or it never existed. Nothing was done.
var ErrClosed = errors.New("tenuto: the activity attempt is closed")

// A Completion is the end of an attempt that comes from outside.
type Completion struct {
	Ref     *journalpb.OperationRef // of the activity
	Attempt int                     // its number
	Result  *journalpb.Payload
	Error   *journalpb.Error // the failure, instead of a result
	// Origin is who completes it; nil if that is not known. It is recorded if the activity ends.
	Origin *journalpb.Origin
}

// event returns the event to record if the completion ends the activity.
func (c *Completion) event() *journalpb.Event {
	if c.Error == nil {
		return completedEvent(c.Result, c.Attempt)
	}
	return failedEventFrom(c.Error, c.Attempt)
}

// matchesCompletion reports whether an event has the outcome of the completion.
func (p *Partition) matchesCompletion(event *journalpb.Event, c *Completion) bool {
	reported, expected := p.decodedBody(event), p.decodedBody(c.event())
	if done := expected.GetActivityCompleted(); done != nil {
		recorded := reported.GetActivityCompleted()
		return recorded != nil && recorded.Attempts == done.Attempts && proto.Equal(recorded.Result, done.Result)
	}
	recorded, failed := reported.GetActivityFailed(), expected.GetActivityFailed()
	if recorded == nil || recorded.Attempts != failed.Attempts {
		return false
	}
	// If there was no time for a retry, the event has a timeout error whose cause is the failure.
	return proto.Equal(recorded.Error, failed.Error) || proto.Equal(recorded.Error.GetCause(), failed.Error)
}

// decodedBody returns the body of an event with its payloads decoded, because a codec may encode
// the same value differently each time. A body that cannot be decoded is returned as it is.
func (p *Partition) decodedBody(event *journalpb.Event) *journalpb.Event {
	body := &journalpb.Event{Body: event.GetBody()}
	if decoded, err := p.scheduler.config.Registry.PayloadConverter().OpenEvent(body); err == nil {
		return decoded
	}
	return body
}

// Complete ends an attempt, whether it is pending or its body still runs. An error fails the
// attempt as if the body had returned it; the retry policy applies. done is called once, with nil
// after the end is committed. It must not block.
//
// done gets [ErrClosed] if the attempt no longer counts. It gets nil instead if the attempt ended
// with the same outcome, and no later attempt has failed or ended the activity since. It gets the
// configuration's ErrStopped if the partition is closed first.
func (p *Partition) Complete(c Completion, done func(error)) {
	c.normalize()
	if p.config.Instances.DeferUntilRecovered(c.Ref.Instance, func() { p.Complete(c, done) }) {
		return
	}
	p.scheduler.withLock(func() func() { return p.complete(&c, waiter{done: done}) })
}

// normalize converts the error as a record does, so that equal outcomes compare as equal.
func (c *Completion) normalize() {
	if c.Error != nil {
		c.Error = engine.EncodeError(engine.DecodeError(c.Error))
	}
}

// complete implements Complete for a normalized completion of a recovered instance. The scheduler's
// lock is held.
func (p *Partition) complete(c *Completion, reporter waiter) (then func()) {
	if p.isClosed() {
		return func() { reporter.resolve(p.config.ErrStopped) }
	}
	return p.completeTask(p.tasks[operation.KeyOf(c.Ref)], c, reporter)
}

// completeTask implements complete for a task that may be nil, in a partition that is not closed.
// The scheduler's lock is held.
func (p *Partition) completeTask(t *task, c *Completion, reporter waiter) (then func()) {
	if t == nil {
		late := *c
		return func() { reporter.resolve(p.closedActivityError(&late)) }
	}
	t.adoptAttempt(c.Attempt)
	switch {
	case t.current != nil && t.current.number == c.Attempt:
		t.waiters.add(reporter)
		if c.Error != nil {
			then = t.fail(engine.DecodeError(c.Error), replay.ErrActivityCanceled)
		} else {
			then = t.end(t.failures.addTo(completedEvent(c.Result, c.Attempt), t.current), replay.ErrActivityCanceled)
		}
		if t.state == Ending {
			t.outcome.Origin = c.Origin
		}
		return then
	case t.state == Ending, !t.isOver() && c.Error != nil && t.failedAttempts == c.Attempt:
		late, outcome := *c, t.attemptOutcome()
		return func() { p.completeAgain(t, &late, outcome, reporter) }
	}
	return func() { reporter.resolve(ErrClosed) }
}

// attemptOutcome returns the event that ends the task, or the one that would end it if its last
// failure were final. The scheduler's lock is held.
func (t *task) attemptOutcome() *journalpb.Event {
	if t.state == Ending {
		return t.outcome
	}
	return failedEventFrom(t.failures.last(), t.failedAttempts)
}

// completeAgain handles a completion of an attempt that already ended with outcome. It accepts an
// identical completion and rejects others. It compares without the scheduler's lock, because a
// codec decodes the payloads.
func (p *Partition) completeAgain(t *task, c *Completion, outcome *journalpb.Event, reporter waiter) {
	if !p.matchesCompletion(outcome, c) {
		reporter.resolve(ErrClosed)
		return
	}
	p.scheduler.withLock(func() func() {
		switch {
		case p.isClosed() || p.tasks[operation.KeyOf(c.Ref)] != t:
			return p.complete(c, reporter)
		case t.state == Ending && t.outcome == outcome:
			t.waiters.add(reporter)
			return nil
		case !t.isOver() && t.failedAttempts == c.Attempt:
			t.waiters.add(reporter)
			t.record()
			return nil
		}
		return p.complete(c, reporter) // the task has changed meanwhile
	})
}

// closedActivityError returns the error for a completion of an activity that is not open. It is nil
// if the activity ended with the same outcome.
func (p *Partition) closedActivityError(c *Completion) error {
	if event := p.endEvent(c.Ref); event != nil && p.matchesCompletion(event, c) {
		return nil
	}
	return ErrClosed
}

// endEvent returns the event that ended an operation, nil if there is none.
func (p *Partition) endEvent(ref *journalpb.OperationRef) *journalpb.Event {
	if !operation.MatchesRun(p.config.Journal, ref) {
		return nil
	}
	for event, err := range p.config.Journal.Events(ref.Instance, ref.Execution, ref.EventId+1) {
		if err != nil {
			return nil
		}
		if event.SourceEventId == ref.EventId {
			return event
		}
	}
	return nil
}

// hasEndEvent reports whether the operation ended with an event equal to this one.
func (p *Partition) hasEndEvent(ref *journalpb.OperationRef, event *journalpb.Event) bool {
	recorded := p.endEvent(ref)
	if recorded == nil {
		return false
	}
	return proto.Equal(p.decodedBody(recorded), p.decodedBody(event))
}
