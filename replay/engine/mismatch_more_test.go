package engine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Side effects, patches, status, chained starts and close policies are compared like other calls.
func TestScheduledDifferently_NamesCallOfEveryType(t *testing.T) {
	terminates := childScheduled("child", "order-17::3.2", "x")
	terminates.GetSubOrchestrationScheduled().ClosePolicy = journalpb.ClosePolicy_CLOSE_POLICY_TERMINATE
	calls := []struct {
		name     string
		recorded *journalpb.Event
		call     func(*replay.Context, *callSite)
		found    string
		strict   bool // only the strict comparison finds it
	}{
		{"another label", sideEffect("pick", 1), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			replay.SideEffect(ctx, "choose", func() (int, error) { return 1, nil })
		}, `SideEffectRecorded label="choose"`, false},
		{"a side effect for an activity", activityScheduled("act", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			replay.SideEffect(ctx, "pick", func() (int, error) { return 1, nil })
		}, `SideEffectRecorded label="pick"`, false},
		{"a side effect for a marker", marker("p"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			replay.SideEffect(ctx, "p", func() (int, error) { return 1, nil })
		}, `SideEffectRecorded label="p"`, false},
		{"an activity for a marker", marker("p"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			act.Call(ctx, "x")
		}, `ActivityScheduled name="act" input="x"`, false},
		{"an activity after another patch", marker("p"), func(ctx *replay.Context, p *callSite) {
			replay.Patched(ctx, "q")
			p.markNext()
			act.Call(ctx, "x")
		}, `ActivityScheduled name="act" input="x"`, false},
		{"another status", statusSet("half"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			replay.SetStatus(ctx, "full")
		}, `StatusSet value="full"`, true},
		{"a status for a side effect", sideEffect("pick", 1), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			replay.SetStatus(ctx, 1)
		}, "StatusSet value=1", false},
		{"another chained name", chained("other", "order-17::3.2", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Chain(ctx, "x")
		}, `OrchestrationChained name="child" input="x"`, false},
		{"another chained ID", chained("child", "a", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Chain(ctx, "x", replay.ChildID("b"))
		}, `OrchestrationChained name="child" instance="b" input="x"`, false},
		{"another chained input", chained("child", "order-17::3.2", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Chain(ctx, "y")
		}, `OrchestrationChained name="child" input="y"`, false},
		{"a child for a chained start", chained("child", "order-17::3.2", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Call(ctx, "x")
		}, `SubOrchestrationScheduled name="child" input="x"`, false},
		{"another close policy", terminates, func(ctx *replay.Context, p *callSite) {
			p.markNext()
			child.Call(ctx, "x", replay.OnParentClose(replay.AbandonChild))
		}, `SubOrchestrationScheduled name="child" input="x" close_policy=abandon`, true},
		{"a limit of time", activityScheduled("act", "x"), func(ctx *replay.Context, p *callSite) {
			p.markNext()
			replay.WithTimeout(ctx, 0)
			ctx.Sleep(0)
		}, "TimerCreated fire_at=2026-01-01T00:00:00Z", false},
	}
	for _, test := range calls {
		t.Run(test.name, func(t *testing.T) {
			var p callSite
			registry := script(t, func(ctx *replay.Context) (string, error) {
				test.call(ctx, &p)
				_, err := goOn.Wait(ctx)
				return "", err
			})
			runUntilBlocked(t, registry)
			history := withEventIDs(started("script", nil), test.recorded)
			expectMismatch(t, registry.WithStrict(true), history, replay.Mismatch{
				Kind: replay.ScheduledDifferently, EventID: 2,
				Expected: engine.Describe(test.recorded), Found: test.found, Source: p.source, Strict: test.strict,
			})
		})
	}
}

func TestScheduledDifferently_InOnClose(t *testing.T) {
	var p callSite
	registry := script(t, func(ctx *replay.Context) (string, error) {
		ctx.OnClose(func(ctx *replay.Context, _ error) error {
			p.markNext()
			_, err := act.Call(ctx, "x")
			return err
		})
		return "", nil
	})
	runUntilBlocked(t, registry)
	expectMismatch(t, registry, withEventIDs(started("script", nil), timerCreated(begin)), replay.Mismatch{
		Kind: replay.ScheduledDifferently, EventID: 2, Source: p.source,
		Expected: "TimerCreated fire_at=2026-01-01T00:00:00Z", Found: `ActivityScheduled name="act" input="x"`,
	})
}

