package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A programEnv is the environment of a random program, shared by its executions.
type programEnv struct {
	t           *testing.T
	seed        uint64
	calls       int    // of functions given to SideEffect
	patches     bool   // the code has patches
	noMarkers   bool   // no history has a marker
	incarnation uint64 // of the run
	unshifted   bool   // the code uses nothing that depends on event IDs or on the identity of the run

	cancelSeen map[int]bool // by execution: the code has observed a cancellation
}

var scriptHandle = replay.Orchestration[int, string]("script")

func (p *programEnv) registry(t *testing.T) *engine.Registry {
	return registryOf(t, scriptHandle.Bind(func(ctx *replay.Context, generation int) (string, error) {
		in := &interpreter{env: p, seed: p.seed + uint64(generation)<<32 + uint64(ctx.Attempt()-1)<<40, generation: generation, execution: int(ctx.Execution()), lock: replay.NewSemaphore(1 + int(p.seed%2)), channel: replay.NewChannel[string](int(p.seed % 3))}
		p.cancelSeen[in.execution] = false
		return in.run(ctx)
	}))
}

// An interpreter executes random statements. They depend only on the seed and on the results so
// far. It records and returns all that it sees, so any difference shows in the history.
type interpreter struct {
	env        *programEnv
	seed       uint64
	generation int
	execution  int
	notes      []string
	closers    int
	lock       *replay.Semaphore
	channel    *replay.Channel[string]
}

// noteCancel records whether an error is the cancellation of the instance.
func (in *interpreter) noteCancel(err error) error {
	var canceled *replay.CanceledError
	if errors.As(err, &canceled) {
		in.env.cancelSeen[in.execution] = true
	}
	return err
}

func (in *interpreter) run(ctx *replay.Context) (string, error) {
	b := &block{in: in, ctx: ctx, name: "m", random: rand.New(rand.NewPCG(in.seed, 1))}
	if b.random.IntN(2) == 0 {
		defer func() {
			_, err := act.Call(ctx, "deferred")
			_ = in.noteCancel(err)
		}()
	}
	b.statements(5+b.random.IntN(20), 2)
	notes := strings.Join(in.notes, ";")
	switch n := b.random.IntN(8); {
	case n == 0:
		panic(notes)
	case n == 1:
		return "", errors.Join(errors.New(notes), in.noteCancel(ctx.Err()))
	case n < 5 && in.generation < 2:
		return "", scriptHandle.ContinueAsNew(ctx, in.generation+1)
	}
	return notes, in.noteCancel(ctx.Err())
}

// A block is a sequence of statements in one coroutine.
type block struct {
	in     *interpreter
	ctx    *replay.Context
	own    *replay.Context // of its coroutine; ctx may differ in between
	name   string
	random *rand.Rand
	open   []*replay.Future[string]
	inner  map[*replay.Future[string]]*block // the coroutines among them
	depth  int
}

func (b *block) note(format string, args ...any) {
	b.in.notes = append(b.in.notes, b.name+":"+fmt.Sprintf(format, args...))
}

func (b *block) noteResult(value any, err error) {
	if err != nil {
		value = b.in.noteCancel(err)
		if b.in.env.unshifted {
			value = "error" // errors name event IDs
		}
	}
	b.note("%v", value)
	// Results decide what comes next.
	if len(fmt.Sprint(value))%2 == 0 {
		b.random.Uint64()
	}
}

func (b *block) check(cond bool, otherwise string) {
	if !cond {
		b.in.env.t.Error(otherwise)
	}
}

func (b *block) statements(n, depth int) {
	b.depth = depth
	for range n {
		b.statement()
	}
}

func (b *block) statement() {
	switch b.random.IntN(27) {
	case 0, 1, 2:
		b.open = append(b.open, b.start())
	case 3:
		b.noteResult(b.start().Await(b.ctx))
	case 4:
		b.noteResult(nil, b.ctx.Sleep(b.seconds()))
	case 5:
		b.noteResult(b.event().WaitFor(b.ctx, time.Second))
	case 6:
		b.noteResult(b.start().AwaitFor(b.ctx, time.Second))
	case 7:
		if f := b.randomFuture(); f != nil {
			result, err := f.Await(b.ctx)
			b.noteResult(result, err)
			b.check(err != nil || f.Done(), "awaited and not done")
		}
	case 8:
		if f := b.randomFuture(); f != nil {
			f.Cancel(b.ctx)
			b.checkCanceled(f)
		}
	case 9:
		b.start().Cancel(b.ctx)
	case 10:
		b.note("at %v, %t", b.ctx.Now().Sub(begin), b.ctx.ShouldContinueAsNew())
	case 11, 12, 13, 14:
		b.compose()
	case 15, 16, 17:
		b.scope()
	case 18:
		b.noteResult(nil, b.sendMessage())
	default:
		b.record()
	}
}

