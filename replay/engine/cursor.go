package engine

import (
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// advance decodes a recorded event with the codec and moves the cursor onto it.
func (x *Execution) advance(recorded *journalpb.Event) error {
	event, err := x.registry.payloads.OpenEvent(recorded)
	if err != nil {
		return x.codecErrorAt(recorded, err)
	}
	if err := x.consume(event); err != nil {
		return err
	}
	x.trackCarryOver(recorded)
	return nil
}

// codecErrorAt adds the event's ID and type to an error of the codec.
func (x *Execution) codecErrorAt(event *journalpb.Event, err error) error {
	return fmt.Errorf("event %d of %s/%d, %s: %w", event.EventId, x.id.Instance, x.id.Number, event.Type(), err)
}

// trackCarryOver keeps the values with which the next execution starts, encoded as they were
// recorded.
func (x *Execution) trackCarryOver(recorded *journalpb.Event) {
	switch body := recorded.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		x.status = body.OrchestrationStarted.Status
	case *journalpb.Event_StatusSet:
		x.status = body.StatusSet.Value
	case *journalpb.Event_OrchestrationContinuedAsNew:
		x.successor = body.OrchestrationContinuedAsNew
	}
}

// consume moves the cursor onto the next event, live or recorded. It applies the event and runs the
// code until it blocks. While the instance is suspended, inputs are deferred until it is resumed.
func (x *Execution) consume(event *journalpb.Event) error {
	if err := x.checkPosition(event); err != nil {
		return err
	}
	x.lastEventID = event.EventId
	x.monitor.eventID.Store(event.EventId)
	x.now = unixTime(event.Timestamp)
	x.addSize(event)
	requested := x.head()
	if err := x.trackInput(event); err != nil {
		return err
	}
	if err := x.apply(event); err != nil {
		return err
	}
	// A turn records all actions of the code before the next message. Only a terminate request may
	// come between them.
	if requested != nil && isInputType(event.TypeNumber()) && x.progress < ended {
		return x.mismatch(replay.ScheduledDifferently, event, x.describe(event), x.describe(requested.event), requested.callers, requested.event)
	}
	if x.progress < ended && !x.suspended {
		x.step()
	}
	x.applyDeferred()
	return x.interruption()
}

// applyDeferred applies the events that were recorded while the instance was suspended: in order,
// one step each, before the cursor moves on.
func (x *Execution) applyDeferred() {
	for len(x.deferred) > 0 && !x.suspended && !x.isDone() && !x.coroutines.halted {
		event := x.deferred[0]
		x.deferred = dequeue(x.deferred)
		x.applyInput(event)
		x.step()
	}
}

// checkPosition checks that the event is valid at its position in any history.
func (x *Execution) checkPosition(event *journalpb.Event) error {
	corrupt := func(format string, args ...any) error {
		return x.mismatch(replay.Corrupt, event, "", fmt.Sprintf(format, args...), nil)
	}
	switch {
	case event.EventId != x.lastEventID+1:
		return corrupt("event_id %d after %d", event.EventId, x.lastEventID)
	case x.progress == ended:
		return corrupt("%s after the terminal event", event.Type())
	case x.lastEventID == 0 && event.GetOrchestrationStarted() == nil:
		return corrupt("%s as first event", event.Type())
	case x.lastEventID > 0 && event.GetOrchestrationStarted() != nil:
		return corrupt("a second OrchestrationStarted")
	}
	return nil
}

// trackInput checks a completion. It also tracks request IDs and cancel requests, which a turn
// needs even if the input is deferred.
func (x *Execution) trackInput(event *journalpb.Event) error {
	x.requestIDs.add(event)
	if journalpb.SchedulingType(event.TypeNumber()) != 0 {
		return x.checkCompletion(event)
	}
	if request := event.GetOrchestrationCancelRequested(); request != nil {
		x.canceledByParent = x.canceledByParent || request.ByParent
		if x.cancelRequest == nil {
			x.cancelRequest = request
		}
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
		*journalpb.Event_ExternalEvent, *journalpb.Event_OrchestrationCancelRequested:
		if x.suspended {
			x.deferred = append(x.deferred, event)
		} else {
			x.applyInput(event)
		}
		return nil
	case *journalpb.Event_OrchestrationSuspended:
		x.suspended = true
		return nil
	case *journalpb.Event_OrchestrationResumed:
		x.suspended = false
		return nil
	case *journalpb.Event_OrchestrationTerminated:
		x.progress = ended
		return nil
	case nil:
		return x.mismatch(replay.Corrupt, event, "", "an event of a type that this build does not know", nil)
	}
	return x.bind(event)
}