func TestScheduledDifferently_TerminalEventType(t *testing.T) {
	self := replay.Orchestration[any, string]("script")
	inbox := continuedAsNew("old", "")
	inbox.GetOrchestrationContinuedAsNew().Inbox = []*journalpb.ExternalEvent{external("tick", 1, "").GetExternalEvent()}
	again := func(ctx *replay.Context, _ any) (string, error) { return "", self.ContinueAsNew(ctx, "new") }
	same := func(ctx *replay.Context, _ any) (string, error) { return "", self.ContinueAsNew(ctx, "old") }
	returns := func(*replay.Context, any) (string, error) { return "x", nil }
	fails := func(*replay.Context, any) (string, error) { return "", errors.New("broken") }
	cases := []struct {
		name     string
		recorded *journalpb.Event
		body     func(*replay.Context, any) (string, error)
		found    string
	}{
		{"another input", continuedAsNew("old", ""), again, `OrchestrationContinuedAsNew input="new"`},
		{"another inbox", inbox, same, `OrchestrationContinuedAsNew input="old"`},
		{"continued for completed", completed("x"), same, `OrchestrationContinuedAsNew input="old"`},
		{"completed for continued", continuedAsNew("old", ""), returns, `OrchestrationCompleted output="x"`},
		{"failed for completed", completed("x"), fails, `OrchestrationFailed error="broken"`},
		{"completed for failed", orchestrationFailed(errors.New("broken")), returns, `OrchestrationCompleted output="x"`},
		{"completed for canceled", orchestrationCanceled("by hand"), returns, `OrchestrationCompleted output="x"`},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			registry := bindScript(t, test.body)
			source := sourceOf(t, registry)
			expectMismatch(t, registry, withEventIDs(started("script", nil), test.recorded), replay.Mismatch{
				Kind: replay.ScheduledDifferently, EventID: 2, Source: source,
				Expected: engine.Describe(test.recorded), Found: test.found,
			})
		})
	}
}

// sourceOf returns the line of the body of "script" as in a mismatch.
func sourceOf(t *testing.T, registry *engine.Registry) string {
	t.Helper()
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	err := x.Replay(eventSeq(withEventIDs(started("script", nil), operationCanceled(1))))
	var m *replay.Mismatch
	if !errors.As(err, &m) || m.Source == "" {
		t.Fatalf("got %v, want a mismatch with a line", err)
	}
	return m.Source
}

// schedulesOfEveryKind returns scheduling events of every type.
func schedulesOfEveryKind() map[string]*journalpb.Event {
	return map[string]*journalpb.Event{
		"activity": activityScheduled("act", "x"), "timer": timerCreated(begin), "subscription": subscribed("tick"),
		"child": childScheduled("child", "c", "x"), "chained": chained("child", "c", "x"), "side effect": sideEffect("pick", 1),
		"marker": marker("p"), "status": statusSet("half"), "operation canceled": operationCanceled(2),
	}
}

// endsOfEveryKind returns terminal events of every type that code makes.
func endsOfEveryKind() map[string]*journalpb.Event {
	return map[string]*journalpb.Event{
		"completed": completed("x"), "failed": orchestrationFailed(errors.New("broken")), "canceled": orchestrationCanceled("by hand"),
		"continued": continuedAsNew("x", ""),
	}
}

func TestScheduledNothing_EveryType(t *testing.T) {
	var p callSite
	registry := script(t, func(ctx *replay.Context) (string, error) {
		p.markNext()
		_, err := goOn.Wait(ctx)
		return "", err
	})
	runUntilBlocked(t, registry)
	for _, events := range []map[string]*journalpb.Event{schedulesOfEveryKind(), endsOfEveryKind()} {
		for name, recorded := range events {
			t.Run(name, func(t *testing.T) {
				history := withEventIDs(started("script", nil), subscribed("go"), recorded)
				expectMismatch(t, registry, history, replay.Mismatch{
					Kind: replay.ScheduledNothing, EventID: 3, Source: p.source,
					Expected: engine.Describe(recorded), Found: "the code blocked and scheduled nothing",
				})
			})
		}
	}
}

// While an instance is suspended, its code schedules nothing.
func TestScheduledNothing_WhileSuspended(t *testing.T) {
	var p callSite
	registry := script(t, func(ctx *replay.Context) (string, error) {
		p.markNext()
		_, err := goOn.Wait(ctx)
		return "", errors.Join(err, ctx.Sleep(0))
	})
	runUntilBlocked(t, registry)
	history := withEventIDs(started("script", nil), subscribed("go"), suspended("", ""), external("go", nil, ""), timerCreated(begin))
	expectMismatch(t, registry, history, replay.Mismatch{
		Kind: replay.ScheduledNothing, EventID: 5, Source: p.source,
		Expected: "TimerCreated fire_at=2026-01-01T00:00:00Z", Found: "the code blocked and scheduled nothing",
	})
}

func TestEndedEarly_EveryType(t *testing.T) {
	self := replay.Orchestration[any, string]("script")
	bodies := map[string]func(*replay.Context, any) (string, error){
		`OrchestrationCompleted output="x"`:         func(*replay.Context, any) (string, error) { return "x", nil },
		`OrchestrationFailed error="broken"`:        func(*replay.Context, any) (string, error) { return "", errors.New("broken") },
		`OrchestrationContinuedAsNew input="again"`: func(ctx *replay.Context, _ any) (string, error) { return "", self.ContinueAsNew(ctx, "again") },
	}
	for found, body := range bodies {
		registry := bindScript(t, body)
		source := sourceOf(t, registry)
		for name, recorded := range schedulesOfEveryKind() {
			t.Run(name, func(t *testing.T) {
				expectMismatch(t, registry, withEventIDs(started("script", nil), recorded), replay.Mismatch{
					Kind: replay.EndedEarly, EventID: 2, Source: source, Expected: engine.Describe(recorded), Found: found,
				})
			})
		}
	}
}

