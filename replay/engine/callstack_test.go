package engine_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// waitEverywhere starts a coroutine for each kind of wait, and waits for a timer itself.
func waitEverywhere(ctx *replay.Context) (string, error) {
	channel := replay.NewChannel[int](0)
	replay.Go(ctx, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "Ada") })
	replay.Go(ctx, func(ctx *replay.Context) (int, error) {
		return tick.Wait(ctx)
	})
	replay.Go(ctx, func(ctx *replay.Context) (int, error) {
		value, _, err := channel.Receive(ctx)
		return value, err
	})
	replay.Go(ctx, func(ctx *replay.Context) (int, error) {
		return 0, replay.Await(ctx, func() bool { return false })
	})
	replay.Go(ctx, func(ctx *replay.Context) (int, error) {
		_, err := replay.Race(ctx, act.Start(ctx, "Bob"), act.Start(ctx, "Eve"))
		return 0, err
	})
	return "", ctx.Sleep(time.Hour)
}

func stackOf(t *testing.T, x *engine.Execution) []replay.Coroutine {
	t.Helper()
	answer, err := x.Query(engine.StackQuery, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []replay.Coroutine
	if err := json.Unmarshal(answer.Data, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestStack_NamesCallAndOperations(t *testing.T) {
	x, turn := startScript(t, script(t, waitEverywhere))
	defer x.Evict()
	var got []string
	for _, c := range stackOf(t, x) {
		got = append(got, fmt.Sprintf("%s %v", c.Call, c.WaitsFor))
		if !c.Since.Equal(begin) {
			t.Errorf("%s: since %v, want %v", c.Call, c.Since, begin)
		}
		if !strings.HasPrefix(c.Source, "engine/callstack_test.go:") {
			t.Errorf("%s: source %q", c.Call, c.Source)
		}
		if !strings.Contains(c.Stack, "engine_test.waitEverywhere") || strings.Contains(c.Stack, "coroutine") {
			t.Errorf("%s: stack\n%s", c.Call, c.Stack)
		}
	}
	want := []string{
		`Context.Sleep [{2 TimerCreated  }]`,
		`ActivityHandle.Call [{3 ActivityScheduled act }]`,
		`EventHandle.Wait [{4 ExternalSubscribed tick }]`,
		`Channel.Receive []`,
		`Await []`,
		`Race [{5 ActivityScheduled act } {6 ActivityScheduled act }]`,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if again := stackOf(t, x); len(again) != len(want) {
		t.Errorf("asked again: %d coroutines", len(again))
	}
	reloaded := engine.NewExecution("i", 1, script(t, waitEverywhere), nil)
	defer reloaded.Evict()
	if err := reloaded.Replay(eventSeq(turn.Events)); err != nil {
		t.Fatal(err)
	}
	if live, replayed := fmt.Sprint(stackOf(t, x)), fmt.Sprint(stackOf(t, reloaded)); live != replayed {
		t.Errorf("after a replay\n%s\nwant\n%s", replayed, live)
	}
}

func TestStack_BeforeCodeBegins(t *testing.T) {
	event := started("script", nil)
	event.GetOrchestrationStarted().StartAt = begin.Add(time.Hour).UnixNano()
	in := &instance{registry: script(t, waitEverywhere)}
	defer in.evict()
	mustTurn(t, in, event)
	if stack := stackOf(t, in.resident); len(stack) != 1 || stack[0].Call != "StartAt" || stack[0].WaitsFor[0].Type != "TimerCreated" {
		t.Errorf("%+v", stack)
	}
}

func TestStack_HandlerOfTheNameIsPreferred(t *testing.T) {
	own := replay.Query[string, string](engine.StackQuery)
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		if err := own.Handle(ctx, func(in string) (string, error) { return "own " + in, nil }); err != nil {
			return "", err
		}
		return "", ctx.Sleep(time.Hour)
	}))
	defer x.Evict()
	if answer, err := x.Query(engine.StackQuery, payloadOf("x")); err != nil || string(answer.Data) != `"own x"` {
		t.Errorf("%s, %v", answer, err)
	}
}

func TestStack_AnswerBounded(t *testing.T) {
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		for range 10_000 {
			replay.Go(ctx, func(ctx *replay.Context) (int, error) {
				return 0, replay.Await(ctx, func() bool { return false })
			})
		}
		return "", ctx.Sleep(time.Hour)
	}))
	defer x.Evict()
	answer, err := x.Query(engine.StackQuery, nil)
	if err != nil || len(answer.Data) > 2<<20 {
		t.Errorf("%d bytes, %v", len(answer.GetData()), err)
	}
	if n := len(stackOf(t, x)); n < 100 || n > 10_000 {
		t.Errorf("%d coroutines", n)
	}
}