// applyInput applies a completion, an external event or a cancel request.
func (x *Execution) applyInput(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_ExternalEvent:
		x.deliverEvent(inboxEvent{event: body.ExternalEvent, eventID: event.EventId})
	case *journalpb.Event_OrchestrationCancelRequested:
		x.cancelScope(x.root, x.canceledError(body.OrchestrationCancelRequested.Reason))
	default:
		x.resolveOperation(event)
	}
}

// bind matches a scheduling or terminal event with the head of the queue and removes the head.
func (x *Execution) bind(event *journalpb.Event) error {
	head := x.head()
	if err := x.match(event, head); err != nil {
		return err
	}
	x.queue = dequeue(x.queue)
	if journalpb.IsTerminal(event.TypeNumber()) {
		x.progress = ended
		return nil
	}
	if op := head.op; op != nil {
		x.openOperation(op, event)
	}
	return nil
}

// head returns the first action in the queue that was not elided, nil if there is none.
func (x *Execution) head() *action {
	for len(x.queue) > 0 && x.queue[0].elided {
		x.queue = dequeue(x.queue)
	}
	if len(x.queue) == 0 {
		return nil
	}
	return x.queue[0]
}

// openOperation makes op an open operation under its event_id.
func (x *Execution) openOperation(op *operation, event *journalpb.Event) {
	op.eventID = event.EventId
	op.action = action{}
	if op.eventType == journalpb.TypeSideEffectRecorded { // needs no completion
		op.value = event.GetSideEffectRecorded()
		x.resolve(&op.promise)
		return
	}
	x.scheduledIDs.add(event.EventId)
	switch op.eventType {
	case journalpb.TypeExternalSubscribed:
		if arrived, ok := x.inbox.subscribe(op); ok {
			x.resolveSubscription(op, arrived)
			return
		}
	case journalpb.TypeSubOrchestrationScheduled:
		op.child = event.GetSubOrchestrationScheduled().Instance
	}
	x.openOperations.set(op.eventID, op)
}

// checkCompletion checks that a completion names an open operation of its type.
func (x *Execution) checkCompletion(event *journalpb.Event) error {
	source := event.SourceEventId
	op, ok := x.openOperations.get(source)
	switch {
	case !ok && !x.scheduledIDs.has(source):
		return x.mismatch(replay.UnknownSource, event, fmt.Sprintf("event %d schedules no operation", source), x.describe(event), nil)
	case !ok || op.completed:
		return x.mismatch(replay.AlreadyClosed, event, fmt.Sprintf("operation %d is already closed", source), x.describe(event), nil)
	case journalpb.SchedulingType(event.TypeNumber()) != op.eventType:
		return x.mismatch(replay.WrongEventType, event, fmt.Sprintf("operation %d is of %s", source, journalpb.TypeName(op.eventType)), x.describe(event), nil)
	}
	op.completed = true
	return nil
}

// resolveOperation resolves the operation that a completion names. It does nothing if the
// completion was deferred and the code canceled the operation meanwhile.
func (x *Execution) resolveOperation(event *journalpb.Event) {
	op, ok := x.openOperations.get(event.SourceEventId)
	if !ok {
		return
	}
	x.closeOperation(op)
	op.setResult(event)
	x.resolve(&op.promise)
}

// setResult sets the result from a completion.
func (op *operation) setResult(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityCompleted:
		op.payload = body.ActivityCompleted.Result
	case *journalpb.Event_ActivityFailed:
		op.err = &replay.ActivityError{
			Name:     op.name,
			EventID:  op.eventID,
			Attempts: int(body.ActivityFailed.Attempts),
			Err:      decodeError(body.ActivityFailed.Error),
		}
	case *journalpb.Event_TimerFired:
		op.value = unixTime(body.TimerFired.FireAt)
	case *journalpb.Event_SubOrchestrationCompleted:
		op.payload = body.SubOrchestrationCompleted.Result
	case *journalpb.Event_SubOrchestrationFailed:
		op.err = &replay.ChildError{
			Name:     op.name,
			Instance: op.child,
			EventID:  op.eventID,
			Err:      decodeError(body.SubOrchestrationFailed.Error),
		}
	}
}

// unixTime returns a recorded time in UTC. With the node's time zone, code that formats or encodes
// the time would disagree with its history on another node.
func unixTime(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds).UTC() }

// deliverEvent passes an external event to its update handler or subscription, or buffers it.
func (x *Execution) deliverEvent(a inboxEvent) {
	if x.startUpdate(a.event) {
		return
	}
	op := x.inbox.deliver(a)
	if op == nil {
		return
	}
	x.openOperations.delete(op.eventID)
	x.resolveSubscription(op, a)
}

// resolveSubscription resolves a subscription with its event.
func (x *Execution) resolveSubscription(op *operation, a inboxEvent) {
	op.payload, op.receivedEvent = a.event.Data, a
	x.resolve(&op.promise)
}
