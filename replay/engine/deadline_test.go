package engine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// startedUntil is started with a deadline, an hour after the start.
func startedUntil(name string) *journalpb.Event {
	event := started(name, nil)
	event.GetOrchestrationStarted().Deadline = begin.Add(time.Hour).UnixNano()
	return event
}

func eventTypes(events []*journalpb.Event) string {
	var types []string
	for _, event := range events {
		types = append(types, event.Type())
	}
	return strings.Join(types, " ")
}

func TestDeadline_CancelsRun(t *testing.T) {
	in := &instance{registry: script(t, func(ctx *replay.Context) (string, error) {
		out, err := act.Call(ctx, "x")
		if errors.Is(err, replay.ErrCanceled) {
			_, _ = ship.Call(replay.WithoutCancel(ctx), "clean up")
		}
		return out, err
	})}
	defer in.evict()
	mustTurn(t, in, startedUntil("script"))
	mustTurn(t, in, timerFired(2, begin.Add(time.Hour)))
	mustTurn(t, in, activityCompleted(6, "cleaned"))
	want := "OrchestrationStarted TimerCreated ActivityScheduled TimerFired CancelRequested ActivityScheduled ActivityCompleted OrchestrationCanceled"
	if got := eventTypes(in.history); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if reason := in.history[len(in.history)-1].GetOrchestrationCanceled().GetReason(); reason != engine.DeadlineReason {
		t.Errorf("reason %q", reason)
	}
	checkReplays(t, in)
}

func TestDeadline_NotReached(t *testing.T) {
	in := &instance{registry: script(t, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "x") })}
	defer in.evict()
	mustTurn(t, in, startedUntil("script"))
	mustTurn(t, in, activityCompleted(3, "done"))
	want := "OrchestrationStarted TimerCreated ActivityScheduled ActivityCompleted CancelRequested OrchestrationCompleted"
	if got := eventTypes(in.history); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	checkReplays(t, in)
}

func TestDeadline_AfterCancellation(t *testing.T) {
	in := &instance{registry: script(t, func(ctx *replay.Context) (string, error) {
		_, err := act.Call(ctx, "x")
		_, shieldedErr := ship.Call(replay.WithoutCancel(ctx), "clean up")
		return "", errors.Join(err, shieldedErr)
	})}
	defer in.evict()
	mustTurn(t, in, startedUntil("script"))
	mustTurn(t, in, &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
		OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: "by hand"},
	}})
	mustTurn(t, in, timerFired(2, begin.Add(time.Hour)))
	mustTurn(t, in, activityCompleted(6, "cleaned"))
	if last := in.history[len(in.history)-1]; last.GetOrchestrationCanceled().GetReason() != "by hand" {
		t.Errorf("%s", eventTypes(in.history))
	}
	checkReplays(t, in)
}

func TestDeadline_KeptByNextExecution(t *testing.T) {
	loop := replay.Orchestration[any, string]("script")
	in := &instance{registry: registryOf(t, loop.Bind(func(ctx *replay.Context, _ any) (string, error) {
		if _, err := tick.Wait(ctx); err != nil {
			return "", err
		}
		return "", loop.ContinueAsNew(ctx, nil)
	}))}
	defer in.evict()
	mustTurn(t, in, startedUntil("script"))
	mustTurn(t, in, external("tick", 1, ""))
	next := in.resident.Successor().GetOrchestrationStarted()
	if next.GetDeadline() != begin.Add(time.Hour).UnixNano() {
		t.Errorf("the next execution has deadline %d", next.GetDeadline())
	}
	checkReplays(t, in)
}

// Code that has received the cancellation and continues as new is not canceled again.
func TestDeadline_NotKeptAfterItWasObserved(t *testing.T) {
	loop := replay.Orchestration[any, string]("script")
	in := &instance{registry: registryOf(t, loop.Bind(func(ctx *replay.Context, _ any) (string, error) {
		if _, err := tick.Wait(ctx); !errors.Is(err, replay.ErrCanceled) {
			return "", err
		}
		return "", loop.ContinueAsNew(ctx, nil)
	}))}
	defer in.evict()
	mustTurn(t, in, startedUntil("script"))
	mustTurn(t, in, timerFired(2, begin.Add(time.Hour)))
	next := in.resident.Successor().GetOrchestrationStarted()
	if next == nil || next.Deadline != 0 || next.CancelRequested != nil {
		t.Errorf("the next execution begins with %v", next)
	}
	checkReplays(t, in)
}
