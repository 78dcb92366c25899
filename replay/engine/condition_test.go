package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// noted runs code that notes what it sees, and checks the notes at its end.
func noted(t *testing.T, want string, code func(ctx *replay.Context, note func(...any)) error, during func(t *testing.T, in *instance)) {
	t.Helper()
	forEachMode(t, script(t, func(ctx *replay.Context) (string, error) {
		var notes []string
		err := code(ctx, func(seen ...any) { notes = append(notes, strings.TrimSuffix(fmt.Sprintln(seen...), "\n")) })
		return strings.Join(notes, "; "), err
	}), func(t *testing.T, in *instance) {
		mustTurn(t, in, started("script", nil))
		if during != nil {
			during(t, in)
		}
		wantLast(t, in, fmt.Sprintf("OrchestrationCompleted output=%q", want))
	})
}

// Two coroutines wait for conditions that the other one, an event and an update change.
func TestAwait_WakesAfterStepThatChangedState(t *testing.T) {
	count := replay.Update[int, int]("count")
	noted(t, "second at 1; first at 2; body at 5", func(ctx *replay.Context, note func(...any)) error {
		n := 0
		if err := count.Handle(ctx, nil, func(ctx *replay.Context, add int) (int, error) { n += add; return n, nil }); err != nil {
			return err
		}
		waitFor := func(name string, least, add int) *replay.Future[int] {
			return replay.Go(ctx, func(ctx *replay.Context) (int, error) {
				err := replay.Await(ctx, func() bool { return n >= least })
				note(name, "at", n)
				n += add
				return n, err
			})
		}
		first, second := waitFor("first", 2, 3), waitFor("second", 1, 1)
		if err := replay.Await(ctx, func() bool { return n == 5 }); err != nil {
			return err
		}
		note("body at", n)
		_, err := replay.All(ctx, first, second)
		return err
	}, func(t *testing.T, in *instance) {
		mustTurn(t, in, external("tenuto.update/count", 1, "u"))
	})
}

func TestAwait_HoldsAtOnceRecordsNothing(t *testing.T) {
	noted(t, "true", func(ctx *replay.Context, note func(...any)) error {
		yes := func() bool { return true }
		note(replay.Await(ctx, yes) == nil && replay.AwaitFor(ctx, time.Hour, yes) == nil)
		return nil
	}, func(t *testing.T, in *instance) {
		if len(in.history) != 2 {
			t.Errorf("%d events", len(in.history))
		}
	})
}

func TestAwaitFor_TimesOutOrCancelsTimer(t *testing.T) {
	noted(t, "true; true", func(ctx *replay.Context, note func(...any)) error {
		no := func() bool { return false }
		note(errors.Is(replay.AwaitFor(ctx, time.Second, no), replay.ErrTimeout))
		next := goOn.Subscribe(ctx)
		note(replay.AwaitFor(ctx, time.Hour, next.Done) == nil)
		return nil
	}, func(t *testing.T, in *instance) {
		mustTurn(t, in, timerFired(2, begin.Add(time.Second)))
		mustTurn(t, in, external("go", nil, "g"))
		canceled := 0
		for _, event := range in.history {
			if event.GetCancelRequested() != nil {
				canceled++
			}
		}
		if canceled != 1 {
			t.Errorf("%d timers canceled", canceled)
		}
	})
}

func TestAwait_EndsWithItsScope(t *testing.T) {
	noted(t, "true true; true", func(ctx *replay.Context, note func(...any)) error {
		inner, cancel := replay.WithTimeout(ctx, time.Second)
		defer cancel()
		no, yes := func() bool { return false }, func() bool { return true }
		err := replay.Await(inner, no)
		note(errors.Is(err, replay.ErrTimeout), errors.Is(replay.Await(inner, yes), replay.ErrTimeout))
		note(errors.Is(replay.AwaitFor(inner, time.Hour, yes), replay.ErrTimeout))
		return nil
	}, func(t *testing.T, in *instance) {
		mustTurn(t, in, timerFired(2, begin.Add(time.Second)))
	})
}

func TestAwait_RejectsNilAndDurableCalls(t *testing.T) {
	noted(t, "tenuto: condition is nil", func(ctx *replay.Context, note func(...any)) error {
		note(replay.Await(ctx, nil))
		return nil
	}, nil)
	x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		return "", replay.Await(ctx, func() bool { return ctx.Sleep(0) == nil })
	}))
	defer x.Evict()
	failed := turn.Events[len(turn.Events)-1].GetOrchestrationFailed().GetError()
	if !strings.Contains(failed.GetMessage(), "inside a function that was given to Await") {
		t.Errorf("%v", failed)
	}
}

