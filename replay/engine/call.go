package engine

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

func (s *scope) StartActivity(name string, input host.Value, options *host.ActivityOptions) *host.Future {
	payload, err := s.p.encodeInput("activity", name, input.Any)
	if err != nil {
		return s.p.resolvedFuture(err)
	}
	if err := checkActivityOptions(options); err != nil {
		return s.p.resolvedFuture(fmt.Errorf("call of activity %q: %w", name, err))
	}
	return s.schedule(name, activityScheduled(name, payload, options, s.headers()), input.Type)
}

// activityScheduled returns the event that schedules an activity. It allocates its messages
// together.
func activityScheduled(name string, input *journalpb.Payload, options *host.ActivityOptions, headers []*journalpb.Header) *journalpb.Event {
	type scheduled struct {
		event     journalpb.Event
		body      journalpb.Event_ActivityScheduled
		requested journalpb.ActivityScheduled
	}
	var alloc *scheduled
	if options == nil && len(headers) == 0 {
		alloc = new(scheduled)
	} else {
		with := new(struct {
			scheduled
			options journalpb.ActivityOptions
		})
		if options != nil {
			recordActivityOptions(&with.options, options)
		}
		with.options.Headers = headers
		alloc, with.requested.Options = &with.scheduled, &with.options
	}
	alloc.requested.Name, alloc.requested.Input = name, input
	alloc.body.ActivityScheduled = &alloc.requested
	alloc.event.Body = &alloc.body
	return &alloc.event
}

func (s *scope) StartTimer(d time.Duration) *host.Future {
	s.p.calls.current("a durable call")
	fireAt := s.p.cursor.now.UnixNano()
	fireAt += min(int64(max(d, 0)), math.MaxInt64-fireAt) // must not overflow
	return s.schedule("", &journalpb.Event{Body: &journalpb.Event_TimerCreated{
		TimerCreated: &journalpb.TimerCreated{FireAt: fireAt},
	}}, nil)
}

// sleepUntil waits until a time in Unix nanoseconds; 0 does not wait.
func (s *scope) sleepUntil(at int64) error {
	if at == 0 {
		return nil
	}
	_, err := s.Await(s.StartTimer(time.Unix(0, at).Sub(s.p.cursor.now)).Promise(), nil)
	return err
}

func (s *scope) StartChild(orchestration string, input host.Value, options host.ChildOptions) *host.Future {
	child, err := s.childStart(orchestration, input.Any, options)
	if err != nil {
		return s.p.resolvedFuture(err)
	}
	return s.schedule(orchestration, &journalpb.Event{Body: &journalpb.Event_SubOrchestrationScheduled{SubOrchestrationScheduled: child}}, input.Type)
}

// childStart returns the request to start a child or a chained instance.
func (s *scope) childStart(orchestration string, input any, options host.ChildOptions) (*journalpb.SubOrchestrationScheduled, error) {
	payload, err := s.p.encodeInput("orchestration", orchestration, input)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(invalidOption(options.Invalid), s.p.id.checkChildID(options.ID)); err != nil {
		return nil, err
	}
	retry, err := RecordedRetry(options.Retry)
	if err == nil {
		err = CheckSummary(options.Summary)
	}
	if err != nil {
		return nil, fmt.Errorf("call of orchestration %q: %w", orchestration, err)
	}
	return &journalpb.SubOrchestrationScheduled{
		Name: orchestration, Input: payload,
		Instance: options.ID, Version: options.Version, ClosePolicy: journalpb.ClosePolicy(options.ClosePolicy),
		Headers: s.headers(), Retry: retry, Summary: options.Summary,
	}, checkVersion(orchestration, options.Version)
}

func (s *scope) StartChain(orchestration string, input host.Value, options host.ChainOptions) error {
	requested, err := s.childStart(orchestration, input.Any, host.ChildOptions{ChainOptions: options})
	if err != nil {
		return err
	}
	s.p.calls.current("Chain")
	if s.p.coroutines.evicting() {
		return replay.ErrEvicting
	}
	if err := s.err(); err != nil {
		return s.p.cancellation.observe(err)
	}
	added := s.p.operations.queue.add(&journalpb.Event{Body: &journalpb.Event_OrchestrationChained{OrchestrationChained: &journalpb.OrchestrationChained{
		Name:     orchestration,
		Version:  requested.Version,
		Instance: requested.Instance,
		Input:    requested.Input,
		Headers:  requested.Headers,
		Summary:  requested.Summary,
	}}}, nil)
	added.valueType = input.Type
	return nil
}

func (s *scope) Subscribe(event string, data reflect.Type) *host.Future {
	if err := checkName("event", event); err != nil {
		return s.p.resolvedFuture(err)
	}
	future := s.schedule(event, &journalpb.Event{Body: &journalpb.Event_ExternalSubscribed{
		ExternalSubscribed: &journalpb.ExternalSubscribed{Name: event},
	}}, nil)
	s.p.subscribed.add(event, data)
	return future
}

func (s *scope) SendEvent(instance, event string, data host.Value) *host.Future {
	s.p.calls.current("SendTo")
	if err := checkName("event", event); err != nil {
		return s.p.resolvedFuture(err)
	}
	payload, err := s.p.encode(replay.PayloadInfo{Kind: "event", Name: event, Part: "data"}, data.Any)
	if err != nil {
		return s.p.resolvedFuture(err)
	}
	sent := &journalpb.ExternalEvent{Name: event, Data: payload, Headers: s.headers()}
	return s.sendMessage(event, &journalpb.MessageSent{Instance: instance, Event: sent}, data.Type)
}

func (s *scope) CancelInstance(instance, reason string) *host.Future {
	s.p.calls.current("CancelInstance")
	if !utf8.ValidString(reason) {
		return s.p.resolvedFuture(&replay.InvalidError{Field: "reason", Reason: "is not UTF-8"})
	}
	if len(reason) > reasonMax {
		return s.p.resolvedFuture(&replay.InvalidError{Field: "reason", Reason: fmt.Sprintf("has %d bytes, the limit is %d", len(reason), reasonMax)})
	}
	return s.sendMessage("", &journalpb.MessageSent{Instance: instance, Cancel: &journalpb.OrchestrationCancelRequested{Reason: reason}}, nil)
}

// reasonMax bounds the reason of a cancellation, in bytes.
const reasonMax = 4096

// sendMessage schedules the delivery of an event of that name, or of a cancellation.
func (s *scope) sendMessage(event string, message *journalpb.MessageSent, dataType reflect.Type) *host.Future {
	if !ValidInstanceID(message.Instance) {
		return s.p.resolvedFuture(invalidID("instance ID", message.Instance))
	}
	return s.schedule(event, &journalpb.Event{Body: &journalpb.Event_MessageSent{MessageSent: message}}, dataType)
}

// schedule schedules a named operation with an input of that type; nil if it has none.
func (s *scope) schedule(name string, event *journalpb.Event, inputType reflect.Type) *host.Future {
	op := &operation{name: name, action: action{valueType: inputType}}
	s.p.schedule(s, event, op)
	return op.newFuture()
}
