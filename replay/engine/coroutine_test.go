package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// waitForGoroutines waits until at most as many goroutines run as before. It fails with their
// stacks after a timeout.
func waitForGoroutines(t *testing.T, before int) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			stacks = stacks[:runtime.Stack(stacks, true)]
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks)
		}
		runtime.Gosched()
	}
}

func TestEvict_LeavesNoGoroutines(t *testing.T) {
	const instances, coroutines = 5000, 3
	before := runtime.NumGoroutine()
	unwound := 0
	registry := script(t, func(ctx *replay.Context) (string, error) {
		for i := range coroutines {
			replay.Go(ctx, func(ctx *replay.Context) (any, error) {
				defer func() { unwound++ }()
				if i == 0 {
					return nil, ctx.Sleep(time.Hour)
				}
				return goOn.Wait(ctx)
			})
		}
		_, err := act.Call(ctx, "x")
		return "", err
	})
	resident := make([]*engine.Execution, instances)
	for i := range resident {
		resident[i], _ = startScript(t, registry)
	}
	// Some of the earlier goroutines may have ended and do not count.
	if got := runtime.NumGoroutine(); got < instances*(coroutines+1) {
		t.Fatalf("%d goroutines are parked, want at least %d", got, instances*(coroutines+1))
	}
	for _, x := range resident {
		x.Evict()
	}
	if unwound != instances*coroutines {
		t.Errorf("%d deferred functions ran, want %d", unwound, instances*coroutines)
	}
	waitForGoroutines(t, before)
}

func TestEvict_AfterEveryEndLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	ends := map[string]func(*replay.Context) (string, error){
		"returned": func(*replay.Context) (string, error) { return "", nil },
		"failed":   func(*replay.Context) (string, error) { return "", errors.New("x") },
		"panicked": func(*replay.Context) (string, error) { panic("x") },
		"exited":   func(*replay.Context) (string, error) { runtime.Goexit(); return "", nil },
		"waits":    func(ctx *replay.Context) (string, error) { return "", ctx.Sleep(time.Hour) },
		"canceled": func(ctx *replay.Context) (string, error) { _, err := goOn.Wait(ctx); return "", err },
	}
	for name, end := range ends {
		registry := script(t, func(ctx *replay.Context) (string, error) {
			replay.Go(ctx, func(ctx *replay.Context) (any, error) { return goOn.Wait(ctx) })
			if err := ctx.Sleep(0); err != nil && name != "canceled" {
				return "", err
			}
			replay.Go(ctx, func(*replay.Context) (any, error) { return nil, nil })
			return end(ctx)
		})
		x, _ := startScript(t, registry)
		message := timerFired(2, begin)
		if name == "canceled" {
			message = cancelRequested("", "")
		}
		if _, err := x.Turn(begin, messagesOf(message)); err != nil {
			t.Fatal(err)
		}
		if x.Ended() != (name != "waits") {
			t.Errorf("%s: ended is %t", name, x.Ended())
		}
		x.Evict()
		x.Evict()
	}
	waitForGoroutines(t, before)
}

// Evict must end the coroutines that remain after a mismatch.
func TestEvict_AfterMismatch(t *testing.T) {
	before := runtime.NumGoroutine()
	x := engine.NewExecution("i", 1, script(t, waiting), nil)
	if err := x.Replay(eventSeq(withEventIDs(started("script", nil), subscribed("go")))); err == nil {
		t.Fatal("no mismatch")
	}
	x.Evict()
	waitForGoroutines(t, before)
}

// durableCalls makes every kind of durable call and returns its error.
func durableCalls(ctx *replay.Context, open, done *replay.Future[string]) map[string]error {
	errs := make(map[string]error)
	_, errs["Call"] = act.Call(ctx, "x")
	_, errs["Start+Await"] = act.Start(ctx, "x").Await(ctx)
	_, errs["Start+AwaitFor"] = act.Start(ctx, "x").AwaitFor(ctx, time.Second)
	_, errs["Timer"] = ctx.Timer(time.Second).Await(ctx)
	errs["Sleep"] = ctx.Sleep(time.Second)
	_, errs["Subscribe"] = goOn.Subscribe(ctx).Await(ctx)
	_, errs["Wait"] = goOn.Wait(ctx)
	_, errs["WaitFor"] = goOn.WaitFor(ctx, time.Second)
	_, errs["Go"] = replay.Go(ctx, func(*replay.Context) (int, error) { return 1, nil }).Await(ctx)
	_, errs["child Call"] = child.Call(ctx, "x")
	_, errs["child Start"] = child.Start(ctx, "x", replay.ChildID("y")).Await(ctx)
	for name, f := range map[string]*replay.Future[string]{"open": open, "done": done} {
		_, errs["Await "+name] = f.Await(ctx)
		_, errs["AwaitFor "+name] = f.AwaitFor(ctx, time.Second)
		_, errs["All "+name] = replay.All(ctx, f)
		_, errs["Race "+name] = replay.Race(ctx, f, ctx.Timer(0))
		_, errs["Next "+name] = replay.Next(ctx, f)
	}
	_, errs["All of none"] = replay.All[string](ctx)
	open.Cancel(ctx)
	_, errs["Cancel, Await"] = open.Await(ctx)
	return errs
}