// A condition of a coroutine that has ended is checked no more, and one that never holds is ended
// with the body.
func TestAwait_EndsWithBody(t *testing.T) {
	noted(t, "body", func(ctx *replay.Context, note func(...any)) error {
		replay.Go(ctx, func(ctx *replay.Context) (int, error) {
			for {
				if err := replay.Await(ctx, func() bool { return false }); err != nil {
					return 0, err
				}
			}
		})
		_, err := goOn.Wait(ctx)
		note("body")
		return err
	}, func(t *testing.T, in *instance) {
		mustTurn(t, in, external("go", nil, "g"))
	})
}

func TestChannel_PassesValuesInOrder(t *testing.T) {
	for capacity := range 3 {
		noted(t, "0; 1; 2; 3; closed; true", func(ctx *replay.Context, note func(...any)) error {
			values := replay.NewChannel[int](capacity)
			sender := replay.Go(ctx, func(ctx *replay.Context) (bool, error) {
				for i := range 4 {
					if err := values.Send(ctx, i); err != nil {
						return false, err
					}
				}
				values.Close(ctx)
				return errors.Is(values.Send(ctx, 5), replay.ErrChannelClosed), nil
			})
			for {
				value, ok, err := values.Receive(ctx)
				switch {
				case err != nil:
					return err
				case !ok:
					note("closed")
					rejected, err := sender.Await(ctx)
					note(rejected)
					return err
				}
				note(value)
				if err := ctx.Sleep(time.Second); err != nil {
					return err
				}
			}
		}, func(t *testing.T, in *instance) {
			for i := range uint64(4) {
				mustTurn(t, in, timerFired(2+2*i, begin.Add(time.Second)))
			}
		})
	}
}

// A receiver, or a sender, whose scope ends loses and sends no value.
func TestChannel_EndedScopeKeepsValues(t *testing.T) {
	noted(t, "true 0; true 0; 7; true", func(ctx *replay.Context, note func(...any)) error {
		values := replay.NewChannel[int](0)
		inner, cancel := replay.WithCancel(ctx)
		receiver := replay.Go(inner, func(ctx *replay.Context) (int, error) {
			value, _, err := values.Receive(ctx)
			note(errors.Is(err, replay.ErrCanceled), value)
			return value, err
		})
		blocked := replay.Go(ctx, func(*replay.Context) (int, error) {
			cancel()
			return 0, nil
		})
		if _, err := blocked.Await(ctx); err != nil {
			return err
		}
		value, err := receiver.Await(ctx)
		note(errors.Is(err, replay.ErrCanceled), value)
		sender := replay.Go(ctx, func(ctx *replay.Context) (int, error) { return 0, values.Send(ctx, 7) })
		value, _, err = values.Receive(ctx)
		note(value)
		_, sent := sender.Await(ctx)

		late, cancelLate := replay.WithCancel(ctx)
		unsent := replay.Go(late, func(ctx *replay.Context) (int, error) { return 0, values.Send(ctx, 8) })
		replay.Go(ctx, func(*replay.Context) (int, error) { cancelLate(); return 0, nil })
		_, lost := unsent.Await(ctx)
		note(errors.Is(lost, replay.ErrCanceled))
		return errors.Join(err, sent)
	}, nil)
}

// A value is handed to a receiver whose scope has just ended: it stays the next value.
func TestChannel_HandedOverValueIsNotLost(t *testing.T) {
	noted(t, "canceled; 1 true", func(ctx *replay.Context, note func(...any)) error {
		values := replay.NewChannel[int](1)
		inner, cancel := replay.WithCancel(ctx)
		receiver := replay.Go(inner, func(ctx *replay.Context) (int, error) {
			value, _, err := values.Receive(ctx)
			return value, err
		})
		if err := ctx.Sleep(time.Second); err != nil {
			return err
		}
		cancel()
		if err := values.Send(ctx, 1); err != nil {
			return err
		}
		_, err := receiver.Await(ctx)
		note(err)
		value, ok, err := values.Receive(ctx)
		note(value, ok)
		return err
	}, func(t *testing.T, in *instance) {
		mustTurn(t, in, timerFired(2, begin.Add(time.Second)))
	})
}

func TestChannel_OfAnotherExecutionStalls(t *testing.T) {
	values := replay.NewChannel[int](1)
	code := script(t, func(ctx *replay.Context) (string, error) { return "", values.Send(ctx, 1) })
	first, _ := startScript(t, code)
	defer first.Evict()
	var m *replay.Mismatch
	in := &instance{registry: code}
	if _, err := in.turn(begin, messagesOf(started("script", nil))); !errors.As(err, &m) || m.Kind != replay.ForeignFuture {
		t.Errorf("%v", err)
	}
	in.evict()
}

