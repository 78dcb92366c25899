package actors_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

const (
	rootID = "root"
	// forever is longer than any program runs.
	forever = time.Hour
	// eventsEach is how many events of each name are sent to a program.
	eventsEach = 6
	// attemptsMax is more than any step needs.
	attemptsMax = 5
	// violationPrefix begins the panic of a program that has seen a violation.
	violationPrefix = "broken rule: "
)

var (
	programHandle = replay.Orchestration[plan, string]("program")
	lingerHandle  = replay.Orchestration[string, string]("linger")
	stepHandle    = replay.Activity[step, string]("step")
	never         = replay.Event[int]("never")
	published     = replay.KV[int]("published")
	generationOf  = replay.Attribute[int]("generation")
)

// A plan is the input of a random program. It determines what the program does; a wild program
// also depends on the results that it gets.
//
// The result of a settled program depends only on its plan: it awaits all that it starts, each race
// has only one possible winner, and each coroutine that waits for events has its own name for them.
// A wild program does anything.
type plan struct {
	Seed             uint64
	Nondeterministic bool
	Path             string // where it was started: unique
	Depth            int    // of coroutines, scopes and children
	Generation       int
	AtDeadline       bool           // it ends only when it is canceled
	Results          string         // of earlier executions
	Consumed         map[string]int // how many events of each name they have taken
}

// A step is the input of an activity.
type step struct {
	Path    string
	Fails   int  // the number of attempts that fail
	Hangs   bool // they fail by a timeout
	Pending bool // the end comes from outside
	Final   bool // it ends with a final error
	Never   bool // it does not end by itself
}

// An interpreter runs one execution of a program.
type interpreter struct {
	world     *world
	plan      plan
	consumed  map[string]int
	sideTaken bool // the second event name is taken
	lock      *replay.Semaphore
}

func (w *world) program(ctx *replay.Context, p plan) (string, error) {
	in := &interpreter{world: w, plan: p, consumed: maps.Clone(p.Consumed), lock: replay.NewSemaphore(1)}
	if in.consumed == nil {
		in.consumed = make(map[string]int)
	}
	path := fmt.Sprint(p.Path, "/", p.Generation)
	if attempt := ctx.Attempt(); attempt > 1 { // another attempt does something else
		path += fmt.Sprint("/", attempt)
	}
	b := in.block(ctx, path)
	b.depth = p.Depth
	b.publishGeneration()
	if p.Path == rootID {
		b.event = "main"
	}
	b.statements(3 + b.random.IntN(7))
	b.awaitOpen()
	notes := p.Results + b.digest()
	if p.AtDeadline && (ctx.Err() != nil || p.Generation == 2 || b.chance(2)) {
		_, err := never.Wait(ctx)
		return "", err
	}
	switch n := b.random.IntN(10); {
	case p.AtDeadline:
		p.Generation, p.Results, p.Consumed = p.Generation+1, notes, in.consumed
		return "", programHandle.ContinueAsNew(ctx, p)
	case n == 0:
		panic("as planned: " + notes)
	case n == 1:
		return "", errors.New("as planned: " + notes)
	case n < 6 && p.Generation < 2:
		p.Generation, p.Results, p.Consumed = p.Generation+1, notes, in.consumed
		return "", programHandle.ContinueAsNew(ctx, p)
	}
	return notes, ctx.Err()
}

// publishGeneration records the generation in a key-value map and an attribute. It finds what the
// previous execution of the run has recorded: the failed attempt if this is a retry.
func (b *block) publishGeneration() {
	generation := b.in.plan.Generation
	want := generation - 1
	if b.ctx.Attempt() > 1 {
		want = generation
	}
	previous, found, err := published.Get(b.ctx, "generation")
	b.require(err == nil && found == (want >= 0) && (!found || previous == want),
		"generation %d finds %d, %t, %v of the previous one", generation, previous, found, err)
	if err := errors.Join(published.Set(b.ctx, "generation", generation), generationOf.Set(b.ctx, generation)); err != nil {
		b.require(errors.Is(err, replay.ErrEvicting), "publish: %v", err)
	}
}

