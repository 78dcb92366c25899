package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// The handles that the transcript programs call. Activities need no body: transcripts give the
// results.
var (
	act    = replay.Activity[string, string]("act")
	debit  = replay.Activity[int, string]("debit")
	ship   = replay.Activity[string, string]("ship")
	credit = replay.Activity[int, string]("credit")
	child  = replay.Orchestration[string, string]("child")
	goOn   = replay.Event[any]("go")
	tick   = replay.Event[int]("tick")
	answer = replay.Event[string]("answer")
)

// program declares a body that takes and returns a string.
func program(name string, body func(*replay.Context, string) (string, error), options ...replay.Option) replay.Definition {
	return replay.Orchestration[string, string](name).Bind(body, options...)
}

// programs are the orchestrations of the transcripts.
func programs() []replay.Definition {
	return append(morePrograms(), []replay.Definition{
		program("hello", hello), program("twins", twins), program("twice", twice),
		program("parallel", parallel), program("branch", branch), program("loop", loop),
		program("order", order),
		program("fan-out", fanOut), program("race", race), program("late-race", lateRace),
		program("next", next), program("next-then-wait", nextThenWait), program("first-error", firstError), program("block-race", blockRace),
		program("timers", timers), program("timer-and-work", timerAndWork), program("at-once", atOnce),
		program("deadline", deadline), program("second-wait", secondWait), program("work-for", workFor),
		program("drain", drain), program("subscriptions", subscriptions), program("mailbox", mailbox),
		program("typed", typed),
		program("children", children), program("child-fails", childFails), program("child-race", childRace),
		program("elided", elided), program("forgotten", forgotten), program("leaves-open", leavesOpen),
		program("given-up", canceledActivity),
		program("interleaved", interleaved), program("nested", nested), program("handed-over", handedOver),
		program("swallows", swallows),
		program("waits", waits), program("tidies", tidies), program("stubborn", stubborn),
		program("fails", fails), program("panics", panics), program("exits", exits),
		program("coroutine-panics", coroutinePanics), program("panics-at-work", panicsAtWork),
		program("policy", policy),
	}...)
}

func logf(ctx *replay.Context, format string, args ...any) {
	ctx.Log().Info(fmt.Sprintf(format, args...))
}

// --- sequences ---

func hello(ctx *replay.Context, name string) (string, error) { return act.Call(ctx, name) }

func twins(ctx *replay.Context, input string) (string, error) {
	first, second := act.Start(ctx, input), act.Start(ctx, input)
	b, err := second.Await(ctx)
	if err != nil {
		return "", err
	}
	a, err := first.Await(ctx)
	return a + b, err
}

// twice calls the same activity with the same input before and after a pause.
func twice(ctx *replay.Context, input string) (string, error) {
	a, err := act.Call(ctx, input)
	if err != nil {
		return "", err
	}
	if err := ctx.Sleep(time.Minute); err != nil {
		return "", err
	}
	b, err := act.Call(ctx, input)
	return a + "," + b, err
}

// parallel awaits the first of two activities first.
func parallel(ctx *replay.Context, _ string) (string, error) {
	first, second := act.Start(ctx, "A"), act.Start(ctx, "B")
	a, err := first.Await(ctx)
	if err != nil {
		return "", err
	}
	logf(ctx, "A is there, B done: %t", second.Done())
	b, err := second.Await(ctx)
	return a + b, err
}

func branch(ctx *replay.Context, question string) (string, error) {
	reply, err := act.Call(ctx, question)
	if err != nil {
		return "", err
	}
	if reply == "yes" {
		return ship.Call(ctx, "now")
	}
	return "left", nil
}

func loop(ctx *replay.Context, text string) (string, error) {
	for range 3 {
		var err error
		if text, err = act.Call(ctx, text); err != nil {
			return "", err
		}
	}
	return text, nil
}

// order pays, ships, and refunds when shipping fails.
func order(ctx *replay.Context, _ string) (string, error) {
	if _, err := debit.Call(ctx, 10); err != nil {
		return "", fmt.Errorf("not paid: %w", err)
	}
	if _, err := ship.Call(ctx, "box"); err != nil {
		if _, err := credit.Call(ctx, 10); err != nil {
			return "", err
		}
		return "paid back: " + err.Error(), nil
	}
	return "shipped", nil
}

// --- all, race, next ---

// fanOut calls one activity for each word.
func fanOut(ctx *replay.Context, words string) (string, error) {
	var futures []*replay.Future[string]
	for word := range strings.FieldsSeq(words) {
		futures = append(futures, act.Start(ctx, word))
	}
	results, err := replay.All(ctx, futures...)
	if err != nil {
		return "first error: " + err.Error(), nil
	}
	return strings.Join(results, " "), nil
}

