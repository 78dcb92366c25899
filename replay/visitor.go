package replay

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// A visitor is called with a payload or an error; the other is nil. It must itself visit what an
// error contains.
type visitor func(*journalpb.Payload, *journalpb.Error)

// visitValues calls visit with every payload and every error that is set in an event. It matches
// eachValue but avoids reflection, because it runs for every event of every replay. A test compares
// the two for every field.
func visitValues(event *journalpb.Event, visit visitor) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		visit.payload(body.OrchestrationStarted.Input)
		visit.payload(body.OrchestrationStarted.Status)
		visit.inbox(body.OrchestrationStarted.Inbox)
	case *journalpb.Event_OrchestrationCompleted:
		visit.payload(body.OrchestrationCompleted.Output)
	case *journalpb.Event_OrchestrationFailed:
		visit.failure(body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		visit.payload(body.OrchestrationContinuedAsNew.Input)
		visit.inbox(body.OrchestrationContinuedAsNew.Inbox)
	case *journalpb.Event_ActivityScheduled:
		visit.payload(body.ActivityScheduled.Input)
	case *journalpb.Event_ActivityCompleted:
		visit.payload(body.ActivityCompleted.Result)
	case *journalpb.Event_ActivityFailed:
		visit.failure(body.ActivityFailed.Error)
	case *journalpb.Event_ExternalEvent:
		visit.payload(body.ExternalEvent.Data)
	case *journalpb.Event_SubOrchestrationScheduled:
		visit.payload(body.SubOrchestrationScheduled.Input)
	case *journalpb.Event_SubOrchestrationCompleted:
		visit.payload(body.SubOrchestrationCompleted.Result)
	case *journalpb.Event_SubOrchestrationFailed:
		visit.failure(body.SubOrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationChained:
		visit.payload(body.OrchestrationChained.Input)
	case *journalpb.Event_SideEffectRecorded:
		visit.payload(body.SideEffectRecorded.Value)
		visit.failure(body.SideEffectRecorded.Error)
	case *journalpb.Event_StatusSet:
		visit.payload(body.StatusSet.Value)
	}
}

func (visit visitor) payload(payload *journalpb.Payload) {
	if payload != nil {
		visit(payload, nil)
	}
}

func (visit visitor) failure(failure *journalpb.Error) {
	if failure != nil {
		visit(nil, failure)
	}
}

func (visit visitor) inbox(inbox []*journalpb.ExternalEvent) {
	for _, event := range inbox {
		visit.payload(event.Data)
	}
}
