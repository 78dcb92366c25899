package engine_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// begin is the start of virtual time.
var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// An instance keeps the history of one execution like a journal, encoded and decoded. A cold one
// loads an Execution for every turn; a resident one keeps its first.
type instance struct {
	registry *engine.Registry
	logger   *slog.Logger
	cold     bool

	number          uint64 // of the execution; 0 means 1
	resident        *engine.Execution
	history         []*journalpb.Event
	boundaries      []int   // lengths of the history after each turn
	refusals        []error // of the messages of the last turn
	ended           bool
	declinesPatches bool             // an old history: its patches are declined
	cancelSeen      bool             // the code has observed a cancellation, as it noted itself
	successor       *journalpb.Event // first event of the next execution
	earlier         []*instance      // earlier executions

	journal func(*journalpb.Event) // called with what is recorded, if there is a codec
}

func (in *instance) execution() uint64 { return max(in.number, 1) }

func (in *instance) turn(now time.Time, messages []engine.Message) (*engine.Turn, error) {
	x := in.resident
	if x == nil {
		x = engine.NewExecution("i", in.execution(), in.registry, in.logger)
		if err := x.Replay(in.sealedHistory(in.history)); err != nil {
			x.Evict()
			return nil, err
		}
	}
	if in.cold {
		defer x.Evict()
	} else {
		in.resident = x
	}
	turn, err := x.Turn(now, in.sealedMessages(messages))
	if err != nil {
		return nil, err
	}
	in.refusals = make([]error, len(messages))
	for i := range messages {
		in.refusals[i] = x.Refusal(i)
	}
	for i, event := range turn.Events {
		turn.Events[i] = in.openEvent(event)
		in.history = append(in.history, journalCopy(turn.Events[i]))
	}
	in.boundaries = append(in.boundaries, len(in.history))
	in.ended = x.Ended()
	if successor := x.Successor(); successor != nil {
		in.successor = in.openEvent(journalCopy(successor))
	}
	return turn, nil
}

// With a codec, in.history is plain. The engine gets it freshly encoded, and must return encoded
// events.

func (in *instance) sealedHistory(history []*journalpb.Event) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		for _, event := range history {
			if event, err := in.registry.PayloadConverter().SealEvent(event); !yield(event, err) {
				return
			}
		}
	}
}

func (in *instance) sealedMessages(messages []engine.Message) []engine.Message {
	sent := slices.Clone(messages)
	for i := range sent {
		event, err := in.registry.PayloadConverter().SealEvent(sent[i].Event)
		if err != nil {
			panic(err)
		}
		sent[i].Event = event
	}
	return sent
}

func (in *instance) openEvent(event *journalpb.Event) *journalpb.Event {
	if in.registry.PayloadConverter().Codec == nil {
		return event
	}
	if in.journal != nil {
		in.journal(event)
	}
	again, err := in.registry.PayloadConverter().SealEvent(event)
	if err != nil || !proto.Equal(again, event) {
		panic(fmt.Sprintf("%v: something is plain in %s", err, engine.Describe(event)))
	}
	plain, err := in.registry.PayloadConverter().OpenEvent(event)
	if err != nil {
		panic(err)
	}
	return plain
}

// next returns the instance in its next execution, after its first append.
func (in *instance) next() *instance {
	in.evict()
	return &instance{
		registry: in.registry, logger: in.logger, cold: in.cold, journal: in.journal,
		number: in.execution() + 1, history: []*journalpb.Event{in.successor}, earlier: append(in.earlier, in),
	}
}

func (in *instance) evict() {
	if in.resident != nil {
		in.resident.Evict()
		in.resident = nil
	}
}

// journalCopy returns the event as read from a journal.
func journalCopy(event *journalpb.Event) *journalpb.Event {
	encoded, err := proto.Marshal(event)
	if err != nil {
		panic(err)
	}
	decoded := new(journalpb.Event)
	if err := proto.Unmarshal(encoded, decoded); err != nil {
		panic(err)
	}
	return decoded
}

