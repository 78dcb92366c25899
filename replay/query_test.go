package replay_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var progress = replay.Query[string, int]("progress")

// counts answers how many ticks it has seen.
func counts(ctx *replay.Context) (string, error) {
	seen := 0
	if err := progress.Answer(ctx, func(prefix string) (int, error) {
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

func TestAQueryIsAnsweredFromMemoryAndRecordsNothing(t *testing.T) {
	registry := script(t, counts)
	in := &instance{registry: registry}
	defer in.drop()
	mustTurn(t, in, started("script", nil))
	mustTurn(t, in, external("tick", 1, ""), external("tick", 2, ""))
	brought := replay.NewExecution("i", 1, registry, nil)
	defer brought.Drop()
	if err := brought.Replay(all(in.history)); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]*replay.Execution{"resident": in.resident, "brought back": brought} {
		answer, err := x.Query("progress", payloadOf("x"))
		if err != nil || string(answer.Data) != "2" {
			t.Errorf("%s: %s, %v", name, answer, err)
		}
		if x.LastEventID() != uint64(len(in.history)) || x.Asked() != 0 {
			t.Errorf("%s: the query has left something", name)
		}
	}
	mustTurn(t, in, external("tick", 0, ""))
	if answer, err := in.resident.Query("progress", payloadOf("x")); err != nil || string(answer.Data) != "2" {
		t.Errorf("after the end: %s, %v", answer, err)
	}
	checkReplays(t, in)
}

func TestAQueryThatGoesWrongHurtsNobody(t *testing.T) {
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
		"panic: tenuto: Go with the Context":        func(ctx *replay.Context) (int, error) { replay.Go(ctx, counts); return 0, nil },
		"panic: tenuto: cancel with the Context":    func(ctx *replay.Context) (int, error) { _, cancel := replay.WithCancel(ctx); cancel(); return 0, nil },
		"panic: tenuto: Answer with the Context":    func(ctx *replay.Context) (int, error) { return 0, progress.Answer(ctx, nil) },
		"panic: tenuto: OnClose with the Context":   func(ctx *replay.Context) (int, error) { ctx.OnClose(nil); return 0, nil },
		"panic: tenuto: a durable call with":        func(ctx *replay.Context) (int, error) { return 0, child.Chain(ctx, "") },
		"refused":                                   func(*replay.Context) (int, error) { return 0, errors.New("refused") },
		"decode input: json: cannot unmarshal":      nil,
		`the instance does not answer query "n"`:    nil,
	}
	for want, answer := range answers {
		x, _ := live(t, script(t, func(ctx *replay.Context) (string, error) {
			if err := progress.Answer(ctx, func(string) (int, error) { return answer(ctx) }); err != nil {
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
			t.Errorf("%s: it does not go on: %v, %v", want, turn, err)
		}
		x.Drop()
	}
}

func TestAnswerRefuses(t *testing.T) {
	var dropped error
	x, turn := live(t, script(t, func(ctx *replay.Context) (string, error) {
		defer func() { dropped = progress.Answer(ctx, nil) }()
		if err := replay.Query[int, int]("").Answer(ctx, nil); !errors.As(err, new(*replay.NameError)) {
			return "", fmt.Errorf("no name: %w", err)
		}
		if err := progress.Answer(ctx, nil); err == nil || err.Error() != `tenuto: query "progress" is answered by nil` {
			return "", fmt.Errorf("no function: %w", err)
		}
		_, err := goOn.Wait(ctx)
		return "", err
	}))
	x.Drop()
	if !errors.Is(dropped, replay.ErrDehydrating) || len(turn.Events) != 2 {
		t.Errorf("%v, %v", dropped, turn.Events)
	}
}

func TestHandlesKnowTheirNames(t *testing.T) {
	if got := act.Name() + child.Name() + goOn.Name() + progress.Name(); got != "actchildgoprogress" {
		t.Error(got)
	}
}

// An instance that is to start later sets a timer first; its code begins when
// that has fired.
func TestAStartAtATime(t *testing.T) {
	start := func(at time.Time) *journalpb.Event {
		event := started("script", nil)
		event.GetOrchestrationStarted().StartAt = at.UnixNano()
		return event
	}
	eachWay(t, script(t, func(ctx *replay.Context) (string, error) { return ctx.Now().Format(time.TimeOnly), nil }), func(t *testing.T, in *instance) {
		mustTurn(t, in, start(begin.Add(time.Hour)))
		if got := last(in); got != "TimerCreated fire_at=2026-01-01T01:00:00Z" {
			t.Error(got)
		}
		if _, err := in.turn(begin.Add(time.Hour), messagesOf(timerFired(2, begin.Add(time.Hour)))); err != nil {
			t.Fatal(err)
		}
		wantLast(t, in, `OrchestrationCompleted output="01:00:00"`)
	})
	eachWay(t, script(t, func(*replay.Context) (string, error) { panic("begun") }), func(t *testing.T, in *instance) {
		mustTurn(t, in, start(begin.Add(time.Hour)))
		mustTurn(t, in, cancelRequested("not needed", ""))
		wantLast(t, in, `OrchestrationCancelled reason="not needed"`)
	})
}
