package engine_test

import (
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// foreignCalls returns every kind of durable call.
func foreignCalls(ctx *replay.Context, open *replay.Future[any], semaphore *replay.Semaphore) map[string]func() {
	inner, cancel := replay.WithCancel(ctx)
	return map[string]func(){
		"Start":        func() { act.Start(ctx, "x") },
		"Call":         func() { act.Call(inner, "x") },
		"Await":        func() { open.Await(ctx) },
		"AwaitFor":     func() { open.AwaitFor(ctx, time.Second) },
		"Go":           func() { replay.Go(ctx, func(*replay.Context) (int, error) { return 1, nil }) },
		"Cancel":       func() { open.Cancel(ctx) },
		"cancel":       cancel,
		"Sleep":        func() { ctx.Sleep(time.Second) },
		"Wait":         func() { goOn.Wait(ctx) },
		"All":          func() { replay.All(ctx, open) },
		"Race":         func() { replay.Race(ctx, open) },
		"SideEffect":   func() { replay.SideEffect(ctx, "label", func() (int, error) { return 1, nil }) },
		"SetStatus":    func() { replay.SetStatus(ctx, 1) },
		"Random":       func() { ctx.UUID() },
		"Patched":      func() { replay.Patched(ctx, "p") },
		"OnClose":      func() { ctx.OnClose(func(*replay.Context, error) error { return nil }) },
		"Acquire":      func() { semaphore.Acquire(ctx) },
		"Release":      func() { semaphore.Release(ctx) },
		"AwaitUpdates": func() { replay.AwaitUpdates(ctx) },
		"Chain":        func() { replay.Orchestration[string, string]("c").Chain(ctx, "x") },
		"AsCompleted": func() {
			for range replay.AsCompleted(ctx, open) {
				panic("unreachable")
			}
		},
	}
}

// mustExit runs calls concurrently, each on its own goroutine, and waits for them. It fails the
// test if one returns or panics.
func mustExit(t *testing.T, calls map[string]func()) {
	t.Helper()
	var running sync.WaitGroup
	for name, call := range calls {
		running.Add(1)
		go func() {
			returned := false
			defer running.Done()
			defer func() {
				if value := recover(); value != nil || returned {
					t.Errorf("%s returned or panicked with %v", name, value)
				}
			}()
			call()
			returned = true
		}()
	}
	running.Wait()
}

func wantForeignCall(t *testing.T, err error) {
	t.Helper()
	var m *replay.Mismatch
	if !errors.As(err, &m) {
		t.Fatalf("%v, want a mismatch", err)
	}
	if m.Kind != replay.ForeignGoroutine || m.Instance != "i" || !strings.HasPrefix(m.Source, "engine/foreigncall_test.go:") {
		t.Errorf("%+v", m)
	}
}

// Between turns no coroutine runs.
func TestForeignCall_BetweenTurnsStalls(t *testing.T) {
	var calls map[string]func()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		open := goOn.Subscribe(ctx)
		calls = foreignCalls(ctx, open, replay.NewSemaphore(1))
		_, err := open.Await(ctx)
		return "", err
	})
	first, _ := startScript(t, registry)
	first.Evict()
	for name := range calls {
		t.Run(name, func(t *testing.T) {
			x, _ := startScript(t, registry)
			defer x.Evict()
			mustExit(t, map[string]func(){name: calls[name]})
			if x.QueuedActions() != 0 {
				t.Error("the call had an effect")
			}
			_, err := x.Turn(begin, messagesOf(external("go", nil, "")))
			wantForeignCall(t, err)
		})
	}
}

// Calls during a turn, whether or not the coroutine waits for them.
func TestForeignCall_DuringTurnStalls(t *testing.T) {
	waits := true
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := goOn.Wait(ctx); err != nil {
			return "", err
		}
		open := goOn.Subscribe(ctx)
		calls, done := foreignCalls(ctx, open, replay.NewSemaphore(1)), make(chan struct{})
		go func() { defer close(done); mustExit(t, calls) }()
		if waits {
			<-done
		}
		for range 100 {
			act.Start(ctx, "y")
		}
		if !waits {
			<-done
		}
		_, err := open.Await(ctx)
		return "", err
	})
	for range 20 {
		waits = !waits
		x, first := startScript(t, registry)
		_, err := x.Turn(begin, messagesOf(external("go", nil, "")))
		wantForeignCall(t, err)
		x.Evict()
		// Replay returns the same mismatch.
		again := engine.NewExecution("i", 1, registry, nil)
		wantForeignCall(t, again.Replay(eventSeq(withEventIDs(append(slices.Clone(first.Events), external("go", nil, ""))...))))
		again.Evict()
	}
}

func TestForeignCall_AfterEndIsNoOp(t *testing.T) {
	var calls map[string]func()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		calls = foreignCalls(ctx, goOn.Subscribe(ctx), replay.NewSemaphore(1))
		return "done", nil
	})
	x, _ := startScript(t, registry)
	if !x.Ended() {
		t.Fatal("execution has not ended")
	}
	mustExit(t, calls)
	x.Evict()
	mustExit(t, calls)
}

