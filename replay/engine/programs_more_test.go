package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// morePrograms are the orchestrations of the transcripts on continue-as-new, side effects, patches,
// versions, scopes, clean-up and composition.
func morePrograms() []replay.Definition {
	return []replay.Definition{
		countdown.Bind(countdownBody), program("restless", restless), program("carries", carries),
		program("hands-on", handsOn), program("wrapped", wrapped), program("not-mine", notMine),
		program("upgrade", upgradeOld, replay.Version("1")), program("upgrade", upgradeNew, replay.Version("2")),
		program("loops", loops), program("sticky-status", stickyStatus),
		program("once", sideEffects), program("once-fails", sideEffectFails), program("once-panics", sideEffectPanics),
		program("once-exits", sideEffectExits), program("once-calls", sideEffectCalls), program("random", random),
		program("status", status),
		program("patched", patched), program("patched-inside", patchedInside), program("retired", deprecated),
		program("scopes", scopes), program("limits", limits), program("shielded", shielded), program("cancels-late", cancelsLate),
		program("closes", closes), program("closes-fail", closesFail), program("closes-panic", closesPanic),
		program("closes-work", closesWork), program("closes-exit", closesExit), program("closes-spawn", closesSpawn),
		program("journey", journey), program("chains", chains), program("policies", policies),
		program("settles", allResults), program("as-completed", asCompleted), program("maps", maps),
		program("mutex", mutex), program("places", semaphoreSlots), program("patient", patient),
		program("retried", retried), program("retries", retries),
		program("suspendable", suspendable), program("messages", messages), program("message-limit", messageLimit), publishesProgram,
	}
}

// --- continue-as-new ---

var countdown = replay.Orchestration[int, string]("countdown")

// countdownBody awaits a child in each execution.
func countdownBody(ctx *replay.Context, left int) (string, error) {
	result, err := child.Call(ctx, fmt.Sprint(left))
	if err != nil {
		return "", err
	}
	logf(ctx, "%s in execution %d", result, ctx.Execution())
	if left == 0 {
		return "lift-off", nil
	}
	return "", countdown.ContinueAsNew(ctx, left-1)
}

// restless leaves one operation of each type open, and starts some in its last step.
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

// handsOn continues at once with a subscription that is not bound yet.
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
		return "", handle.ContinueAsNew(ctx, "up", replay.Version("1"))
	}
	return "", handle.ContinueAsNew(ctx, input+" from "+ctx.Version())
}

func upgradeNew(ctx *replay.Context, input string) (string, error) {
	return input + " to " + ctx.Version(), nil
}

// loops continues as new while one of its coroutines tries to do the same.
func loops(ctx *replay.Context, input string) (string, error) {
	other := replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		return "", replay.Orchestration[string, string]("loops").ContinueAsNew(ctx, "coroutine")
	})
	_, err := other.Await(ctx)
	logf(ctx, "%v", err)
	if input == "" {
		ctx.OnClose(func(ctx *replay.Context, _ error) error { logf(ctx, "closed"); return nil })
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

func sideEffects(ctx *replay.Context, _ string) (string, error) {
	first, err := replay.SideEffect(ctx, "pick", func() (int, error) { logf(ctx, "picks"); return 7, nil })
	if err != nil {
		return "", err
	}
	if _, err := act.Call(ctx, fmt.Sprint(first)); err != nil {
		return "", err
	}
	second, err := replay.SideEffect(ctx, "pick", func() ([]string, error) { return []string{"a", "b"}, nil })
	return fmt.Sprint(first, second), err
}

func sideEffectFails(ctx *replay.Context, _ string) (string, error) {
	_, err := replay.SideEffect(ctx, "config", func() (int, error) { return 1, replay.WithCode("no.config", errors.New("not there")) })
	var failed *replay.Error
	coded := errors.As(err, &failed) && failed.Code == "no.config"
	_, invalid := replay.SideEffect(ctx, "unfit", func() (any, error) { return func() {}, nil })
	_, unnamed := replay.SideEffect(ctx, "", func() (int, error) { panic("not called") })
	_, accepted := replay.SideEffect(ctx, "tenuto.patch/x", func() (int, error) { panic("not called") })
	if err := ctx.Sleep(time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("%v %t; %v; %v; %v", err, coded, invalid, unnamed, accepted), nil
}

// sideEffectPanics recovers from a panic, live and on replay.
func sideEffectPanics(ctx *replay.Context, input string) (result string, _ error) {
	if input == "recover" {
		func() {
			defer func() { result = fmt.Sprint("caught: ", recover()) }()
			_, _ = replay.SideEffect(ctx, "bad", func() (int, error) { panic("boom") })
		}()
		return result, ctx.Sleep(time.Second)
	}
	_, err := replay.SideEffect(ctx, "bad", func() (int, error) { panic(errors.New("boom")) })
	return "not reached", err
}

func sideEffectExits(ctx *replay.Context, _ string) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, err error) error { return ctx.Sleep(time.Second) })
	_, err := replay.SideEffect(ctx, "bad", func() (int, error) { runtime.Goexit(); return 0, nil })
	return "not reached", err
}

