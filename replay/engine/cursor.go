package engine

import (
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A cursorMode is what moves the cursor.
type cursorMode uint8

const (
	live                     cursorMode = iota // a turn, or nothing
	recordingStart                             // the turn that records the start
	replayingBeforeLookAhead                   // Replay
	replayingAfterLookAhead                    // Replay, and the rest of the history is known
)

// A cursor is the position up to which an execution has consumed its history.
type cursor struct {
	eventID uint64      // of the last event consumed
	now     time.Time   // timestamp of that event
	size    historySize // up to that event
	mode    cursorMode
	// beginsLive says that no code has run on the recorded history; see [Execution.FirstStep].
	beginsLive bool
}

func (c *cursor) replaying() bool { return c.mode >= replayingBeforeLookAhead }

// check returns why an event is not valid at its position in any history, "" if it is.
func (c *cursor) check(event *journalpb.Event, progress progress) string {
	switch {
	case event.EventId != c.eventID+1:
		return fmt.Sprintf("event_id %d after %d", event.EventId, c.eventID)
	case progress == ended:
		return event.Type() + " after the terminal event"
	case c.eventID == 0 && event.GetOrchestrationStarted() == nil:
		return event.Type() + " as first event"
	case c.eventID > 0 && event.GetOrchestrationStarted() != nil:
		return "a second OrchestrationStarted"
	}
	return ""
}

// move moves the cursor onto an event.
func (c *cursor) move(event *journalpb.Event) {
	c.eventID = event.EventId
	c.now = unixTime(event.Timestamp)
	c.size.add(event)
}

// setPosition gives an event the next event_id and its timestamp.
func (c *cursor) setPosition(event *journalpb.Event, now time.Time) {
	event.EventId = c.eventID + 1
	event.Timestamp = now.UnixNano()
}

// advance decodes a recorded event with the codec and moves the cursor onto it.
func (x *Execution) advance(recorded *journalpb.Event) error {
	event, err := x.program.registry.payloads.OpenEvent(recorded)
	if err != nil {
		return x.id.codecError(recorded, err)
	}
	if err := x.consume(event); err != nil {
		return err
	}
	x.carryOver.add(recorded)
	return nil
}

// consume moves the cursor onto the next event, live or recorded. It applies the event and runs the
// code until it blocks. While the instance is suspended, inputs are deferred until it is resumed.
func (x *Execution) consume(event *journalpb.Event) error {
	p := &x.program
	if reason := x.cursor.check(event, p.progress); reason != "" {
		return x.mismatch(replay.Corrupt, event, "", reason, nil)
	}
	p.calls.monitor.eventID.Store(event.EventId)
	x.cursor.move(event)
	requested := p.operations.queue.head()
	if err := x.trackInput(event); err != nil {
		return err
	}
	if err := x.apply(event); err != nil {
		return err
	}
	// A turn records all actions of the code before the next message. Only a terminate request may
	// come between them.
	if requested != nil && isInputType(event.TypeNumber()) && p.progress < ended {
		return x.mismatch(replay.ScheduledDifferently, event, x.describe(event), x.describe(requested.event), requested.callers(), requested.event)
	}
	if leavesPart(x, event) {
		return nil
	}
	if p.progress < ended && !x.deferred.suspended {
		p.step()
	}
	x.applyDeferred()
	return p.calls.interruption()
}

// leavesPart reports whether an event is the last of a copied part. The code then runs after the
// next event, which is a HistoryCopied: at its time, and with the identity of the run that has
// recorded it.
func leavesPart(x *Execution, event *journalpb.Event) bool {
	copied := &x.id.options.copied
	if part := copied.next(); part == nil || part.UpTo != event.EventId {
		return false
	}
	copied.left++
	copied.leftAt = x.cursor.now
	if random := x.program.random; random != nil {
		*random = *x.id.newRandom() // the code may hold it
	}
	return true
}

// applyCopy applies the end of a copied history. Kept external events arrive as if they had been
// recorded while the instance was suspended: in order, one step each, after that of the last copied
// event.
func applyCopy(x *Execution, eventID uint64, copied *journalpb.HistoryCopied) {
	parts := &x.id.options.copied
	x.program.operations.queue.delayTimers(x.cursor.now.Sub(parts.leftAt))
	x.program.endCopy(copied)
	for _, kept := range copied.Inbox {
		event := &journalpb.Event{EventId: eventID, Body: &journalpb.Event_ExternalEvent{ExternalEvent: kept}}
		x.requestIDs.add(event)
		x.deferred.add(event)
		if len(parts.parts) > 0 { // else the history is corrupt, and other runs share the options
			parts.kept += eventBytes(kept)
		}
	}
	x.program.operations.nameCanceled()
}

// applyDeferred applies the events that were recorded while the instance was suspended: in order,
// one step each, before the cursor moves on.
func (x *Execution) applyDeferred() {
	for len(x.deferred.events) > 0 && !x.deferred.suspended && !x.program.isDone() && x.program.coroutines.state != halted {
		x.program.applyInput(x.deferred.take())
		x.program.step()
	}
}

// trackInput checks a completion. It also tracks request IDs and cancel requests, which a turn
// needs even if the input is deferred.
func (x *Execution) trackInput(event *journalpb.Event) error {
	x.requestIDs.add(event)
	if journalpb.SchedulingType(event.TypeNumber()) != 0 {
		if kind, expected := x.program.operations.complete(event); kind != "" {
			return x.mismatch(kind, event, expected, x.describe(event), nil)
		}
	}
	if request := event.GetOrchestrationCancelRequested(); request != nil {
		x.program.cancellation.add(request)
	}
	return nil
}

func (x *Execution) apply(event *journalpb.Event) error {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		return x.begin(body.OrchestrationStarted)
	case *journalpb.Event_ActivityCompleted, *journalpb.Event_ActivityFailed,
		*journalpb.Event_TimerFired,
		*journalpb.Event_SubOrchestrationCompleted, *journalpb.Event_SubOrchestrationFailed,
		*journalpb.Event_MessageDelivered, *journalpb.Event_MessageRejected,
		*journalpb.Event_ExternalEvent, *journalpb.Event_OrchestrationCancelRequested:
		if x.deferred.suspended {
			x.deferred.add(event)
		} else {
			x.program.applyInput(event)
		}
		return nil
	case *journalpb.Event_OperationControlled:
		x.program.operations.control(event.EventId, body.OperationControlled)
		return nil
	case *journalpb.Event_HistoryCopied:
		applyCopy(x, event.EventId, body.HistoryCopied)
		return nil
	case *journalpb.Event_OrchestrationSuspended:
		x.deferred.suspended = true
		return nil
	case *journalpb.Event_OrchestrationResumed:
		x.deferred.suspended = false
		return nil
	case *journalpb.Event_OrchestrationTerminated:
		x.program.progress = ended
		return nil
	case nil:
		return x.mismatch(replay.Corrupt, event, "", "an event of a type that this build does not know", nil)
	}
	return x.bind(event)
}