// linger waits until it is canceled, and then runs some more code.
func linger(ctx *replay.Context, path string) (string, error) {
	_, err := never.WaitFor(ctx, forever)
	if err != nil {
		_, _ = stepHandle.Call(replay.WithoutCancel(ctx), step{Path: path + "/leave"})
	}
	return "", err
}

// A block is a sequence of statements in one coroutine.
type block struct {
	in      *interpreter
	ctx     *replay.Context
	path    string
	random  *rand.Rand
	event   string // the name of the events that it may wait for
	depth   int
	paths   int // how many paths it has assigned
	open    []*replay.Future[string]
	results []string
}

func (in *interpreter) block(ctx *replay.Context, path string) *block {
	hash := fnv.New64a()
	hash.Write([]byte(path))
	return &block{in: in, ctx: ctx, path: path, random: rand.New(rand.NewPCG(in.plan.Seed, hash.Sum64()))}
}

func (b *block) nextPath() string {
	b.paths++
	return fmt.Sprint(b.path, ".", b.paths)
}

func (b *block) chance(n int) bool { return b.random.IntN(n) == 0 }

// addResult keeps a result. It keeps only the kind of an error, because the text may contain
// event_ids.
func (b *block) addResult(value any, err error) {
	switch {
	case errors.Is(err, replay.ErrCanceled):
		value = "canceled"
	case errors.Is(err, replay.ErrTimeout):
		value = "timeout"
	case err != nil:
		value = "failed"
	}
	text := fmt.Sprint(value)
	b.results = append(b.results, text)
	if b.in.plan.Nondeterministic && len(text)%2 == 0 {
		b.random.Uint64() // results determine what comes next
	}
}

// require fails the instance if a condition does not hold. The test fails only if that is
// recorded: in a turn that is discarded after a change of leader, the code may see events that are
// never committed.
func (b *block) require(ok bool, format string, args ...any) {
	if !ok {
		panic(violationPrefix + fmt.Sprintf(format, args...))
	}
}

// digest returns a short summary of a block, so that it does not grow with nesting.
func (b *block) digest() string {
	hash := fnv.New32a()
	hash.Write([]byte(strings.Join(b.results, ";")))
	return fmt.Sprintf("(%d:%x)", len(b.results), hash.Sum32())
}

// awaitOpen awaits all open operations of a settled program.
func (b *block) awaitOpen() {
	if b.in.plan.Nondeterministic {
		return
	}
	for _, f := range b.open {
		b.addResult(f.Await(b.ctx))
	}
	b.open = nil
}

func (b *block) statements(n int) {
	for range n {
		if b.in.plan.Nondeterministic && b.chance(3) {
			b.nondeterministic()
		} else {
			b.statement()
		}
	}
}

func (b *block) statement() {
	switch b.random.IntN(21) {
	case 0, 1, 2:
		b.addResult(stepHandle.Call(b.ctx, b.step(), b.retries()...))
	case 3, 4, 5:
		b.open = append(b.open, b.start())
	case 6:
		b.addResult(nil, b.ctx.Sleep(b.seconds()))
	case 7, 8, 9:
		b.takeEvent()
	case 10, 11:
		b.compose()
	case 12, 13:
		b.race()
	case 14, 15, 16:
		b.scope()
	case 17:
		if len(b.open) > 0 {
			b.addResult(b.open[b.random.IntN(len(b.open))].Await(b.ctx))
		}
	case 18:
		b.sendMessage()
	default:
		b.recordSync()
	}
}

// sendMessage sends an event that no code waits for to the root, which surely runs only if this is
// its code, or to an instance that does not exist.
func (b *block) sendMessage() {
	receiver := "missing"
	if b.in.plan.Nondeterministic || b.in.plan.Path == rootID {
		receiver = rootID
	}
	if b.chance(4) {
		receiver = "missing"
	}
	err := replay.Event[string]("note").SendTo(b.ctx, receiver, b.nextPath())
	b.require(receiver == rootID || err != nil, "sent to a missing instance")
	b.addResult("sent", err)
}

func (b *block) seconds() time.Duration { return time.Duration(b.random.IntN(3)) * time.Second }

