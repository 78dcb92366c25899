package engine

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// textMax bounds the text shown of one payload or message, in bytes.
const textMax = 120

// Describe returns an event's type and fields in one line, as used in printed histories and
// mismatches. Long payloads are cut. A payload that only a codec can read is shown by content type
// and size.
func Describe(event *journalpb.Event) string { return describe(event, false) }

func describe(event *journalpb.Event, hidden bool) string {
	fields := &fields{hidePayloads: hidden}
	if event.SourceEventId != 0 {
		fields.add("source_event_id", event.SourceEventId)
	}
	fields.head(event)
	visitValues(event, fields.value)
	fields.tail(event)
	fields.headers(headersIn(event))
	fields.text("principal", event.GetOrigin().GetPrincipal())
	fields.text("because", event.GetOrigin().GetReason())
	if len(fields.list) == 0 {
		return event.Type()
	}
	return event.Type() + " " + strings.Join(fields.list, " ")
}

type fields struct {
	list         []string
	hidePayloads bool // hide values of user code
}

func (f *fields) add(name string, value any) {
	f.list = append(f.list, fmt.Sprintf("%s=%v", name, value))
}

func (f *fields) text(name, value string) {
	if value != "" {
		f.list = append(f.list, fmt.Sprintf("%s=%q", name, truncate(value)))
	}
}

// value describes a value; what an earlier execution has carried over is not shown.
func (f *fields) value(v value) {
	switch {
	case v.field == fieldStatus || v.field == fieldInbox || v.field == fieldValues:
	case v.payload != nil:
		f.payload(v.field, v.payload)
	default:
		f.failure(v.field, v.failure)
	}
}

func (f *fields) payload(name string, p *journalpb.Payload) {
	switch {
	case len(p.GetData()) == 0:
	case isSealed(p):
		f.add(name, fmt.Sprintf("(%d bytes of %s)", len(p.Data), oneLine(truncate(p.ContentType))))
	case f.hidePayloads:
		f.add(name, fmt.Sprintf("(%d bytes)", len(p.Data)))
	default:
		f.list = append(f.list, name+"="+oneLine(truncate(string(p.Data))))
	}
}

// headers describes headers: their names alone if values of user code are hidden.
func (f *fields) headers(headers []*journalpb.Header) {
	if len(headers) == 0 {
		return
	}
	var all []string
	for _, header := range headers {
		text := header.Name
		if !f.hidePayloads {
			text += "=" + strconv.Quote(header.Value)
		}
		all = append(all, text)
	}
	f.add("headers", "{"+truncate(strings.Join(all, " "))+"}")
}

func (f *fields) duration(name string, nanoseconds int64) {
	if nanoseconds != 0 {
		f.add(name, time.Duration(nanoseconds))
	}
}

func (f *fields) options(options *journalpb.ActivityOptions) {
	f.retry(options.GetRetry())
	f.duration("schedule_to_start", options.GetScheduleToStart())
	f.duration("start_to_close", options.GetStartToClose())
	f.duration("schedule_to_close", options.GetScheduleToClose())
	f.duration("heartbeat", options.GetHeartbeat())
	f.duration("cancel_grace", options.GetCancelGrace())
	f.text("tag", options.GetTag())
}

func (f *fields) retry(policy *journalpb.RetryPolicy) {
	if policy == nil {
		return
	}
	panics := ""
	if policy.PanicsAreFinal {
		panics = " panics=final"
	}
	f.add("retry", fmt.Sprintf("{initial=%v backoff=%v longest=%v attempts=%d never=%q%s}",
		time.Duration(policy.InitialInterval), policy.Backoff, time.Duration(policy.MaxInterval),
		policy.MaxAttempts, policy.NonRetryableCodes, panics))
}

func (f *fields) failure(name string, e *journalpb.Error) {
	f.text("code", e.GetCode())
	if f.hidePayloads && e.GetMessage() != "" {
		f.add(name, fmt.Sprintf("(%d bytes)", len(e.Message)))
		return
	}
	f.text(name, e.GetMessage())
}

func (f *fields) inbox(events []*journalpb.ExternalEvent) {
	if len(events) > 0 {
		f.add("inbox", len(events))
	}
}

func (f *fields) closePolicy(policy journalpb.ClosePolicy) {
	if policy != journalpb.ClosePolicy_CLOSE_POLICY_CANCEL {
		f.add("close_policy", strings.ToLower(strings.TrimPrefix(policy.String(), "CLOSE_POLICY_")))
	}
}

func (f *fields) instant(name string, nanoseconds int64) {
	if nanoseconds != 0 {
		f.add(name, time.Unix(0, nanoseconds).UTC().Format(time.RFC3339Nano))
	}
}

