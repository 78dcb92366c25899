package state

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// operation is an open operation: a scheduling event without a completion.
type operation struct {
	id        uint64
	fireAt    int64  // of a timer
	target    string // of a child its instance, of a subscription its name
	name      string // of an activity or a child's orchestration; see operationName
	since     int64  // when it was scheduled or copied, Unix nanoseconds
	eventType int
	control   control
}

// control is what operators have set for an open operation; see journalpb.OperationControlled.
type control struct {
	held       bool
	retryNow   uint32 // the number of the attempt that begins without a backoff; 0: none
	adjustedBy uint64 // event_id of the last adjustment; 0: none
}

func (op *operation) isTimer() bool { return op.eventType == journalpb.TypeTimerCreated }

// needsName reports whether the name is part of the scheduling event and not target.
func (op *operation) needsName() bool {
	return op.eventType == journalpb.TypeActivityScheduled || op.eventType == journalpb.TypeSubOrchestrationScheduled
}

// operations are the open operations of one execution, ordered by id.
type operations []operation

// find returns the position of an open operation.
func (o operations) find(id uint64) (at int, ok bool) {
	return slices.BinarySearchFunc(o, id, func(op operation, id uint64) int {
		switch {
		case op.id < id:
			return -1
		case op.id > id:
			return 1
		}
		return 0
	})
}

// hasTimer reports whether a timer is among them.
func (o operations) hasTimer() bool {
	return slices.ContainsFunc(o, func(op operation) bool { return op.isTimer() })
}

// controlOperation applies an OperationControlled. It returns the rule that the event breaks, "" if
// it breaks none.
func (o operations) controlOperation(e eventFields) (reason string) {
	var controlled journalpb.OperationControlled
	if proto.Unmarshal(e.body, &controlled) != nil {
		return "OperationControlled does not decode"
	}
	at, ok := o.find(controlled.EventId)
	if !ok {
		return fmt.Sprintf("operation %d is not open", controlled.EventId)
	}
	op := &o[at]
	isActivity := op.eventType == journalpb.TypeActivityScheduled
	switch kind := controlled.Kind; {
	case !isActivity && !(op.isTimer() && kind.AppliesToTimers()):
		return fmt.Sprintf("operation %d has another event type", op.id)
	case kind == journalpb.OperationControlled_KIND_RETRY_NOW:
		op.control.retryNow = controlled.Attempt
	case kind == journalpb.OperationControlled_KIND_HOLD:
		op.control.held = true
	case kind == journalpb.OperationControlled_KIND_RELEASE:
		op.control.held = false
	case kind == journalpb.OperationControlled_KIND_ADJUST:
		op.control.adjustedBy = e.id
	default:
		return fmt.Sprintf("unknown kind %d of OperationControlled", kind)
	}
	return ""
}

// oldestSubscription returns the position of the subscription that the next external event of a
// name completes.
func (o operations) oldestSubscription(name string) (at int, ok bool) {
	at = slices.IndexFunc(o, func(op operation) bool {
		return op.eventType == journalpb.TypeExternalSubscribed && op.target == name
	})
	return at, at >= 0
}

// message returns the protobuf form. copied is the last HistoryCopied of the execution. The caller
// adds the attempt.
func (op *operation) message(instance string, execution, incarnation, copied uint64) *journalpb.Operation {
	m := &journalpb.Operation{
		Ref:    &journalpb.OperationRef{Instance: instance, Execution: execution, EventId: op.id, Incarnation: incarnation},
		Kind:   uint32(op.eventType),
		FireAt: op.fireAt,

		Held: op.control.held, AdjustedBy: op.control.adjustedBy, RetryNow: op.control.retryNow,
	}
	if op.eventType == journalpb.TypeSubOrchestrationScheduled {
		m.Child = op.target
	}
	if op.id < copied {
		m.CopiedAt = op.since
	}
	return m
}
