package replay

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// Size is how much there is of an execution.
type Size struct {
	Events int // of the history
	Bytes  int // of the payloads in it
	Open   int // operations that are scheduled and not completed

	Buffered      int // external events that no code has taken
	BufferedBytes int // of their payloads
}

// Size returns how much there is up to the event that was recorded last.
func (x *Execution) Size() Size {
	return Size{
		Events: int(x.last), Bytes: x.bytes, Open: x.open.len(),
		Buffered: x.inbox.events, BufferedBytes: x.inbox.bytes,
	}
}

// Awaits tells whether an external event of that name has somebody who waits for
// it, so that it would not be buffered.
func (x *Execution) Awaits(name string) bool { return x.inbox.awaits(name) }

// payloadBytes returns the bytes of user data in an event. Those of a side
// effect are not known yet when it is recorded live: sideEffect counts them.
func payloadBytes(event *journalpb.Event) int {
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