// sideEffectCalls tries every durable call inside a side effect.
func sideEffectCalls(ctx *replay.Context, _ string) (string, error) {
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
		{"once", func() { _, _ = replay.SideEffect(ctx, "inner", func() (int, error) { return 0, nil }) }},
		{"patched", func() { replay.Patched(ctx, "x") }},
		{"status", func() { _ = replay.SetStatus(ctx, 1) }},
		{"close", func() { ctx.OnClose(func(*replay.Context, error) error { return nil }) }},
		{"random", func() { ctx.Random() }},
	}
	for _, c := range calls {
		func() {
			defer func() { logf(ctx, "%s: %v", c.name, recover()) }()
			_, _ = replay.SideEffect(ctx, c.name, func() (int, error) { c.call(); return 0, nil })
		}()
	}
	return fmt.Sprint(work.Done(), scope.Err()), nil
}

// random draws numbers before and after a pause.
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
		logf(ctx, "%v", replay.SetStatus(ctx, "after cancellation"))
		return "", err
	}
	return "", errors.Join(replay.SetStatus(ctx, "failing"), errors.New("failed"))
}

// --- patches ---

// patched has two patches in one step.
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

// patchedInside calls Patched in two coroutines, and between a schedule and its cancellation.
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

func deprecated(ctx *replay.Context, _ string) (string, error) {
	work := act.Start(ctx, "a")
	replay.DeprecatePatch(ctx, "first")
	at := ctx.Now()
	replay.DeprecatePatch(ctx, "second")
	_, err := work.Await(ctx)
	return at.Format(time.TimeOnly), err
}

// --- scopes ---

// scopes cancels an inner scope, then the outer one.
func scopes(ctx *replay.Context, _ string) (string, error) {
	outer, cancelOuter := replay.WithCancel(ctx)
	inner, cancelInner := replay.WithCancel(outer)
	work := func(ctx *replay.Context, name string) {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			_, err := act.Call(ctx, name)
			logf(ctx, "%s: %v, scope: %v", name, err, ctx.Err())
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
		logf(ctx, "outer %v, inner %v, root %v", outer.Err(), inner.Err(), ctx.Err())
	}
	_, err := act.Call(inner, "not scheduled")
	logf(ctx, "in an ended scope: %v", err)
	_, err = goOn.Wait(ctx)
	return "", err
}

// limits nests a short timeout in a long one.
func limits(ctx *replay.Context, _ string) (string, error) {
	long, cancelLong := replay.WithTimeout(ctx, time.Minute)
	defer cancelLong()
	short, cancelShort := replay.WithTimeout(long, time.Second)
	_, err := act.Call(short, "short")
	logf(ctx, "%v, timeout %t", err, errors.Is(err, replay.ErrTimeout))
	cancelShort()
	_, err = act.Call(long, "long")
	logf(ctx, "%v, timeout %t", err, errors.Is(err, replay.ErrTimeout))
	cancelLong()
	_, err = act.Call(long, "after the end")
	logf(ctx, "%v", err)
	return act.Call(ctx, "outside")
}