// begin starts the code of the orchestration.
func (x *Execution) begin(started *journalpb.OrchestrationStarted) error {
	code, ok := x.program.registry.orchestration(started.Name, started.Version)
	if !ok {
		return &replay.NotRegisteredError{Kind: "orchestration", Name: started.Name, Version: started.Version}
	}
	x.id.start(started, x.cursor.now.UnixNano())
	x.requestIDs.restore(started)
	x.program.begin(code, started)
	return nil
}

// applyInput applies a completion, an external event or a cancel request.
func (p *program) applyInput(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_ExternalEvent:
		p.deliver(inboxEvent{event: body.ExternalEvent, eventID: event.EventId})
	case *journalpb.Event_OrchestrationCancelRequested:
		p.cancel(body.OrchestrationCancelRequested.Reason)
	default:
		p.operations.resolve(event)
	}
}

// bind matches a scheduling or terminal event with the head of the queue and removes the head.
func (x *Execution) bind(event *journalpb.Event) error {
	operations := &x.program.operations
	head := operations.queue.head()
	if err := x.match(event, head); err != nil {
		return err
	}
	operations.queue.removeHead()
	if journalpb.IsTerminal(event.TypeNumber()) {
		x.program.progress = ended
		return nil
	}
	if recorded := event.GetValueSet(); recorded != nil {
		x.program.state.replaceByRecord(head.event.GetValueSet(), recorded)
	}
	if op := head.op; op != nil && !head.cancels {
		operations.bind(op, event)
	}
	return nil
}

// unixTime returns a recorded time in UTC. With the node's time zone, code that formats or encodes
// the time would disagree with its history on another node.
func unixTime(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds).UTC() }
