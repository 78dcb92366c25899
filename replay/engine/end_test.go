package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An event that is recorded while the instance is suspended is matched on resume. The wait times
// out first, because of the order, and the event goes to the next wait.
func TestSuspend_EventIsNotLost(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		first, err := answer.WaitFor(ctx, time.Minute)
		second, again := answer.WaitFor(ctx, time.Minute)
		return fmt.Sprint(first, err, second, again), nil
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil), suspended("", ""))
		mustTurn(t, in, timerFired(3, begin), external("answer", "x", "r"))
		if n := len(in.history); n != 6 {
			t.Errorf("%d events while suspended, want 6", n)
		}
		mustTurn(t, in, resumed("", ""))
		wantLast(t, in, `OrchestrationCompleted output="timeoutx\u003cnil\u003e"`)
		if withdrawn := in.history[7].GetCancelRequested(); withdrawn.GetEventName() != "answer" {
			t.Errorf("event 8 is %s, want the withdrawn subscription with its name", engine.Describe(in.history[7]))
		}
	})
}

// If an event and a completion of the same suspension decide a race, the first wins. The second has
// no effect, and no cancellation is recorded for it.
func TestSuspend_DeferredCompletionOfLoserIgnored(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		work := act.Start(ctx, "x")
		winner, err := replay.Race(ctx, goOn.Subscribe(ctx), work)
		_, lost := work.Await(ctx)
		return fmt.Sprint(winner, err, lost), nil
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil), suspended("", ""), external("go", nil, ""))
		mustTurn(t, in, activityCompleted(2, "late"))
		if turn := mustTurn(t, in, activityCompleted(2, "later")); len(turn.Events) > 0 {
			t.Error("a second completion was recorded")
		}
		mustTurn(t, in, resumed("", ""))
		wantLast(t, in, `OrchestrationCompleted output="0 \u003cnil\u003e canceled"`)
		if n := countEvents(in, journalpb.TypeCancelRequested); n != 0 {
			t.Errorf("%d cancellations", n)
		}
	})
}

// An unobserved cancel request is carried over. Starting an operation in the ended scope is not an
// observation.
func TestCancel_UnobservedIsCarriedOver(t *testing.T) {
	again := replay.Orchestration[any, string]("script")
	for name, test := range map[string]struct {
		body    func(*replay.Context)
		carried bool
	}{
		"nothing is asked":        {func(*replay.Context) {}, true},
		"an operation is started": {func(ctx *replay.Context) { act.Start(ctx, "x") }, true},
		"a scope is canceled": {func(ctx *replay.Context) {
			_, cancel := replay.WithTimeout(ctx, time.Second)
			cancel()
		}, true},
		"an await returns it": {func(ctx *replay.Context) { _ = ctx.Sleep(0) }, false},
		"Err returns it":      {func(ctx *replay.Context) { _ = ctx.Err() }, false},
		"Next returns it":     {func(ctx *replay.Context) { _, _ = replay.Next(ctx, ctx.Timer(0)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
				_ = replay.WithoutCancel(ctx).Sleep(time.Hour)
				test.body(ctx)
				return "", again.ContinueAsNew(ctx, nil)
			}), func(t *testing.T, in *instance) {
				mustTurn(t, in, started("script", nil))
				mustTurn(t, in, cancelRequested("enough", ""), timerFired(2, begin))
				if carried := in.successor.GetOrchestrationStarted().GetCancelRequested() != nil; carried != test.carried {
					t.Errorf("request carried over: %t, want %t", carried, test.carried)
				}
			})
		})
	}
}

// The same in a loop that is suspended, its timer fires, and it is canceled and resumed. The code
// continues as new before the request is applied.
func TestCancel_AfterTimerWhileSuspendedIsCarriedOver(t *testing.T) {
	again := replay.Orchestration[any, string]("script")
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		if err := ctx.Sleep(time.Hour); err != nil {
			return "", err
		}
		return "", again.ContinueAsNew(ctx, nil)
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil), suspended("", ""))
		mustTurn(t, in, timerFired(2, begin))
		mustTurn(t, in, external("tick", 1, ""), cancelRequested("enough", ""), resumed("", ""))
		next := in.successor.GetOrchestrationStarted()
		if next.GetCancelRequested().GetReason() != "enough" || len(next.GetInbox()) != 1 {
			t.Errorf("the next execution begins with %v", next)
		}
	})
}

// After the body, coroutines run to their end in order of creation, then the clean-up, so their
// semaphore slots are free.
func TestOnClose_RunsAfterCoroutinesEnd(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		lock := replay.NewSemaphore(1)
		say := func(ctx *replay.Context, what string) { _ = replay.SetStatus(ctx, what) }
		holder := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			if err := lock.Acquire(ctx); err != nil {
				return "", err
			}
			defer lock.Release(ctx)
			_, err := act.Call(ctx, "held")
			say(ctx, fmt.Sprint("holder: ", err))
			return "ended", nil
		})
		waiter := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			err := lock.Acquire(ctx)
			say(ctx, fmt.Sprint("waiter: ", err))
			_, shielded := act.Call(replay.WithoutCancel(ctx), "nothing")
			return "", errors.Join(err, shielded)
		})
		ctx.OnClose(func(ctx *replay.Context, _ error) error {
			if err := lock.Acquire(ctx); err != nil {
				return err
			}
			result, _ := holder.Await(ctx)
			_, lost := waiter.Await(ctx)
			say(ctx, fmt.Sprintf("closes: %s, %v, %v", result, errors.Is(lost, replay.ErrCanceled), waiter.Done()))
			_, err := act.Call(ctx, "compensate")
			return err
		})
		_, err := act.Call(ctx, "work")
		never := replay.Go(ctx, func(ctx *replay.Context) (string, error) { panic("begins") })
		ctx.OnClose(func(ctx *replay.Context, _ error) error {
			_, err := never.Await(ctx)
			say(ctx, fmt.Sprint("never began: ", err))
			return nil
		})
		return "", err
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, activityFailed(2, errors.New("broken")))
		var output []string
		for _, event := range in.history {
			if status := event.GetStatusSet(); status != nil {
				output = append(output, strings.Trim(string(status.Value.Data), `"`))
			}
		}
		want := []string{"holder: canceled", "waiter: canceled", "never began: canceled", "closes: ended, true, true"}
		if !slices.Equal(output, want) {
			t.Errorf("%q, want %q", output, want)
		}
		wantLast(t, in, `ActivityScheduled name="act" input="compensate"`)
		mustTurn(t, in, activityCompleted(in.history[len(in.history)-1].EventId, "x"))
		wantLast(t, in, `OrchestrationFailed code="tenuto.activity" error="activity \"act\": broken"`)
	})
}

