package replay_test

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
)

// begin is when virtual time begins.
var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// An instance keeps the history of one execution as a journal would, encoded
// and decoded. A cold one brings an Execution back from it for every turn, a
// resident one keeps its first.
type instance struct {
	registry *replay.Registry
	logger   *slog.Logger
	cold     bool

	number     uint64 // of the execution; 0 stands for 1
	resident   *replay.Execution
	history    []*journalpb.Event
	boundaries []int // lengths of the history after each turn
	ended      bool
	declines   bool             // an old history: patches decide by all of it
	told       bool             // the code was told that it is to cancel, as it has noted itself
	successor  *journalpb.Event // the first event of the next execution
	earlier    []*instance      // the executions before this one

	journal func(*journalpb.Event) // sees what is recorded, if there is a codec
}

func (in *instance) execution() uint64 { return max(in.number, 1) }

func (in *instance) turn(now time.Time, messages []replay.Message) (*replay.Turn, error) {
	x := in.resident
	if x == nil {
		x = replay.NewExecution("i", in.execution(), in.registry, in.logger)
		if err := x.Replay(in.recorded(in.history)); err != nil {
			x.Drop()
			return nil, err
		}
	}
	if in.cold {
		defer x.Drop()
	} else {
		in.resident = x
	}
	turn, err := x.Turn(now, in.sent(messages))
	if err != nil {
		return nil, err
	}
	for i, event := range turn.Events {
		turn.Events[i] = in.opened(event)
		in.history = append(in.history, stored(turn.Events[i]))
	}
	in.boundaries = append(in.boundaries, len(in.history))
	in.ended = x.Ended()
	if successor := x.Successor(); successor != nil {
		in.successor = in.opened(stored(successor))
	}
	return turn, nil
}

// With a codec, the history that tests read is plain. What the engine is given
// is encoded anew each time, and what it returns must be.

func (in *instance) recorded(history []*journalpb.Event) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		for _, event := range history {
			if event, err := in.registry.Payloads().SealEvent(event); !yield(event, err) {
				return
			}
		}
	}
}

func (in *instance) sent(messages []replay.Message) []replay.Message {
	sent := slices.Clone(messages)
	for i := range sent {
		event, err := in.registry.Payloads().SealEvent(sent[i].Event)
		if err != nil {
			panic(err)
		}
		sent[i].Event = event
	}
	return sent
}

func (in *instance) opened(event *journalpb.Event) *journalpb.Event {
	if in.registry.Payloads().Codec == nil {
		return event
	}
	if in.journal != nil {
		in.journal(event)
	}
	again, err := in.registry.Payloads().SealEvent(event)
	if err != nil || !proto.Equal(again, event) {
		panic(fmt.Sprintf("%v: something is plain in %s", err, replay.Describe(event)))
	}
	plain, err := in.registry.Payloads().OpenEvent(event)
	if err != nil {
		panic(err)
	}
	return plain
}

// next returns the instance in its next execution, after its first append.
func (in *instance) next() *instance {
	in.drop()
	return &instance{
		registry: in.registry, logger: in.logger, cold: in.cold, journal: in.journal,
		number: in.execution() + 1, history: []*journalpb.Event{in.successor}, earlier: append(in.earlier, in),
	}
}

func (in *instance) drop() {
	if in.resident != nil {
		in.resident.Drop()
		in.resident = nil
	}
}

// stored returns the event as it comes back from a journal.
func stored(event *journalpb.Event) *journalpb.Event {
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

func all(history []*journalpb.Event) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		for _, event := range history {
			if !yield(event, nil) {
				return
			}
		}
	}
}

// checkReplays replays the history up to the end of each turn, at one go and
// event by event: the code must agree with it and ask for nothing more.
func checkReplays(t *testing.T, in *instance) {
	t.Helper()
	for _, length := range in.boundaries {
		checkReplay(t, in, length, in.recorded(in.history[:length]))
	}
	if in.declines {
		return
	}
	var single []iter.Seq2[*journalpb.Event, error]
	for i := range in.history {
		single = append(single, in.recorded(in.history[i:i+1]))
	}
	checkReplay(t, in, len(in.history), single...)
}