// race returns the winner; its input is the order of the arguments.
func race(ctx *replay.Context, arguments string) (string, error) {
	a, b := act.Start(ctx, "a"), act.Start(ctx, "b")
	return winnerOf(ctx, arguments, a, b)
}

// lateRace is race after both may have completed.
func lateRace(ctx *replay.Context, arguments string) (string, error) {
	a, b := act.Start(ctx, "a"), act.Start(ctx, "b")
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	return winnerOf(ctx, arguments, a, b)
}

func winnerOf(ctx *replay.Context, arguments string, a, b *replay.Future[string]) (string, error) {
	operations := []replay.Awaitable{a, b}
	if arguments == "ba" {
		operations = []replay.Awaitable{b, a}
	}
	winner, err := replay.Race(ctx, operations...)
	if err != nil {
		return "", err
	}
	return arguments[winner : winner+1], nil
}

// next takes two results in order of completion and cancels nothing.
func next(ctx *replay.Context, _ string) (string, error) {
	a, limit := act.Start(ctx, "a"), ctx.Timer(time.Hour)
	first, err := replay.Next(ctx, a, limit)
	if err != nil {
		return "", err
	}
	logf(ctx, "first: %d", first)
	result, err := a.Await(ctx)
	if err != nil {
		return "", err
	}
	at, err := limit.Await(ctx)
	return result + " " + at.Format(time.TimeOnly), err
}

// nextThenWait waits for something else before the slower one completes.
func nextThenWait(ctx *replay.Context, _ string) (string, error) {
	a, b := act.Start(ctx, "a"), act.Start(ctx, "b")
	if _, err := replay.Next(ctx, a, b); err != nil {
		return "", err
	}
	text, err := answer.Wait(ctx)
	return fmt.Sprint(text, ", both done: ", a.Done() && b.Done()), err
}

// firstError has two coroutines that fail in one step.
func firstError(ctx *replay.Context, _ string) (string, error) {
	wakeup := goOn.Subscribe(ctx)
	var all []*replay.Future[string]
	for _, name := range []string{"a", "b"} {
		all = append(all, replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			_, _ = wakeup.Await(ctx)
			return "", errors.New(name + " failed")
		}))
	}
	_, err := replay.All(ctx, all[1], all[0])
	return "", err
}

// blockRace races two sequential activities with a timer.
func blockRace(ctx *replay.Context, _ string) (string, error) {
	work := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		a, err := act.Call(ctx, "1")
		if err != nil {
			return "", err
		}
		return act.Call(ctx, a)
	})
	winner, err := replay.Race(ctx, ctx.Timer(time.Minute), work)
	if err != nil || winner == 0 {
		return "too slow", err
	}
	return work.Await(ctx)
}

// --- timers ---

// timers creates three timers and returns the order in which they fire.
func timers(ctx *replay.Context, _ string) (string, error) {
	names := []string{"3s", "1s", "2s"}
	pending := []replay.Awaitable{ctx.Timer(3 * time.Second), ctx.Timer(time.Second), ctx.Timer(2 * time.Second)}
	var fired []string
	for len(pending) > 0 {
		i, err := replay.Next(ctx, pending...)
		if err != nil {
			return "", err
		}
		logf(ctx, "%s at %s", names[i], ctx.Now().Format(time.TimeOnly))
		fired = append(fired, names[i])
		pending = append(pending[:i:i], pending[i+1:]...)
		names = append(names[:i:i], names[i+1:]...)
	}
	return strings.Join(fired, " "), nil
}

// timerAndWork sets a timer from ctx.Now, not from the last timer.
func timerAndWork(ctx *replay.Context, _ string) (string, error) {
	if err := ctx.Sleep(time.Second); err != nil {
		return "", err
	}
	if _, err := act.Call(ctx, "slow"); err != nil {
		return "", err
	}
	limit := ctx.Timer(10 * time.Second)
	winner, err := replay.Race(ctx, act.Start(ctx, "fast"), limit)
	return fmt.Sprint("winner ", winner), err
}

func atOnce(ctx *replay.Context, _ string) (string, error) {
	if err := ctx.Sleep(-time.Hour); err != nil {
		return "", err
	}
	return "fired", ctx.Sleep(0)
}

// --- external events ---

func deadline(ctx *replay.Context, _ string) (string, error) {
	text, err := answer.WaitFor(ctx, 10*time.Second)
	if errors.Is(err, replay.ErrTimeout) {
		return "no answer", nil
	}
	return text, err
}

func secondWait(ctx *replay.Context, _ string) (string, error) {
	text, err := answer.WaitFor(ctx, 10*time.Second)
	if !errors.Is(err, replay.ErrTimeout) {
		return "in time: " + text, err
	}
	logf(ctx, "timeout")
	text, err = answer.Wait(ctx)
	return "late: " + text, err
}

