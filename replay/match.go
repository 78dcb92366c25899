package replay

import (
	"bytes"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// enqueue adds an action to the queue. The call stack is recorded only while a replay explains a
// mismatch.
func (x *Execution) enqueue(event *journalpb.Event, op *operation) {
	var a *action
	if op != nil {
		a = &op.action
	} else {
		a = new(action)
	}
	a.event, a.op = event, op
	if x.explaining {
		a.callers = make([]uintptr, 8)
		runtime.Callers(3, a.callers) // 3: the caller of schedule, or the author
	}
	x.queue = append(x.queue, a)
}

// match compares a recorded event with the next action of the code.
func (x *Execution) match(recorded *journalpb.Event, head *action) error {
	switch {
	case head == nil && x.codeDone:
		return x.mismatch(EndedEarly, recorded, x.describe(recorded), "the orchestration has already ended", nil)
	case head == nil:
		return x.mismatch(ScheduledNothing, recorded, x.describe(recorded), "the code blocked and scheduled nothing", x.coroutines.oldestStack())
	case head.event == recorded || x.sameEvent(recorded, head.event):
		return nil
	case journalpb.IsTerminal(head.event.TypeNumber()) && !journalpb.IsTerminal(recorded.TypeNumber()):
		m := x.mismatch(EndedEarly, recorded, x.describe(recorded), x.describe(head.event), nil).withEvent(head.event)
		m.Source = x.code.source
		return m
	}
	m := x.mismatch(ScheduledDifferently, recorded, x.describe(recorded), x.describe(head.event), head.callers).withEvent(head.event)
	if m.Source == "" {
		m.Source = x.code.source
	}
	return m
}

// sameEvent compares the identifying fields of a recorded event and an action of the code.
func (x *Execution) sameEvent(recorded, requested *journalpb.Event) bool {
	if recorded.TypeNumber() != requested.TypeNumber() || recorded.SourceEventId != requested.SourceEventId {
		return false
	}
	switch want := requested.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		have := recorded.GetActivityScheduled()
		return have.Name == want.ActivityScheduled.Name &&
			samePayload(have.Input, want.ActivityScheduled.Input) &&
			sameOptions(have.Options, want.ActivityScheduled.Options)
	case *journalpb.Event_TimerCreated, *journalpb.Event_CancelRequested:
		return true // the recorded fire_at is used; the source was compared above
	case *journalpb.Event_ExternalSubscribed:
		return recorded.GetExternalSubscribed().Name == want.ExternalSubscribed.Name
	case *journalpb.Event_SubOrchestrationScheduled:
		return x.sameChild(recorded, want.SubOrchestrationScheduled)
	case *journalpb.Event_OrchestrationCompleted:
		return samePayload(recorded.GetOrchestrationCompleted().Output, want.OrchestrationCompleted.Output)
	case *journalpb.Event_OrchestrationFailed:
		return sameError(recorded.GetOrchestrationFailed().GetError(), want.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCanceled:
		return true
	}
	return x.sameStandalone(recorded, requested)
}

// sameStandalone compares actions that need no completion. The recorded value of a side effect is
// used; that of a status must match.
func (x *Execution) sameStandalone(recorded, requested *journalpb.Event) bool {
	switch want := requested.Body.(type) {
	case *journalpb.Event_SideEffectRecorded:
		return recorded.GetSideEffectRecorded().Label == want.SideEffectRecorded.Label
	case *journalpb.Event_StatusSet:
		return samePayload(recorded.GetStatusSet().Value, want.StatusSet.Value)
	case *journalpb.Event_OrchestrationChained:
		have, chained := recorded.GetOrchestrationChained(), want.OrchestrationChained
		return have.Name == chained.Name &&
			x.sameID(have.Instance, chained.Instance, recorded.EventId) &&
			samePayload(have.Input, chained.Input)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		return sameContinuation(recorded.GetOrchestrationContinuedAsNew(), want.OrchestrationContinuedAsNew)
	}
	return false
}

// sameChild ignores the version: the newest version may have changed since it was recorded.
func (x *Execution) sameChild(recorded *journalpb.Event, requested *journalpb.SubOrchestrationScheduled) bool {
	have := recorded.GetSubOrchestrationScheduled()
	return have.Name == requested.Name &&
		x.sameID(have.Instance, requested.Instance, recorded.EventId) &&
		have.ClosePolicy == requested.ClosePolicy &&
		samePayload(have.Input, requested.Input)
}

// sameID accepts a derived ID as recorded, shortened or not.
func (x *Execution) sameID(have, requested string, eventID uint64) bool {
	return have == x.idOrDerived(requested, eventID) || requested == "" && have == x.derivedID(eventID)
}

// sameError ignores stacks and causes, which may change with the build. It accepts a record without
// a code, because error types may get codes later.
func sameError(have, requested *journalpb.Error) bool {
	return have.GetMessage() == requested.GetMessage() && (have.GetCode() == requested.GetCode() || have.GetCode() == "")
}

func samePayload(a, b *journalpb.Payload) bool {
	return bytes.Equal(a.GetData(), b.GetData()) && a.GetContentType() == b.GetContentType()
}

// sameOptions compares the meaning of options: an explicit default equals none.
func sameOptions(a, b *journalpb.ActivityOptions) bool {
	return a == nil && b == nil || proto.Equal(withDefaults(a), withDefaults(b))
}

// withDefaults returns the options with every default filled in.
func withDefaults(o *journalpb.ActivityOptions) *journalpb.ActivityOptions {
	p := o.GetRetry()
	return &journalpb.ActivityOptions{
		ScheduleToStart: o.GetScheduleToStart(), StartToClose: o.GetStartToClose(),
		ScheduleToClose: o.GetScheduleToClose(), Heartbeat: o.GetHeartbeat(), Tag: o.GetTag(),
		Retry: &journalpb.RetryPolicy{
			InitialInterval:   int64(orDefault(time.Duration(p.GetInitialInterval()), initialIntervalDefault)),
			Backoff:           max(orDefault(p.GetBackoff(), backoffDefault), 1),
			MaxInterval:       int64(orDefault(time.Duration(p.GetMaxInterval()), maxIntervalDefault)),
			MaxAttempts:       p.GetMaxAttempts(),
			NonRetryableCodes: p.GetNonRetryableCodes(),
			PanicsAreFinal:    p.GetPanicsAreFinal(),
		},
	}
}
