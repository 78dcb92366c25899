package journalpb

// The event types: the field numbers of Event.body. Indexes and encoded events use them.
const (
	TypeOrchestrationStarted         = 10
	TypeOrchestrationCompleted       = 11
	TypeOrchestrationFailed          = 12
	TypeOrchestrationCanceled        = 13
	TypeOrchestrationTerminated      = 14
	TypeOrchestrationContinuedAsNew  = 15
	TypeOrchestrationCancelRequested = 16
	TypeOrchestrationSuspended       = 17
	TypeOrchestrationResumed         = 18
	TypeActivityScheduled            = 20
	TypeActivityCompleted            = 21
	TypeActivityFailed               = 22
	TypeTimerCreated                 = 23
	TypeTimerFired                   = 24
	TypeExternalSubscribed           = 25
	TypeExternalEvent                = 26
	TypeSubOrchestrationScheduled    = 27
	TypeSubOrchestrationCompleted    = 28
	TypeSubOrchestrationFailed       = 29
	TypeOrchestrationChained         = 30
	TypeCancelRequested              = 31
	TypeSideEffectRecorded           = 32
	TypeStatusSet                    = 33
	TypeMessageSent                  = 34
	TypeMessageDelivered             = 35
	TypeMessageRejected              = 36
	TypeAttributeSet                 = 37
	TypeValueSet                     = 38
	TypeOperationControlled          = 39
	TypeHistoryCopied                = 40
)

var typeNames = map[int]string{
	TypeOrchestrationStarted:         "OrchestrationStarted",
	TypeOrchestrationCompleted:       "OrchestrationCompleted",
	TypeOrchestrationFailed:          "OrchestrationFailed",
	TypeOrchestrationCanceled:        "OrchestrationCanceled",
	TypeOrchestrationTerminated:      "OrchestrationTerminated",
	TypeOrchestrationContinuedAsNew:  "OrchestrationContinuedAsNew",
	TypeOrchestrationCancelRequested: "OrchestrationCancelRequested",
	TypeOrchestrationSuspended:       "OrchestrationSuspended",
	TypeOrchestrationResumed:         "OrchestrationResumed",
	TypeActivityScheduled:            "ActivityScheduled",
	TypeActivityCompleted:            "ActivityCompleted",
	TypeActivityFailed:               "ActivityFailed",
	TypeTimerCreated:                 "TimerCreated",
	TypeTimerFired:                   "TimerFired",
	TypeExternalSubscribed:           "ExternalSubscribed",
	TypeExternalEvent:                "ExternalEvent",
	TypeSubOrchestrationScheduled:    "SubOrchestrationScheduled",
	TypeSubOrchestrationCompleted:    "SubOrchestrationCompleted",
	TypeSubOrchestrationFailed:       "SubOrchestrationFailed",
	TypeOrchestrationChained:         "OrchestrationChained",
	TypeCancelRequested:              "CancelRequested",
	TypeSideEffectRecorded:           "SideEffectRecorded",
	TypeStatusSet:                    "StatusSet",
	TypeMessageSent:                  "MessageSent",
	TypeMessageDelivered:             "MessageDelivered",
	TypeMessageRejected:              "MessageRejected",
	TypeAttributeSet:                 "AttributeSet",
	TypeValueSet:                     "ValueSet",
	TypeOperationControlled:          "OperationControlled",
	TypeHistoryCopied:                "HistoryCopied",
}

// TypeName returns the name of an event type, "" for an unknown number.
func TypeName(eventType int) string { return typeNames[eventType] }

// TypeNumber returns the event type, 0 if the body is missing or its type is unknown to this build.
func (e *Event) TypeNumber() int {
	switch e.GetBody().(type) {
	case *Event_OrchestrationStarted:
		return TypeOrchestrationStarted
	case *Event_OrchestrationCompleted:
		return TypeOrchestrationCompleted
	case *Event_OrchestrationFailed:
		return TypeOrchestrationFailed
	case *Event_OrchestrationCanceled:
		return TypeOrchestrationCanceled
	case *Event_OrchestrationTerminated:
		return TypeOrchestrationTerminated
	case *Event_OrchestrationContinuedAsNew:
		return TypeOrchestrationContinuedAsNew
	case *Event_OrchestrationCancelRequested:
		return TypeOrchestrationCancelRequested
	case *Event_OrchestrationSuspended:
		return TypeOrchestrationSuspended
	case *Event_OrchestrationResumed:
		return TypeOrchestrationResumed
	case *Event_ActivityScheduled:
		return TypeActivityScheduled
	case *Event_ActivityCompleted:
		return TypeActivityCompleted
	case *Event_ActivityFailed:
		return TypeActivityFailed
	case *Event_TimerCreated:
		return TypeTimerCreated
	case *Event_TimerFired:
		return TypeTimerFired
	case *Event_ExternalSubscribed:
		return TypeExternalSubscribed
	case *Event_ExternalEvent:
		return TypeExternalEvent
	case *Event_SubOrchestrationScheduled:
		return TypeSubOrchestrationScheduled
	case *Event_SubOrchestrationCompleted:
		return TypeSubOrchestrationCompleted
	case *Event_SubOrchestrationFailed:
		return TypeSubOrchestrationFailed
	case *Event_OrchestrationChained:
		return TypeOrchestrationChained
	case *Event_CancelRequested:
		return TypeCancelRequested
	case *Event_SideEffectRecorded:
		return TypeSideEffectRecorded
	case *Event_StatusSet:
		return TypeStatusSet
	case *Event_MessageSent:
		return TypeMessageSent
	case *Event_MessageDelivered:
		return TypeMessageDelivered
	case *Event_MessageRejected:
		return TypeMessageRejected
	case *Event_AttributeSet:
		return TypeAttributeSet
	case *Event_ValueSet:
		return TypeValueSet
	case *Event_OperationControlled:
		return TypeOperationControlled
	case *Event_HistoryCopied:
		return TypeHistoryCopied
	}
	return 0
}

