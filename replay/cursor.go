package replay

import (
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// walk moves the cursor onto an event as it is recorded.
func (x *Execution) walk(recorded *journalpb.Event) error {
	event, err := x.registry.payloads.OpenEvent(recorded)
	if err != nil {
		return x.unreadable(recorded, err)
	}
	if err := x.consume(event); err != nil {
		return err
	}
	x.keep(recorded)
	return nil
}

// unreadable says in which event a codec has failed.
func (x *Execution) unreadable(event *journalpb.Event, err error) error {
	return fmt.Errorf("event %d of %s/%d, %s: %w", event.EventId, x.instance, x.number, event.Type(), err)
}

// keep remembers what the next execution begins with, as it is recorded.
func (x *Execution) keep(recorded *journalpb.Event) {
	switch body := recorded.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		x.status = body.OrchestrationStarted.Status
	case *journalpb.Event_StatusSet:
		x.status = body.StatusSet.Value
	case *journalpb.Event_OrchestrationContinuedAsNew:
		x.successor = body.OrchestrationContinuedAsNew
	}
}

// consume moves the cursor onto the next event, live or recorded: it takes
// effect, and the code runs as far as that lets it. While the instance is
// suspended an input is held, and takes effect when the instance is resumed.
func (x *Execution) consume(event *journalpb.Event) error {
	if err := x.accept(event); err != nil {
		return err
	}
	x.last = event.EventId
	x.watch.eventID.Store(event.EventId)
	x.now = instant(event.Timestamp)
	x.count(event)
	asked := x.head()
	if err := x.admit(event); err != nil {
		return err
	}
	if err := x.apply(event); err != nil {
		return err
	}
	// A turn records what the code asks for before the next message. Only an
	// end that is forced from outside may come in between.
	if asked != nil && input(event.Arm()) && !x.ended {
		return x.mismatch(ScheduledDifferently, event, x.describe(event), x.describe(asked.event), asked.callers).and(asked.event)
	}
	if !x.ended && !x.suspended {
		x.step()
	}
	x.applyHeld()
	return x.interrupted()
}

// applyHeld lets the events take effect that were recorded while the instance was
// suspended: in their order, one step each, before the cursor moves on.
func (x *Execution) applyHeld() {
	for len(x.held) > 0 && !x.suspended && !x.over() && !x.coroutines.halted {
		event := x.held[0]
		x.held = behind(x.held)
		x.take(event)
		x.step()
	}
}

// accept checks that the event may stand where it stands.
func (x *Execution) accept(event *journalpb.Event) error {
	corrupt := func(format string, args ...any) error {
		return x.mismatch(Corrupt, event, "", fmt.Sprintf(format, args...), nil)
	}
	switch {
	case event.EventId != x.last+1:
		return corrupt("event_id %d after %d", event.EventId, x.last)
	case x.ended:
		return corrupt("%s after the terminal event", event.Type())
	case x.last == 0 && event.GetOrchestrationStarted() == nil:
		return corrupt("%s as first event", event.Type())
	case x.last > 0 && event.GetOrchestrationStarted() != nil:
		return corrupt("a second OrchestrationStarted")
	}
	return nil
}

// admit checks a completion, and notes what the turn needs to know of an input
// before it takes effect.
func (x *Execution) admit(event *journalpb.Event) error {
	x.requests.add(event)
	if journalpb.Completes(event.Arm()) != 0 {
		return x.admitCompletion(event)
	}
	if request := event.GetOrchestrationCancelRequested(); request != nil {
		x.byParent = x.byParent || request.ByParent
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
			x.held = append(x.held, event)
		} else {
			x.take(event)
		}
		return nil
	case *journalpb.Event_OrchestrationSuspended:
		x.suspended = true
		return nil
	case *journalpb.Event_OrchestrationResumed:
		x.suspended = false
		return nil
	case *journalpb.Event_OrchestrationTerminated:
		x.ended = true
		return nil
	case nil:
		return x.mismatch(Corrupt, event, "", "an event of a type that this build does not know", nil)
	}
	return x.bind(event)
}

// take lets a completion, an external event or a request to cancel take effect.
func (x *Execution) take(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_ExternalEvent:
		x.receive(arrival{event: body.ExternalEvent, eventID: event.EventId})
	case *journalpb.Event_OrchestrationCancelRequested:
		x.cancelScope(x.root, x.canceled(body.OrchestrationCancelRequested.Reason))
	default:
		x.complete(event)
	}
}