func (b *block) sendMessage() error {
	if b.random.IntN(2) == 0 {
		return b.event().SendTo(b.ctx, "receiver", "x")
	}
	return replay.CancelInstance(b.ctx, "receiver", "enough")
}

// checkCanceled checks that a canceled future, or the loser of a race, is done, or is a coroutine
// whose scope has ended.
func (b *block) checkCanceled(f *replay.Future[string]) {
	inner := b.inner[f]
	b.check(f.Done() || inner != nil && (inner.own == nil || b.in.noteCancel(inner.own.Err()) != nil), "canceled, and goes on")
}

// compose waits for several operations at once.
func (b *block) compose() {
	switch b.random.IntN(6) {
	case 0:
		operations := b.randomOperations()
		winner, err := replay.Race(b.ctx, operations...)
		b.noteResult(winner, err)
		b.check(err != nil || winner >= 0, "a race without a winner")
		for i, operation := range operations {
			if f, ok := operation.(*replay.Future[string]); ok && err == nil && operation != operations[winner] {
				b.check(i != winner, "a loser that wins")
				b.checkCanceled(f)
			}
		}
	case 1:
		winner, err := replay.Next(b.ctx, b.randomOperations()...)
		b.noteResult(winner, err)
		b.check(err != nil || winner >= 0, "next of none")
	case 2:
		results, err := replay.All(b.ctx, b.open...)
		b.noteResult(strings.Join(results, ","), err)
	case 3:
		results, err := replay.AllResults(b.ctx, b.open...)
		b.noteResult(len(results), err)
	case 4:
		for i, f := range replay.AsCompleted(b.ctx, b.open...) {
			b.check(f.Done(), "completed and not done")
			b.note("%d", i)
			if b.random.IntN(4) == 0 {
				break
			}
		}
	case 5:
		inputs := make([]int, b.random.IntN(4))
		results, err := replay.Map(b.ctx, b.random.IntN(3), inputs, func(ctx *replay.Context, _ int) (string, error) {
			result, err := act.Call(ctx, "mapped")
			return result, b.in.noteCancel(err)
		})
		b.noteResult(strings.Join(results, ","), err)
	}
}

// scope executes some statements in an inner scope.
func (b *block) scope() {
	outer := b.ctx
	cancel := func() {}
	switch b.random.IntN(4) {
	case 0:
		b.ctx, cancel = replay.WithCancel(outer)
	case 1:
		b.ctx, cancel = replay.WithTimeout(outer, b.seconds())
	case 2:
		b.ctx = replay.WithoutCancel(outer)
	case 3:
		if b.random.IntN(2) == 0 {
			b.withSemaphore()
		} else {
			b.awaitNotes()
		}
		return
	}
	if b.depth > 0 {
		depth := b.depth
		b.statements(1+b.random.IntN(3), depth-1)
		b.depth = depth
	}
	if b.random.IntN(3) > 0 {
		cancel()
	}
	b.note("scope %v in %v", b.in.noteCancel(b.ctx.Err()), b.in.noteCancel(outer.Err()))
	b.ctx = outer
}

// withSemaphore executes statements while holding a slot.
func (b *block) withSemaphore() {
	if err := b.in.lock.Acquire(b.ctx); err != nil {
		b.note("no place: %v", b.in.noteCancel(err))
		return
	}
	defer b.in.lock.Release(b.ctx)
	b.noteResult(nil, b.ctx.Sleep(b.seconds()))
}

// awaitNotes waits until other coroutines have noted more, or passes a note to the next coroutine
// that receives one.
func (b *block) awaitNotes() {
	switch enough := len(b.in.notes) + 1 + b.random.IntN(3); b.random.IntN(3) {
	case 0:
		b.noteResult(nil, replay.AwaitFor(b.ctx, b.seconds(), func() bool { return len(b.in.notes) >= enough }))
	case 1:
		inner, cancel := replay.WithTimeout(b.ctx, b.seconds())
		b.noteResult(nil, b.in.channel.Send(inner, b.name))
		cancel()
	case 2:
		inner, cancel := replay.WithTimeout(b.ctx, b.seconds())
		from, _, err := b.in.channel.Receive(inner)
		b.noteResult(from, err)
		cancel()
	}
}

// record makes a call that needs no completion.
func (b *block) record() {
	w := b.in.env
	switch b.random.IntN(10) {
	case 0:
		b.noteResult(replay.SideEffect(b.ctx, "once", func() (int, error) { w.calls++; return w.calls, nil }))
	case 1:
		_, err := replay.SideEffect(b.ctx, "fails", func() (int, error) { w.calls++; return 0, fmt.Errorf("call %d", w.calls) })
		b.noteResult(nil, err)
	case 2, 3:
		b.patched(fmt.Sprint("p", b.random.IntN(4)))
	case 4:
		b.noteResult(nil, replay.SetStatus(b.ctx, len(b.in.notes)))
	case 5:
		b.onClose()
	case 6:
		if !w.unshifted {
			b.note("%d %s", b.ctx.Random().IntN(100), b.ctx.UUID())
		}
	case 7:
		b.noteResult(nil, child.Chain(b.ctx, "x", b.childOptions()...))
	case 8:
		b.noteResult(nil, b.publish())
	case 9:
		value, ok, err := stock.Get(b.ctx, b.key())
		b.note("%t %q", ok, stock.Keys(b.ctx))
		b.noteResult(value, err)
	}
}

