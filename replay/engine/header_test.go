package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func headers(pairs ...string) (list []*journalpb.Header) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, &journalpb.Header{Name: pairs[i], Value: pairs[i+1]})
	}
	return list
}

// callsBody makes a call of each kind that carries headers.
func callsBody(ctx *replay.Context) (string, error) {
	act.Start(ctx, "x")
	child.Start(ctx, "x", replay.ChildID("c"))
	if err := child.Chain(ctx, "x", replay.ChildID("d")); err != nil {
		return "", err
	}
	return "", replay.Event[string]("e").SendTo(ctx, "other", "x")
}

func startWith(t *testing.T, registry *engine.Registry, list []*journalpb.Header) []*journalpb.Event {
	t.Helper()
	start := started("script", nil)
	start.GetOrchestrationStarted().Headers = list
	turn, err := engine.NewExecution("i", 1, registry, nil).Turn(begin, messagesOf(start))
	if err != nil {
		t.Fatal(err)
	}
	return turn.Events
}

func TestHeaders_RecordedWithCalls(t *testing.T) {
	registry := script(t, callsBody)
	events := startWith(t, registry, headers("a", "1", "b", "2"))
	if len(events) != 5 {
		t.Fatalf("%v", events)
	}
	for _, event := range events {
		if text := engine.Describe(event); !strings.HasSuffix(text, ` headers={a="1" b="2"}`) {
			t.Errorf("%s", text)
		}
	}
	for _, event := range startWith(t, registry, nil) {
		if strings.Contains(event.String(), "headers") {
			t.Errorf("without headers: %v", event)
		}
	}
}

// What a call has recorded applies, whatever the code would pass on.
func TestHeaders_NotComparedOnReplay(t *testing.T) {
	registry := script(t, callsBody).WithStrict(true)
	events := startWith(t, registry, headers("a", "1"))
	events[0].GetOrchestrationStarted().Headers = headers("a", "other")
	events[1].GetActivityScheduled().Options = nil
	x := engine.NewExecution("i", 1, registry, nil)
	if err := x.Replay(eventSeq(events)); err != nil {
		t.Error(err)
	}
	x.Evict()
}

func TestHeaders_CountInSizes(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) { return "", ctx.Sleep(time.Hour) })
	size := func(list []*journalpb.Header) engine.Size {
		x, _ := startScript(t, registry)
		defer x.Evict()
		event := external("e", "x", "r")
		event.GetExternalEvent().Headers = list
		if _, err := x.Turn(begin, messagesOf(event)); err != nil {
			t.Fatal(err)
		}
		return x.Size()
	}
	without, with := size(nil), size(headers("ab", "cde"))
	if with.Bytes-without.Bytes != 5 || with.BufferedBytes-without.BufferedBytes != 5 {
		t.Errorf("%+v without headers, %+v with 5 bytes of them", without, with)
	}
}

// A mismatch hides the values if a codec hides the payloads.
func TestHeaders_HiddenInMismatchWithCodec(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		registry := script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "other") })
		if hidden {
			registry = registry.WithPayloadConverter(engine.PayloadConverter{Codec: flipCodec{}})
		}
		call := activityScheduled("act", "x")
		call.GetActivityScheduled().Options = &journalpb.ActivityOptions{Headers: headers("a", "secret")}
		err := engine.NewExecution("i", 1, registry, nil).Replay(eventSeq(withEventIDs(started("script", nil), call)))
		mismatch, ok := err.(*replay.Mismatch)
		if !ok || strings.Contains(mismatch.Expected, "headers={a}") != hidden || strings.Contains(mismatch.Expected, `headers={a="secret"}`) == hidden {
			t.Errorf("hidden %t: %v", hidden, err)
		}
	}
}
