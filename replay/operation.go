package replay

import (
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An operation is something that the code asked for and that is completed
// later: an activity, a timer, a subscription, a child.
type operation struct {
	promise
	arm     int     // the type of its scheduling event
	eventID uint64  // of its scheduling event; 0 until the cursor has passed it
	name    string  // of the activity, event or orchestration
	child   string  // the instance of a child
	arrival arrival // what a subscription has got
	scope   *scope
	asked   action // its place in the queue while eventID is 0

	completed bool // its completion is recorded, but may have had no effect yet
}

// An action is what a step of the code asked for, in the queue until the
// cursor binds it to an event.
type action struct {
	event   *journalpb.Event // without event_id and timestamp
	op      *operation       // nil for what is complete in itself
	callers []uintptr        // the call that asked for it, if that was noted
	elided  bool             // given up before it was bound: as if never asked for
}

// decode decodes the result of an operation. The error names the operation, unless the
// execution began before protocol 3: its code may have recorded the text.
func (x *Execution) decode(op *operation, into any) error {
	failed := decodeInto(into, op.payload)
	if failed == nil {
		return nil
	}
	failed.PayloadOf = PayloadOf{"event", op.name, "result"}
	switch op.arm {
	case journalpb.ArmActivityScheduled:
		failed.Kind = "activity"
	case journalpb.ArmSubOrchestrationScheduled:
		failed.Kind = "orchestration"
	}
	if !x.origin.protocol3 {
		return failed
	}
	failed.named, failed.EventID = true, op.eventID
	if op.arm == journalpb.ArmExternalSubscribed {
		failed.Part, failed.EventID = "data", op.arrival.eventID
		failed.RequestID = op.arrival.event.GetRequestId()
	}
	return failed
}

// schedule queues the operation that event describes.
func (x *Execution) schedule(ctx *Context, event *journalpb.Event, op *operation) *operation {
	op.op, op.of = op, x
	op.arm = event.Arm()
	op.scope = ctx.scope
	c := x.running("a durable call")
	if x.dropping {
		op.err = ErrDehydrating
		x.settle(&op.promise)
		return op
	}
	if err := ctx.scope.err(); err != nil {
		x.refuse(c)
		op.err = err
		x.settle(&op.promise)
		return op
	}
	x.enqueue(event, op)
	return op
}

// giveUp ends an operation by a decision of the code. One that is still in the
// queue leaves no trace, nor does one whose completion is recorded already, which
// was held; of one that is open, the decision is recorded. What arrives for it
// later is recorded nowhere.
func (x *Execution) giveUp(op *operation, cause error) {
	if !op.pending() || x.dropping {
		return
	}
	switch {
	case op.eventID == 0:
		op.asked.elided = true
	case op.completed:
		x.close(op)
	default:
		x.close(op)
		x.enqueue(&journalpb.Event{
			SourceEventId: op.eventID,
			Body:          &journalpb.Event_CancelRequested{CancelRequested: &journalpb.CancelRequested{EventName: x.heldName(op)}},
		}, nil)
	}
	op.err = cause
	x.settle(&op.promise)
}

// heldName returns the name of a subscription for which an event is held, "" otherwise.
// The journal matched the event with the oldest subscription when it was recorded.
func (x *Execution) heldName(op *operation) string {
	for _, event := range x.held {
		if op.arm == journalpb.ArmExternalSubscribed && event.GetExternalEvent().GetName() == op.name {
			return op.name
		}
	}
	return ""
}

// cancel ends what the promise is of, if that is pending: an operation, or the scope
// of a coroutine.
func (x *Execution) cancel(p *promise) {
	x.ownsAll("Cancel", p)
	switch {
	case p.op != nil:
		x.giveUp(p.op, ErrCanceled)
	case p.inside != nil && p.pending():
		x.cancelScope(p.inside, ErrCanceled)
	}
}

// close takes an operation off the open ones.
func (x *Execution) close(op *operation) {
	x.open.delete(op.eventID)
	if op.arm == journalpb.ArmExternalSubscribed {
		x.inbox.unsubscribe(op)
	}
}

// unfinished returns every operation that is open or still in the queue, in
// the order in which they were scheduled.
func (x *Execution) unfinished() []*operation {
	operations := make([]*operation, 0, x.open.len())
	for _, op := range x.open.all() {
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
