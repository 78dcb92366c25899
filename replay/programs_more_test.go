package replay_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// morePrograms are the orchestrations of the transcripts on continuing as new,
// side effects, patches, versions, scopes, clean-up and composition.
func morePrograms() []replay.Definition {
	return []replay.Definition{
		countdown.Bind(countDown), program("restless", restless), program("carries", carries),
		program("hands-on", handsOn), program("wrapped", wrapped), program("not-mine", notMine),
		program("upgrade", upgradeOld, replay.Version("1")), program("upgrade", upgradeNew, replay.Version("2")),
		program("loops", loops), program("sticky-status", stickyStatus),
		program("once", once), program("once-fails", onceFails), program("once-panics", oncePanics),
		program("once-exits", onceExits), program("once-calls", onceCalls), program("random", random),
		program("status", status),
		program("patched", patched), program("patched-inside", patchedInside), program("retired", retired),
		program("scopes", scopes), program("limits", limits), program("shielded", shielded), program("cancels-late", cancelsLate),
		program("closes", closes), program("closes-fail", closesFail), program("closes-panic", closesPanic),
		program("closes-work", closesWork), program("closes-exit", closesExit), program("closes-spawn", closesSpawn),
		program("journey", journey), program("chains", chains), program("policies", policies),
		program("settles", settles), program("as-completed", asCompleted), program("maps", maps),
		program("mutex", mutex), program("places", places), program("patient", patient),
		program("suspendable", suspendable),
	}
}

// --- continuing as new ---

var countdown = replay.Orchestration[int, string]("countdown")

// countDown awaits a child in each execution.
func countDown(ctx *replay.Context, left int) (string, error) {
	result, err := child.Call(ctx, fmt.Sprint(left))
	if err != nil {
		return "", err
	}
	say(ctx, "%s in execution %d", result, ctx.Execution())
	if left == 0 {
		return "lift-off", nil
	}
	return "", countdown.ContinueAsNew(ctx, left-1)
}

// restless leaves one of each kind open, and starts some in its last step.
func restless(ctx *replay.Context, input string) (string, error) {
	if input == "again" {
		return "done", nil
	}
	act.Start(ctx, "open")
	ctx.Timer(time.Hour)
	tick.Subscribe(ctx)
	child.Start(ctx, "open")
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	act.Start(ctx, "in the last step")
	child.Start(ctx, "in the last step")
	if err := child.Chain(ctx, "stays"); err != nil {
		return "", err
	}
	return "", replay.Orchestration[string, string]("restless").ContinueAsNew(ctx, "again")
}

// carries consumes two ticks in each execution until an answer comes.
func carries(ctx *replay.Context, input string) (string, error) {
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	for range 2 {
		n, err := tick.Wait(ctx)
		if err != nil {
			return "", err
		}
		input += fmt.Sprint(" ", n)
	}
	text := answer.Subscribe(ctx)
	if _, err := replay.Next(ctx, text, ctx.Timer(time.Second)); err != nil {
		return "", err
	}
	if text.Done() {
		last, err := text.Await(ctx)
		return input + " " + last, err
	}
	return "", replay.Orchestration[string, string]("carries").ContinueAsNew(ctx, input)
}

// handsOn continues at once with a subscription that was bound to nothing yet.
func handsOn(ctx *replay.Context, input string) (string, error) {
	if input != "" {
		n, err := tick.Wait(ctx)
		return fmt.Sprint(input, n), err
	}
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	tick.Subscribe(ctx)
	return "", replay.Orchestration[string, string]("hands-on").ContinueAsNew(ctx, "first is ")
}

func wrapped(ctx *replay.Context, input string) (string, error) {
	if input == "" {
		err := replay.Orchestration[string, string]("wrapped").ContinueAsNew(ctx, "x")
		return "", fmt.Errorf("with more words: %w", errors.Join(errors.New("and another"), err))
	}
	return input, nil
}

func notMine(ctx *replay.Context, _ string) (string, error) {
	return "", child.ContinueAsNew(ctx, "x")
}

func upgradeOld(ctx *replay.Context, input string) (string, error) {
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	handle := replay.Orchestration[string, string]("upgrade")
	if input == "stay" {
		return "", handle.ContinueAsNew(ctx, "up", replay.ContinueVersion("1"))
	}
	return "", handle.ContinueAsNew(ctx, input+" from "+ctx.Version())
}

func upgradeNew(ctx *replay.Context, input string) (string, error) {
	return input + " to " + ctx.Version(), nil
}