// workFor sets a timeout for an activity.
func workFor(ctx *replay.Context, _ string) (string, error) {
	result, err := act.Start(ctx, "work").AwaitFor(ctx, time.Minute)
	if errors.Is(err, replay.ErrTimeout) {
		return act.Call(ctx, "instead")
	}
	return result, err
}

// drain takes 150 ticks, which may all arrive before the first wait.
func drain(ctx *replay.Context, _ string) (string, error) {
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	for want := 1; want <= 150; want++ {
		n, err := tick.Wait(ctx)
		if err != nil || n != want {
			return "", fmt.Errorf("tick %d is %d: %w", want, n, err)
		}
	}
	return "150 in order", nil
}

// subscriptions cancels the second of three.
func subscriptions(ctx *replay.Context, _ string) (string, error) {
	first, second, third := tick.Subscribe(ctx), tick.Subscribe(ctx), tick.Subscribe(ctx)
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	second.Cancel(ctx)
	c, err := third.Await(ctx)
	if err != nil {
		return "", err
	}
	a, err := first.Await(ctx)
	_, gone := second.Await(ctx)
	return fmt.Sprintf("first %d, third %d, second: %v", a, c, gone), err
}

// mailbox serves two names until an empty answer arrives.
func mailbox(ctx *replay.Context, _ string) (string, error) {
	sum, texts := 0, ""
	number, text := tick.Subscribe(ctx), answer.Subscribe(ctx)
	for {
		which, err := replay.Next(ctx, number, text)
		if err != nil {
			return "", err
		}
		if which == 0 {
			n, _ := number.Await(ctx)
			sum, number = sum+n, tick.Subscribe(ctx)
			continue
		}
		word, _ := text.Await(ctx)
		if word == "" {
			return fmt.Sprint(texts, sum), nil
		}
		texts, text = texts+word, answer.Subscribe(ctx)
	}
}

func typed(ctx *replay.Context, _ string) (string, error) {
	n, err := tick.Wait(ctx)
	if err != nil {
		return "not a number: " + err.Error(), nil
	}
	return fmt.Sprint(n), nil
}

// --- children ---

func children(ctx *replay.Context, _ string) (string, error) {
	results, err := replay.All(ctx,
		child.Start(ctx, "derived"), child.Start(ctx, "derived"), child.Start(ctx, "chosen", replay.ChildID("my-child")))
	return strings.Join(results, " "), err
}

func childFails(ctx *replay.Context, _ string) (string, error) {
	_, err := child.Call(ctx, "x")
	var failed *replay.ChildError
	if !errors.As(err, &failed) {
		return "", errors.New("no ChildError")
	}
	return fmt.Sprintf("%s, event %d: %v", failed.Instance, failed.EventID, failed.Err), nil
}

func childRace(ctx *replay.Context, _ string) (string, error) {
	winner, err := replay.Race(ctx, child.Start(ctx, "fast"), child.Start(ctx, "slow"))
	return fmt.Sprint("winner ", winner), err
}

// --- canceling ---

// elided schedules one operation of each type and cancels it in the same step.
func elided(ctx *replay.Context, _ string) (string, error) {
	work, timer := act.Start(ctx, "never"), ctx.Timer(time.Second)
	wait, kid := tick.Subscribe(ctx), child.Start(ctx, "never")
	work.Cancel(ctx)
	timer.Cancel(ctx)
	wait.Cancel(ctx)
	kid.Cancel(ctx)
	_, err := work.Await(ctx)
	logf(ctx, "%v", err)
	return act.Call(ctx, "kept")
}

// forgotten returns at once and leaves its operations open.
func forgotten(ctx *replay.Context, _ string) (string, error) {
	act.Start(ctx, "a")
	ctx.Timer(time.Second)
	child.Start(ctx, "c")
	return "done", nil
}

func leavesOpen(ctx *replay.Context, _ string) (string, error) {
	act.Start(ctx, "a")
	ctx.Timer(time.Second)
	tick.Subscribe(ctx)
	child.Start(ctx, "c")
	_, err := goOn.Wait(ctx)
	act.Start(ctx, "in the last step")
	return "done", err
}

// canceledActivity cancels an activity twice and awaits it in two coroutines.
func canceledActivity(ctx *replay.Context, _ string) (string, error) {
	work := act.Start(ctx, "work")
	for _, name := range []string{"x", "y"} {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			_, err := work.Await(ctx)
			logf(ctx, "%s: %v", name, err)
			return "", nil
		})
	}
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	work.Cancel(ctx)
	work.Cancel(ctx)
	return "", ctx.Sleep(time.Second)
}

// --- coroutines ---

