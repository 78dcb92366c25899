package replay

import (
	"bytes"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// enqueue adds an action to the queue. Which call asked for it is noted only where
// a history is replayed to explain a mismatch: live there is nothing to differ from.
func (x *Execution) enqueue(event *journalpb.Event, op *operation) {
	var a *action
	if op != nil {
		a = &op.asked
	} else {
		a = new(action)
	}
	a.event, a.op = event, op
	if x.explaining {
		a.callers = make([]uintptr, 8)
		runtime.Callers(3, a.callers) // 3: what called schedule, or the author
	}
	x.queue = append(x.queue, a)
}

// match compares a recorded event with what the code asked for.
func (x *Execution) match(recorded *journalpb.Event, head *action) error {
	switch {
	case head == nil && x.returned:
		return x.mismatch(EndedEarly, recorded, x.describe(recorded), "the end of the orchestration, given already", nil)
	case head == nil:
		return x.mismatch(ScheduledNothing, recorded, x.describe(recorded), "the code blocked, asking for nothing", x.coroutines.where())
	case head.event == recorded || x.same(recorded, head.event):
		return nil
	case journalpb.Terminal(head.event.Arm()) && !journalpb.Terminal(recorded.Arm()):
		m := x.mismatch(EndedEarly, recorded, x.describe(recorded), x.describe(head.event), nil).and(head.event)
		m.Source = x.code.source
		return m
	}
	m := x.mismatch(ScheduledDifferently, recorded, x.describe(recorded), x.describe(head.event), head.callers).and(head.event)
	if m.Source == "" {
		m.Source = x.code.source
	}
	return m
}

// same compares the identifying fields of a recorded event and one that the
// code asks for.
func (x *Execution) same(recorded, asked *journalpb.Event) bool {
	if recorded.Arm() != asked.Arm() || recorded.SourceEventId != asked.SourceEventId {
		return false
	}
	switch want := asked.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		have := recorded.GetActivityScheduled()
		return have.Name == want.ActivityScheduled.Name &&
			samePayload(have.Input, want.ActivityScheduled.Input) &&
			sameOptions(have.Options, want.ActivityScheduled.Options)
	case *journalpb.Event_TimerCreated, *journalpb.Event_CancelRequested:
		return true // the recorded fire_at wins; the source was compared above
	case *journalpb.Event_ExternalSubscribed:
		return recorded.GetExternalSubscribed().Name == want.ExternalSubscribed.Name
	case *journalpb.Event_SubOrchestrationScheduled:
		return x.sameChild(recorded, want.SubOrchestrationScheduled)
	case *journalpb.Event_OrchestrationCompleted:
		return samePayload(recorded.GetOrchestrationCompleted().Output, want.OrchestrationCompleted.Output)
	case *journalpb.Event_OrchestrationFailed:
		return sameError(recorded.GetOrchestrationFailed().GetError(), want.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCancelled:
		return true
	}
	return x.sameInItself(recorded, asked)
}

// sameInItself compares actions that are complete in themselves. The value of a side
// effect is what the record says; that of a status has to be the same.
func (x *Execution) sameInItself(recorded, asked *journalpb.Event) bool {
	switch want := asked.Body.(type) {
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

// sameChild takes the version as recorded: which one is the newest may have
// changed since.
func (x *Execution) sameChild(recorded *journalpb.Event, asked *journalpb.SubOrchestrationScheduled) bool {
	have := recorded.GetSubOrchestrationScheduled()
	return have.Name == asked.Name &&
		x.sameID(have.Instance, asked.Instance, recorded.EventId) &&
		have.ClosePolicy == asked.ClosePolicy &&
		samePayload(have.Input, asked.Input)
}

// sameID takes a derived ID as recorded, shortened or not.
func (x *Execution) sameID(have, asked string, eventID uint64) bool {
	return have == x.idOr(asked, eventID) || asked == "" && have == x.derivedID(eventID)
}

// sameError takes no offence at stacks and causes, which may change with the
// build, and at a code where there was none: kinds of errors get theirs in time.
func sameError(have, asked *journalpb.Error) bool {
	return have.GetMessage() == asked.GetMessage() && (have.GetCode() == asked.GetCode() || have.GetCode() == "")
}

func samePayload(a, b *journalpb.Payload) bool {
	return bytes.Equal(a.GetData(), b.GetData()) && a.GetContentType() == b.GetContentType()
}

// sameOptions compares what the options mean: a default that is spelled out is the same
// as none.
func sameOptions(a, b *journalpb.ActivityOptions) bool {
	return a == nil && b == nil || proto.Equal(normalized(a), normalized(b))
}

// normalized returns options with every default written out.
func normalized(o *journalpb.ActivityOptions) *journalpb.ActivityOptions {
	p := o.GetRetry()
	return &journalpb.ActivityOptions{
		ScheduleToStart: o.GetScheduleToStart(), StartToClose: o.GetStartToClose(),
		ScheduleToClose: o.GetScheduleToClose(), Heartbeat: o.GetHeartbeat(), Tag: o.GetTag(),
		Retry: &journalpb.RetryPolicy{
			InitialInterval:   int64(defaulted(time.Duration(p.GetInitialInterval()), initialIntervalDefault)),
			Backoff:           max(defaulted(p.GetBackoff(), backoffDefault), 1),
			MaxInterval:       int64(defaulted(time.Duration(p.GetMaxInterval()), maxIntervalDefault)),
			MaxAttempts:       p.GetMaxAttempts(),
			NonRetryableCodes: p.GetNonRetryableCodes(),
			PanicsAreFinal:    p.GetPanicsAreFinal(),
		},
	}
}
