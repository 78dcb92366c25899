package replay

import (
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Size measures an execution.
type Size struct {
	Events int // of the history
	Bytes  int // of payloads and errors in the history
	Open   int // operations scheduled and not completed

	Buffered      int // external events that the code has not received
	BufferedBytes int // of their payloads
}

// Size returns the size of the execution up to the last recorded event.
func (x *Execution) Size() Size {
	size := Size{
		Events: int(x.lastEventID), Bytes: x.bytes, Open: x.openOperations.len(),
		Buffered: x.inbox.events, BufferedBytes: x.inbox.bytes,
	}
	for _, event := range x.deferred {
		if arrived := event.GetExternalEvent(); arrived != nil {
			size.Buffered++
			size.BufferedBytes += len(arrived.Data.GetData())
		}
	}
	return size
}

// HasSubscription reports whether a subscription waits for an external event of that name, so that
// the event would not be buffered. A suspended instance buffers every event.
func (x *Execution) HasSubscription(name string) bool {
	return !x.suspended && x.inbox.hasSubscription(name)
}

// valueBytes returns the bytes of user data in an event: of its payloads and error records.
func valueBytes(event *journalpb.Event) (bytes int) {
	visitValues(event, func(payload *journalpb.Payload, failure *journalpb.Error) {
		bytes += len(payload.GetData()) + errorBytes(failure)
	})
	return bytes
}

func errorBytes(failure *journalpb.Error) int {
	if failure == nil {
		return 0
	}
	bytes := len(failure.Message) + len(failure.Stack) + len(failure.Details.GetData()) + errorBytes(failure.Cause)
	for _, cause := range failure.OtherCauses {
		bytes += errorBytes(cause)
	}
	return bytes
}

// addSize adds a consumed event to the size. A live side effect gets its value in the step after
// this, so sideEffect counts it, live and on replay.
func (x *Execution) addSize(event *journalpb.Event) {
	x.legacyBytes += legacyBytes(event)
	if record := event.GetSideEffectRecorded(); record == nil || strings.HasPrefix(record.Label, UpdatePrefix) {
		x.bytes += valueBytes(event)
	}
}

// continueAsNewBytes returns the size that [Context.ShouldContinueAsNew] uses. Recorded decisions
// depend on it, so an execution that began before protocol 3 keeps the old rule.
func (x *Execution) continueAsNewBytes() int {
	if x.startInfo.protocol3 {
		return x.bytes
	}
	return x.legacyBytes
}

// CountAllPayloadsNext makes the next execution count all payloads in
// [Context.ShouldContinueAsNew]. Every node that may replay it must support that.
func (x *Execution) CountAllPayloadsNext() { x.countAllPayloadsNext = true }

// legacyBytes returns how many bytes of an event the rule before protocol 3 counts. It omits
// chained starts, values carried over by continue-as-new, and errors. Side effects and updates are
// counted where their values are computed.
func legacyBytes(event *journalpb.Event) int {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		return len(body.OrchestrationStarted.Input.GetData())
	case *journalpb.Event_ActivityScheduled:
		return len(body.ActivityScheduled.Input.GetData())
	case *journalpb.Event_ActivityCompleted:
		return len(body.ActivityCompleted.Result.GetData())
	case *journalpb.Event_ExternalEvent:
		return len(body.ExternalEvent.Data.GetData())
	case *journalpb.Event_SubOrchestrationScheduled:
		return len(body.SubOrchestrationScheduled.Input.GetData())
	case *journalpb.Event_SubOrchestrationCompleted:
		return len(body.SubOrchestrationCompleted.Result.GetData())
	case *journalpb.Event_StatusSet:
		return len(body.StatusSet.Value.GetData())
	}
	return 0
}
