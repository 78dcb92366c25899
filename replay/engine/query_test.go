package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var progress = replay.Query[string, int]("progress")

// countTicks answers the number of ticks it has received.
func countTicks(ctx *replay.Context) (string, error) {
	seen := 0
	if err := progress.Handle(ctx, func(prefix string) (int, error) {
		if prefix == "" {
			return 0, errors.New("no prefix")
		}
		return seen, nil
	}); err != nil {
		return "", err
	}
	for {
		if n, err := tick.Wait(ctx); err != nil || n == 0 {
			return "done", err
		}
		seen++
	}
}

func TestQuery_RecordsNothing(t *testing.T) {
	registry := script(t, countTicks)
	in := &instance{registry: registry}
	defer in.evict()
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in, external("tick", 1, ""), external("tick", 2, ""))
	reloaded := engine.NewExecution("i", 1, registry, nil)
	defer reloaded.Evict()
	if err := reloaded.Replay(eventSeq(in.history)); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]*engine.Execution{"resident": in.resident, "brought back": reloaded} {
		answer, err := x.Query("progress", payloadOf("x"))
		if err != nil || string(answer.Data) != "2" {
			t.Errorf("%s: %s, %v", name, answer, err)
		}
		if x.LastEventID() != uint64(len(in.history)) || x.QueuedActions() != 0 {
			t.Errorf("%s: the query recorded something", name)
		}
	}
	mustTurn(t, in, external("tick", 0, ""))
	if answer, err := in.resident.Query("progress", payloadOf("x")); err != nil || string(answer.Data) != "2" {
		t.Errorf("after the end: %s, %v", answer, err)
	}
	checkReplays(t, in)
}

func TestQuery_FailureDoesNotAffectInstance(t *testing.T) {
	answers := map[string]func(ctx *replay.Context) (int, error){
		"panic: boom": func(*replay.Context) (int, error) { panic("boom") },
		"runtime.Goexit called in user code": func(*replay.Context) (int, error) {
			runtime.Goexit()
			return 0, nil
		},
		"panic: tenuto: a durable call":             func(ctx *replay.Context) (int, error) { return 0, ctx.Sleep(time.Second) },
		"panic: tenuto: SetStatus with the Context": func(ctx *replay.Context) (int, error) { return 0, replay.SetStatus(ctx, 1) },
		"panic: tenuto: Patched with the Context":   func(ctx *replay.Context) (int, error) { replay.Patched(ctx, "p"); return 0, nil },
		"panic: tenuto: Random with the Context":    func(ctx *replay.Context) (int, error) { return ctx.Random().IntN(2), nil },
		"panic: tenuto: Go with the Context":        func(ctx *replay.Context) (int, error) { replay.Go(ctx, countTicks); return 0, nil },
		"panic: tenuto: cancel with the Context":    func(ctx *replay.Context) (int, error) { _, cancel := replay.WithCancel(ctx); cancel(); return 0, nil },
		"panic: tenuto: Handle with the Context":    func(ctx *replay.Context) (int, error) { return 0, progress.Handle(ctx, nil) },
		"panic: tenuto: OnClose with the Context":   func(ctx *replay.Context) (int, error) { ctx.OnClose(nil); return 0, nil },
		"panic: tenuto: a durable call with":        func(ctx *replay.Context) (int, error) { return 0, child.Chain(ctx, "") },
		"rejected":                                  func(*replay.Context) (int, error) { return 0, errors.New("rejected") },
		"decode input: json: cannot unmarshal":      nil,
		`the instance does not answer query "n"`:    nil,
	}
	for want, answer := range answers {
		x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
			if err := progress.Handle(ctx, func(string) (int, error) { return answer(ctx) }); err != nil {
				return "", err
			}
			_, err := goOn.Wait(ctx)
			return "", err
		}))
		name, input := "progress", payloadOf("x")
		if strings.HasPrefix(want, "decode") {
			input = payloadOf(7)
		}
		if strings.HasPrefix(want, "the instance") {
			name = "n"
		}
		if output, err := x.Query(name, input); err == nil || output != nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, %v, want %s", output, err, want)
		}
		if turn, err := x.Turn(begin, messagesOf(external("go", nil, ""))); err != nil || len(turn.Events) != 2 {
			t.Errorf("%s: the instance does not continue: %v, %v", want, turn, err)
		}
		x.Evict()
	}
}

func TestQueryHandle_RejectsInvalid(t *testing.T) {
	var evicted error
	x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		defer func() { evicted = progress.Handle(ctx, nil) }()
		if err := replay.Query[int, int]("").Handle(ctx, nil); !errors.As(err, new(*replay.InvalidError)) {
			return "", fmt.Errorf("no name: %w", err)
		}
		if err := progress.Handle(ctx, nil); err == nil || err.Error() != `tenuto: query "progress" has a nil handler` {
			return "", fmt.Errorf("no function: %w", err)
		}
		_, err := goOn.Wait(ctx)
		return "", err
	}))
	x.Evict()
	if !errors.Is(evicted, replay.ErrEvicting) || len(turn.Events) != 2 {
		t.Errorf("%v, %v", evicted, turn.Events)
	}
}

func TestHandles_Name(t *testing.T) {
	if got := act.Name() + child.Name() + goOn.Name() + progress.Name(); got != "actchildgoprogress" {
		t.Error(got)
	}
}

// An instance with a start time sets a timer first; its code begins when that has fired.
func TestStartAt_DelaysBody(t *testing.T) {
	start := func(at time.Time) *journalpb.Event {
		event := started("script", nil)
		event.GetOrchestrationStarted().StartAt = at.UnixNano()
		return event
	}
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) { return ctx.Now().Format(time.TimeOnly), nil }), func(t *testing.T, in *instance) {
		mustTurn(t, in, start(begin.Add(time.Hour)))
		if got := lastEvent(in); got != "TimerCreated fire_at=2026-01-01T01:00:00Z" {
			t.Error(got)
		}
		if _, err := in.turn(begin.Add(time.Hour), messagesOf(timerFired(2, begin.Add(time.Hour)))); err != nil {
			t.Fatal(err)
		}
		wantLast(t, in, `OrchestrationCompleted output="01:00:00"`)
	})
	forEachMode(t, script(t, func(*replay.Context) (string, error) { panic("begun") }), func(t *testing.T, in *instance) {
		mustTurn(t, in, start(begin.Add(time.Hour)))
		mustTurn(t, in, cancelRequested("not needed", ""))
		wantLast(t, in, `OrchestrationCanceled reason="not needed"`)
	})
}