func (b *block) step() step {
	s := step{Path: b.nextPath()}
	switch b.random.IntN(6) {
	case 0:
		s.Fails = 1 + b.random.IntN(3)
	case 1:
		s.Fails, s.Hangs = 1, true
	case 2:
		s.Pending = true
	case 3:
		s.Final = b.chance(2)
	}
	return s
}

// retries returns options with which every step ends.
func (b *block) retries() []replay.Option {
	options := []replay.Option{
		replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: attemptsMax}),
		replay.StartToClose(time.Minute),
	}
	limits := []replay.Option{
		replay.ScheduleToClose(forever), replay.ScheduleToStart(forever), replay.HeartbeatTimeout(2 * time.Second),
	}
	return append(options, limits[:b.random.IntN(len(limits)+1)]...)
}

// start starts an operation that ends by itself.
func (b *block) start() *replay.Future[string] {
	n := b.random.IntN(6)
	switch {
	case n == 0 && b.depth > 0:
		return b.child()
	case n < 3 && b.depth > 0:
		inner := b.in.block(nil, b.nextPath())
		inner.depth = b.depth - 1
		if b.event != "" && !b.in.sideTaken {
			b.in.sideTaken, inner.event = true, "side"
		}
		return replay.Go(b.ctx, func(ctx *replay.Context) (string, error) {
			inner.ctx = ctx
			inner.statements(1 + inner.random.IntN(3))
			inner.awaitOpen()
			return inner.digest(), nil
		})
	}
	return stepHandle.Start(b.ctx, b.step(), b.retries()...)
}

func (b *block) child() *replay.Future[string] {
	p := plan{Seed: b.in.plan.Seed, Nondeterministic: b.in.plan.Nondeterministic, Path: b.nextPath(), Depth: b.depth - 1}
	options := b.childOptions(p.Path)
	if b.chance(2) {
		options = append(options, replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: 1 + b.random.IntN(3)}))
	}
	return programHandle.Start(b.ctx, p, options...)
}

func (b *block) childOptions(path string) []replay.Option {
	policies := []replay.ClosePolicy{replay.CancelChild, replay.TerminateChild, replay.AbandonChild}
	options := []replay.Option{replay.OnParentClose(policies[b.random.IntN(len(policies))])}
	if b.chance(2) {
		options = append(options, replay.ChildID(path))
	}
	return options
}

// takeEvent waits for the next event. The events of one name are sent in order.
func (b *block) takeEvent() {
	if b.event == "" || b.in.consumed[b.event] == eventsEach {
		return
	}
	var value int
	var err error
	if b.in.plan.Nondeterministic {
		value, err = replay.Event[int](b.event).WaitFor(b.ctx, b.seconds())
	} else {
		value, err = replay.Event[int](b.event).Wait(b.ctx)
	}
	b.addResult(value, err)
	if err == nil {
		b.in.consumed[b.event]++
		b.require(b.in.plan.Nondeterministic || value == b.in.consumed[b.event], "event %s %d, want %d", b.event, value, b.in.consumed[b.event])
	}
}

// compose starts several operations and waits for all of them.
func (b *block) compose() {
	futures := make([]*replay.Future[string], b.random.IntN(4))
	for i := range futures {
		futures[i] = b.start()
	}
	switch b.random.IntN(4) {
	case 0:
		results, err := replay.All(b.ctx, futures...)
		b.addResult(results, err)
	case 1:
		results, err := replay.AllResults(b.ctx, futures...)
		b.addResult(len(results), err)
	case 2:
		var results []string
		for i, f := range replay.AsCompleted(b.ctx, futures...) {
			b.require(f.Done(), "completed and not done")
			results = append(results, fmt.Sprint(i))
		}
		slices.Sort(results)
		b.addResult(results, nil)
	case 3:
		steps := make([]step, len(futures))
		for i := range steps {
			steps[i] = step{Path: b.nextPath()}
		}
		results, err := replay.Map(b.ctx, 2, steps, func(ctx *replay.Context, s step) (string, error) {
			return stepHandle.Call(ctx, s)
		})
		b.addResult(results, err)
	}
	b.open = append(b.open, futures...)
}