func checkReplay(t *testing.T, in *instance, length int, parts ...iter.Seq2[*journalpb.Event, error]) {
	t.Helper()
	logged := new(lines)
	x := replay.NewExecution("i", in.execution(), in.registry, slog.New(logged))
	defer x.Drop()
	for _, part := range parts {
		if err := x.Replay(part); err != nil {
			t.Fatalf("replay of %d events: %v", length, err)
		}
	}
	if x.LastEventID() != uint64(length) {
		t.Fatalf("the cursor is at %d after %d events", x.LastEventID(), length)
	}
	if ended := in.ended && length == len(in.history); x.Ended() != ended {
		t.Fatalf("ended is %t after %d events", x.Ended(), length)
	}
	if len(logged.list) > 0 {
		t.Fatalf("logged on replay: %q", logged.list)
	}
	turn, err := x.Turn(begin, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range turn.Events {
		t.Errorf("after %d events it asks for more: %s", length, replay.Describe(event))
	}
}

// lines is a logger's handler that keeps the messages.
type lines struct{ list []string }

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.list = append(l.list, r.Message)
	return nil
}

func registryOf(t testing.TB, definitions ...replay.Definition) *replay.Registry {
	t.Helper()
	registry, err := replay.NewRegistry(definitions...)
	if err != nil {
		t.Fatal(err)
	}
	return registry
}

// script binds a body to the name "script".
func script[O any](t testing.TB, body func(*replay.Context) (O, error)) *replay.Registry {
	t.Helper()
	return registryOf(t, replay.Orchestration[any, O]("script").Bind(func(ctx *replay.Context, _ any) (O, error) {
		return body(ctx)
	}))
}

// live starts "script" and returns it after its first turn.
func live(t testing.TB, registry *replay.Registry, more ...*journalpb.Event) (*replay.Execution, *replay.Turn) {
	t.Helper()
	x := replay.NewExecution("i", 1, registry, nil)
	turn, err := x.Turn(begin, messagesOf(append([]*journalpb.Event{started("script", nil)}, more...)...))
	if err != nil {
		t.Fatal(err)
	}
	return x, turn
}

func messagesOf(events ...*journalpb.Event) []replay.Message {
	messages := make([]replay.Message, len(events))
	for i, event := range events {
		messages[i] = replay.Message{Event: event}
	}
	return messages
}

// numbered makes a history of events.
func numbered(events ...*journalpb.Event) []*journalpb.Event {
	for i, event := range events {
		event.EventId = uint64(i + 1)
		event.Timestamp = begin.UnixNano()
	}
	return events
}

func payloadOf(value any) *journalpb.Payload {
	payload, err := replay.Encode(value)
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
		ActivityFailed: &journalpb.ActivityFailed{Error: replay.EncodeError(err), Attempts: 1},
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

func childFailed(source uint64, err error) *journalpb.Event {
	return &journalpb.Event{SourceEventId: source, Body: &journalpb.Event_SubOrchestrationFailed{
		SubOrchestrationFailed: &journalpb.SubOrchestrationFailed{Error: replay.EncodeError(err)},
	}}
}

func gaveUp(source uint64) *journalpb.Event {
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

// marker is what Patched records.
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
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: replay.EncodeError(err)},
	}}
}

func cancelled(reason string) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelled{
		OrchestrationCancelled: &journalpb.OrchestrationCancelled{Reason: reason},
	}}
}

// version gives a start, or a child, its version.
func version(event *journalpb.Event, version string) *journalpb.Event {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		body.OrchestrationStarted.Version = version
	case *journalpb.Event_SubOrchestrationScheduled:
		body.SubOrchestrationScheduled.Version = version
	}
	return event
}
