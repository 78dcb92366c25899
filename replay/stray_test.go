package replay_test

import (
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// strayCalls are all kinds of durable calls.
func strayCalls(ctx *replay.Context, open *replay.Future[any], semaphore *replay.Semaphore) map[string]func() {
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
		"Once":         func() { replay.Once(ctx, "label", func() (int, error) { return 1, nil }) },
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

// ends runs calls at once, each on a goroutine of its own, and waits until all have ended.
// It fails the test if one returns or panics.
func ends(t *testing.T, calls map[string]func()) {
	t.Helper()
	var running sync.WaitGroup
	for name, call := range calls {
		running.Add(1)
		go func() {
			returned := false
			defer running.Done()
			defer func() {
				if value := recover(); value != nil || returned {
					t.Errorf("%s has returned, or panicked with %v", name, value)
				}
			}()
			call()
			returned = true
		}()
	}
	running.Wait()
}

func wantStray(t *testing.T, err error) {
	t.Helper()
	var m *replay.Mismatch
	if !errors.As(err, &m) {
		t.Fatalf("%v, want a mismatch", err)
	}
	if m.Kind != replay.CalledOutside || m.Instance != "i" || !strings.HasPrefix(m.Source, "replay/stray_test.go:") {
		t.Errorf("%+v", m)
	}
}

// Between the turns no coroutine runs.
func TestStrayCallsBetweenTurnsStallTheInstance(t *testing.T) {
	var calls map[string]func()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		open := goOn.Subscribe(ctx)
		calls = strayCalls(ctx, open, replay.NewSemaphore(1))
		_, err := open.Await(ctx)
		return "", err
	})
	first, _ := live(t, registry)
	first.Drop()
	for name := range calls {
		t.Run(name, func(t *testing.T) {
			x, _ := live(t, registry)
			defer x.Drop()
			ends(t, map[string]func(){name: calls[name]})
			if x.Asked() != 0 {
				t.Error("the call had an effect")
			}
			_, err := x.Turn(begin, messagesOf(external("go", nil, "")))
			wantStray(t, err)
		})
	}
}

// While a coroutine runs, whether it waits for them or not.
func TestStrayCallsDuringATurnStallTheInstance(t *testing.T) {
	waits := true
	registry := script(t, func(ctx *replay.Context) (string, error) {
		if _, err := goOn.Wait(ctx); err != nil {
			return "", err
		}
		open := goOn.Subscribe(ctx)
		calls, done := strayCalls(ctx, open, replay.NewSemaphore(1)), make(chan struct{})
		go func() { defer close(done); ends(t, calls) }()
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
		x, first := live(t, registry)
		_, err := x.Turn(begin, messagesOf(external("go", nil, "")))
		wantStray(t, err)
		x.Drop()
		// Replay comes to the same.
		again := replay.NewExecution("i", 1, registry, nil)
		wantStray(t, again.Replay(all(numbered(append(slices.Clone(first.Events), external("go", nil, ""))...))))
		again.Drop()
	}
}

func TestStrayCallsAfterTheEndDoNothing(t *testing.T) {
	var calls map[string]func()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		calls = strayCalls(ctx, goOn.Subscribe(ctx), replay.NewSemaphore(1))
		return "done", nil
	})
	x, _ := live(t, registry)
	if !x.Ended() {
		t.Fatal("not ended")
	}
	ends(t, calls)
	x.Drop()
	ends(t, calls)
}

func TestStraysAreReportedOnce(t *testing.T) {
	var calls map[string]func()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		open := goOn.Subscribe(ctx)
		calls = strayCalls(ctx, open, replay.NewSemaphore(1))
		_, err := open.Await(ctx)
		return "", err
	})
	var watch replay.Watch
	reports := make(chan *replay.Mismatch, 100)
	watch.OnStray(func(m *replay.Mismatch) { reports <- m })
	x := replay.NewExecution("i", 1, registry, nil)
	x.SetWatch(&watch)
	if _, err := x.Turn(begin, messagesOf(started("script", nil))); err != nil {
		t.Fatal(err)
	}
	ends(t, calls)
	x.Drop()
	ends(t, calls)
	wantStray(t, <-reports)
	if len(reports) != 0 {
		t.Errorf("%d more reports", len(reports))
	}
}