// An event that needs no completion cannot be completed.
func TestUnknownSource_EventsWithoutCompletion(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		replay.Patched(ctx, "p")
		_, _ = replay.SideEffect(ctx, "pick", func() (int, error) { return 1, nil })
		_ = replay.SetStatus(ctx, "half")
		_ = child.Chain(ctx, "x", replay.ChildID("c"))
		_, err := goOn.Wait(ctx)
		return "", err
	})
	for source := uint64(1); source <= 7; source++ {
		if source == 6 {
			continue // the subscription
		}
		completion := activityCompleted(source, 1)
		history := withEventIDs(started("script", nil), marker("p"), sideEffect("pick", 1), statusSet("half"), chained("child", "c", "x"),
			subscribed("go"), suspended("", ""), completion)
		expectMismatch(t, registry, history, replay.Mismatch{
			Kind: replay.UnknownSource, EventID: 8,
			Expected: fmt.Sprintf("event %d schedules no operation", source), Found: engine.Describe(completion),
		})
	}
}

// Clean-up cancels what the body left open; a later completion is invalid.
func TestAlreadyClosed_ByEndOfBody(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (string, error) {
		ctx.OnClose(func(ctx *replay.Context, _ error) error { return ctx.Sleep(0) })
		act.Start(ctx, "x")
		_, err := goOn.Wait(ctx)
		return "", err
	})
	completion := activityCompleted(2, 1)
	expectMismatch(t, registry, withEventIDs(started("script", nil), activityScheduled("act", "x"), subscribed("go"), external("go", nil, ""),
		operationCanceled(2), timerCreated(begin), completion), replay.Mismatch{
		Kind: replay.AlreadyClosed, EventID: 7, Expected: "operation 2 is already closed", Found: engine.Describe(completion)})
}

// A history has all actions of the code before the next message, unless the instance was
// terminated.
func TestScheduledDifferently_InputBeforePendingAction(t *testing.T) {
	var p callSite
	registry := script(t, func(ctx *replay.Context) (string, error) {
		wait := goOn.Subscribe(ctx)
		p.markNext()
		act.Start(ctx, "x")
		_, err := wait.Await(ctx)
		return "", err
	})
	runUntilBlocked(t, registry)
	base := func(event *journalpb.Event) []*journalpb.Event {
		return withEventIDs(started("script", nil), subscribed("go"), event)
	}
	for name, message := range map[string]*journalpb.Event{
		"event": external("go", nil, ""), "another event": external("tick", nil, ""), "cancel": cancelRequested("", ""),
		"suspend": suspended("", ""), "resume": resumed("", ""),
	} {
		t.Run(name, func(t *testing.T) {
			expectMismatch(t, registry, base(message), replay.Mismatch{
				Kind: replay.ScheduledDifferently, EventID: 3, Source: p.source,
				Expected: engine.Describe(message), Found: `ActivityScheduled name="act" input="x"`,
			})
		})
	}
	x := engine.NewExecution("i", 1, registry, nil)
	defer x.Evict()
	if err := x.Replay(eventSeq(base(terminated("")))); err != nil || !x.Ended() {
		t.Errorf("terminated: %v", err)
	}
}

func TestCorrupt_EventAfterTerminalEvent(t *testing.T) {
	self := replay.Orchestration[any, string]("script")
	registry := bindScript(t, func(ctx *replay.Context, _ any) (string, error) { return "", self.ContinueAsNew(ctx, "x") })
	for name, event := range map[string]*journalpb.Event{
		"event": external("go", nil, ""), "cancel": cancelRequested("", ""), "suspend": suspended("", ""), "resume": resumed("", ""),
		"completion": activityCompleted(2, 1), "schedule": timerCreated(begin), "end": completed("x"), "forced end": terminated(""),
		"side effect": sideEffect("x", 1), "status": statusSet(1), "chained": chained("child", "c", 1), "operation canceled": operationCanceled(1),
	} {
		t.Run(name, func(t *testing.T) {
			expectMismatch(t, registry, withEventIDs(started("script", nil), continuedAsNew("x", ""), event), replay.Mismatch{
				Kind: replay.Corrupt, EventID: 3, Found: event.Type() + " after the terminal event",
			})
		})
	}
}

func TestCorrupt_FirstEventNotStarted(t *testing.T) {
	for _, events := range []map[string]*journalpb.Event{schedulesOfEveryKind(), endsOfEveryKind(), {
		"suspend": suspended("", ""), "resume": resumed("", ""), "cancel": cancelRequested("", ""), "event": external("go", nil, ""),
	}} {
		for name, event := range events {
			t.Run(name, func(t *testing.T) {
				expectMismatch(t, script(t, waiting), withEventIDs(event), replay.Mismatch{
					Kind: replay.Corrupt, EventID: 1, Found: event.Type() + " as first event",
				})
			})
		}
	}
}
