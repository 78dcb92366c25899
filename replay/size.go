package replay

import (
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Size is how much there is of an execution.
type Size struct {
	Events int // of the history
	Bytes  int // of the payloads and errors in it
	Open   int // operations that are scheduled and not completed

	Buffered      int // external events that no code has taken
	BufferedBytes int // of their payloads
}

// Size returns how much there is up to the event that was recorded last.
func (x *Execution) Size() Size {
	size := Size{
		Events: int(x.last), Bytes: x.bytes, Open: x.open.len(),
		Buffered: x.inbox.events, BufferedBytes: x.inbox.bytes,
	}
	for _, event := range x.held {
		if arrived := event.GetExternalEvent(); arrived != nil {
			size.Buffered++
			size.BufferedBytes += len(arrived.Data.GetData())
		}
	}
	return size
}

// Awaits reports whether a subscription waits for an external event of that name,
// so that it would not be buffered. A suspended instance keeps every event.
func (x *Execution) Awaits(name string) bool { return !x.suspended && x.inbox.awaits(name) }

// valueBytes returns the bytes of user data in an event: of all payloads, and of what the
// records of errors say.
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

// count adds an event that is consumed to the size. A side effect that runs now gets its
// value in the step after this, so that sideEffect counts it, live and on replay alike.
func (x *Execution) count(event *journalpb.Event) {
	x.bytesBefore += bytesBefore(event)
	if record := event.GetSideEffectRecorded(); record == nil || strings.HasPrefix(record.Label, UpdatePrefix) {
		x.bytes += valueBytes(event)
	}
}

// decisionBytes returns the size by which [Context.ShouldContinueAsNew] decides. Code has
// decided by it in recorded histories, so an execution that began under the rule before
// protocol 3 keeps that.
func (x *Execution) decisionBytes() int {
	if x.origin.protocol3 {
		return x.bytes
	}
	return x.bytesBefore
}

// CountAllNext has the next execution of the run decide by all payloads: every node that
// may replay it counts them.
func (x *Execution) CountAllNext() { x.countsAllNext = true }

// bytesBefore returns what the rule before protocol 3 counts of an event. It misses chained
// starts, what is carried over by continue-as-new, and errors. Values of side effects and of
// updates are counted where they are made.
func bytesBefore(event *journalpb.Event) int {
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
