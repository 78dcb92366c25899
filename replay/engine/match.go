package engine

import (
	"bytes"
	"cmp"
	"math"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// match compares a recorded event with the next action of the code.
func (x *Execution) match(recorded *journalpb.Event, head *action) error {
	switch {
	case head == nil && x.program.isDone():
		return x.mismatch(replay.EndedEarly, recorded, x.describe(recorded), "the orchestration has already ended", nil)
	case head == nil:
		return x.mismatch(replay.ScheduledNothing, recorded, x.describe(recorded), "the code blocked and scheduled nothing", x.program.coroutines.oldestStack())
	case head.event == recorded || x.fits(recorded, head, x.program.registry.strict):
		return nil
	case journalpb.IsTerminal(head.event.TypeNumber()) && !journalpb.IsTerminal(recorded.TypeNumber()):
		m := x.mismatch(replay.EndedEarly, recorded, x.describe(recorded), x.describe(head.event), nil, head.event)
		m.Source = functionLine(x.program.code.Body)
		return m
	}
	m := x.mismatch(replay.ScheduledDifferently, recorded, x.describe(recorded), x.describe(head.event), head.callers(), head.event)
	if m.Source == "" {
		m.Source = functionLine(x.program.code.Body)
	}
	m.Strict = x.fits(recorded, head, false)
	return m
}

// fits reports whether a recorded event fits an action of the code.
func (x *Execution) fits(recorded *journalpb.Event, head *action, strict bool) bool {
	c := comparison{id: &x.id, strict: strict, valueType: head.valueType}
	return c.sameEvent(recorded, head.event)
}

// A comparison compares a recorded event with an action of the code: its identifying fields, and
// with strict all fields. Values are compared by their meaning to today's code, and with strict by
// their bytes. What is not compared stays as recorded.
type comparison struct {
	id        *identity
	strict    bool
	valueType reflect.Type // of the action's value in its handle; nil if it has none
}

func (c *comparison) sameEvent(recorded, requested *journalpb.Event) bool {
	if recorded.SourceEventId != requested.SourceEventId {
		return false
	}
	if recorded.TypeNumber() != requested.TypeNumber() {
		// A retry whose record is too large is recorded as a failure, so strict accepts that too.
		return (!c.strict || recorded.GetOrchestrationFailed() != nil) && sameFailure(recorded, requested)
	}
	switch want := requested.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		have := recorded.GetActivityScheduled()
		return have.Name == want.ActivityScheduled.Name &&
			c.sameOptions(have.Options, want.ActivityScheduled.Options) &&
			c.sameValue(have.Input, want.ActivityScheduled.Input)
	case *journalpb.Event_TimerCreated, *journalpb.Event_CancelRequested:
		return true // the recorded fire_at is used; the source was compared above
	case *journalpb.Event_ExternalSubscribed:
		return recorded.GetExternalSubscribed().Name == want.ExternalSubscribed.Name
	case *journalpb.Event_MessageSent:
		return c.sameMessage(recorded.GetMessageSent(), want.MessageSent)
	case *journalpb.Event_SubOrchestrationScheduled:
		return c.sameChild(recorded, want.SubOrchestrationScheduled)
	case *journalpb.Event_OrchestrationCompleted:
		return c.sameValue(recorded.GetOrchestrationCompleted().Output, want.OrchestrationCompleted.Output)
	case *journalpb.Event_OrchestrationFailed:
		return sameError(recorded.GetOrchestrationFailed().GetError(), want.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCanceled:
		return true
	}
	return c.sameStandalone(recorded, requested)
}

// sameStandalone compares actions that need no completion. The recorded value of a side effect is
// used.
func (c *comparison) sameStandalone(recorded, requested *journalpb.Event) bool {
	switch want := requested.Body.(type) {
	case *journalpb.Event_SideEffectRecorded:
		return recorded.GetSideEffectRecorded().Label == want.SideEffectRecorded.Label
	case *journalpb.Event_StatusSet:
		return !c.strict || samePayload(recorded.GetStatusSet().Value, want.StatusSet.Value)
	case *journalpb.Event_AttributeSet:
		have := recorded.GetAttributeSet()
		return have.Name == want.AttributeSet.Name && (have.Value == nil) == (want.AttributeSet.Value == nil) && (!c.strict || proto.Equal(have.Value, want.AttributeSet.Value))
	case *journalpb.Event_ValueSet:
		return c.sameValueSet(recorded.GetValueSet(), want.ValueSet)
	case *journalpb.Event_OrchestrationChained:
		have, chained := recorded.GetOrchestrationChained(), want.OrchestrationChained
		return have.Name == chained.Name &&
			sameVersion(have.Version, chained.Version) &&
			c.id.isChildID(have.Instance, chained.Instance, recorded.EventId) &&
			(!c.strict || have.Summary == chained.Summary) &&
			c.sameValue(have.Input, chained.Input)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		return c.sameContinuation(recorded.GetOrchestrationContinuedAsNew(), want.OrchestrationContinuedAsNew)
	}
	return false
}

func (c *comparison) sameChild(recorded *journalpb.Event, requested *journalpb.SubOrchestrationScheduled) bool {
	have := recorded.GetSubOrchestrationScheduled()
	return have.Name == requested.Name &&
		sameVersion(have.Version, requested.Version) &&
		c.id.isChildID(have.Instance, requested.Instance, recorded.EventId) &&
		(!c.strict || have.ClosePolicy == requested.ClosePolicy && have.Summary == requested.Summary && sameRetry(have.Retry, requested.Retry)) &&
		c.sameValue(have.Input, requested.Input)
}

// sameMessage compares receivers, events and data. The reason of a cancellation may change.
func (c *comparison) sameMessage(have, want *journalpb.MessageSent) bool {
	return have.Instance == want.Instance &&
		(have.Event == nil) == (want.Event == nil) &&
		have.Event.GetName() == want.Event.GetName() &&
		c.sameValue(have.Event.GetData(), want.Event.GetData()) &&
		(!c.strict || have.Cancel.GetReason() == want.Cancel.GetReason())
}

// sameValueSet compares values by their meaning, because the code reads them again.
func (c *comparison) sameValueSet(have, want *journalpb.ValueSet) bool {
	return have.Map == want.Map && have.Key == want.Key &&
		(have.Value == nil) == (want.Value == nil) && c.sameValue(have.Value, want.Value)
}

// sameVersion compares a version that the code names. A call without one fits every record.
func sameVersion(have, requested string) bool { return requested == "" || have == requested }

// sameError ignores stacks and causes, which may change with the build. It accepts a record without
// a code, because error types may get codes later.
func sameError(have, requested *journalpb.Error) bool {
	return have.GetMessage() == requested.GetMessage() && (have.GetCode() == requested.GetCode() || have.GetCode() == "")
}

// sameFailure accepts a failure that was retried for one that would not be, and the other way
// round: which of them applies was decided when the failure was recorded.
func sameFailure(recorded, requested *journalpb.Event) bool {
	have, want := failureOf(recorded), failureOf(requested)
	return have != nil && want != nil && sameError(have, want)
}

// failureOf returns the failure that ends an execution, retried or not; nil if none does.
func failureOf(event *journalpb.Event) *journalpb.Error {
	return cmp.Or(event.GetOrchestrationFailed().GetError(), event.GetOrchestrationContinuedAsNew().GetRetried())
}

// sameContinuation ignores the version: the newest version may have changed since it was recorded.
func (c *comparison) sameContinuation(have, want *journalpb.OrchestrationContinuedAsNew) bool {
	if (have.Retried == nil) != (want.Retried == nil) || !sameError(have.Retried, want.Retried) {
		return false
	}
	return c.sameValue(have.Input, want.Input) && slices.EqualFunc(have.Inbox, want.Inbox, func(a, b *journalpb.ExternalEvent) bool {
		return proto.Equal(a, b)
	})
}

// sameValue reports whether two payloads mean the same to the code.
func (c *comparison) sameValue(have, want *journalpb.Payload) bool {
	return samePayload(have, want) || !c.strict && c.valueType != nil && sameMeaning(c.valueType, have, want)
}

// sameMeaning reports whether two payloads are equal after both were decoded into a type and
// encoded again. Today's value may change that way too, as a struct in an interface does.
func sameMeaning(valueType reflect.Type, have, want *journalpb.Payload) bool {
	if have.GetContentType() != want.GetContentType() || len(have.GetData()) == 0 {
		return false
	}
	same := false
	err := callIsolated(func() { // decoding may call methods of the author
		recorded, decodes := encodedAgain(valueType, have)
		requested, _ := encodedAgain(valueType, want)
		same = decodes && samePayload(recorded, requested)
	})
	return err == nil && same
}

// encodedAgain decodes a payload into a type and encodes the value. ok is false if that fails.
func encodedAgain(valueType reflect.Type, payload *journalpb.Payload) (again *journalpb.Payload, ok bool) {
	value := reflect.New(valueType)
	if unmarshal(payload, value.Interface()) != nil {
		return nil, false
	}
	again, err := marshal(value.Elem().Interface(), math.MaxInt)
	return again, err == nil
}

func samePayload(a, b *journalpb.Payload) bool {
	return bytes.Equal(a.GetData(), b.GetData()) && a.GetContentType() == b.GetContentType()
}

// sameOptions compares tags, and with strict the meaning of all options: an explicit default equals
// none. The recorded policy and timeouts apply to a recorded call.
func (c *comparison) sameOptions(a, b *journalpb.ActivityOptions) bool {
	if !c.strict {
		return a.GetTag() == b.GetTag()
	}
	return a == nil && b == nil || proto.Equal(withDefaults(a), withDefaults(b))
}

// sameRetry compares the retry policies of children, of which nil retries nothing.
func sameRetry(a, b *journalpb.RetryPolicy) bool {
	return a == nil && b == nil || a != nil && b != nil && proto.Equal(retryWithDefaults(a), retryWithDefaults(b))
}

// withDefaults returns the options with every default filled in.
func withDefaults(o *journalpb.ActivityOptions) *journalpb.ActivityOptions {
	return &journalpb.ActivityOptions{
		ScheduleToStart: o.GetScheduleToStart(), StartToClose: o.GetStartToClose(),
		ScheduleToClose: o.GetScheduleToClose(), Heartbeat: o.GetHeartbeat(), Tag: o.GetTag(),
		CancelGrace: o.GetCancelGrace(),
		Retry:       retryWithDefaults(o.GetRetry()),
	}
}

func retryWithDefaults(p *journalpb.RetryPolicy) *journalpb.RetryPolicy {
	return &journalpb.RetryPolicy{
		InitialInterval:   int64(orDefault(time.Duration(p.GetInitialInterval()), initialIntervalDefault)),
		Backoff:           max(orDefault(p.GetBackoff(), backoffDefault), 1),
		MaxInterval:       int64(orDefault(time.Duration(p.GetMaxInterval()), maxIntervalDefault)),
		MaxAttempts:       p.GetMaxAttempts(),
		NonRetryableCodes: p.GetNonRetryableCodes(),
		PanicsAreFinal:    p.GetPanicsAreFinal(),
	}
}

// mismatch returns a mismatch at an event. others are further events that it describes.
func (x *Execution) mismatch(kind replay.MismatchKind, event *journalpb.Event, expected, found string, callers []uintptr, others ...*journalpb.Event) *replay.Mismatch {
	m := &replay.Mismatch{
		Kind:      kind,
		Instance:  x.id.Instance,
		Execution: x.id.Number,
		EventID:   event.EventId,
		Expected:  expected,
		Found:     found,
		Source:    sourceLine(callers),
	}
	described := append([]*journalpb.Event{event}, others...)
	m.Host().Redact = func(description string) string { return redacted(description, described) }
	return m
}

// redacted returns the description of one of the events without payloads. Other descriptions have
// none and are returned unchanged.
func redacted(description string, events []*journalpb.Event) string {
	for _, event := range events {
		if description == describe(event, false) || description == describe(event, true) {
			return describe(event, true)
		}
	}
	return description
}

// describe hides payloads if a codec is set.
func (x *Execution) describe(event *journalpb.Event) string {
	return describe(event, x.program.registry.payloads.Codec != nil)
}