// A Context of another instance is refused where it is used: that instance fails, and
// the one that it belongs to goes on.
func TestContextOfAnotherInstance(t *testing.T) {
	var leaked *replay.Context
	owner := script(t, func(ctx *replay.Context) (string, error) {
		leaked = ctx
		_, err := goOn.Wait(ctx)
		return "fine", err
	})
	x, _ := live(t, owner)
	defer x.Drop()
	y, turn := live(t, script(t, func(*replay.Context) (string, error) {
		_, err := act.Call(leaked, "x")
		return "", err
	}))
	defer y.Drop()
	failed := turn.Events[len(turn.Events)-1].GetOrchestrationFailed().GetError()
	if !strings.Contains(failed.GetMessage(), "outside its coroutines") || !strings.Contains(failed.GetStack(), "stray_test.go:") {
		t.Errorf("%v", failed)
	}
	ended, err := x.Turn(begin, messagesOf(external("go", nil, "")))
	if err != nil || ended.Events[len(ended.Events)-1].GetOrchestrationCompleted() == nil {
		t.Errorf("the owner: %v, %v", ended, err)
	}
}

// What iter.Pull runs is part of the code.
func TestPulledIteratorMayMakeDurableCalls(t *testing.T) {
	x, _ := live(t, script(t, func(ctx *replay.Context) (string, error) {
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
	defer x.Drop()
	turn, err := x.Turn(begin, messagesOf(external("go", nil, ""), external("go", nil, "")))
	if err != nil {
		t.Fatal(err)
	}
	if last := turn.Events[len(turn.Events)-1]; last.GetOrchestrationCompleted() == nil {
		t.Errorf("ended with %s", replay.Describe(last))
	}
}

// A future or a semaphore that another instance has made, or this one before it was brought back
// into memory, would never wake who awaits it.
func TestAFutureOfAnotherInstanceStallsWhoUsesIt(t *testing.T) {
	var theirs *replay.Future[any]
	semaphore := replay.NewSemaphore(1)
	others := replay.NewExecution("other", 3, script(t, func(ctx *replay.Context) (string, error) {
		theirs = goOn.Subscribe(ctx)
		if err := semaphore.Acquire(ctx); err != nil {
			return "", err
		}
		_, err := theirs.Await(ctx)
		return "", err
	}), nil)
	defer others.Drop()
	if _, err := others.Turn(begin, messagesOf(started("script", nil))); err != nil {
		t.Fatal(err)
	}
	for name, use := range map[string]func(ctx *replay.Context){
		"Await":    func(ctx *replay.Context) { theirs.Await(ctx) },
		"AwaitFor": func(ctx *replay.Context) { theirs.AwaitFor(ctx, time.Second) },
		"Cancel":   func(ctx *replay.Context) { theirs.Cancel(ctx) },
		"All":      func(ctx *replay.Context) { replay.All(ctx, goOn.Subscribe(ctx), theirs) },
		"Settle":   func(ctx *replay.Context) { replay.Settle(ctx, theirs) },
		"Next":     func(ctx *replay.Context) { replay.Next(ctx, ctx.Timer(time.Second), theirs) },
		"Race":     func(ctx *replay.Context) { replay.Race(ctx, theirs, ctx.Timer(0)) },
		"AsCompleted": func(ctx *replay.Context) {
			for range replay.AsCompleted(ctx, theirs) {
				panic("unreachable")
			}
		},
		"Acquire": func(ctx *replay.Context) { semaphore.Acquire(ctx) },
		"Release": func(ctx *replay.Context) { semaphore.Release(ctx) },
		"from a coroutine": func(ctx *replay.Context) {
			_, _ = replay.Go(ctx, func(ctx *replay.Context) (any, error) { return theirs.Await(ctx) }).Await(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, script(t, func(ctx *replay.Context) (string, error) {
				if _, err := goOn.Wait(ctx); err != nil {
					return "", err
				}
				use(ctx)
				return "went on", nil
			}), func(t *testing.T, in *instance) {
				mustTurn(t, in, started("script", nil))
				_, err := in.turn(begin, messagesOf(external("go", nil, "")))
				var m *replay.Mismatch
				if !errors.As(err, &m) || m.Kind != replay.ForeignFuture || !strings.Contains(m.Found, " of other/3") || !strings.HasPrefix(m.Source, "replay/stray_test.go:") {
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