// loops continues as new while a Go coroutine of it would rather do so itself.
func loops(ctx *replay.Context, input string) (string, error) {
	other := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		return "", replay.Orchestration[string, string]("loops").ContinueAsNew(ctx, "coroutine")
	})
	_, err := other.Await(ctx)
	say(ctx, "%v", err)
	if input == "" {
		ctx.OnClose(func(ctx *replay.Context, _ error) error { say(ctx, "closed"); return nil })
		return "", replay.Orchestration[string, string]("loops").ContinueAsNew(ctx, "body")
	}
	return input, nil
}

// stickyStatus sets a status in its first execution only.
func stickyStatus(ctx *replay.Context, input string) (string, error) {
	if input == "" {
		_ = replay.SetStatus(ctx, "first")
		_ = replay.SetStatus(ctx, map[string]int{"second": 2})
	}
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	if input == "xx" {
		return "done", replay.SetStatus[any](ctx, nil)
	}
	return "", replay.Orchestration[string, string]("sticky-status").ContinueAsNew(ctx, input+"x")
}

// --- side effects, status ---

func once(ctx *replay.Context, _ string) (string, error) {
	first, err := replay.Once(ctx, "pick", func() (int, error) { say(ctx, "picks"); return 7, nil })
	if err != nil {
		return "", err
	}
	if _, err := act.Call(ctx, fmt.Sprint(first)); err != nil {
		return "", err
	}
	second, err := replay.Once(ctx, "pick", func() ([]string, error) { return []string{"a", "b"}, nil })
	return fmt.Sprint(first, second), err
}

func onceFails(ctx *replay.Context, _ string) (string, error) {
	_, err := replay.Once(ctx, "config", func() (int, error) { return 1, replay.WithCode("no.config", errors.New("not there")) })
	var failed *replay.Error
	coded := errors.As(err, &failed) && failed.Code == "no.config"
	_, unfit := replay.Once(ctx, "unfit", func() (any, error) { return func() {}, nil })
	_, unnamed := replay.Once(ctx, "", func() (int, error) { panic("not called") })
	_, taken := replay.Once(ctx, "tenuto.patch/x", func() (int, error) { panic("not called") })
	if err := ctx.Sleep(time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("%v %t; %v; %v; %v", err, coded, unfit, unnamed, taken), nil
}

// oncePanics catches a panic, live as on replay.
func oncePanics(ctx *replay.Context, input string) (result string, _ error) {
	if input == "recover" {
		func() {
			defer func() { result = fmt.Sprint("caught: ", recover()) }()
			_, _ = replay.Once(ctx, "bad", func() (int, error) { panic("boom") })
		}()
		return result, ctx.Sleep(time.Second)
	}
	_, err := replay.Once(ctx, "bad", func() (int, error) { panic(errors.New("boom")) })
	return "not reached", err
}

func onceExits(ctx *replay.Context, _ string) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, err error) error { return ctx.Sleep(time.Second) })
	_, err := replay.Once(ctx, "bad", func() (int, error) { runtime.Goexit(); return 0, nil })
	return "not reached", err
}

// onceCalls tries every durable call where none is allowed.
func onceCalls(ctx *replay.Context, _ string) (string, error) {
	work := act.Start(ctx, "open")
	scope, cancel := replay.WithCancel(ctx)
	calls := []struct {
		name string
		call func()
	}{
		{"activity", func() { _, _ = act.Call(ctx, "x") }},
		{"timer", func() { ctx.Timer(0) }},
		{"child", func() { child.Start(ctx, "x") }},
		{"chain", func() { _ = child.Chain(ctx, "x") }},
		{"subscribe", func() { goOn.Subscribe(ctx) }},
		{"await", func() { _, _ = work.Await(ctx) }},
		{"cancel", func() { work.Cancel(ctx) }},
		{"scope", cancel},
		{"go", func() { replay.Go(ctx, func(*replay.Context) (int, error) { return 0, nil }) }},
		{"once", func() { _, _ = replay.Once(ctx, "inner", func() (int, error) { return 0, nil }) }},
		{"patched", func() { replay.Patched(ctx, "x") }},
		{"status", func() { _ = replay.SetStatus(ctx, 1) }},
		{"close", func() { ctx.OnClose(func(*replay.Context, error) error { return nil }) }},
		{"random", func() { ctx.Random() }},
	}
	for _, c := range calls {
		func() {
			defer func() { say(ctx, "%s: %v", c.name, recover()) }()
			_, _ = replay.Once(ctx, c.name, func() (int, error) { c.call(); return 0, nil })
		}()
	}
	return fmt.Sprint(work.Done(), scope.Err()), nil
}

