package replay_test

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// fill sets every field of a message that holds payloads or errors, at any depth, and
// returns how many bytes of user data it has put there. Each payload has another size.
func fill(m protoreflect.Message, next *int) (size int) {
	switch value := m.Interface().(type) {
	case *journalpb.Payload:
		*next++
		value.Data = bytes.Repeat([]byte{'x'}, *next)
		return *next
	case *journalpb.Error:
		value.Message, value.Stack = "message", "stack"
		value.Details, value.Cause, value.OtherCauses = new(journalpb.Payload), nil, nil
		size = len("message") + len("stack") + fill(value.Details.ProtoReflect(), next)
		if *next%2 == 0 {
			value.Cause = &journalpb.Error{Message: "cause"}
			value.OtherCauses = []*journalpb.Error{{Message: "other"}, {Stack: "third"}}
			size += 15
		}
		return size
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			panic("a map of messages: neither this test nor eachValue looks into one")
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			list := m.Mutable(field).List()
			for range 2 {
				size += fill(list.AppendMutable().Message(), next)
			}
		default:
			size += fill(m.Mutable(field).Message(), next)
		}
	}
	return size
}

// Every payload and every error of every type of event counts, whatever its field is
// called: a new field fails this test until the walker visits it.
func TestEveryPayloadOfEveryEventIsCounted(t *testing.T) {
	types := new(journalpb.Event).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	next, withValues := 0, 0
	for i := range types.Len() {
		event := new(journalpb.Event)
		want := fill(event.ProtoReflect().Mutable(types.Get(i)).Message(), &next)
		if want > 0 {
			withValues++
		}
		if got := replay.ValueBytes(event); got != want {
			t.Errorf("%s: %d bytes are counted, it has %d", event.Type(), got, want)
		}
		if got := replay.ValueBytes(proto.CloneOf(event)); got != want {
			t.Errorf("a copy of %s has %d bytes, not %d", event.Type(), got, want)
		}
	}
	if withValues < 14 {
		t.Errorf("%d types of events hold user data", withValues)
	}
	if got := replay.ValueBytes(new(journalpb.Event)); got != 0 {
		t.Errorf("an event without a body has %d bytes", got)
	}
}

// What code learns from ShouldContinueAsNew: a hundred chained starts of 1 MB.
func TestChainedStartsCountForContinueAsNew(t *testing.T) {
	large := strings.Repeat("x", 1<<20-2)
	other := replay.Orchestration[string, string]("other")
	for _, c := range []struct {
		name    string
		started *journalpb.OrchestrationStarted
		want    string
	}{
		{"of this build", &journalpb.OrchestrationStarted{Incarnation: 7}, "true"},
		{"that goes on from the build before", &journalpb.OrchestrationStarted{CountsAllPayloads: true}, "true"},
		{"of the build before", new(journalpb.OrchestrationStarted), "false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			registry, err := replay.NewRegistry(replay.Orchestration[string, bool]("chains").Bind(func(ctx *replay.Context, _ string) (bool, error) {
				for range 10 {
					if err := other.Chain(ctx, large); err != nil {
						return false, err
					}
				}
				if err := ctx.Sleep(1); err != nil {
					return false, err
				}
				return ctx.ShouldContinueAsNew(), nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			c.started.Name, c.started.Input = "chains", &journalpb.Payload{Data: []byte(`""`)}
			x := replay.NewExecution("i", 1, registry, nil)
			defer x.Drop()
			turn := func(event *journalpb.Event) []*journalpb.Event {
				t.Helper()
				done, err := x.Turn(begin, []replay.Message{{Event: event}})
				if err != nil {
					t.Fatal(err)
				}
				return done.Events
			}
			history := turn(&journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: c.started}})
			if size := x.Size(); size.Bytes < 10<<20-20 {
				t.Errorf("Size counts %d bytes", size.Bytes)
			}
			timer := history[len(history)-1]
			history = append(history, turn(&journalpb.Event{SourceEventId: timer.EventId, Body: &journalpb.Event_TimerFired{
				TimerFired: &journalpb.TimerFired{FireAt: timer.GetTimerCreated().GetFireAt()},
			}})...)
			output := history[len(history)-1].GetOrchestrationCompleted().GetOutput()
			if got := string(output.GetData()); got != c.want {
				t.Errorf("ShouldContinueAsNew: %s, want %s", got, c.want)
			}
			again := replay.NewExecution("i", 1, registry, nil)
			defer again.Drop()
			if err := again.Replay(all(history)); err != nil {
				t.Errorf("its replay: %v", err)
			}
			if again.Size().Bytes != x.Size().Bytes {
				t.Errorf("the replay counts %d bytes, live it was %d", again.Size().Bytes, x.Size().Bytes)
			}
		})
	}
}
