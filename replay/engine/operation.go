package engine

import (
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An operation is scheduled by the code and completed later: an activity, a timer, a subscription,
// a child.
type operation struct {
	promise
	eventType     int        // of its scheduling event
	eventID       uint64     // of its scheduling event; 0 until the cursor has passed it
	name          string     // of the activity, event or orchestration
	child         string     // instance ID of a child
	receivedEvent inboxEvent // the event that a subscription received
	scope         *scope
	action        action // its entry in the queue while eventID is 0

	completed bool // its completion is recorded, but may not be applied yet
}

// An action is what a step of the code scheduled, queued until the cursor binds it to an event.
type action struct {
	event   *journalpb.Event // without event_id and timestamp
	op      *operation       // nil for an action that needs no completion
	callers []uintptr        // the call stack, if it was recorded
	elided  bool             // canceled before it was bound: leaves no event
}

// decode decodes the result of an operation. The error identifies the operation, unless the
// execution began before protocol 3: its code may have recorded the text.
func (x *Execution) decode(op *operation, into any) error {
	failed := decodeInto(into, op.payload)
	if failed == nil {
		return nil
	}
	failed.PayloadInfo = replay.PayloadInfo{Kind: "event", Name: op.name, Part: "result"}
	switch op.eventType {
	case journalpb.TypeActivityScheduled:
		failed.Kind = "activity"
	case journalpb.TypeSubOrchestrationScheduled:
		failed.Kind = "orchestration"
	}
	if !x.startInfo.protocol3 {
		return failed
	}
	failed.Host().Detailed, failed.EventID = true, op.eventID
	if op.eventType == journalpb.TypeExternalSubscribed {
		failed.Part, failed.EventID = "data", op.receivedEvent.eventID
		failed.RequestID = op.receivedEvent.event.GetRequestId()
	}
	return failed
}

// schedule queues the operation that event describes.
func (x *Execution) schedule(s *scope, event *journalpb.Event, op *operation) *operation {
	op.op, op.owner = op, x
	op.eventType = event.TypeNumber()
	op.scope = s
	c := x.currentCoroutine("a durable call")
	if x.evicting {
		op.err = replay.ErrEvicting
		x.resolve(&op.promise)
		return op
	}
	if err := s.err(); err != nil {
		x.countRejectedCall(c)
		op.err = err
		x.resolve(&op.promise)
		return op
	}
	x.enqueue(event, op)
	return op
}

// cancelOperation cancels an operation. A queued operation then leaves no event. If a completion is
// recorded but deferred, canceling records nothing. Otherwise the cancellation is recorded, and a
// later completion is dropped.
func (x *Execution) cancelOperation(op *operation, cause error) {
	if !op.pending() || x.evicting {
		return
	}
	switch {
	case op.eventID == 0:
		op.action.elided = true
	case op.completed:
		x.closeOperation(op)
	default:
		x.closeOperation(op)
		x.enqueue(&journalpb.Event{
			SourceEventId: op.eventID,
			Body:          &journalpb.Event_CancelRequested{CancelRequested: &journalpb.CancelRequested{EventName: x.deferredEventName(op)}},
		}, nil)
	}
	op.err = cause
	x.resolve(&op.promise)
}

// deferredEventName returns the name of a subscription if an event of that name is deferred, ""
// otherwise. The journal matched the event with the oldest subscription when it was recorded.
func (x *Execution) deferredEventName(op *operation) string {
	for _, event := range x.deferred {
		if op.eventType == journalpb.TypeExternalSubscribed && event.GetExternalEvent().GetName() == op.name {
			return op.name
		}
	}
	return ""
}

// cancelPromise cancels the operation of a pending promise, or ends the scope of its coroutine.
func (x *Execution) cancelPromise(p *promise) {
	x.checkOwners("Cancel", p)
	switch {
	case p.op != nil:
		x.cancelOperation(p.op, replay.ErrCanceled)
	case p.coroutineScope != nil && p.pending():
		x.cancelScope(p.coroutineScope, replay.ErrCanceled)
	}
}

// closeOperation removes an operation from the open ones.
func (x *Execution) closeOperation(op *operation) {
	x.openOperations.delete(op.eventID)
	if op.eventType == journalpb.TypeExternalSubscribed {
		x.inbox.unsubscribe(op)
	}
}

// unfinishedOperations returns every open or queued operation, in the order in which they were
// scheduled.
func (x *Execution) unfinishedOperations() []*operation {
	operations := make([]*operation, 0, x.openOperations.len())
	for _, op := range x.openOperations.all() {
		operations = append(operations, op)
	}
	slices.SortFunc(operations, func(a, b *operation) int { return int(a.eventID) - int(b.eventID) })
	for _, a := range x.queue {
		if a.op != nil && !a.elided {
			operations = append(operations, a.op)
		}
	}
	return operations
}
