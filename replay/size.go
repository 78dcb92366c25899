package replay

import "github.com/tenuto-dev/tenuto/proto/journalpb"

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