// bind matches a scheduling or terminal event with the head of the queue and
// takes that off.
func (x *Execution) bind(event *journalpb.Event) error {
	head := x.head()
	if err := x.match(event, head); err != nil {
		return err
	}
	x.queue = behind(x.queue)
	if journalpb.Terminal(event.Arm()) {
		x.ended = true
		return nil
	}
	if op := head.op; op != nil {
		x.opened(op, event)
	}
	return nil
}

// head returns the first action in the queue that was not elided, nil if there
// is none.
func (x *Execution) head() *action {
	for len(x.queue) > 0 && x.queue[0].elided {
		x.queue = behind(x.queue)
	}
	if len(x.queue) == 0 {
		return nil
	}
	return x.queue[0]
}

// opened makes op an open operation under the event_id that it has now.
func (x *Execution) opened(op *operation, event *journalpb.Event) {
	op.eventID = event.EventId
	op.asked = action{}
	if op.arm == journalpb.ArmSideEffectRecorded { // complete in itself
		op.value = event.GetSideEffectRecorded()
		x.settle(&op.promise)
		return
	}
	x.schedules.add(event.EventId)
	switch op.arm {
	case journalpb.ArmExternalSubscribed:
		if arrived, ok := x.inbox.subscribe(op); ok {
			x.arrived(op, arrived)
			return
		}
	case journalpb.ArmSubOrchestrationScheduled:
		op.child = event.GetSubOrchestrationScheduled().Instance
	}
	x.open.set(op.eventID, op)
}

// admitCompletion checks that a completion names an operation that is open, and of
// its kind.
func (x *Execution) admitCompletion(event *journalpb.Event) error {
	source := event.SourceEventId
	op, ok := x.open.get(source)
	switch {
	case !ok && !x.schedules.has(source):
		return x.mismatch(UnknownSource, event, fmt.Sprintf("event %d schedules no operation", source), x.describe(event), nil)
	case !ok || op.completed:
		return x.mismatch(AlreadyClosed, event, fmt.Sprintf("operation %d is closed already", source), x.describe(event), nil)
	case journalpb.Completes(event.Arm()) != op.arm:
		return x.mismatch(WrongKind, event, fmt.Sprintf("operation %d is of %s", source, journalpb.ArmName(op.arm)), x.describe(event), nil)
	}
	op.completed = true
	return nil
}

// complete resolves the operation that a completion names. It finds none if the
// completion was held, and the code has canceled the operation in a step before.
func (x *Execution) complete(event *journalpb.Event) {
	op, ok := x.open.get(event.SourceEventId)
	if !ok {
		return
	}
	x.close(op)
	op.resolve(event)
	x.settle(&op.promise)
}

// resolve takes the result from a completion.
func (op *operation) resolve(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityCompleted:
		op.payload = body.ActivityCompleted.Result
	case *journalpb.Event_ActivityFailed:
		op.err = &ActivityError{
			Name:     op.name,
			EventID:  op.eventID,
			Attempts: int(body.ActivityFailed.Attempts),
			Err:      decodeError(body.ActivityFailed.Error),
		}
	case *journalpb.Event_TimerFired:
		op.value = instant(body.TimerFired.FireAt)
	case *journalpb.Event_SubOrchestrationCompleted:
		op.payload = body.SubOrchestrationCompleted.Result
	case *journalpb.Event_SubOrchestrationFailed:
		op.err = &ChildError{
			Name:     op.name,
			Instance: op.child,
			EventID:  op.eventID,
			Err:      decodeError(body.SubOrchestrationFailed.Error),
		}
	}
}

// instant returns a recorded time. It is in UTC: the zone of the node would
// make code that formats or encodes it disagree with its history elsewhere.
func instant(nanoseconds int64) time.Time { return time.Unix(0, nanoseconds).UTC() }

// receive hands an external event to the subscription that it belongs to.
func (x *Execution) receive(a arrival) {
	if x.update(a.event) {
		return
	}
	op := x.inbox.arrive(a)
	if op == nil {
		return
	}
	x.open.delete(op.eventID)
	x.arrived(op, a)
}

// arrived resolves a subscription.
func (x *Execution) arrived(op *operation, a arrival) {
	op.payload, op.arrival = a.event.Data, a
	x.settle(&op.promise)
}