func TestEvict_DurableCallsAreNoOps(t *testing.T) {
	var errs map[string]error
	var effects []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		done := act.Start(ctx, "done")
		if _, err := done.Await(ctx); err != nil {
			return "", err
		}
		open := act.Start(ctx, "open")
		defer func() {
			errs = durableCalls(ctx, open, done)
			if open.Done() {
				effects = append(effects, "the open operation was canceled")
			}
			replay.Go(ctx, func(*replay.Context) (any, error) { effects = append(effects, "a coroutine ran"); return nil, nil })
			ctx.Log().Info("logged")
		}()
		_, err := goOn.Wait(ctx)
		return "", err
	})
	x, _ := startScript(t, registry)
	if _, err := x.Turn(begin, messagesOf(activityCompleted(2, "x"))); err != nil {
		t.Fatal(err)
	}
	x.Evict()
	if len(errs) != 23 {
		t.Errorf("%d durable calls: %v", len(errs), errs)
	}
	for call, err := range errs {
		if !errors.Is(err, replay.ErrEvicting) {
			t.Errorf("%s: %v, want ErrEvicting", call, err)
		}
	}
	if len(effects) > 0 || x.QueuedActions() != 0 || x.LastEventID() != 5 {
		t.Errorf("%v; %d actions, cursor at %d", effects, x.QueuedActions(), x.LastEventID())
	}
}

// What an evicted coroutine returns is not its result, and does not end the instance.
func TestEvict_ReturnDoesNotEndExecution(t *testing.T) {
	reached := []string{}
	registry := script(t, func(ctx *replay.Context) (result string, err error) {
		defer func() {
			_, err = act.Call(ctx, "clean up")
			reached = append(reached, fmt.Sprint(errors.Is(err, replay.ErrEvicting)))
		}()
		_, err = goOn.Wait(ctx)
		reached = append(reached, "after the wait")
		return "", err
	})
	x, _ := startScript(t, registry)
	x.Evict()
	if diff := cmp.Diff([]string{"true"}, reached); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if x.Ended() || x.QueuedActions() != 0 {
		t.Errorf("ended is %t, %d actions", x.Ended(), x.QueuedActions())
	}
}

func TestEvict_NotRecoverable(t *testing.T) {
	before := runtime.NumGoroutine()
	var caught []any
	registry := script(t, func(ctx *replay.Context) (string, error) {
		for {
			func() {
				defer func() { caught = append(caught, recover()) }()
				goOn.Wait(ctx)
			}()
		}
	})
	x, _ := startScript(t, registry)
	x.Evict()
	if diff := cmp.Diff([]any{nil}, caught); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	waitForGoroutines(t, before)
}