func TestForeignCall_ReportedOnce(t *testing.T) {
	var calls map[string]func()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		open := goOn.Subscribe(ctx)
		calls = foreignCalls(ctx, open, replay.NewSemaphore(1))
		_, err := open.Await(ctx)
		return "", err
	})
	var monitor engine.Monitor
	reports := make(chan *replay.Mismatch, 100)
	monitor.OnForeignCall(func(m *replay.Mismatch) { reports <- m })
	x := engine.NewExecution("i", 1, registry, nil)
	x.SetMonitor(&monitor)
	if _, err := x.Turn(begin, messagesOf(started("script", nil))); err != nil {
		t.Fatal(err)
	}
	mustExit(t, calls)
	x.Evict()
	mustExit(t, calls)
	wantForeignCall(t, <-reports)
	if len(reports) != 0 {
		t.Errorf("%d more reports", len(reports))
	}
}

// Using the Context of another instance fails the caller's instance; the other continues.
func TestContext_OfAnotherInstancePanics(t *testing.T) {
	var leaked *replay.Context
	owner := script(t, func(ctx *replay.Context) (string, error) {
		leaked = ctx
		_, err := goOn.Wait(ctx)
		return "fine", err
	})
	x, _ := startScript(t, owner)
	defer x.Evict()
	y, turn := startScript(t, script(t, func(*replay.Context) (string, error) {
		_, err := act.Call(leaked, "x")
		return "", err
	}))
	defer y.Evict()
	failed := turn.Events[len(turn.Events)-1].GetOrchestrationFailed().GetError()
	if !strings.Contains(failed.GetMessage(), "outside its coroutines") || !strings.Contains(failed.GetStack(), "foreigncall_test.go:") {
		t.Errorf("%v", failed)
	}
	ended, err := x.Turn(begin, messagesOf(external("go", nil, "")))
	if err != nil || ended.Events[len(ended.Events)-1].GetOrchestrationCompleted() == nil {
		t.Errorf("the owner: %v, %v", ended, err)
	}
}

// A function that iter.Pull runs is part of the code.
func TestForeignCall_IterPullAllowed(t *testing.T) {
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		next, stop := iter.Pull2(replay.AsCompleted(ctx, goOn.Subscribe(ctx), goOn.Subscribe(ctx)))
		defer stop()
		for {
			_, f, more := next()
			if !more {
				return "both", ctx.Err()
			}
			if _, err := f.Await(ctx); err != nil {
				return "", err
			}
		}
	}))
	defer x.Evict()
	turn, err := x.Turn(begin, messagesOf(external("go", nil, ""), external("go", nil, "")))
	if err != nil {
		t.Fatal(err)
	}
	if last := turn.Events[len(turn.Events)-1]; last.GetOrchestrationCompleted() == nil {
		t.Errorf("ended with %s", engine.Describe(last))
	}
}

// A future or semaphore of another instance, or of this one before it was reloaded, would never
// wake its waiter.
func TestForeignFuture_StallsUser(t *testing.T) {
	var foreign *replay.Future[any]
	semaphore := replay.NewSemaphore(1)
	others := engine.NewExecution("other", 3, script(t, func(ctx *replay.Context) (string, error) {
		foreign = goOn.Subscribe(ctx)
		if err := semaphore.Acquire(ctx); err != nil {
			return "", err
		}
		_, err := foreign.Await(ctx)
		return "", err
	}), nil)
	defer others.Evict()
	if _, err := others.Turn(begin, messagesOf(started("script", nil))); err != nil {
		t.Fatal(err)
	}
	for name, use := range map[string]func(ctx *replay.Context){
		"Await":      func(ctx *replay.Context) { foreign.Await(ctx) },
		"AwaitFor":   func(ctx *replay.Context) { foreign.AwaitFor(ctx, time.Second) },
		"Cancel":     func(ctx *replay.Context) { foreign.Cancel(ctx) },
		"All":        func(ctx *replay.Context) { replay.All(ctx, goOn.Subscribe(ctx), foreign) },
		"AllResults": func(ctx *replay.Context) { replay.AllResults(ctx, foreign) },
		"Next":       func(ctx *replay.Context) { replay.Next(ctx, ctx.Timer(time.Second), foreign) },
		"Race":       func(ctx *replay.Context) { replay.Race(ctx, foreign, ctx.Timer(0)) },
		"AsCompleted": func(ctx *replay.Context) {
			for range replay.AsCompleted(ctx, foreign) {
				panic("unreachable")
			}
		},
		"Acquire": func(ctx *replay.Context) { semaphore.Acquire(ctx) },
		"Release": func(ctx *replay.Context) { semaphore.Release(ctx) },
		"from a coroutine": func(ctx *replay.Context) {
			_, _ = replay.Go(ctx, func(ctx *replay.Context) (any, error) { return foreign.Await(ctx) }).Await(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
				if _, err := goOn.Wait(ctx); err != nil {
					return "", err
				}
				use(ctx)
				return "went on", nil
			}), func(t *testing.T, in *instance) {
				mustTurn(t, in, started("script", nil))
				_, err := in.turn(begin, messagesOf(external("go", nil, "")))
				var m *replay.Mismatch
				if !errors.As(err, &m) || m.Kind != replay.ForeignFuture || !strings.Contains(m.Found, " of other/3") || !strings.HasPrefix(m.Source, "engine/foreigncall_test.go:") {
					t.Fatalf("%v; want a mismatch that names the other instance", err)
				}
			})
		})
	}
	turn, err := others.Turn(begin, messagesOf(external("go", nil, "")))
	if err != nil || turn.Events[len(turn.Events)-1].GetOrchestrationCompleted() == nil {
		t.Errorf("the other instance: %v, %v", turn, err)
	}
}
