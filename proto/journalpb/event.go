package journalpb

// The numbers of the arms of Event.body: the type of an event in indexes and
// in encoded form.
const (
	ArmOrchestrationStarted         = 10
	ArmOrchestrationCompleted       = 11
	ArmOrchestrationFailed          = 12
	ArmOrchestrationCancelled       = 13
	ArmOrchestrationTerminated      = 14
	ArmOrchestrationContinuedAsNew  = 15
	ArmOrchestrationCancelRequested = 16
	ArmOrchestrationSuspended       = 17
	ArmOrchestrationResumed         = 18
	ArmActivityScheduled            = 20
	ArmActivityCompleted            = 21
	ArmActivityFailed               = 22
	ArmTimerCreated                 = 23
	ArmTimerFired                   = 24
	ArmExternalSubscribed           = 25
	ArmExternalEvent                = 26
	ArmSubOrchestrationScheduled    = 27
	ArmSubOrchestrationCompleted    = 28
	ArmSubOrchestrationFailed       = 29
	ArmOrchestrationChained         = 30
	ArmCancelRequested              = 31
	ArmSideEffectRecorded           = 32
	ArmStatusSet                    = 33
)

var armNames = map[int]string{
	ArmOrchestrationStarted:         "OrchestrationStarted",
	ArmOrchestrationCompleted:       "OrchestrationCompleted",
	ArmOrchestrationFailed:          "OrchestrationFailed",
	ArmOrchestrationCancelled:       "OrchestrationCancelled",
	ArmOrchestrationTerminated:      "OrchestrationTerminated",
	ArmOrchestrationContinuedAsNew:  "OrchestrationContinuedAsNew",
	ArmOrchestrationCancelRequested: "OrchestrationCancelRequested",
	ArmOrchestrationSuspended:       "OrchestrationSuspended",
	ArmOrchestrationResumed:         "OrchestrationResumed",
	ArmActivityScheduled:            "ActivityScheduled",
	ArmActivityCompleted:            "ActivityCompleted",
	ArmActivityFailed:               "ActivityFailed",
	ArmTimerCreated:                 "TimerCreated",
	ArmTimerFired:                   "TimerFired",
	ArmExternalSubscribed:           "ExternalSubscribed",
	ArmExternalEvent:                "ExternalEvent",
	ArmSubOrchestrationScheduled:    "SubOrchestrationScheduled",
	ArmSubOrchestrationCompleted:    "SubOrchestrationCompleted",
	ArmSubOrchestrationFailed:       "SubOrchestrationFailed",
	ArmOrchestrationChained:         "OrchestrationChained",
	ArmCancelRequested:              "CancelRequested",
	ArmSideEffectRecorded:           "SideEffectRecorded",
	ArmStatusSet:                    "StatusSet",
}

// ArmName returns the name of the event type with that number, "" for a
// number that names none.
func ArmName(arm int) string { return armNames[arm] }

// Arm returns the number of the event's type, 0 when the body is missing or of
// a type that this build does not know.
func (e *Event) Arm() int {
	switch e.GetBody().(type) {
	case *Event_OrchestrationStarted:
		return ArmOrchestrationStarted
	case *Event_OrchestrationCompleted:
		return ArmOrchestrationCompleted
	case *Event_OrchestrationFailed:
		return ArmOrchestrationFailed
	case *Event_OrchestrationCancelled:
		return ArmOrchestrationCancelled
	case *Event_OrchestrationTerminated:
		return ArmOrchestrationTerminated
	case *Event_OrchestrationContinuedAsNew:
		return ArmOrchestrationContinuedAsNew
	case *Event_OrchestrationCancelRequested:
		return ArmOrchestrationCancelRequested
	case *Event_OrchestrationSuspended:
		return ArmOrchestrationSuspended
	case *Event_OrchestrationResumed:
		return ArmOrchestrationResumed
	case *Event_ActivityScheduled:
		return ArmActivityScheduled
	case *Event_ActivityCompleted:
		return ArmActivityCompleted
	case *Event_ActivityFailed:
		return ArmActivityFailed
	case *Event_TimerCreated:
		return ArmTimerCreated
	case *Event_TimerFired:
		return ArmTimerFired
	case *Event_ExternalSubscribed:
		return ArmExternalSubscribed
	case *Event_ExternalEvent:
		return ArmExternalEvent
	case *Event_SubOrchestrationScheduled:
		return ArmSubOrchestrationScheduled
	case *Event_SubOrchestrationCompleted:
		return ArmSubOrchestrationCompleted
	case *Event_SubOrchestrationFailed:
		return ArmSubOrchestrationFailed
	case *Event_OrchestrationChained:
		return ArmOrchestrationChained
	case *Event_CancelRequested:
		return ArmCancelRequested
	case *Event_SideEffectRecorded:
		return ArmSideEffectRecorded
	case *Event_StatusSet:
		return ArmStatusSet
	}
	return 0
}

// Type returns the name of the event's type as semantics name it:
// "ActivityScheduled" and so on; "Unknown" where Arm returns 0.
func (e *Event) Type() string {
	if name := armNames[e.Arm()]; name != "" {
		return name
	}
	return "Unknown"
}

// Terminal tells whether an event of that type ends its execution.
func Terminal(arm int) bool {
	return arm >= ArmOrchestrationCompleted && arm <= ArmOrchestrationContinuedAsNew
}

// Completes returns the type of the scheduling event that an event of that
// type completes, 0 for one that is no completion.
func Completes(arm int) int {
	switch arm {
	case ArmActivityCompleted, ArmActivityFailed:
		return ArmActivityScheduled
	case ArmTimerFired:
		return ArmTimerCreated
	case ArmSubOrchestrationCompleted, ArmSubOrchestrationFailed:
		return ArmSubOrchestrationScheduled
	}
	return 0
}