func interleaved(ctx *replay.Context, _ string) (string, error) {
	worker := func(name string) *replay.Future[string] {
		return replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			logf(ctx, "%s begins", name)
			first, err := act.Call(ctx, name+"1")
			if err != nil {
				return "", err
			}
			logf(ctx, "%s has %s", name, first)
			return act.Call(ctx, name+"2")
		})
	}
	a, b := worker("a"), worker("b")
	logf(ctx, "main goes on")
	results, err := replay.All(ctx, a, b)
	logf(ctx, "main has all")
	return strings.Join(results, " "), err
}

// nested starts coroutines from coroutines.
func nested(ctx *replay.Context, _ string) (string, error) {
	var grow func(ctx *replay.Context, name string, depth int) *replay.Future[string]
	grow = func(ctx *replay.Context, name string, depth int) *replay.Future[string] {
		return replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			logf(ctx, "%s", name)
			if depth == 0 {
				return act.Call(ctx, name)
			}
			both, err := replay.All(ctx, grow(ctx, name+"l", depth-1), grow(ctx, name+"r", depth-1))
			return strings.Join(both, "+"), err
		})
	}
	return grow(ctx, "t", 2).Await(ctx)
}

// handedOver resolves one coroutine's future with another's.
func handedOver(ctx *replay.Context, _ string) (string, error) {
	first := replay.Go(ctx, func(ctx *replay.Context) (int, error) { return tick.Wait(ctx) })
	second := replay.Go(ctx, func(ctx *replay.Context) (int, error) {
		n, err := first.Await(ctx)
		logf(ctx, "second has %d", n)
		return n + 1, err
	})
	n, err := first.Await(ctx)
	logf(ctx, "main has %d", n)
	if err != nil {
		return "", err
	}
	m, err := second.Await(ctx)
	return fmt.Sprint(n, m), err
}

// --- cancellation of the instance ---

func waits(ctx *replay.Context, _ string) (string, error) {
	replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		_, err := tick.Wait(ctx)
		logf(ctx, "coroutine: %v", err)
		return "", err
	})
	work, err := act.Start(ctx, "work").AwaitFor(ctx, time.Hour)
	if err != nil {
		logf(ctx, "canceled: %t", errors.Is(err, replay.ErrCanceled))
		return "", fmt.Errorf("stopped at work: %w", err)
	}
	return work, nil
}

// swallows has a coroutine that ignores a cancellation. Its waiter gets the error all the same.
func swallows(ctx *replay.Context, _ string) (string, error) {
	work := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		_, _ = act.Call(ctx, "work")
		return "as if nothing had been", nil
	})
	_, err := work.Await(ctx)
	logf(ctx, "work: %v", err)
	return work.Await(ctx)
}

// tidies completes normally after a cancellation.
func tidies(ctx *replay.Context, _ string) (string, error) {
	err := ctx.Sleep(time.Hour)
	if errors.Is(err, replay.ErrCanceled) {
		return "tidied: " + err.Error(), nil
	}
	return "slept", err
}

// stubborn keeps scheduling after a cancellation, without effect.
func stubborn(ctx *replay.Context, _ string) (string, error) {
	result := act.Start(ctx, "first")
	_, err := goOn.Wait(ctx)
	logf(ctx, "wait: %v, first done: %t", err, result.Done())
	_, err = act.Call(ctx, "second")
	logf(ctx, "second: %v", err)
	_, err = goOn.WaitFor(ctx, time.Second)
	logf(ctx, "third: %v", err)
	_, err = replay.Next(ctx, result, ctx.Timer(0))
	logf(ctx, "next: %v", err)
	_, err = result.Await(ctx)
	return "", err
}

// --- failures ---

func fails(ctx *replay.Context, _ string) (string, error) {
	act.Start(ctx, "open")
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	return "", replay.WithCode("shop.closed", errors.New("the shop is closed"))
}

func panics(ctx *replay.Context, _ string) (string, error) {
	if _, err := act.Call(ctx, "before"); err != nil {
		return "", err
	}
	panic("boom")
}

func exits(ctx *replay.Context, _ string) (string, error) {
	act.Start(ctx, "open")
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	runtime.Goexit()
	return "", nil
}

func coroutinePanics(ctx *replay.Context, _ string) (string, error) {
	replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		n, err := tick.Wait(ctx)
		return fmt.Sprint(10 / n), err
	})
	_, err := goOn.Wait(ctx)
	return "not reached", err
}

// panicsAtWork makes a durable call in the deferred function of a panic.
func panicsAtWork(ctx *replay.Context, _ string) (string, error) {
	defer func() {
		_, err := act.Call(ctx, "clean up")
		logf(ctx, "cleaned up: %v", err)
	}()
	panic("boom")
}

func policy(ctx *replay.Context, _ string) (string, error) {
	return act.Call(ctx, "x", replay.Retry(replay.RetryPolicy{MaxAttempts: 3, InitialInterval: time.Second}))
}
