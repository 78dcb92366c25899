package history

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// An EventType says what an event records.
type EventType string

// The types of the events of an orchestration. The comments say what Name holds, and what Decode
// and Err return.
const (
	// OrchestrationStarted is the first event of every execution. Name: of the orchestration.
	// Decode: its input.
	OrchestrationStarted EventType = "OrchestrationStarted"
	// OrchestrationCompleted ends the run. Decode: the output.
	OrchestrationCompleted EventType = "OrchestrationCompleted"
	// OrchestrationFailed ends the run. Err: its error.
	OrchestrationFailed EventType = "OrchestrationFailed"
	// OrchestrationCanceled ends the run.
	OrchestrationCanceled EventType = "OrchestrationCanceled"
	// OrchestrationTerminated ends the run.
	OrchestrationTerminated EventType = "OrchestrationTerminated"
	// OrchestrationContinuedAsNew ends the execution; the next one follows. Decode: its input.
	OrchestrationContinuedAsNew EventType = "OrchestrationContinuedAsNew"
	// OrchestrationCancelRequested asks the code to end.
	OrchestrationCancelRequested EventType = "OrchestrationCancelRequested"
	OrchestrationSuspended       EventType = "OrchestrationSuspended"
	OrchestrationResumed         EventType = "OrchestrationResumed"
	// StatusSet records a custom status. Decode: the status.
	StatusSet EventType = "StatusSet"
	// AttributeSet sets or removes an attribute. Name: of the attribute.
	AttributeSet EventType = "AttributeSet"
	// ValueSet sets or deletes a value of a key-value map. Name: of the map. Decode: the value.
	ValueSet EventType = "ValueSet"
)

// The types of the events of operations. Those that end or cancel an operation have its
// SourceEventID.
const (
	// ActivityScheduled. Name: of the activity. Decode: its input.
	ActivityScheduled EventType = "ActivityScheduled"
	// ActivityCompleted. Decode: the result.
	ActivityCompleted EventType = "ActivityCompleted"
	// ActivityFailed. Err: the error of the last attempt.
	ActivityFailed EventType = "ActivityFailed"
	TimerCreated   EventType = "TimerCreated"
	TimerFired     EventType = "TimerFired"
	// ExternalSubscribed: the code waits for an event from outside. Name: of the event.
	ExternalSubscribed EventType = "ExternalSubscribed"
	// ExternalEvent: an event from outside has arrived, or an update; the name of an update follows
	// the prefix "tenuto.update/". Name: of the event. Decode: its data.
	ExternalEvent EventType = "ExternalEvent"
	// SubOrchestrationScheduled starts a child. Name: of its orchestration. Decode: its input.
	SubOrchestrationScheduled EventType = "SubOrchestrationScheduled"
	// SubOrchestrationCompleted. Decode: the child's output.
	SubOrchestrationCompleted EventType = "SubOrchestrationCompleted"
	// SubOrchestrationFailed. Err: the child's error.
	SubOrchestrationFailed EventType = "SubOrchestrationFailed"
	// OrchestrationChained starts an independent instance. Name: of its orchestration. Decode: its
	// input.
	OrchestrationChained EventType = "OrchestrationChained"
	// CancelRequested cancels an operation. Name: of the event, if it cancels a subscription while
	// such an event waits for the resumption of the instance; otherwise empty.
	CancelRequested EventType = "CancelRequested"
	// SideEffectRecorded. Name: its label; for the result of an update, "tenuto.update/" and the
	// update's ID. Decode: the value. Err: the error instead of a value.
	SideEffectRecorded EventType = "SideEffectRecorded"
	// MessageSent sends an event, or a request to cancel, to the instance that Receiver returns.
	// Name: of the event, "" for a cancellation. Decode: the event's data.
	MessageSent EventType = "MessageSent"
	// MessageDelivered: the receiver has recorded the message.
	MessageDelivered EventType = "MessageDelivered"
	// MessageRejected: the receiver has not recorded the message. Err: why.
	MessageRejected EventType = "MessageRejected"
	// OperationControlled: an operator has acted on the open operation that Operation returns,
	// without ending it. Name: of the action: "retry now", "hold", "release" or "adjust".
	OperationControlled EventType = "OperationControlled"
	// HistoryCopied: the events before it are copies of those of the run that Source returns.
	// External events that were kept have arrived with it.
	HistoryCopied EventType = "HistoryCopied"
	// Unknown is an event that this build does not know.
	Unknown EventType = "Unknown"
)

// EndsExecution reports whether an event of that type is the last of its execution.
func (t EventType) EndsExecution() bool {
	switch t {
	case OrchestrationCompleted, OrchestrationFailed, OrchestrationCanceled, OrchestrationTerminated, OrchestrationContinuedAsNew:
		return true
	}
	return false
}

