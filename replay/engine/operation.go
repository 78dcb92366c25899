package engine

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"time"

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
	child         string     // instance ID of a child, or of the receiver of a message
	receivedEvent inboxEvent // the event that a subscription received
	scope         *scope
	action        action // its entry in the queue while eventID is 0

	completed bool // its completion is recorded, but may not be applied yet
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
	case *journalpb.Event_MessageDelivered:
		op.value = true
	case *journalpb.Event_MessageRejected:
		op.err = op.rejection(decodeError(body.MessageRejected.Error))
	}
}

// rejection returns the error of a message that its receiver has not recorded.
func (op *operation) rejection(reason error) error {
	if op.name == "" {
		return fmt.Errorf("cancel %s: %w", op.child, reason)
	}
	return fmt.Errorf("send %q to %s: %w", op.name, op.child, reason)
}

// decode decodes the result. A detailed error identifies the operation.
func (op *operation) decode(into any, detailed bool) error {
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
	if !detailed {
		return failed
	}
	failed.Host().Detailed, failed.EventID = true, op.eventID
	if op.eventType == journalpb.TypeExternalSubscribed {
		failed.Part, failed.EventID = "data", op.receivedEvent.eventID
		failed.RequestID = op.receivedEvent.event.GetRequestId()
	}
	return failed
}

// operations holds the operations that are queued or open, and matches completions and external
// events with them.
type operations struct {
	queue        actionQueue
	open         table[uint64, *operation] // by event_id
	scheduledIDs bitmap                    // event_ids that scheduled an operation
	controls     map[uint64]control        // of open operations, by event_id; nil while there are none
	inbox        inbox
	deferred     *deferredInputs
	coroutines   *scheduler // runs those that wait for an operation
}

// bind makes a queued operation an open one, under the event_id of its scheduling event.
func (o *operations) bind(op *operation, event *journalpb.Event) {
	op.eventID = event.EventId
	op.action = action{}
	if op.eventType == journalpb.TypeSideEffectRecorded { // needs no completion
		op.value = event.GetSideEffectRecorded()
		o.coroutines.resolve(&op.promise)
		return
	}
	o.scheduledIDs.add(event.EventId)
	switch op.eventType {
	case journalpb.TypeExternalSubscribed:
		if arrived, ok := o.inbox.subscribe(op); ok {
			o.receive(op, arrived)
			return
		}
	case journalpb.TypeSubOrchestrationScheduled:
		op.child = event.GetSubOrchestrationScheduled().Instance
	case journalpb.TypeMessageSent:
		op.child = event.GetMessageSent().Instance
	}
	o.open.set(op.eventID, op)
}

// complete checks that a completion names an open operation of its type, and marks that one as
// completed. Otherwise it returns how they disagree, and what the history has there.
func (o *operations) complete(event *journalpb.Event) (kind replay.MismatchKind, expected string) {
	source := event.SourceEventId
	op, ok := o.open.get(source)
	switch {
	case !ok && !o.scheduledIDs.has(source):
		return replay.UnknownSource, fmt.Sprintf("event %d schedules no operation", source)
	case !ok || op.completed:
		return replay.AlreadyClosed, fmt.Sprintf("operation %d is already closed", source)
	case journalpb.SchedulingType(event.TypeNumber()) != op.eventType:
		return replay.WrongEventType, fmt.Sprintf("operation %d is of %s", source, journalpb.TypeName(op.eventType))
	}
	op.completed = true
	return "", ""
}

// accepts reports whether a completion names an open operation of its type. A timer that is held
// does not fire.
func (o *operations) accepts(event *journalpb.Event) bool {
	op, open := o.open.get(event.SourceEventId)
	return open && !op.completed && op.eventType == journalpb.SchedulingType(event.TypeNumber()) &&
		!(op.eventType == journalpb.TypeTimerCreated && o.controls[op.eventID].held)
}

// Errors of actions of operators. With each of them nothing was recorded.
var (
	// ErrOperationClosed means that the operation is completed or canceled.
	ErrOperationClosed = errors.New("tenuto: the operation is closed")
	// ErrOperationHeld means that the operation is held: it must be released first.
	ErrOperationHeld = errors.New("tenuto: the operation is held")
	// ErrAdjusted means that other options apply than those that an adjustment is based on.
	ErrAdjusted = errors.New("tenuto: the operation was adjusted meanwhile")
)

// A control is what operators have set for an open operation. It decides which actions are
// recorded; the code does not notice it.
type control struct {
	held       bool
	adjustedBy uint64 // event_id of the last adjustment; 0: none
}

// control applies a recorded action to an open operation.
func (o *operations) control(eventID uint64, controlled *journalpb.OperationControlled) {
	if _, open := o.open.get(controlled.EventId); !open {
		return
	}
	if o.controls == nil {
		o.controls = make(map[uint64]control)
	}
	c := o.controls[controlled.EventId]
	switch controlled.Kind {
	case journalpb.OperationControlled_KIND_HOLD:
		c.held = true
	case journalpb.OperationControlled_KIND_RELEASE:
		c.held = false
	case journalpb.OperationControlled_KIND_ADJUST:
		c.adjustedBy = eventID
	}
	o.controls[controlled.EventId] = c
}

