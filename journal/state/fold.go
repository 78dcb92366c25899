package state

import (
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The field numbers that fold reads inside bodies.
const (
	fieldTimerFireAt   = 1 // TimerCreated.fire_at
	fieldExternalName  = 1 // ExternalSubscribed.name, ExternalEvent.name
	fieldChildInstance = 3 // SubOrchestrationScheduled.instance, OrchestrationChained.instance
	fieldClosePolicy   = 5 // SubOrchestrationScheduled.close_policy
	fieldCanceledName  = 1 // CancelRequested.event_name
	fieldScheduledName = 1 // ActivityScheduled.name, SubOrchestrationScheduled.name
	fieldFailedError   = 1 // OrchestrationFailed.error
	fieldErrorCode     = 1 // Error.code
	fieldLastError     = 4 // Attempt.last_error
)

// fold applies event id of execution number to the index entry. It returns the rule that the event
// breaks, "" if it breaks none.
func (i *indexEntry) fold(number, id uint64, encoded []byte) (reason string) {
	e, ok := parseEventFields(encoded)
	switch {
	case !ok:
		return "the event does not decode"
	case e.eventType == 0:
		return "the event has no body of a known type"
	case e.id != id:
		return fmt.Sprintf("the event has event_id %d", e.id)
	case (id == 1) != (e.eventType == journalpb.TypeOrchestrationStarted):
		return "OrchestrationStarted must be the first event, and only the first"
	case id > 1 && i.status != journalpb.Status_STATUS_RUNNING:
		return "event after the end of the execution"
	}
	if reason = i.applyEvent(number, e); reason == "" {
		i.last, i.updated = id, e.timestamp
	}
	return reason
}

func (i *indexEntry) applyEvent(number uint64, e eventFields) (reason string) {
	if scheduled := journalpb.SchedulingType(e.eventType); scheduled != 0 {
		return i.complete(e.source, scheduled)
	}
	if journalpb.OpensOperation(e.eventType) {
		return i.schedule(e)
	}
	if journalpb.IsTerminal(e.eventType) {
		i.endExecution(e)
		return ""
	}
	switch e.eventType {
	case journalpb.TypeOrchestrationStarted:
		return i.beginExecution(number, e)
	case journalpb.TypeCancelRequested:
		return i.cancel(e)
	case journalpb.TypeExternalSubscribed, journalpb.TypeExternalEvent:
		return i.applyExternal(e)
	case journalpb.TypeOrchestrationChained:
		return i.checkChainedStart(e)
	case journalpb.TypeOrchestrationSuspended, journalpb.TypeOrchestrationResumed:
		i.suspended = e.eventType == journalpb.TypeOrchestrationSuspended
	case journalpb.TypeOperationControlled:
		return i.open.controlOperation(e)
	case journalpb.TypeHistoryCopied:
		return i.applyHistoryCopied(e)
	case journalpb.TypeStatusSet:
		i.statusEvent = e.id
	case journalpb.TypeAttributeSet, journalpb.TypeValueSet:
		return i.publishedState.apply(e)
	}
	return "" // the other types neither open nor close anything
}

// schedule opens an operation.
func (i *indexEntry) schedule(e eventFields) (reason string) {
	op, ok := operation{id: e.id, eventType: e.eventType, since: e.timestamp}, true
	switch e.eventType {
	case journalpb.TypeTimerCreated:
		op.fireAt, ok = intField(e.body, fieldTimerFireAt)
	case journalpb.TypeSubOrchestrationScheduled:
		if op.target, ok = stringField(e.body, fieldChildInstance); ok && e.isDetachedStart() {
			reason = i.checkChainedStart(e)
		}
	}
	if !ok {
		return "the body does not decode"
	}
	if reason != "" {
		return reason
	}
	i.open = append(i.open, op)
	return ""
}

// complete closes an operation. An event type of 0 matches any.
func (i *indexEntry) complete(source uint64, eventType int) (reason string) {
	at, ok := i.open.find(source)
	if !ok {
		return fmt.Sprintf("operation %d is not open", source)
	}
	if eventType != 0 && i.open[at].eventType != eventType {
		return fmt.Sprintf("operation %d has another event type", source)
	}
	i.open = slices.Delete(i.open, at, at+1)
	return ""
}

// lateCancelProtocol is the protocol that permits canceling a subscription whose event was recorded
// while the instance was suspended. Older builds reject such an append, so all must reject it until
// the cluster speaks this protocol.
const lateCancelProtocol = 3

// messagesProtocol is the protocol that permits messages to other instances, attributes and
// key-value maps. Older builds do not know their events.
const messagesProtocol = 4

// OperateProtocol is the first protocol that permits actions on open operations: older builds do
// not know their events.
const OperateProtocol = 4

// DeadlinesProtocol is the first protocol that permits runs with a deadline: older builds do not
// start the deadline timer.
const DeadlinesProtocol = 4

// HeadersProtocol is the first protocol that permits headers: older builds do not pass them on.
const HeadersProtocol = 4

// CopyProtocol is the first protocol that permits copied histories: older builds do not know the
// command.
const CopyProtocol = 4

// RunOptionsProtocol is the first protocol that permits retry policies and summaries of runs: older
// builds do not retry, and continue runs as new without both.
const RunOptionsProtocol = 4

// requiredProtocol returns the protocol that the cluster must speak to record an event, and what
// needs it.
func (i *indexEntry) requiredProtocol(encoded []byte) (protocol uint32, reason string) {
	e, ok := parseEventFields(encoded)
	switch {
	case !ok:
	case e.eventType == journalpb.TypeMessageSent:
		return messagesProtocol, "a message to another instance"
	case e.eventType == journalpb.TypeAttributeSet:
		return messagesProtocol, "an attribute"
	case e.eventType == journalpb.TypeValueSet:
		return messagesProtocol, "a key-value map"
	case e.eventType == journalpb.TypeOperationControlled:
		return OperateProtocol, "an action on an operation"
	case e.eventType == journalpb.TypeHistoryCopied:
		return CopyProtocol, "a copied history"
	case i.lateCanceledName(e) != "":
		return lateCancelProtocol, "canceling a closed subscription"
	}
	return 0, ""
}

// cancel closes an operation because the code canceled it. The code may cancel a subscription that
// is already closed here, because its event was recorded while the instance was suspended. The
// event then goes to the next subscription to the name.
func (i *indexEntry) cancel(e eventFields) (reason string) {
	if name := i.lateCanceledName(e); name != "" {
		i.deliver(name)
		return ""
	}
	return i.complete(e.source, 0)
}

// lateCanceledName returns the name of a subscription that is canceled although it is closed here,
// "" for every other event.
func (i *indexEntry) lateCanceledName(e eventFields) (name string) {
	if e.eventType != journalpb.TypeCancelRequested || len(e.body) == 0 {
		return ""
	}
	if _, open := i.open.find(e.source); open {
		return ""
	}
	name, _ = stringField(e.body, fieldCanceledName)
	return name
}

func (i *indexEntry) applyExternal(e eventFields) (reason string) {
	name, ok := stringField(e.body, fieldExternalName)
	if !ok {
		return "the body does not decode"
	}
	if e.eventType == journalpb.TypeExternalSubscribed {
		i.subscribe(e, name)
	} else {
		i.deliver(name)
	}
	return ""
}

// checkChainedStart validates a detached start and sets hasChainedStart. The machine then stores
// the start, because whether it waits depends on other instances.
func (i *indexEntry) checkChainedStart(e eventFields) (reason string) {
	var start chainedStart
	if !start.setBody(e.eventType, e.body) {
		return journalpb.TypeName(e.eventType) + " does not decode"
	}
	if start.target == "" {
		return "a chained start must name its instance"
	}
	i.hasChainedStart = true
	return ""
}
