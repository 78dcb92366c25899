package state

import (
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// operation is an open operation: a scheduling event without a completion.
type operation struct {
	id        uint64
	fireAt    int64  // of a timer
	target    string // of a child its instance, of a subscription its name
	name      string // of an activity or a child's orchestration; see operationName
	since     int64  // when it was scheduled, Unix nanoseconds
	eventType int
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

// oldestSubscription returns the position of the subscription that the next external event of a
// name completes.
func (o operations) oldestSubscription(name string) (at int, ok bool) {
	at = slices.IndexFunc(o, func(op operation) bool {
		return op.eventType == journalpb.TypeExternalSubscribed && op.target == name
	})
	return at, at >= 0
}

// message returns the protobuf form. The caller adds the attempt.
func (op *operation) message(instance string, execution, incarnation uint64) *journalpb.Operation {
	m := &journalpb.Operation{
		Ref:    &journalpb.OperationRef{Instance: instance, Execution: execution, EventId: op.id, Incarnation: incarnation},
		Kind:   uint32(op.eventType),
		FireAt: op.fireAt,
	}
	if op.eventType == journalpb.TypeSubOrchestrationScheduled {
		m.Child = op.target
	}
	return m
}