// shielded continues in a scope that cancellation does not reach.
func shielded(ctx *replay.Context, _ string) (string, error) {
	_, err := act.Call(ctx, "work")
	if !errors.Is(err, replay.ErrCanceled) {
		return "", err
	}
	safe := replay.WithoutCancel(ctx)
	logf(ctx, "root %v, shielded %v", ctx.Err(), safe.Err())
	undone, err := act.Call(safe, "undo")
	logf(ctx, "%s", undone)
	return "", errors.Join(ctx.Err(), err)
}

// cancelsLate cancels a scope after its operations are done, and one that has ended.
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
		logf(ctx, "%s after: %v", name, err)
		return nil
	}
}

// closes ends as its input says.
func closes(ctx *replay.Context, mode string) (string, error) {
	ctx.OnClose(closer("first"))
	ctx.OnClose(closer("second"))
	replay.Go(ctx, func(ctx *replay.Context) (string, error) {
		defer logf(ctx, "deferred")
		_, err := tick.Wait(ctx)
		logf(ctx, "never goes on: %v", err)
		return "", err
	})
	switch _, err := goOn.Wait(ctx); {
	case err != nil:
		return "", err
	case mode == "error":
		return "", errors.New("broken")
	case mode == "panic":
		panic("boom")
	case mode == "exit":
		runtime.Goexit()
	case mode == "again":
		return "", replay.Orchestration[string, string]("closes").ContinueAsNew(ctx, "")
	}
	return "done", nil
}

func closesFail(ctx *replay.Context, mode string) (string, error) {
	ctx.OnClose(closer("first"))
	ctx.OnClose(func(*replay.Context, error) error { return errors.New("not cleaned up") })
	ctx.OnClose(closer("third"))
	if _, err := goOn.Wait(ctx); err != nil {
		return "", err
	}
	if mode != "" {
		return "", errors.New(mode)
	}
	return "done", nil
}

func closesPanic(ctx *replay.Context, mode string) (string, error) {
	ctx.OnClose(closer("first"))
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		act.Start(ctx, "left open")
		if mode == "exit" {
			runtime.Goexit()
		}
		panic("boom")
	})
	ctx.OnClose(closer("third"))
	_, err := goOn.Wait(ctx)
	return "done", err
}

// closesWork makes durable calls and registers more functions during clean-up.
func closesWork(ctx *replay.Context, _ string) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		_, err := act.Call(ctx, "last")
		return err
	})
	ctx.OnClose(func(ctx *replay.Context, err error) error {
		ctx.OnClose(closer("in between"))
		result, failed := act.Call(ctx, fmt.Sprint("first, after: ", err))
		logf(ctx, "%s, scope %v", result, ctx.Err())
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

// closesSpawn has a coroutine that panics while its clean-up function waits.
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
		logf(ctx, "never goes on")
		return err
	})
	return "done", nil
}

// journey undoes its steps in reverse order.
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
	for _, options := range [][]replay.Option{nil, {replay.ChildID("chosen")}, {replay.Version("2")}} {
		if err := child.Chain(ctx, "x", options...); err != nil {
			return "", err
		}
	}
	invalid := replay.Orchestration[any, string]("unfit").Chain(ctx, func() {})
	unnamed := child.Chain(ctx, "x", replay.ChildID("\xff"))
	unversioned := child.Chain(ctx, "x", replay.Version("\xff"))
	logf(ctx, "%v; %v; %v", invalid, unnamed, unversioned)
	_, err := act.Call(ctx, "then")
	if err != nil {
		logf(ctx, "after cancellation: %v", child.Chain(ctx, "not started"))
	}
	return "", err
}