func (b *block) key() string { return fmt.Sprint("k", b.random.IntN(3)) }

// publish sets or removes an attribute or a value. The next execution has them too.
func (b *block) publish() error {
	switch b.random.IntN(5) {
	case 0:
		return region.Set(b.ctx, b.key())
	case 1:
		return region.Remove(b.ctx)
	case 2:
		return stock.Delete(b.ctx, b.key())
	}
	return stock.Set(b.ctx, b.key(), len(b.in.notes))
}

// patched calls Patched, and does more if it returns true.
func (b *block) patched(id string) {
	w := b.in.env
	if !w.patches {
		return
	}
	if replay.Patched(b.ctx, id) {
		b.check(!w.noMarkers, "a history without markers is patched")
		b.note("patched %s", id)
		b.open = append(b.open, b.start())
	}
}

// onClose registers a clean-up function that reports its call, and may work, fail or panic.
func (b *block) onClose() {
	in := b.in
	in.closers++
	name, mode, work, waits := in.closers, b.random.IntN(8), b.random.IntN(2) == 0, b.random.IntN(3)
	if err := replay.SetStatus(b.ctx, fmt.Sprint("registers ", name)); err != nil {
		return
	}
	b.ctx.OnClose(func(ctx *replay.Context, err error) error {
		_ = replay.SetStatus(ctx, fmt.Sprint("closes ", name))
		if work {
			_, err = act.Call(ctx, fmt.Sprint("clean up ", err != nil))
		}
		switch {
		case waits == 0 && in.lock.Acquire(ctx) == nil:
			defer in.lock.Release(ctx)
		case waits == 1:
			for f := range b.inner { // all have ended: the order does not matter
				b.check(f.Done(), "a coroutine goes on after the end of the body")
				_, _ = f.Await(ctx)
			}
		}
		switch mode {
		case 0:
			return errors.Join(errors.New("not cleaned up"), err)
		case 1:
			act.Start(ctx, "left")
			panic(fmt.Sprint("clean-up ", name))
		case 2:
			replay.Go(ctx, func(ctx *replay.Context) (int, error) { return 0, ctx.Sleep(0) })
		}
		return nil
	})
}

func (b *block) seconds() time.Duration { return time.Duration(b.random.IntN(3)) * time.Second }

func (b *block) childOptions() []replay.Option {
	options := [][]replay.Option{
		nil, {replay.ChildID(fmt.Sprint("chosen-", b.random.IntN(3)))}, {replay.OnParentClose(replay.AbandonChild)}, {replay.Version("2")},
	}
	return options[b.random.IntN(len(options))]
}

// start starts an operation whose result is a string.
func (b *block) start() *replay.Future[string] {
	switch n := b.random.IntN(8); {
	case n < 3:
		return act.Start(b.ctx, fmt.Sprint(b.random.IntN(3)))
	case n < 5:
		return child.Start(b.ctx, "c", b.childOptions()...)
	case n < 7 || b.depth == 0:
		return b.event().Subscribe(b.ctx)
	}
	b.in.seed++ // each coroutine has its own random numbers
	inner := &block{in: b.in, name: fmt.Sprint(b.name, len(b.open)), random: rand.New(rand.NewPCG(b.in.seed, 3))}
	depth := b.depth
	f := replay.Go(b.ctx, func(ctx *replay.Context) (string, error) {
		inner.ctx, inner.own = ctx, ctx
		inner.statements(1+inner.random.IntN(4), depth-1)
		return "end of " + inner.name, nil
	})
	if b.inner == nil {
		b.inner = make(map[*replay.Future[string]]*block)
	}
	b.inner[f] = inner
	return f
}

func (b *block) event() replay.EventHandle[string] {
	return replay.Event[string](eventNames[b.random.IntN(len(eventNames))])
}

func (b *block) randomFuture() *replay.Future[string] {
	if len(b.open) == 0 {
		return nil
	}
	return b.open[b.random.IntN(len(b.open))]
}

func (b *block) randomOperations() []replay.Awaitable {
	operations := []replay.Awaitable{b.ctx.Timer(b.seconds())}
	for range b.random.IntN(3) {
		if f := b.randomFuture(); f != nil {
			operations = append(operations, f)
		}
	}
	b.random.Shuffle(len(operations), func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
	return operations
}