// endless starts an operation that does not end by itself.
func (b *block) endless() replay.Awaitable {
	switch b.random.IntN(4) {
	case 0:
		return stepHandle.Start(b.ctx, step{Path: b.nextPath(), Never: true})
	case 1:
		path := b.nextPath()
		return lingerHandle.Start(b.ctx, path, b.childOptions(path)...)
	case 2:
		return never.Subscribe(b.ctx)
	}
	return b.ctx.Timer(forever)
}

// race starts a race with only one possible winner.
func (b *block) race() {
	operations := []replay.Awaitable{b.endless(), b.endless()}
	winner := b.random.IntN(3)
	operations = slices.Insert(operations, winner, replay.Awaitable(b.start()))
	index, err := replay.Race(b.ctx, operations...)
	b.require(err != nil || index == winner || b.in.plan.Nondeterministic, "%d has won, and not %d", index, winner)
	b.addResult(index, err)
}

// scope runs some statements in a scope of their own.
func (b *block) scope() {
	outer, open, burst := b.ctx, b.open, b.depth
	end := func() {}
	switch b.random.IntN(4) {
	case 0:
		b.ctx, end = replay.WithCancel(outer)
	case 1:
		b.ctx, end = replay.WithTimeout(outer, forever)
	case 2:
		b.ctx = replay.WithoutCancel(outer)
	case 3:
		limited, stop := replay.WithTimeout(outer, b.seconds())
		b.addResult(never.Wait(limited))
		stop()
		return
	}
	b.open = nil
	if b.depth > 0 {
		b.depth--
		b.statements(1 + b.random.IntN(3))
	}
	b.awaitOpen()
	if b.chance(2) {
		inner, cancel := replay.WithCancel(b.ctx)
		f := stepHandle.Start(inner, step{Path: b.nextPath(), Never: true})
		b.addResult(nil, inner.Sleep(b.seconds()))
		cancel()
		b.addResult(f.Await(inner))
	}
	end()
	b.addResult(nil, b.ctx.Err())
	b.ctx, b.depth, b.open = outer, burst, append(open, b.open...)
}

// recordSync makes a call that completes at once.
func (b *block) recordSync() {
	switch b.random.IntN(7) {
	case 0:
		_, err := replay.SideEffect(b.ctx, "once", b.in.world.sideEffect)
		b.addResult("once", err)
	case 1:
		b.addResult(replay.Patched(b.ctx, fmt.Sprint("p", b.random.IntN(3))), nil)
	case 2:
		b.addResult(nil, replay.SetStatus(b.ctx, b.path))
	case 3:
		last := b.nextPath()
		b.ctx.OnClose(func(ctx *replay.Context, _ error) error {
			_, err := stepHandle.Call(ctx, step{Path: last})
			return err
		})
	case 4:
		_, _ = b.ctx.Random(), b.ctx.UUID()
	case 5:
		if err := b.in.lock.Acquire(b.ctx); err == nil {
			b.addResult(nil, b.ctx.Sleep(b.seconds()))
			b.in.lock.Release(b.ctx)
		}
	case 6:
		p := plan{Seed: b.in.plan.Seed, Nondeterministic: b.in.plan.Nondeterministic, Path: b.nextPath()}
		b.addResult(nil, programHandle.Chain(b.ctx, p, replay.ChildID(p.Path)))
	}
}

// nondeterministic makes a call whose result depends on the order of events.
func (b *block) nondeterministic() {
	switch b.random.IntN(6) {
	case 0:
		b.addResult(b.start().AwaitFor(b.ctx, b.seconds()))
	case 1:
		if len(b.open) > 0 {
			b.open[b.random.IntN(len(b.open))].Cancel(b.ctx)
		}
	case 2:
		b.start().Cancel(b.ctx)
	case 3:
		b.endless()
	case 4:
		operations := []replay.Awaitable{b.ctx.Timer(b.seconds()), b.start(), b.start(), replay.Event[int]("main").Subscribe(b.ctx)}
		index, err := replay.Next(b.ctx, operations[:1+b.random.IntN(4)]...)
		b.addResult(index, err)
	case 5:
		operations := []replay.Awaitable{b.ctx.Timer(b.seconds()), b.start(), replay.Event[int]("side").Subscribe(b.ctx), b.child()}
		b.random.Shuffle(4, func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
		index, err := replay.Race(b.ctx, operations...)
		b.addResult(index, err)
	}
}