func TestEvict_UnwindsYoungestFirst(t *testing.T) {
	var order []string
	registry := script(t, func(ctx *replay.Context) (string, error) {
		defer func() { order = append(order, "main") }()
		for _, name := range []string{"a", "b", "c"} {
			replay.Go(ctx, func(ctx *replay.Context) (any, error) {
				defer func() { order = append(order, name) }()
				return goOn.Wait(ctx)
			})
		}
		_, err := goOn.Wait(ctx)
		return "", err
	})
	x, _ := startScript(t, registry)
	x.Evict()
	if diff := cmp.Diff([]string{"c", "b", "a", "main"}, order); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A panic or runtime.Goexit in a deferred function must not prevent the eviction of other
// coroutines, even if the function runs because of a panic.
func TestEvict_FailingDeferredFunctions(t *testing.T) {
	before := runtime.NumGoroutine()
	var unwound []string
	deferredFuncs := []func(*replay.Context){
		func(*replay.Context) { panic("in a deferred function") },
		func(*replay.Context) { runtime.Goexit() },
		func(ctx *replay.Context) { panic(ctx.Sleep(time.Hour)) },
	}
	registry := script(t, func(ctx *replay.Context) (string, error) {
		defer func() { unwound = append(unwound, "main") }()
		for i, wrong := range deferredFuncs {
			replay.Go(ctx, func(ctx *replay.Context) (any, error) {
				defer func() { unwound = append(unwound, fmt.Sprint(i)) }()
				defer wrong(ctx)
				return goOn.Wait(ctx)
			})
		}
		replay.Go(ctx, func(ctx *replay.Context) (any, error) {
			defer func() { unwound = append(unwound, "panicking") }()
			defer goOn.Wait(ctx)
			panic("before the drop")
		})
		_, err := goOn.Wait(ctx)
		return "", err
	})
	x, _ := startScript(t, registry)
	x.Evict()
	if diff := cmp.Diff([]string{"panicking", "2", "1", "0", "main"}, unwound); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	waitForGoroutines(t, before)
}

func TestCoroutine_LockOSThreadIsHarmless(t *testing.T) {
	before := runtime.NumGoroutine()
	registry := script(t, func(ctx *replay.Context) (string, error) {
		runtime.LockOSThread()
		return act.Call(ctx, "x")
	})
	ended, _ := startScript(t, registry)
	turn, err := ended.Turn(begin, messagesOf(activityCompleted(2, "done")))
	if err != nil || turn.Events[1].GetOrchestrationCompleted() == nil {
		t.Fatalf("%v, %v", turn, err)
	}
	evicted, _ := startScript(t, registry)
	evicted.Evict()
	ended.Evict()
	waitForGoroutines(t, before)
}

// Turns of one execution may run on different goroutines in succession.
func TestTurn_FromSeveralGoroutines(t *testing.T) {
	registry := script(t, func(ctx *replay.Context) (int, error) {
		sum := 0
		for range 10 {
			n, err := tick.Wait(ctx)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	})
	x, _ := startScript(t, registry)
	defer x.Evict()
	var last *journalpb.Event
	for n := range 10 {
		done := make(chan error)
		go func() {
			turn, err := x.Turn(begin, messagesOf(external("tick", n, "")))
			if err == nil {
				last = turn.Events[len(turn.Events)-1]
			}
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if got := engine.Describe(last); got != "OrchestrationCompleted output=45" {
		t.Error(got)
	}
}

func TestPanic_RecordsCoroutineStack(t *testing.T) {
	ends := map[string]struct {
		body    func()
		message string
		line    string
	}{
		"panic":     {func() { panicDeepDown() }, "panic: far below", "panicDeepDown"},
		"error":     {func() { panic(errors.New("an error")) }, "panic: an error", "coroutine_test.go"},
		"nil panic": {func() { panic(nil) }, "panic: panic called with nil argument", "coroutine_test.go"},
		"Goexit":    {func() { runtime.Goexit() }, "runtime.Goexit called in user code", "coroutine_test.go"},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			x, turn := startScript(t, script(t, func(*replay.Context) (string, error) {
				end.body()
				return "", nil
			}))
			defer x.Evict()
			failed := turn.Events[len(turn.Events)-1].GetOrchestrationFailed()
			if failed.GetError().GetMessage() != end.message || !strings.Contains(failed.GetError().GetStack(), end.line) {
				t.Errorf("%v", failed)
			}
			var panicked *replay.PanicError
			if err := engine.DecodeError(failed.GetError()); !errors.As(err, &panicked) || panicked.Stack != failed.Error.Stack {
				t.Errorf("decoded: %#v", err)
			}
		})
	}
}

func panicDeepDown() { panic("far below") }

// Coroutines run in the order in which they became ready.
func TestCoroutine_FixedOrder(t *testing.T) {
	var first []string
	for range 50 {
		var ran []string
		x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
			wakeup := goOn.Subscribe(ctx)
			var all []*replay.Future[int]
			for i := range 20 {
				all = append(all, replay.Go(ctx, func(ctx *replay.Context) (int, error) {
					ran = append(ran, fmt.Sprint("begin ", i))
					if i%3 == 0 {
						act.Start(ctx, fmt.Sprint(i))
					}
					_, err := wakeup.Await(ctx)
					ran = append(ran, fmt.Sprint("end ", i))
					return i, err
				}))
			}
			_, err := replay.All(ctx, all...)
			return "", err
		}), external("go", nil, ""))
		x.Evict()
		if first == nil {
			first = ran
		}
		if !slices.Equal(first, ran) {
			t.Fatalf("first order\n%v\nsecond order\n%v", first, ran)
		}
	}
	want := make([]string, 0, 40)
	for i := range 20 {
		want = append(want, fmt.Sprint("begin ", i))
	}
	for i := range 20 {
		want = append(want, fmt.Sprint("end ", i))
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
