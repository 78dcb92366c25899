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

// fold takes the event with the given id of an execution into the index, or
// returns the rule that it breaks.
func (h *head) fold(number, id uint64, encoded []byte) (reason string) {
	e, ok := skim(encoded)
	switch {
	case !ok:
		return "the event does not decode"
	case e.arm == 0:
		return "the event has no body of a known type"
	case e.id != id:
		return fmt.Sprintf("the event says that its id is %d", e.id)
	case (id == 1) != (e.arm == journalpb.ArmOrchestrationStarted):
		return "OrchestrationStarted is the first event and only the first"
	case id > 1 && h.status != journalpb.Status_STATUS_RUNNING:
		return "an event after the end of the execution"
	}
	if reason = h.takeIn(number, e); reason == "" {
		h.last, h.updated = id, e.timestamp
	}
	return reason
}

func (h *head) takeIn(number uint64, e skimmed) (reason string) {
	if scheduled := journalpb.Completes(e.arm); scheduled != 0 {
		return h.complete(e.source, scheduled)
	}
	if journalpb.Terminal(e.arm) {
		h.end(e.arm)
		return ""
	}
	switch e.arm {
	case journalpb.ArmOrchestrationStarted:
		return h.begin(number, e)
	case journalpb.ArmActivityScheduled, journalpb.ArmTimerCreated, journalpb.ArmSubOrchestrationScheduled:
		return h.schedule(e)
	case journalpb.ArmCancelRequested:
		return h.cancel(e)
	case journalpb.ArmExternalSubscribed, journalpb.ArmExternalEvent:
		return h.external(e)
	case journalpb.ArmOrchestrationChained:
		return h.chain(e)
	case journalpb.ArmOrchestrationSuspended, journalpb.ArmOrchestrationResumed:
		h.suspended = e.arm == journalpb.ArmOrchestrationSuspended
	case journalpb.ArmStatusSet:
		h.statusEvent = e.id
	}
	return "" // the other types open nothing and close nothing
}

// schedule opens an operation.
func (h *head) schedule(e skimmed) (reason string) {
	op, ok := operation{id: e.id, arm: e.arm}, true
	switch e.arm {
	case journalpb.ArmTimerCreated:
		op.fireAt, ok = integer(e.body, fieldTimerFireAt)
	case journalpb.ArmSubOrchestrationScheduled:
		if op.target, ok = text(e.body, fieldChildInstance); ok && e.outlives() {
			reason = h.chain(e)
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

// complete closes an operation. An arm of 0 stands for any.
func (h *head) complete(source uint64, arm int) (reason string) {
	at, ok := h.open.find(source)
	if !ok {
		return fmt.Sprintf("operation %d is not open", source)
	}
	if arm != 0 && h.open[at].arm != arm {
		return fmt.Sprintf("operation %d is of another kind", source)
	}
	h.open = slices.Delete(h.open, at, at+1)
	return ""
}

// heldProtocol is the protocol from which on a subscription may be canceled whose event
// was recorded while the instance was suspended. Builds before refuse such an append, so
// that all do until the cluster speaks it.
const heldProtocol = 3

// cancel closes an operation by a decision of the code. The code may cancel a
// subscription whose event was recorded while the instance was suspended, and which is
// closed here for that reason: the event then belongs to the next one of the name.
func (h *head) cancel(e skimmed) (reason string) {
	if name := h.canceledLate(e); name != "" {
		h.arrive(name)
		return ""
	}
	return h.complete(e.source, 0)
}

// canceledLate returns the name of a subscription that is canceled although it is closed
// here, "" for every other event.
func (h *head) canceledLate(e skimmed) (name string) {
	if e.arm != journalpb.ArmCancelRequested || len(e.body) == 0 {
		return ""
	}
	if _, open := h.open.find(e.source); open {
		return ""
	}
	name, _ = text(e.body, fieldCanceledName)
	return name
}

func (h *head) external(e skimmed) (reason string) {
	name, ok := text(e.body, fieldExternalName)
	if !ok {
		return "the body does not decode"
	}
	if e.arm == journalpb.ArmExternalSubscribed {
		h.subscribe(e.id, name)
	} else {
		h.arrive(name)
	}
	return ""
}

// chain checks a start that outlives whoever asks for it. What becomes of it
// depends on other instances: it is the machine that keeps it.
func (h *head) chain(e skimmed) (reason string) {
	var start chainedStart
	if !start.ask(e.arm, e.body) {
		return journalpb.ArmName(e.arm) + " does not decode"
	}
	if start.target == "" {
		return "a chained start names its instance"
	}
	h.chains = true
	return ""
}