// A coroutine that ignores the end of the body must not keep the instance from ending.
func TestCoroutine_IgnoringEndIsUnwound(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		for _, loop := range []func(*replay.Context){
			func(ctx *replay.Context) { _ = ctx.Sleep(time.Hour) },
			func(ctx *replay.Context) { _, _ = replay.Next(replay.WithoutCancel(ctx), ctx.Timer(time.Hour)) },
		} {
			looping := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
				defer func() { _ = replay.SetStatus(ctx, "deferred") }()
				for {
					loop(ctx)
				}
			})
			ctx.OnClose(func(ctx *replay.Context, _ error) error {
				_, err := looping.Await(ctx)
				return err
			})
		}
		_, err := goOn.Wait(ctx)
		return "", err
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		mustTurn(t, in, external("go", nil, ""))
		wantLast(t, in, `OrchestrationFailed error="canceled\ncanceled"`)
		if n := countEvents(in, journalpb.TypeStatusSet); n != 2 {
			t.Errorf("%d deferred functions ran, want 2", n)
		}
	})
}

// The scope of a coroutine ends if its future is canceled, loses a race, or times out in AwaitFor.
// Its operations are canceled, and it runs to its end.
func TestCoroutine_CancelEndsScope(t *testing.T) {
	for name, cancel := range map[string]func(ctx *replay.Context, f *replay.Future[string]) error{
		"Cancel": func(ctx *replay.Context, f *replay.Future[string]) error {
			_, err := goOn.Wait(ctx)
			f.Cancel(ctx)
			return err
		},
		"Race": func(ctx *replay.Context, f *replay.Future[string]) error {
			winner, err := replay.Race(ctx, f, goOn.Subscribe(ctx))
			return errors.Join(err, replay.SetStatus(ctx, winner))
		},
		"AwaitFor": func(ctx *replay.Context, f *replay.Future[string]) error {
			if _, err := f.AwaitFor(ctx, time.Minute); !errors.Is(err, replay.ErrTimeout) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
				f := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
					inner := replay.Go(ctx, func(ctx *replay.Context) (string, error) { return act.Call(ctx, "inner") })
					_, err := act.Call(ctx, "own")
					_, after := inner.Await(replay.WithoutCancel(ctx))
					return fmt.Sprint("after ", err, after, ctx.Err()), err
				})
				if err := cancel(ctx, f); err != nil {
					return "", err
				}
				result, err := f.Await(ctx)
				return result, replay.SetStatus(ctx, fmt.Sprint(err))
			}), func(t *testing.T, in *instance) {
				mustTurn(t, in, started("script", nil))
				before := len(in.history)
				if name == "AwaitFor" {
					mustTurn(t, in, timerFired(openTimer(in, time.Minute).EventId, begin))
				} else {
					mustTurn(t, in, external("go", nil, ""))
				}
				wantLast(t, in, `OrchestrationCompleted output="after canceled canceled canceled"`)
				canceled := 0
				for _, event := range in.history[before:] {
					if event.GetCancelRequested() != nil && in.history[event.SourceEventId-1].GetActivityScheduled() != nil {
						canceled++
					}
				}
				if canceled != 2 {
					t.Errorf("%d activities are canceled, want 2", canceled)
				}
			})
		})
	}
}

// A coroutine whose scope has ended gets no slot, even if one is free.
func TestSemaphore_AcquireInEndedScopeTakesNoSlot(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		lock := replay.NewSemaphore(1)
		inner, cancel := replay.WithCancel(ctx)
		cancel()
		rejected := lock.Acquire(inner)
		return fmt.Sprint(rejected), lock.Acquire(ctx)
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationCompleted output="canceled"`)
	})
}

func TestCoroutine_KeepsValueBesideError(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		f := replay.Go(ctx, func(*replay.Context) (int, error) { return 7, errors.New("half") })
		n, err := f.Await(ctx)
		done, _ := replay.AllResults(ctx, f)
		return fmt.Sprint(n, err, done[0]), nil
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationCompleted output="7 half {7 half}"`)
	})
}

// A coroutine that panics fails the instance. Its future has the panic, and clean-up that awaits it
// continues.
func TestCoroutine_PanicResolvesFuture(t *testing.T) {
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		f := replay.Go(ctx, func(ctx *replay.Context) (int, error) { panic("boom") })
		ctx.OnClose(func(ctx *replay.Context, _ error) error {
			_, err := f.Await(ctx)
			return replay.SetStatus(ctx, fmt.Sprint(err))
		})
		return "", ctx.Sleep(time.Hour)
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		wantLast(t, in, `OrchestrationFailed code="tenuto.panic" error="panic: boom"`)
		if n := countEvents(in, journalpb.TypeStatusSet); n != 1 {
			t.Errorf("%d statuses", n)
		}
	})
}