// random draws before and after a pause.
func random(ctx *replay.Context, _ string) (string, error) {
	first, id := ctx.Random().IntN(1000), ctx.UUID()
	if _, err := act.Call(ctx, fmt.Sprint(first, " ", id)); err != nil {
		return "", err
	}
	return fmt.Sprint(ctx.Random().IntN(1000), " ", ctx.UUID()), nil
}

func status(ctx *replay.Context, _ string) (string, error) {
	for n := range 2 {
		if err := replay.SetStatus(ctx, n); err != nil {
			return "", err
		}
	}
	if err := replay.SetStatus(ctx, func() {}); err == nil {
		return "", errors.New("a function is published")
	}
	if _, err := goOn.Wait(ctx); err != nil {
		say(ctx, "%v", replay.SetStatus(ctx, "after cancellation"))
		return "", err
	}
	return "", errors.Join(replay.SetStatus(ctx, "failing"), errors.New("failed"))
}

// --- patches ---

// patched carries two patches, both asked for in one step.
func patched(ctx *replay.Context, _ string) (string, error) {
	result := ""
	if replay.Patched(ctx, "first") {
		result += "1"
	}
	if replay.Patched(ctx, "second") {
		result += "2"
	}
	a, err := act.Call(ctx, "a")
	if err != nil {
		return "", err
	}
	if replay.Patched(ctx, "first") {
		result += "1"
	}
	if replay.Patched(ctx, "third") {
		result += "3"
	}
	_, err = act.Call(ctx, "b")
	return a + result, err
}

// patchedInside asks in two coroutines, and between a schedule and giving it up.
func patchedInside(ctx *replay.Context, _ string) (string, error) {
	limit := ctx.Timer(time.Minute)
	worker := func(name string) *replay.Future[string] {
		return replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			if replay.Patched(ctx, "inside-"+name) {
				name += "+"
			}
			return act.Call(ctx, name)
		})
	}
	a, b := worker("a"), worker("b")
	limit.Cancel(ctx)
	results, err := replay.All(ctx, a, b)
	return strings.Join(results, " "), err
}

func retired(ctx *replay.Context, _ string) (string, error) {
	work := act.Start(ctx, "a")
	replay.Retired(ctx, "first")
	at := ctx.Now()
	replay.Retired(ctx, "second")
	_, err := work.Await(ctx)
	return at.Format(time.TimeOnly), err
}

// --- scopes ---

// scopes cancels an inner scope, then the one around it.
func scopes(ctx *replay.Context, _ string) (string, error) {
	outer, cancelOuter := replay.WithCancel(ctx)
	inner, cancelInner := replay.WithCancel(outer)
	work := func(ctx *replay.Context, name string) {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			_, err := act.Call(ctx, name)
			say(ctx, "%s: %v, scope: %v", name, err, ctx.Err())
			return "", nil
		})
	}
	work(outer, "outer")
	work(inner, "inner")
	work(ctx, "around")
	for _, cancel := range []func(){cancelInner, cancelOuter} {
		if _, err := goOn.Wait(ctx); err != nil {
			return "", err
		}
		cancel()
		cancel()
		say(ctx, "outer %v, inner %v, root %v", outer.Err(), inner.Err(), ctx.Err())
	}
	_, err := act.Call(inner, "not scheduled")
	say(ctx, "in an ended scope: %v", err)
	_, err = goOn.Wait(ctx)
	return "", err
}

// limits nests a short limit of time in a long one.
func limits(ctx *replay.Context, _ string) (string, error) {
	long, cancelLong := replay.WithTimeout(ctx, time.Minute)
	defer cancelLong()
	short, cancelShort := replay.WithTimeout(long, time.Second)
	_, err := act.Call(short, "short")
	say(ctx, "%v, timeout %t", err, errors.Is(err, replay.ErrTimeout))
	cancelShort()
	_, err = act.Call(long, "long")
	say(ctx, "%v, timeout %t", err, errors.Is(err, replay.ErrTimeout))
	cancelLong()
	_, err = act.Call(long, "after the end")
	say(ctx, "%v", err)
	return act.Call(ctx, "outside")
}

// shielded goes on in a scope that cancellation does not reach.
func shielded(ctx *replay.Context, _ string) (string, error) {
	_, err := act.Call(ctx, "work")
	if !errors.Is(err, replay.ErrCanceled) {
		return "", err
	}
	safe := replay.WithoutCancel(ctx)
	say(ctx, "root %v, shielded %v", ctx.Err(), safe.Err())
	undone, err := act.Call(safe, "undo")
	say(ctx, "%s", undone)
	return "", errors.Join(ctx.Err(), err)
}

