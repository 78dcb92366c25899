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
)

// fold applies event id of execution number to the index entry. It returns the rule that the event
// breaks, "" if it breaks none.
func (h *indexEntry) fold(number, id uint64, encoded []byte) (reason string) {
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
	case id > 1 && h.status != journalpb.Status_STATUS_RUNNING:
		return "event after the end of the execution"
	}
	if reason = h.applyEvent(number, e); reason == "" {
		h.last, h.updated = id, e.timestamp
	}
	return reason
}

func (h *indexEntry) applyEvent(number uint64, e eventFields) (reason string) {
	if scheduled := journalpb.SchedulingType(e.eventType); scheduled != 0 {
		return h.complete(e.source, scheduled)
	}
	if journalpb.IsTerminal(e.eventType) {
		h.endExecution(e.eventType)
		return ""
	}
	switch e.eventType {
	case journalpb.TypeOrchestrationStarted:
		return h.beginExecution(number, e)
	case journalpb.TypeActivityScheduled, journalpb.TypeTimerCreated, journalpb.TypeSubOrchestrationScheduled:
		return h.schedule(e)
	case journalpb.TypeCancelRequested:
		return h.cancel(e)
	case journalpb.TypeExternalSubscribed, journalpb.TypeExternalEvent:
		return h.applyExternal(e)
	case journalpb.TypeOrchestrationChained:
		return h.checkChainedStart(e)
	case journalpb.TypeOrchestrationSuspended, journalpb.TypeOrchestrationResumed:
		h.suspended = e.eventType == journalpb.TypeOrchestrationSuspended
	case journalpb.TypeStatusSet:
		h.statusEvent = e.id
	}
	return "" // the other types neither open nor close anything
}

// schedule opens an operation.
func (h *indexEntry) schedule(e eventFields) (reason string) {
	op, ok := operation{id: e.id, eventType: e.eventType}, true
	switch e.eventType {
	case journalpb.TypeTimerCreated:
		op.fireAt, ok = intField(e.body, fieldTimerFireAt)
	case journalpb.TypeSubOrchestrationScheduled:
		if op.target, ok = stringField(e.body, fieldChildInstance); ok && e.isDetachedStart() {
			reason = h.checkChainedStart(e)
		}
	}
	if !ok {
		return "the body does not decode"
	}
	if reason != "" {
		return reason
	}
	h.open = append(h.open, op)
	return ""
}

// complete closes an operation. An event type of 0 matches any.
func (h *indexEntry) complete(source uint64, eventType int) (reason string) {
	at, ok := h.open.find(source)
	if !ok {
		return fmt.Sprintf("operation %d is not open", source)
	}
	if eventType != 0 && h.open[at].eventType != eventType {
		return fmt.Sprintf("operation %d has another event type", source)
	}
	h.open = slices.Delete(h.open, at, at+1)
	return ""
}

// lateCancelProtocol is the protocol that permits canceling a subscription whose event was recorded
// while the instance was suspended. Older builds refuse such an append, so all must refuse it until
// the cluster speaks this protocol.
const lateCancelProtocol = 3

// cancel closes an operation because the code canceled it. The code may cancel a subscription that
// is already closed here, because its event was recorded while the instance was suspended. The
// event then goes to the next subscription to the name.
func (h *indexEntry) cancel(e eventFields) (reason string) {
	if name := h.lateCanceledName(e); name != "" {
		h.deliver(name)
		return ""
	}
	return h.complete(e.source, 0)
}

// lateCanceledName returns the name of a subscription that is canceled although it is closed here,
// "" for every other event.
func (h *indexEntry) lateCanceledName(e eventFields) (name string) {
	if e.eventType != journalpb.TypeCancelRequested || len(e.body) == 0 {
		return ""
	}
	if _, open := h.open.find(e.source); open {
		return ""
	}
	name, _ = stringField(e.body, fieldCanceledName)
	return name
}

func (h *indexEntry) applyExternal(e eventFields) (reason string) {
	name, ok := stringField(e.body, fieldExternalName)
	if !ok {
		return "the body does not decode"
	}
	if e.eventType == journalpb.TypeExternalSubscribed {
		h.subscribe(e.id, name)
	} else {
		h.deliver(name)
	}
	return ""
}

// checkChainedStart validates a detached start and sets hasChainedStart. The machine then stores
// the start, because whether it waits depends on other instances.
func (h *indexEntry) checkChainedStart(e eventFields) (reason string) {
	var start chainedStart
	if !start.setBody(e.eventType, e.body) {
		return journalpb.TypeName(e.eventType) + " does not decode"
	}
	if start.target == "" {
		return "a chained start must name its instance"
	}
	h.hasChainedStart = true
	return ""
}