// isInEffect reports whether an open operation is already held, or already not.
func (o *operations) isInEffect(controlled *journalpb.OperationControlled) bool {
	op, open := o.open.get(controlled.GetEventId())
	if !open || op.completed {
		return false
	}
	switch held := o.controls[op.eventID].held; controlled.Kind {
	case journalpb.OperationControlled_KIND_HOLD:
		return held
	case journalpb.OperationControlled_KIND_RELEASE:
		return !held
	}
	return false
}

// refusal returns why an action of an operator is not recorded; nil if it is, and for every other
// message.
func (o *operations) refusal(m *Message) error {
	id, controlled := m.Event.SourceEventId, m.Event.GetOperationControlled()
	switch {
	case m.Subscription != 0:
		return o.subscriptionRefusal(m.Subscription)
	case !m.Event.IsOperated():
		return nil
	case controlled != nil:
		id = controlled.EventId
	}
	op, open := o.open.get(id)
	if !open || op.completed {
		return ErrOperationClosed
	}
	c := o.controls[id]
	isRetry := controlled.GetKind() == journalpb.OperationControlled_KIND_RETRY_NOW
	switch {
	case c.held && (isRetry || m.Event.GetTimerFired() != nil):
		return ErrOperationHeld
	case controlled.GetKind() == journalpb.OperationControlled_KIND_ADJUST && controlled.Replaces != c.adjustedBy:
		return ErrAdjusted
	}
	return nil
}

// subscriptionRefusal returns why an event cannot complete a subscription: events of one name go to
// its subscriptions in their order.
func (o *operations) subscriptionRefusal(id uint64) error {
	op, open := o.open.get(id)
	if !open {
		return ErrOperationClosed
	}
	switch waiting, _ := o.inbox.waiting.get(op.name); {
	case o.deferred.hasExternalEvent(op.name):
		return &replay.InvalidError{Field: "operation", Reason: fmt.Sprintf("is subscription %d, and an event %q is recorded that waits for the resumption", id, op.name)}
	case waiting[0] != op:
		return &replay.InvalidError{Field: "operation", Reason: fmt.Sprintf("is subscription %d, but subscription %d gets the next event %q", id, waiting[0].eventID, op.name)}
	}
	return nil
}

// resolve resolves the operation that a completion names. It does nothing if the completion was
// deferred and the code canceled the operation meanwhile.
func (o *operations) resolve(event *journalpb.Event) {
	op, ok := o.open.get(event.SourceEventId)
	if !ok {
		return
	}
	o.close(op)
	op.setResult(event)
	o.coroutines.resolve(&op.promise)
}

// deliver passes an external event to its subscription, or buffers it.
func (o *operations) deliver(a inboxEvent) {
	if op := o.inbox.deliver(a); op != nil {
		o.open.delete(op.eventID)
		o.receive(op, a)
	}
}

// receive resolves a subscription with its event.
func (o *operations) receive(op *operation, a inboxEvent) {
	op.payload, op.receivedEvent = a.event.Data, a
	o.coroutines.resolve(&op.promise)
}

// close removes an operation from the open ones.
func (o *operations) close(op *operation) {
	o.open.delete(op.eventID)
	delete(o.controls, op.eventID)
	if op.eventType == journalpb.TypeExternalSubscribed {
		o.inbox.unsubscribe(op)
	}
}

// cancel cancels an operation. A queued operation then leaves no event. If a completion is recorded
// but deferred, canceling records nothing. Otherwise the cancellation is recorded, and a later
// completion is dropped.
func (o *operations) cancel(op *operation, cause error) {
	if !op.pending() || o.coroutines.evicting() {
		return
	}
	switch {
	case op.eventID == 0:
		op.action.elided = true
	case op.completed:
		o.close(op)
	default:
		o.close(op)
		added := o.queue.add(&journalpb.Event{
			SourceEventId: op.eventID,
			Body:          &journalpb.Event_CancelRequested{CancelRequested: &journalpb.CancelRequested{EventName: o.deferredEventName(op)}},
		}, nil)
		added.op, added.cancels = op, true
	}
	op.err = cause
	o.coroutines.resolve(&op.promise)
}

// deferredEventName returns the name of a subscription if an event of that name is deferred, ""
// otherwise. The journal matched the event with the oldest subscription when it was recorded.
func (o *operations) deferredEventName(op *operation) string {
	if op.eventType == journalpb.TypeExternalSubscribed && o.deferred.hasExternalEvent(op.name) {
		return op.name
	}
	return ""
}