// cancelsLate cancels a scope when all in it is done, and one that ended.
func cancelsLate(ctx *replay.Context, _ string) (string, error) {
	inner, cancel := replay.WithTimeout(ctx, time.Minute)
	result, err := act.Call(inner, "x")
	cancel()
	cancel()
	if _, err := goOn.Wait(ctx); err != nil {
		cancel()
		return "", err
	}
	return result + " " + inner.Err().Error(), err
}

// --- the end ---

func closer(name string) func(*replay.Context, error) error {
	return func(ctx *replay.Context, err error) error {
		say(ctx, "%s after: %v", name, err)
		return nil
	}
}

// closes ends as its input says.
func closes(ctx *replay.Context, how string) (string, error) {
	ctx.OnClose(closer("first"))
	ctx.OnClose(closer("second"))
	replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		defer say(ctx, "deferred")
		_, err := tick.Wait(ctx)
		say(ctx, "never goes on: %v", err)
		return "", err
	})
	switch _, err := goOn.Wait(ctx); {
	case err != nil:
		return "", err
	case how == "error":
		return "", errors.New("broken")
	case how == "panic":
		panic("boom")
	case how == "exit":
		runtime.Goexit()
	case how == "again":
		return "", replay.Orchestration[string, string]("closes").ContinueAsNew(ctx, "")
	}
	return "done", nil
}

func closesFail(ctx *replay.Context, how string) (string, error) {
	ctx.OnClose(closer("first"))
	ctx.OnClose(func(*replay.Context, error) error { return errors.New("not cleaned up") })
	ctx.OnClose(closer("third"))
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	if how != "" {
		return "", errors.New(how)
	}
	return "done", nil
}

func closesPanic(ctx *replay.Context, how string) (string, error) {
	ctx.OnClose(closer("first"))
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		act.Start(ctx, "left open")
		if how == "exit" {
			runtime.Goexit()
		}
		panic("boom")
	})
	ctx.OnClose(closer("third"))
	_, err := goOn.Wait(ctx)
	return "done", err
}

// closesWork makes durable calls, and registers more, while it cleans up.
func closesWork(ctx *replay.Context, _ string) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		_, err := act.Call(ctx, "last")
		return err
	})
	ctx.OnClose(func(ctx *replay.Context, err error) error {
		ctx.OnClose(closer("in between"))
		result, failed := act.Call(ctx, fmt.Sprint("first, after: ", err))
		say(ctx, "%s, scope %v", result, ctx.Err())
		return errors.Join(failed, ctx.Sleep(time.Second))
	})
	_, err := act.Call(ctx, "work")
	return "done", err
}

func closesExit(ctx *replay.Context, _ string) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, err error) error {
		_, failed := act.Call(ctx, "clean up")
		return failed
	})
	replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		_, _ = tick.Wait(ctx)
		panic("in a coroutine")
	})
	_, err := goOn.Wait(ctx)
	return "", err
}

// closesSpawn has a coroutine of one clean-up panic while that waits.
func closesSpawn(ctx *replay.Context, _ string) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		_, err := act.Call(ctx, "the other clean-up")
		return err
	})
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			_ = ctx.Sleep(time.Second)
			panic("boom")
		})
		_, err := act.Call(ctx, "never done")
		say(ctx, "never goes on")
		return err
	})
	return "done", nil
}

// journey undoes in reverse order what it has done.
func journey(ctx *replay.Context, _ string) (string, error) {
	saga := replay.NewSaga(ctx)
	for _, leg := range []string{"flight", "hotel", "car"} {
		if _, err := act.Call(ctx, "book "+leg); err != nil {
			return "", err
		}
		saga.Compensate(ctx, func(ctx *replay.Context) error {
			_, err := act.Call(ctx, "give back "+leg)
			return err
		})
	}
	return "booked", nil
}

// --- chains, close policies ---

func chains(ctx *replay.Context, _ string) (string, error) {
	for _, options := range [][]replay.ChildOption{nil, {replay.ChildID("chosen")}, {replay.ChildVersion("2")}} {
		if err := child.Chain(ctx, "x", options...); err != nil {
			return "", err
		}
	}
	unfit := replay.Orchestration[any, string]("unfit").Chain(ctx, func() {})
	unnamed := child.Chain(ctx, "x", replay.ChildID("\xff"))
	unversioned := child.Chain(ctx, "x", replay.ChildVersion("\xff"))
	say(ctx, "%v; %v; %v", unfit, unnamed, unversioned)
	_, err := act.Call(ctx, "then")
	if err != nil {
		say(ctx, "after cancellation: %v", child.Chain(ctx, "not started"))
	}
	return "", err
}

