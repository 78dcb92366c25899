package engine_test

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// fillValues sets every field of a message that holds payloads or errors, at any depth, and returns
// the bytes of user data. Each payload has another size.
func fillValues(m protoreflect.Message, next *int) (size int) {
	switch value := m.Interface().(type) {
	case *journalpb.Payload:
		*next++
		value.Data = bytes.Repeat([]byte{'x'}, *next)
		return *next
	case *journalpb.Error:
		value.Message, value.Stack = "message", "stack"
		value.Details, value.Cause, value.OtherCauses = new(journalpb.Payload), nil, nil
		size = len("message") + len("stack") + fillValues(value.Details.ProtoReflect(), next)
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
			panic("a map of messages: neither this test nor the visitor looks into one")
		case field.IsMap() || field.Message() == nil:
		case field.IsList():
			list := m.Mutable(field).List()
			for range 2 {
				size += fillValues(list.AppendMutable().Message(), next)
			}
		default:
			size += fillValues(m.Mutable(field).Message(), next)
		}
	}
	return size
}

// Every payload and every error of every event type counts, whatever its field is called. A new
// field fails this test until the visitor visits it.
func TestValueBytes_EveryField(t *testing.T) {
	types := new(journalpb.Event).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	next, withValues := 0, 0
	for i := range types.Len() {
		event := new(journalpb.Event)
		want := fillValues(event.ProtoReflect().Mutable(types.Get(i)).Message(), &next)
		if want > 0 {
			withValues++
		}
		if got := engine.ValueBytes(event); got != want {
			t.Errorf("%s: counted %d bytes, want %d", event.Type(), got, want)
		}
		if got := engine.ValueBytes(proto.CloneOf(event)); got != want {
			t.Errorf("a copy of %s has %d bytes, not %d", event.Type(), got, want)
		}
	}
	if withValues < 14 {
		t.Errorf("%d types of events hold user data", withValues)
	}
	if got := engine.ValueBytes(new(journalpb.Event)); got != 0 {
		t.Errorf("an event without a body has %d bytes", got)
	}
}

// ShouldContinueAsNew after a hundred chained starts of 1 MB.
func TestShouldContinueAsNew_CountsChainedStarts(t *testing.T) {
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
			registry, err := engine.NewRegistry(replay.Orchestration[string, bool]("chains").Bind(func(ctx *replay.Context, _ string) (bool, error) {
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
			x := engine.NewExecution("i", 1, registry, nil)
			defer x.Evict()
			turn := func(event *journalpb.Event) []*journalpb.Event {
				t.Helper()
				done, err := x.Turn(begin, []engine.Message{{Event: event}})
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
			again := engine.NewExecution("i", 1, registry, nil)
			defer again.Evict()
			if err := again.Replay(eventSeq(history)); err != nil {
				t.Errorf("replay: %v", err)
			}
			if again.Size().Bytes != x.Size().Bytes {
				t.Errorf("replay counts %d bytes, the live turn %d", again.Size().Bytes, x.Size().Bytes)
			}
		})
	}
}