// messages sends events, and a request to cancel, to other instances.
func messages(ctx *replay.Context, _ string) (string, error) {
	sent := tick.SendTo(ctx, "receiver", 17)
	rejected := tick.SendTo(ctx, "nobody", 18)
	canceled := replay.CancelInstance(ctx, "receiver", "enough")
	invalid := tick.SendTo(ctx, "not an ID", 19)
	logf(ctx, "%v; %v, not found: %t; %v; %v", sent, rejected, errors.Is(rejected, replay.ErrNotFound), canceled, invalid)
	return "", nil
}

// messageLimit sends an event with a timeout.
func messageLimit(ctx *replay.Context, _ string) (string, error) {
	inner, cancel := replay.WithTimeout(ctx, time.Minute)
	defer cancel()
	logf(ctx, "%v", tick.SendTo(inner, "receiver", 17))
	return "", nil
}

var (
	region     = replay.Attribute[string]("region")
	urgent     = replay.Attribute[bool]("urgent")
	amount     = replay.Attribute[float64]("amount")
	shipBefore = replay.Attribute[time.Time]("ship-before")
	stock      = replay.KV[int]("stock")
	notes      = replay.KV[string]("notes")

	publishing       = replay.Orchestration[int, string]("publishes")
	publishesProgram = publishing.Bind(publishes)
)

// publishes sets attributes and values in the first execution, and reads and changes the values in
// the second.
func publishes(ctx *replay.Context, round int) (string, error) {
	if round == 0 {
		if err := errors.Join(
			region.Set(ctx, "north"), urgent.Set(ctx, true), amount.Set(ctx, 12.5), shipBefore.Set(ctx, ctx.Now()),
			stock.Set(ctx, "pears", 3), stock.Set(ctx, "apples", 5), notes.Set(ctx, "pears", "ripe"),
			urgent.Remove(ctx), urgent.Remove(ctx),
		); err != nil {
			return "", err
		}
		if _, err := act.Call(ctx, "between"); err != nil {
			return "", err
		}
		return "", publishing.ContinueAsNew(ctx, 1)
	}
	pears, found, err := stock.Get(ctx, "pears")
	if err != nil {
		return "", err
	}
	_, missing, err := stock.Get(ctx, "plums")
	if err != nil {
		return "", err
	}
	logf(ctx, "%d %t %t %q", pears, found, missing, stock.Keys(ctx))
	err = errors.Join(stock.Set(ctx, "pears", pears-1), stock.Delete(ctx, "apples"), stock.Delete(ctx, "apples"), region.Set(ctx, "south"))
	logf(ctx, "%q", stock.Keys(ctx))
	return "", err
}

func policies(ctx *replay.Context, _ string) (string, error) {
	child.Start(ctx, "cancel")
	child.Start(ctx, "terminate", replay.OnParentClose(replay.TerminateChild), replay.Version("2"))
	child.Start(ctx, "abandon", replay.OnParentClose(replay.AbandonChild))
	_, err := goOn.Wait(ctx)
	return "", err
}

// --- composition ---

func allResults(ctx *replay.Context, _ string) (string, error) {
	results, err := replay.AllResults(ctx, act.Start(ctx, "a"), act.Start(ctx, "b"), act.Start(ctx, "c"))
	if err != nil {
		return "", err
	}
	var texts []string
	for _, r := range results {
		texts = append(texts, fmt.Sprint(r.Value, "/", r.Err))
	}
	return strings.Join(texts, ", "), nil
}

// asCompleted records the order of completion, with a pause in between.
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
	logf(ctx, "again:")
	for i := range replay.AsCompleted(ctx, a, b, c) {
		logf(ctx, "%d", i)
		if i == 1 {
			break
		}
	}
	return strings.Join(order, " "), ctx.Err()
}

func maps(ctx *replay.Context, words string) (string, error) {
	results, err := replay.Map(ctx, 2, strings.Fields(words), func(ctx *replay.Context, word string) (string, error) {
		result, err := act.Call(ctx, word)
		logf(ctx, "%s: %s, %v", word, result, err)
		return strings.ToUpper(result), err
	})
	return strings.Join(results, " "), err
}