func policies(ctx *replay.Context, _ string) (string, error) {
	child.Start(ctx, "cancel")
	child.Start(ctx, "terminate", replay.OnParentClose(replay.TerminateChild), replay.ChildVersion("2"))
	child.Start(ctx, "abandon", replay.OnParentClose(replay.AbandonChild))
	_, err := goOn.Wait(ctx)
	return "", err
}

// --- composition ---

func settles(ctx *replay.Context, _ string) (string, error) {
	results, err := replay.Settle(ctx, act.Start(ctx, "a"), act.Start(ctx, "b"), act.Start(ctx, "c"))
	if err != nil {
		return "", err
	}
	var texts []string
	for _, r := range results {
		texts = append(texts, fmt.Sprint(r.Value, "/", r.Err))
	}
	return strings.Join(texts, ", "), nil
}

// asCompleted notes which comes when, with a pause in between.
func asCompleted(ctx *replay.Context, _ string) (string, error) {
	a, b, c := act.Start(ctx, "a"), act.Start(ctx, "b"), act.Start(ctx, "c")
	var order []string
	for i, f := range replay.AsCompleted(ctx, a, b, a, c) {
		result, err := f.Await(ctx)
		order = append(order, fmt.Sprint(i, ":", result, err))
		if len(order) == 1 {
			if _, err := goOn.Wait(ctx); err != nil {
				return "", err
			}
		}
	}
	say(ctx, "again:")
	for i := range replay.AsCompleted(ctx, a, b, c) {
		say(ctx, "%d", i)
		if i == 1 {
			break
		}
	}
	return strings.Join(order, " "), ctx.Err()
}

func maps(ctx *replay.Context, words string) (string, error) {
	results, err := replay.Map(ctx, 2, strings.Fields(words), func(ctx *replay.Context, word string) (string, error) {
		result, err := act.Call(ctx, word)
		say(ctx, "%s: %s, %v", word, result, err)
		return strings.ToUpper(result), err
	})
	return strings.Join(results, " "), err
}

// mutex lets three coroutines into one stretch, one by one.
func mutex(ctx *replay.Context, _ string) (string, error) {
	lock := replay.NewSemaphore(0)
	var all []*replay.Future[string]
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			if err := lock.Acquire(ctx); err != nil {
				return "", err
			}
			defer lock.Release(ctx)
			say(ctx, "%s is in", name)
			return act.Call(ctx, name)
		}))
	}
	results, err := replay.All(ctx, all...)
	return strings.Join(results, ""), err
}

// places cancels one who waits for a place, in the moment in which it comes.
func places(ctx *replay.Context, _ string) (string, error) {
	two := replay.NewSemaphore(2)
	inner, cancel := replay.WithCancel(ctx)
	enter := func(ctx *replay.Context, name string, held func(*replay.Context)) {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			if err := two.Acquire(ctx); err != nil {
				say(ctx, "%s: %v", name, err)
				return "", nil
			}
			say(ctx, "%s is in", name)
			held(ctx)
			two.Release(ctx)
			return "", nil
		})
	}
	untilTick := func(ctx *replay.Context) { _, _ = tick.Wait(ctx) }
	cancelling := func(ctx *replay.Context) {
		untilTick(ctx)
		cancel()
	}
	enter(ctx, "a", cancelling)
	enter(ctx, "b", untilTick)
	enter(inner, "c", untilTick)
	enter(ctx, "d", untilTick)
	enter(inner, "e", untilTick)
	_, err := goOn.Wait(ctx)
	return "", err
}

// --- suspension ---

// patient says what it sees, and when.
func patient(ctx *replay.Context, _ string) (string, error) {
	a, b := act.Start(ctx, "a"), act.Start(ctx, "b")
	winner, err := replay.Race(ctx, a, b)
	if err != nil {
		return "", err
	}
	say(ctx, "%d at %s, done %t %t", winner, ctx.Now().Format(time.TimeOnly), a.Done(), b.Done())
	text, err := answer.WaitFor(ctx, time.Minute)
	return text, err
}

// suspendable has a scope with a limit of time.
func suspendable(ctx *replay.Context, _ string) (string, error) {
	inner, cancel := replay.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := act.Call(inner, "x")
	say(ctx, "%v", err)
	_, err = goOn.Wait(ctx)
	return "done", err
}