// head describes what stands before the values.
func (f *fields) head(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		f.text("name", body.ActivityScheduled.Name)
	case *journalpb.Event_TimerCreated:
		f.instant("fire_at", body.TimerCreated.FireAt)
	case *journalpb.Event_TimerFired:
		f.instant("fire_at", body.TimerFired.FireAt)
	case *journalpb.Event_ExternalSubscribed:
		f.text("name", body.ExternalSubscribed.Name)
	case *journalpb.Event_ExternalEvent:
		f.text("name", body.ExternalEvent.Name)
	case *journalpb.Event_SideEffectRecorded:
		f.text("label", body.SideEffectRecorded.Label)
	case *journalpb.Event_AttributeSet:
		f.text("name", body.AttributeSet.Name)
		f.attribute(body.AttributeSet.Value)
	case *journalpb.Event_ValueSet:
		f.text("map", body.ValueSet.Map)
		f.text("key", body.ValueSet.Key)
		if body.ValueSet.Value == nil {
			f.add("deleted", true)
		}
	case *journalpb.Event_OperationControlled:
		f.controlled(body.OperationControlled)
	case *journalpb.Event_HistoryCopied:
		f.copied(body.HistoryCopied)
	case *journalpb.Event_MessageSent:
		f.message(body.MessageSent)
	case *journalpb.Event_SubOrchestrationScheduled:
		f.instance(body.SubOrchestrationScheduled)
	case *journalpb.Event_OrchestrationChained:
		f.instance(body.OrchestrationChained)
	case *journalpb.Event_OrchestrationStarted:
		f.text("name", body.OrchestrationStarted.Name)
		f.text("version", body.OrchestrationStarted.Version)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		f.text("version", body.OrchestrationContinuedAsNew.Version)
	case *journalpb.Event_OrchestrationCanceled:
		f.text("reason", body.OrchestrationCanceled.Reason)
	case *journalpb.Event_OrchestrationTerminated:
		f.text("reason", body.OrchestrationTerminated.Reason)
	case *journalpb.Event_OrchestrationCancelRequested:
		f.text("reason", body.OrchestrationCancelRequested.Reason)
	case *journalpb.Event_OrchestrationSuspended:
		f.text("reason", body.OrchestrationSuspended.Reason)
	case *journalpb.Event_OrchestrationResumed:
		f.text("reason", body.OrchestrationResumed.Reason)
	}
}

// instance describes the instance that an event starts.
func (f *fields) instance(start interface {
	GetName() string
	GetVersion() string
	GetInstance() string
}) {
	f.text("name", start.GetName())
	f.text("version", start.GetVersion())
	f.text("instance", start.GetInstance())
}

// controlled describes an action on an operation.
func (f *fields) controlled(action *journalpb.OperationControlled) {
	f.add("operation", action.EventId)
	f.text("action", action.Kind.ActionName())
	f.options(action.Options)
}

// copied describes where a history comes from.
func (f *fields) copied(copied *journalpb.HistoryCopied) {
	source := copied.GetSource()
	f.text("instance", source.GetInstance())
	f.add("execution", source.GetExecution())
	f.add("up_to", source.GetUpTo())
	f.inbox(copied.Inbox)
	f.instant("deadline", copied.Deadline)
}

// message describes the receiver of a message and what the message is.
func (f *fields) message(sent *journalpb.MessageSent) {
	if sent.Event != nil {
		f.text("event", sent.Event.Name)
	} else {
		f.add("cancel", strconv.Quote(truncate(sent.Cancel.GetReason())))
	}
	f.text("instance", sent.Instance)
}

func (f *fields) attribute(value *journalpb.AttributeValue) {
	switch value.GetKind().(type) {
	case nil:
		f.add("removed", true)
	case *journalpb.AttributeValue_Text:
		f.list = append(f.list, "value="+strconv.Quote(truncate(value.GetText())))
	default:
		f.add("value", AttributeText(value))
	}
}

// tail describes what stands after the values.
func (f *fields) tail(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		f.options(body.ActivityScheduled.Options)
	case *journalpb.Event_ActivityCompleted:
		f.add("attempts", body.ActivityCompleted.Attempts)
	case *journalpb.Event_ActivityFailed:
		f.add("attempts", body.ActivityFailed.Attempts)
	case *journalpb.Event_SubOrchestrationScheduled:
		f.closePolicy(body.SubOrchestrationScheduled.ClosePolicy)
		f.retry(body.SubOrchestrationScheduled.Retry)
		f.text("summary", body.SubOrchestrationScheduled.Summary)
	case *journalpb.Event_OrchestrationChained:
		f.text("summary", body.OrchestrationChained.Summary)
	case *journalpb.Event_OrchestrationStarted:
		f.started(body.OrchestrationStarted)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		f.inbox(body.OrchestrationContinuedAsNew.Inbox)
	}
}

// started describes what stands after the values of OrchestrationStarted.
func (f *fields) started(started *journalpb.OrchestrationStarted) {
	f.inbox(started.Inbox)
	if parent := started.Parent; parent != nil {
		f.add("parent", parent.Key())
	}
	f.text("summary", started.Summary)
	f.retry(started.Retry)
	if started.Attempt > 0 {
		f.add("attempt", started.Attempt+1)
	}
}

func truncate(text string) string { return truncateTo(text, textMax) }

// truncateTo cuts a text to a length in bytes and adds "…".
func truncateTo(text string, maximum int) string {
	if len(text) <= maximum {
		return text
	}
	end := maximum
	for end > maximum-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// oneLine quotes text with control characters or invalid UTF-8.
func oneLine(text string) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, unicode.IsControl) < 0 {
		return text
	}
	return strconv.Quote(text)
}