// mutex lets three coroutines into one section, one at a time.
func mutex(ctx *replay.Context, _ string) (string, error) {
	lock := replay.NewSemaphore(0)
	var all []*replay.Future[string]
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			if err := lock.Acquire(ctx); err != nil {
				return "", err
			}
			defer lock.Release(ctx)
			logf(ctx, "%s is in", name)
			return act.Call(ctx, name)
		}))
	}
	results, err := replay.All(ctx, all...)
	return strings.Join(results, ""), err
}

// semaphoreSlots cancels a waiter at the moment its slot is released.
func semaphoreSlots(ctx *replay.Context, _ string) (string, error) {
	two := replay.NewSemaphore(2)
	inner, cancel := replay.WithCancel(ctx)
	enter := func(ctx *replay.Context, name string, whileHeld func(*replay.Context)) {
		replay.Go(ctx, func(ctx *replay.Context) (string, error) {
			if err := two.Acquire(ctx); err != nil {
				logf(ctx, "%s: %v", name, err)
				return "", nil
			}
			logf(ctx, "%s is in", name)
			whileHeld(ctx)
			two.Release(ctx)
			return "", nil
		})
	}
	untilTick := func(ctx *replay.Context) { _, _ = tick.Wait(ctx) }
	cancelAfterTick := func(ctx *replay.Context) {
		untilTick(ctx)
		cancel()
	}
	enter(ctx, "a", cancelAfterTick)
	enter(ctx, "b", untilTick)
	enter(inner, "c", untilTick)
	enter(ctx, "d", untilTick)
	enter(inner, "e", untilTick)
	_, err := goOn.Wait(ctx)
	return "", err
}

// --- suspension ---

// patient records what it sees, and when.
func patient(ctx *replay.Context, _ string) (string, error) {
	a, b := act.Start(ctx, "a"), act.Start(ctx, "b")
	winner, err := replay.Race(ctx, a, b)
	if err != nil {
		return "", err
	}
	logf(ctx, "%d at %s, done %t %t", winner, ctx.Now().Format(time.TimeOnly), a.Done(), b.Done())
	text, err := answer.WaitFor(ctx, time.Minute)
	return text, err
}

// suspendable has a scope with a timeout.
func suspendable(ctx *replay.Context, _ string) (string, error) {
	inner, cancel := replay.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := act.Call(inner, "x")
	logf(ctx, "%v", err)
	_, err = goOn.Wait(ctx)
	return "done", err
}

// --- retries of runs ---

// retried does what each number says, after an event whose data is that number.
func retried(ctx *replay.Context, input string) (string, error) {
	logf(ctx, "%s: attempt %d in execution %d", input, ctx.Attempt(), ctx.Execution())
	ctx.OnClose(func(ctx *replay.Context, err error) error {
		logf(ctx, "cleans up after %v", err)
		return nil
	})
	act.Start(ctx, "open")
	what, err := tick.Wait(ctx)
	if err != nil {
		return "", err
	}
	if err := replay.SetStatus(ctx, what); err != nil {
		return "", err
	}
	switch what {
	case 0:
		return "", errors.New("failed")
	case 1:
		return "", replay.NonRetryable(errors.New("failed for good"))
	case 2:
		panic("failed")
	case 3:
		return "", replay.Orchestration[string, string]("retried").ContinueAsNew(ctx, "next")
	}
	return input, nil
}

// retries awaits children with retry policies.
func retries(ctx *replay.Context, _ string) (string, error) {
	open := child.Start(ctx, "default", replay.Retry(replay.RetryPolicy{}))
	first, err := child.Call(ctx, "twice", replay.Retry(replay.RetryPolicy{MaxAttempts: 2, NonRetryableCodes: []string{"sick"}}))
	if err != nil {
		return "", err
	}
	second, err := open.Await(ctx)
	return first + second, err
}