// Type returns the name of the event type, such as "ActivityScheduled", or "Unknown" where
// TypeNumber returns 0.
func (e *Event) Type() string {
	if name := typeNames[e.TypeNumber()]; name != "" {
		return name
	}
	return "Unknown"
}

// IsTerminal reports whether an event of that type ends its execution.
func IsTerminal(eventType int) bool {
	return eventType >= TypeOrchestrationCompleted && eventType <= TypeOrchestrationContinuedAsNew
}

// SchedulingType returns the type of the scheduling event that an event of that type completes, 0
// if it completes none.
func SchedulingType(eventType int) int {
	switch eventType {
	case TypeActivityCompleted, TypeActivityFailed:
		return TypeActivityScheduled
	case TypeTimerFired:
		return TypeTimerCreated
	case TypeSubOrchestrationCompleted, TypeSubOrchestrationFailed:
		return TypeSubOrchestrationScheduled
	case TypeMessageDelivered, TypeMessageRejected:
		return TypeMessageSent
	}
	return 0
}

// OpensOperation reports whether an event of that type schedules an operation that a completion
// closes. A subscription is closed by an external event, which names no operation.
func OpensOperation(eventType int) bool {
	switch eventType {
	case TypeActivityScheduled, TypeTimerCreated, TypeSubOrchestrationScheduled, TypeMessageSent:
		return true
	}
	return false
}

// ActionName returns the name of an action of an operator, "" if it is unknown.
func (k OperationControlled_Kind) ActionName() string {
	switch k {
	case OperationControlled_KIND_RETRY_NOW:
		return "retry now"
	case OperationControlled_KIND_HOLD:
		return "hold"
	case OperationControlled_KIND_RELEASE:
		return "release"
	case OperationControlled_KIND_ADJUST:
		return "adjust"
	}
	return ""
}

// CopiedReason is the recorded reason of a termination by a CopyHistory.
const CopiedReason = "replaced by a new run that begins with a copied history"

// IsOperated reports whether an operator has caused the event: it controls an operation, or closes
// one. It is false for an external event that an operator has sent.
func (e *Event) IsOperated() bool {
	return e.GetOrigin().GetRequestId() != "" || e.GetOperationControlled() != nil
}

// AppliesToTimers reports whether an action of that kind may concern a timer; all may concern an
// activity.
func (k OperationControlled_Kind) AppliesToTimers() bool {
	return k == OperationControlled_KIND_HOLD || k == OperationControlled_KIND_RELEASE
}

// InputRequestID returns the request ID of an input of a client, "" if the event is none.
func (e *Event) InputRequestID() string {
	switch body := e.Body.(type) {
	case *Event_ExternalEvent:
		return body.ExternalEvent.RequestId
	case *Event_OrchestrationCancelRequested:
		return body.OrchestrationCancelRequested.RequestId
	case *Event_OrchestrationSuspended:
		return body.OrchestrationSuspended.RequestId
	case *Event_OrchestrationResumed:
		return body.OrchestrationResumed.RequestId
	case *Event_OperationControlled:
		return body.OperationControlled.RequestId
	}
	return e.Origin.GetRequestId()
}

// InputWithID returns the event itself if it is the input with that request ID, or else the
// external event with that ID in the inbox of a start or of a copy, as an event; nil if there is
// none.
func (e *Event) InputWithID(requestID string) *Event {
	if e.InputRequestID() == requestID {
		return e
	}
	inbox := e.GetOrchestrationStarted().GetInbox()
	if copied := e.GetHistoryCopied(); copied != nil {
		inbox = copied.Inbox
	}
	for _, carried := range inbox {
		if carried.RequestId == requestID {
			return &Event{EventId: e.EventId, Timestamp: e.Timestamp, Body: &Event_ExternalEvent{ExternalEvent: carried}}
		}
	}
	return nil
}