func eventSeq(history []*journalpb.Event) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		for _, event := range history {
			if !yield(event, nil) {
				return
			}
		}
	}
}

// checkReplays replays the history up to the end of each turn, at once and event by event. The code
// must match it and schedule nothing more.
func checkReplays(t *testing.T, in *instance) {
	t.Helper()
	for _, length := range in.boundaries {
		checkReplay(t, in, length, in.sealedHistory(in.history[:length]))
	}
	if in.declinesPatches {
		return
	}
	var single []iter.Seq2[*journalpb.Event, error]
	for i := range in.history {
		single = append(single, in.sealedHistory(in.history[i:i+1]))
	}
	checkReplay(t, in, len(in.history), single...)
}

func checkReplay(t *testing.T, in *instance, length int, parts ...iter.Seq2[*journalpb.Event, error]) {
	t.Helper()
	logged := new(logRecorder)
	x := engine.NewExecution("i", in.execution(), in.registry, slog.New(logged))
	defer x.Evict()
	for _, part := range parts {
		if err := x.Replay(part); err != nil {
			t.Fatalf("replay of %d events: %v", length, err)
		}
	}
	if x.LastEventID() != uint64(length) {
		t.Fatalf("cursor at %d after %d events", x.LastEventID(), length)
	}
	if ended := in.ended && length == len(in.history); x.Ended() != ended {
		t.Fatalf("ended is %t after %d events", x.Ended(), length)
	}
	if len(logged.messages) > 0 {
		t.Fatalf("logged on replay: %q", logged.messages)
	}
	turn, err := x.Turn(begin, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range turn.Events {
		t.Errorf("after %d events the code schedules more: %s", length, engine.Describe(event))
	}
}

// logRecorder is a log handler that keeps the messages.
type logRecorder struct{ messages []string }

func (l *logRecorder) Enabled(context.Context, slog.Level) bool { return true }
func (l *logRecorder) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logRecorder) WithGroup(string) slog.Handler            { return l }
func (l *logRecorder) Handle(_ context.Context, r slog.Record) error {
	l.messages = append(l.messages, r.Message)
	return nil
}

func registryOf(t testing.TB, definitions ...replay.Definition) *engine.Registry {
	t.Helper()
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	return registry
}

// script binds a body to the name "script".
func script[O any](t testing.TB, body func(*replay.Context) (O, error)) *engine.Registry {
	t.Helper()
	return registryOf(t, replay.Orchestration[any, O]("script").Bind(func(ctx *replay.Context, _ any) (O, error) {
		return body(ctx)
	}))
}

// startScript starts "script" and returns it after its first turn.
func startScript(t testing.TB, registry *engine.Registry, more ...*journalpb.Event) (*engine.Execution, *engine.Turn) {
	t.Helper()
	x := engine.NewExecution("i", 1, registry, nil)
	turn, err := x.Turn(begin, messagesOf(append([]*journalpb.Event{started("script", nil)}, more...)...))
	if err != nil {
		t.Fatal(err)
	}
	return x, turn
}

func messagesOf(events ...*journalpb.Event) []engine.Message {
	messages := make([]engine.Message, len(events))
	for i, event := range events {
		messages[i] = engine.Message{Event: event}
	}
	return messages
}

// withEventIDs makes a history of events.
func withEventIDs(events ...*journalpb.Event) []*journalpb.Event {
	for i, event := range events {
		event.EventId = uint64(i + 1)
		event.Timestamp = begin.UnixNano()
	}
	return events
}

func payloadOf(value any) *journalpb.Payload {
	payload, err := engine.Encode(value)
	if err != nil {
		panic(err)
	}
	return payload
}

func started(name string, input any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{Name: name, Input: payloadOf(input)},
	}}
}

func completed(output any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{
		OrchestrationCompleted: &journalpb.OrchestrationCompleted{Output: payloadOf(output)},
	}}
}