// nameIn returns the name in an event, as recorded.
func nameIn(event *journalpb.Event) string {
	switch body := event.GetBody().(type) {
	case *journalpb.Event_OrchestrationStarted:
		return body.OrchestrationStarted.Name
	case *journalpb.Event_ActivityScheduled:
		return body.ActivityScheduled.Name
	case *journalpb.Event_ExternalSubscribed:
		return body.ExternalSubscribed.Name
	case *journalpb.Event_ExternalEvent:
		return body.ExternalEvent.Name
	case *journalpb.Event_SubOrchestrationScheduled:
		return body.SubOrchestrationScheduled.Name
	case *journalpb.Event_OrchestrationChained:
		return body.OrchestrationChained.Name
	case *journalpb.Event_MessageSent:
		return body.MessageSent.Event.GetName()
	case *journalpb.Event_CancelRequested:
		return body.CancelRequested.EventName
	case *journalpb.Event_SideEffectRecorded:
		return body.SideEffectRecorded.Label
	case *journalpb.Event_AttributeSet:
		return body.AttributeSet.Name
	case *journalpb.Event_ValueSet:
		return body.ValueSet.Map
	case *journalpb.Event_OperationControlled:
		return body.OperationControlled.Kind.ActionName()
	}
	return ""
}

// reasonIn returns why an event was caused from outside, as recorded.
func reasonIn(event *journalpb.Event) string {
	switch body := event.GetBody().(type) {
	case *journalpb.Event_OrchestrationCanceled:
		return body.OrchestrationCanceled.Reason
	case *journalpb.Event_OrchestrationTerminated:
		return body.OrchestrationTerminated.Reason
	case *journalpb.Event_OrchestrationCancelRequested:
		return body.OrchestrationCancelRequested.Reason
	case *journalpb.Event_OrchestrationSuspended:
		return body.OrchestrationSuspended.Reason
	case *journalpb.Event_OrchestrationResumed:
		return body.OrchestrationResumed.Reason
	}
	return event.GetOrigin().GetReason()
}

// payloadIn returns the payload of an event, nil if it has none, and what it is.
func payloadIn(event *journalpb.Event) (payload *journalpb.Payload, kind, part string) {
	switch body := event.GetBody().(type) {
	case *journalpb.Event_OrchestrationStarted:
		return body.OrchestrationStarted.Input, "orchestration", "input"
	case *journalpb.Event_OrchestrationCompleted:
		return body.OrchestrationCompleted.Output, "orchestration", "output"
	case *journalpb.Event_OrchestrationContinuedAsNew:
		return body.OrchestrationContinuedAsNew.Input, "orchestration", "input"
	case *journalpb.Event_ActivityScheduled:
		return body.ActivityScheduled.Input, "activity", "input"
	case *journalpb.Event_ActivityCompleted:
		return body.ActivityCompleted.Result, "activity", "result"
	case *journalpb.Event_ExternalEvent:
		return body.ExternalEvent.Data, "event", "data"
	case *journalpb.Event_SubOrchestrationScheduled:
		return body.SubOrchestrationScheduled.Input, "orchestration", "input"
	case *journalpb.Event_SubOrchestrationCompleted:
		return body.SubOrchestrationCompleted.Result, "orchestration", "result"
	case *journalpb.Event_OrchestrationChained:
		return body.OrchestrationChained.Input, "orchestration", "input"
	case *journalpb.Event_SideEffectRecorded:
		return body.SideEffectRecorded.Value, "side effect", "value"
	case *journalpb.Event_StatusSet:
		return body.StatusSet.Value, "orchestration", "status"
	case *journalpb.Event_ValueSet:
		return body.ValueSet.Value, "key-value map", "value of key " + body.ValueSet.Key
	case *journalpb.Event_MessageSent:
		return body.MessageSent.Event.GetData(), "event", "data"
	}
	return nil, "", ""
}

// errorIn returns the error recorded in an event, nil if there is none.
func errorIn(event *journalpb.Event) *journalpb.Error {
	switch body := event.GetBody().(type) {
	case *journalpb.Event_OrchestrationStarted:
		return body.OrchestrationStarted.LastFailure
	case *journalpb.Event_OrchestrationContinuedAsNew:
		return body.OrchestrationContinuedAsNew.Retried
	case *journalpb.Event_OrchestrationFailed:
		return body.OrchestrationFailed.Error
	case *journalpb.Event_ActivityFailed:
		return body.ActivityFailed.Error
	case *journalpb.Event_SubOrchestrationFailed:
		return body.SubOrchestrationFailed.Error
	case *journalpb.Event_SideEffectRecorded:
		return body.SideEffectRecorded.Error
	case *journalpb.Event_MessageRejected:
		return body.MessageRejected.Error
	}
	return nil
}