// nameCanceled names the subscriptions whose cancellation is not recorded yet and that have the
// name of a deferred event: the journal may have given the event to them.
func (o *operations) nameCanceled() {
	for _, a := range o.queue.actions {
		if !a.cancels {
			continue
		}
		if name := o.deferredEventName(a.op); name != "" {
			a.event.GetCancelRequested().EventName = name
		}
	}
}

// endScope ends a scope. It cancels the scope's unfinished operations in the order in which they
// were scheduled, and every coroutine that waits in the scope gets cause.
func (o *operations) endScope(s *scope, cause error) {
	if s.err() != nil || o.coroutines.evicting() {
		return
	}
	s.cause, s.endedAt = cause, o.coroutines.resolvedCount
	for _, op := range o.unfinished() {
		if op.scope.within(s) {
			o.cancel(op, cause)
		}
	}
	o.coroutines.wakeWaiting(s, cause)
}

// unfinished returns every open or queued operation, in the order in which they were scheduled.
func (o *operations) unfinished() []*operation {
	list := make([]*operation, 0, o.open.len())
	for _, op := range o.open.all() {
		list = append(list, op)
	}
	slices.SortFunc(list, func(a, b *operation) int { return int(a.eventID) - int(b.eventID) })
	for _, a := range o.queue.actions {
		if a.op != nil && !a.cancels && !a.elided {
			list = append(list, a.op)
		}
	}
	return list
}

// unconsumedEvents returns the external events that the code has not received, in order of arrival.
func (o *operations) unconsumedEvents() []*journalpb.ExternalEvent {
	return append(o.inbox.unconsumedEvents(), o.deferred.externalEvents()...)
}

// schedule queues the operation that event describes.
func (p *program) schedule(s *scope, event *journalpb.Event, op *operation) *operation {
	op.op, op.owner = op, &p.id.ID
	op.eventType = event.TypeNumber()
	op.scope = s
	c := p.calls.current("a durable call")
	err := s.err()
	switch {
	case p.coroutines.evicting():
		err = replay.ErrEvicting
	case err != nil:
		p.countRejectedCall(c)
	default:
		p.operations.queue.add(event, op)
		return op
	}
	p.coroutines.resolveErr(&op.promise, err)
	return op
}

// cancelPromise cancels the operation of a pending promise, or ends the scope of its coroutine.
func (p *program) cancelPromise(canceled *promise) {
	p.calls.checkOwners("Cancel", canceled)
	switch {
	case canceled.op != nil:
		p.operations.cancel(canceled.op, replay.ErrCanceled)
	case canceled.coroutineScope != nil && canceled.pending():
		p.operations.endScope(canceled.coroutineScope, replay.ErrCanceled)
	}
}

// An action is what a step of the code scheduled, queued until the cursor binds it to an event.
type action struct {
	event *journalpb.Event // without event_id and timestamp
	op    *operation       // nil for an action that needs no completion and cancels nothing
	// valueType is the type, in the handle, of the value that the event holds; nil if it holds
	// none.
	valueType       reflect.Type
	recordedCallers *[callersMax]uintptr // the call stack, if it was recorded
	elided          bool                 // canceled before it was bound: leaves no event
	cancels         bool                 // op is what the action cancels
}

// callersMax bounds the recorded part of a call stack.
const callersMax = 8

// callers returns the recorded call stack, nil if there is none.
func (a *action) callers() []uintptr {
	if a.recordedCallers == nil {
		return nil
	}
	return a.recordedCallers[:]
}

// An actionQueue holds the actions of the code that are not bound to an event yet, in the order of
// the calls.
type actionQueue struct {
	actions        []*action
	recordsCallers bool // set while a replay locates the call for a mismatch
}

// add adds an action and returns it. op is nil if it needs no completion.
func (q *actionQueue) add(event *journalpb.Event, op *operation) *action {
	var a *action
	if op != nil {
		a = &op.action
	} else {
		a = new(action)
	}
	a.event, a.op = event, op
	if q.recordsCallers {
		a.recordedCallers = new([callersMax]uintptr)
		runtime.Callers(3, a.recordedCallers[:]) // 3: the caller of schedule, or the author
	}
	q.actions = append(q.actions, a)
	return a
}

// head returns the first action that was not elided, nil if there is none.
func (q *actionQueue) head() *action {
	for len(q.actions) > 0 && q.actions[0].elided {
		q.removeHead()
	}
	if len(q.actions) == 0 {
		return nil
	}
	return q.actions[0]
}

// delayTimers delays the timers that are not recorded yet: a copy has cut the step that set them,
// and their durations count from its end.
func (q *actionQueue) delayTimers(by time.Duration) {
	for _, a := range q.actions {
		if created := a.event.GetTimerCreated(); created != nil {
			created.FireAt += min(int64(by), math.MaxInt64-created.FireAt)
		}
	}
}

// count returns the number of actions that were not elided.
func (q *actionQueue) count() (n uint64) {
	for _, a := range q.actions {
		if !a.elided {
			n++
		}
	}
	return n
}

func (q *actionQueue) removeHead() { q.actions = dequeue(q.actions) }