func activityScheduled(name string, input any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityScheduled{
		ActivityScheduled: &journalpb.ActivityScheduled{Name: name, Input: payloadOf(input)},
	}}
}

func activityCompleted(source uint64, result any) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_ActivityCompleted{
		ActivityCompleted: &journalpb.ActivityCompleted{Result: payloadOf(result), Attempts: 1},
	}}
}

func activityFailed(source uint64, err error) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_ActivityFailed{
		ActivityFailed: &journalpb.ActivityFailed{Error: engine.EncodeError(err), Attempts: 1},
	}}
}

func timerCreated(at time.Time) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_TimerCreated{
		TimerCreated: &journalpb.TimerCreated{FireAt: at.UnixNano()},
	}}
}

func timerFired(source uint64, at time.Time) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_TimerFired{
		TimerFired: &journalpb.TimerFired{FireAt: at.UnixNano()},
	}}
}

func subscribed(name string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ExternalSubscribed{
		ExternalSubscribed: &journalpb.ExternalSubscribed{Name: name},
	}}
}

func external(name string, data any, requestID string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ExternalEvent{
		ExternalEvent: &journalpb.ExternalEvent{Name: name, Data: payloadOf(data), RequestId: requestID},
	}}
}

func childScheduled(name, id string, input any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SubOrchestrationScheduled{
		SubOrchestrationScheduled: &journalpb.SubOrchestrationScheduled{Name: name, Instance: id, Input: payloadOf(input)},
	}}
}

func childCompleted(source uint64, result any) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_SubOrchestrationCompleted{
		SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: payloadOf(result)},
	}}
}

func messageDelivered(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_MessageDelivered{MessageDelivered: new(journalpb.MessageDelivered)}}
}

func messageRejected(source uint64, err error) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_MessageRejected{
		MessageRejected: &journalpb.MessageRejected{Error: engine.EncodeError(err)},
	}}
}

func childFailed(source uint64, err error) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_SubOrchestrationFailed{
		SubOrchestrationFailed: &journalpb.SubOrchestrationFailed{Error: engine.EncodeError(err)},
	}}
}

func operationCanceled(source uint64) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_CancelRequested{
		CancelRequested: &journalpb.CancelRequested{},
	}}
}

func cancelRequested(reason, requestID string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
		OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: reason, RequestId: requestID},
	}}
}

func terminated(reason string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: reason},
	}}
}

func suspended(reason, requestID string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{
		OrchestrationSuspended: &journalpb.OrchestrationSuspended{Reason: reason, RequestId: requestID},
	}}
}

func resumed(reason, requestID string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{
		OrchestrationResumed: &journalpb.OrchestrationResumed{Reason: reason, RequestId: requestID},
	}}
}

func sideEffect(label string, value any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{
		SideEffectRecorded: &journalpb.SideEffectRecorded{Label: label, Value: payloadOf(value)},
	}}
}

// marker returns the event that Patched records.
func marker(id string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{
		SideEffectRecorded: &journalpb.SideEffectRecorded{Label: "tenuto.patch/" + id},
	}}
}

func statusSet(value any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: payloadOf(value)}}}
}

func chained(name, id string, input any) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationChained{
		OrchestrationChained: &journalpb.OrchestrationChained{Name: name, Instance: id, Input: payloadOf(input)},
	}}
}

func continuedAsNew(input any, version string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationContinuedAsNew{
		OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{Input: payloadOf(input), Version: version},
	}}
}

func orchestrationFailed(err error) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: engine.EncodeError(err)},
	}}
}

func orchestrationCanceled(reason string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCanceled{
		OrchestrationCanceled: &journalpb.OrchestrationCanceled{Reason: reason},
	}}
}

// withVersion sets the version of a start or a child.
func withVersion(event *journalpb.Event, version string) *journalpb.Event {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		body.OrchestrationStarted.Version = version
	case *journalpb.Event_SubOrchestrationScheduled:
		body.SubOrchestrationScheduled.Version = version
	}
	return event
}
