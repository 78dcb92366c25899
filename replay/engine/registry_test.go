package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

func TestRegistry_RejectsInvalid(t *testing.T) {
	long := strings.Repeat("n", 129)
	work := func(context.Context, string) (string, error) { return "", nil }
	flow := func(*replay.Context, string) (string, error) { return "", nil }
	cases := []struct {
		definitions []replay.Definition
		want        string
	}{
		{[]replay.Definition{act.Bind(work), act.Bind(work)}, `tenuto: activity "act" is bound twice`},
		{[]replay.Definition{child.Bind(flow), act.Bind(work), child.Bind(flow)}, `tenuto: orchestration "child" is bound twice`},
		{[]replay.Definition{child.Bind(flow, replay.Version(engine.NewestVersion))}, `which stands for the newest`},
		{[]replay.Definition{act.Bind(nil)}, `tenuto: activity "act" is bound to nil`},
		{[]replay.Definition{child.Bind(nil)}, `tenuto: orchestration "child" is bound to nil`},
		{[]replay.Definition{{}}, "tenuto: empty definition: create it with Bind of a handle"},
		{[]replay.Definition{replay.Activity[string, string]("").Bind(work)}, `tenuto: name of activity "" has 0 bytes: 1 to 128 are allowed`},
		{[]replay.Definition{replay.Activity[string, string](long).Bind(work)}, "has 129 bytes: 1 to 128 are allowed"},
		{[]replay.Definition{replay.Orchestration[string, string](long).Bind(flow)}, "has 129 bytes: 1 to 128 are allowed"},
		{[]replay.Definition{replay.Orchestration[string, string]("\xff").Bind(flow)}, "is not UTF-8"},
	}
	for _, test := range cases {
		registry, err := engine.NewRegistry(test.definitions...)
		if err == nil || !strings.Contains(err.Error(), test.want) || registry != nil {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}

func TestRegistry_HasCode(t *testing.T) {
	registry := registryOf(t,
		replay.Activity[string, string](strings.Repeat("a", 128)).Bind(func(context.Context, string) (string, error) { return "", nil }),
		child.Bind(func(*replay.Context, string) (string, error) { return "", nil }))
	got := []bool{
		registry.HasActivity(strings.Repeat("a", 128)), registry.HasActivity("child"), registry.HasActivity(""),
		registry.HasOrchestration("child", ""), registry.HasOrchestration("child", "2"), registry.HasOrchestration("act", ""),
	}
	if diff := cmp.Diff([]bool{true, false, false, true, false, false}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDefinition_Names(t *testing.T) {
	work := func(context.Context, string) (string, error) { return "", nil }
	flow := func(*replay.Context, string) (string, error) { return "", nil }
	cases := []struct {
		definition                       replay.Definition
		activity, orchestration, version string
	}{
		{definition: act.Bind(work), activity: "act"},
		{definition: child.Bind(flow), orchestration: "child"},
		{definition: child.Bind(flow, replay.Version("2")), orchestration: "child", version: "2"},
		{definition: act.Bind(nil)},
		{definition: child.Bind(nil)},
		{definition: replay.Definition{}},
	}
	for _, test := range cases {
		activity, isActivity := test.definition.Activity()
		orchestration, version, isOrchestration := test.definition.Orchestration()
		got := []string{activity, orchestration, version}
		if diff := cmp.Diff([]string{test.activity, test.orchestration, test.version}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if isActivity != (test.activity != "") || isOrchestration != (test.orchestration != "") {
			t.Errorf("%q: activity %t, orchestration %t", got, isActivity, isOrchestration)
		}
	}
}

// A call with an invalid name returns an error.
func TestCall_RejectsInvalidName(t *testing.T) {
	var errs []error
	registry := script(t, func(ctx *replay.Context) (string, error) {
		for _, name := range []string{"", strings.Repeat("n", 129), "\xff"} {
			_, err := replay.Activity[string, string](name).Call(ctx, "x")
			errs = append(errs, err)
			_, err = replay.Orchestration[string, string](name).Call(ctx, "x")
			errs = append(errs, err)
			_, err = replay.Event[string](name).Wait(ctx)
			errs = append(errs, err)
		}
		_, err := child.Call(ctx, "x", replay.ChildID("\xff"))
		if err == nil {
			t.Error("a child ID that is not UTF-8 was accepted")
		}
		_, err = replay.Activity[any, string]("act").Call(ctx, func() {})
		if err == nil || !strings.HasPrefix(err.Error(), `encode input of activity "act": json: `) {
			t.Errorf("input that cannot be encoded: %v", err)
		}
		return "", nil
	})
	x, turn := startScript(t, registry)
	defer x.Evict()
	for i, err := range errs {
		if !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if len(turn.Events) != 2 {
		t.Errorf("%d events", len(turn.Events))
	}
}

// runActivity runs an activity's body once and returns what done received.
func runActivity(registry *engine.Registry, attempt *engine.Attempt) (result *journalpb.Payload, calls int, err error) {
	finished := make(chan struct{})
	go func() { // runtime.Goexit may end this goroutine
		defer close(finished)
		registry.RunActivity(context.Background(), attempt, func(p *journalpb.Payload, e error) {
			result, err = p, e
			calls++
		})
	}()
	<-finished
	return result, calls, err
}

func TestRunActivity_Outcomes(t *testing.T) {
	bodies := map[string]struct {
		body func(context.Context, string) (any, error)
		want string
	}{
		"result": {func(context.Context, string) (any, error) { return 7, nil }, "7"},
		"error":  {func(context.Context, string) (any, error) { return nil, errors.New("broken") }, "broken"},
		"panic":  {func(context.Context, string) (any, error) { panic("boom") }, "panic: boom"},
		"goexit": {func(context.Context, string) (any, error) { runtime.Goexit(); return nil, nil }, "runtime.Goexit called in user code"},
		"output": {func(context.Context, string) (any, error) { return func() {}, nil }, "encode output: json: unsupported type: func()"},
		"info": {func(ctx context.Context, input string) (any, error) {
			return fmt.Sprint(input, " ", replay.ActivityInfo(ctx).IdempotencyKey(), " ", replay.ActivityInfo(ctx).Number), nil
		}, `"in order-17/2/5 3"`},
	}
	for name, test := range bodies {
		t.Run(name, func(t *testing.T) {
			registry := registryOf(t, replay.Activity[string, any]("a").Bind(test.body))
			attempt := &engine.Attempt{Attempt: replay.Attempt{Name: "a", Instance: "order-17", Execution: 2, EventID: 5, Number: 3}, Input: payloadOf("in")}
			result, calls, err := runActivity(registry, attempt)
			got := string(result.GetData())
			if err != nil {
				got = err.Error()
			}
			if got != test.want || calls != 1 {
				t.Errorf("%s, done was called %d times", got, calls)
			}
		})
	}
}

func TestRunActivity_RejectsInvalid(t *testing.T) {
	registry := registryOf(t, replay.Activity[int, int]("a").Bind(func(_ context.Context, n int) (int, error) { return n, nil }))
	_, _, err := runActivity(registry, &engine.Attempt{Attempt: replay.Attempt{Name: "unknown"}})
	var none *replay.NotRegisteredError
	if !errors.As(err, &none) || none.Kind != "activity" {
		t.Errorf("unknown: %v", err)
	}
	_, _, err = runActivity(registry, &engine.Attempt{Attempt: replay.Attempt{Name: "a"}, Input: payloadOf("text")})
	if _, again := engine.RetryAfter(nil, 1, err, 0); err == nil || again {
		t.Errorf("input that cannot be decoded: %v, retry %t", err, again)
	}
	if replay.ActivityInfo(context.Background()) != nil {
		t.Error("ActivityInfo outside an activity is not nil")
	}
}