// A receiver whose scope has ended gets nothing, even if its coroutine has not run since: the value
// and its order are kept, also when the channel is closed.
func TestChannel_SkipsReceiversOfEndedScopes(t *testing.T) {
	noted(t, "canceled; 1 true; 2 true; 0 false", func(ctx *replay.Context, note func(...any)) error {
		values := replay.NewChannel[int](0)
		inner, cancel := replay.WithCancel(ctx)
		lost := replay.Go(inner, func(ctx *replay.Context) (int, error) {
			value, _, err := values.Receive(ctx)
			return value, err
		})
		received := replay.NewChannel[string](3)
		replay.Go(ctx, func(ctx *replay.Context) (int, error) {
			for range 3 {
				value, ok, err := values.Receive(ctx)
				if err != nil {
					return 0, err
				}
				if err := received.Send(ctx, fmt.Sprint(value, ok)); err != nil {
					return 0, err
				}
			}
			return 0, nil
		})
		if err := ctx.Sleep(time.Second); err != nil {
			return err
		}
		cancel()
		if err := errors.Join(values.Send(ctx, 1), values.Send(ctx, 2)); err != nil {
			return err
		}
		values.Close(ctx)
		_, err := lost.Await(ctx)
		note(err)
		for range 3 {
			text, _, err := received.Receive(ctx)
			if err != nil {
				return err
			}
			note(text)
		}
		return nil
	}, func(t *testing.T, in *instance) {
		mustTurn(t, in, timerFired(2, begin.Add(time.Second)))
	})
}

// A coroutine that ignores errors is ended with the body, whatever it waits for.
func TestChannel_EndlessLoopEndsWithBody(t *testing.T) {
	lock, values := replay.NewSemaphore(1), replay.NewChannel[int](0)
	for name, call := range map[string]func(*replay.Context) error{
		"receive": func(ctx *replay.Context) error { _, _, err := values.Receive(ctx); return err },
		"send":    func(ctx *replay.Context) error { return values.Send(ctx, 1) },
		"acquire": func(ctx *replay.Context) error { return lock.Acquire(ctx) },
		"await":   func(ctx *replay.Context) error { return replay.Await(ctx, func() bool { return false }) },
	} {
		t.Run(name, func(t *testing.T) {
			lock, values = replay.NewSemaphore(1), replay.NewChannel[int](0)
			x, turn := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
				if err := lock.Acquire(ctx); err != nil {
					return "", err
				}
				replay.Go(ctx, func(ctx *replay.Context) (int, error) {
					for {
						_ = call(ctx)
					}
				})
				_, err := goOn.Wait(ctx)
				return "", err
			}), external("go", nil, "g"))
			defer x.Evict()
			if last := turn.Events[len(turn.Events)-1]; last.GetOrchestrationCompleted() == nil {
				t.Errorf("%v", last)
			}
		})
	}
}

// A coroutine that waits again stands behind those that have waited longer.
func TestAwait_FirstComeFirstServed(t *testing.T) {
	token := replay.Event[int]("token")
	noted(t, "a; b; a; b", func(ctx *replay.Context, note func(...any)) error {
		tokens, taken := 0, 0
		for _, name := range []string{"a", "b"} {
			replay.Go(ctx, func(ctx *replay.Context) (int, error) {
				for {
					if err := replay.Await(ctx, func() bool { return tokens > 0 }); err != nil {
						return 0, err
					}
					tokens--
					taken++
					note(name)
				}
			})
		}
		for range 4 {
			if _, err := token.Wait(ctx); err != nil {
				return err
			}
			tokens++
		}
		return replay.Await(ctx, func() bool { return taken == 4 })
	}, func(t *testing.T, in *instance) {
		for i := range 4 {
			mustTurn(t, in, external("token", i, fmt.Sprint(i)))
		}
	})
}

// Code that goes on after a panic in a condition may change what others wait for.
func TestAwait_PanicInConditionLetsOthersCheck(t *testing.T) {
	noted(t, "woken", func(ctx *replay.Context, note func(...any)) error {
		var broken func() bool
		ready, flag := false, false
		replay.Go(ctx, func(ctx *replay.Context) (_ int, err error) {
			defer func() {
				if recover() != nil {
					flag = true
				}
			}()
			return 0, replay.Await(ctx, func() bool { return ready && broken() })
		})
		woken := replay.Go(ctx, func(ctx *replay.Context) (int, error) { return 0, replay.Await(ctx, func() bool { return flag }) })
		if _, err := goOn.Wait(ctx); err != nil {
			return err
		}
		ready = true
		_, err := woken.Await(ctx)
		note("woken")
		return err
	}, func(t *testing.T, in *instance) {
		mustTurn(t, in, external("go", nil, "g"))
	})
}

func TestAwaitFor_EvictedIsNoTimeout(t *testing.T) {
	var err error
	x, _ := startScript(t, script(t, func(ctx *replay.Context) (string, error) {
		defer func() { err = replay.AwaitFor(ctx, time.Hour, func() bool { return false }) }()
		_, err := goOn.Wait(ctx)
		return "", err
	}))
	x.Evict()
	if !errors.Is(err, replay.ErrEvicting) {
		t.Errorf("%v", err)
	}
}
