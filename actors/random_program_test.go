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
	// broken begins the panic of a program that has seen what must not be.
	broken = "broken rule: "
)

var (
	programHandle = replay.Orchestration[plan, string]("program")
	lingerHandle  = replay.Orchestration[string, string]("linger")
	stepHandle    = replay.Activity[step, string]("step")
	never         = replay.Event[int]("never")
)

// A plan is the input of a random program: what it does follows from it, and,
// if it is wild, from the results that it gets.
//
// What a settled program returns depends on nothing but its plan: it awaits all
// that it starts, its races have one winner that can be, and each of its
// coroutines that waits for events has a name for itself. A wild one does
// whatever there is to do.
type plan struct {
	Seed       uint64
	Wild       bool
	Path       string // where it was started: unique
	Depth      int    // of coroutines, scopes and children
	Generation int
	Notes      string         // of the generations before
	Taken      map[string]int // how many events of each name they have taken
}

// A step is the input of an activity.
type step struct {
	Path    string
	Fails   int  // so many attempts fail
	Hangs   bool // they fail by a limit of time
	Pending bool // the end comes from outside
	Final   bool // it comes to an error that is final
	Never   bool // it comes to no end by itself
}

// An interpreter runs one execution of a program.
type interpreter struct {
	world  *world
	plan   plan
	taken  map[string]int
	shared bool // the second name for events is taken
	lock   *replay.Semaphore
}

func (w *world) program(ctx *replay.Context, p plan) (string, error) {
	in := &interpreter{world: w, plan: p, taken: maps.Clone(p.Taken), lock: replay.NewSemaphore(1)}
	if in.taken == nil {
		in.taken = make(map[string]int)
	}
	b := in.block(ctx, fmt.Sprint(p.Path, "/", p.Generation))
	b.depth = p.Depth
	if p.Path == rootID {
		b.event = "main"
	}
	b.statements(3 + b.random.IntN(7))
	b.settle()
	notes := p.Notes + b.end()
	switch n := b.random.IntN(10); {
	case n == 0:
		panic("as planned: " + notes)
	case n == 1:
		return "", errors.New("as planned: " + notes)
	case n < 6 && p.Generation < 2:
		p.Generation, p.Notes, p.Taken = p.Generation+1, notes, in.taken
		return "", programHandle.ContinueAsNew(ctx, p)
	}
	return notes, ctx.Err()
}

// linger waits until it is cancelled, and takes its leave.
func linger(ctx *replay.Context, path string) (string, error) {
	_, err := never.WaitFor(ctx, forever)
	if err != nil {
		_, _ = stepHandle.Call(replay.WithoutCancel(ctx), step{Path: path + "/leave"})
	}
	return "", err
}

// A block is a stretch of statements in one coroutine.
type block struct {
	in     *interpreter
	ctx    *replay.Context
	path   string
	random *rand.Rand
	event  string // the name of the events that it may wait for
	depth  int
	parts  int // how many paths it has given out
	open   []*replay.Future[string]
	notes  []string
}

func (in *interpreter) block(ctx *replay.Context, path string) *block {
	hash := fnv.New64a()
	hash.Write([]byte(path))
	return &block{in: in, ctx: ctx, path: path, random: rand.New(rand.NewPCG(in.plan.Seed, hash.Sum64()))}
}

func (b *block) part() string {
	b.parts++
	return fmt.Sprint(b.path, ".", b.parts)
}

func (b *block) chance(n int) bool { return b.random.IntN(n) == 0 }

// note keeps a result. Of an error only its kind: the text may name event_ids.
func (b *block) note(value any, err error) {
	switch {
	case errors.Is(err, replay.ErrCanceled):
		value = "canceled"
	case errors.Is(err, replay.ErrTimeout):
		value = "timeout"
	case err != nil:
		value = "failed"
	}
	text := fmt.Sprint(value)
	b.notes = append(b.notes, text)
	if b.in.plan.Wild && len(text)%2 == 0 {
		b.random.Uint64() // results steer what comes next
	}
}

// must fails the instance if something does not hold. The test fails when that
// is recorded: in a turn that comes to nothing, since another node has taken the
// lead, the code may be shown what never was.
func (b *block) must(holds bool, otherwise string, args ...any) {
	if !holds {
		panic(broken + fmt.Sprintf(otherwise, args...))
	}
}

// end is what a block says of itself: short, so that it does not grow with
// each block around it.
func (b *block) end() string {
	hash := fnv.New32a()
	hash.Write([]byte(strings.Join(b.notes, ";")))
	return fmt.Sprintf("(%d:%x)", len(b.notes), hash.Sum32())
}

// settle awaits all that is open, if the program is a settled one.
func (b *block) settle() {
	if b.in.plan.Wild {
		return
	}
	for _, f := range b.open {
		b.note(f.Await(b.ctx))
	}
	b.open = nil
}

func (b *block) statements(n int) {
	for range n {
		if b.in.plan.Wild && b.chance(3) {
			b.wild()
		} else {
			b.statement()
		}
	}
}

func (b *block) statement() {
	switch b.random.IntN(20) {
	case 0, 1, 2:
		b.note(stepHandle.Call(b.ctx, b.step(), b.retries()...))
	case 3, 4, 5:
		b.open = append(b.open, b.start())
	case 6:
		b.note(nil, b.ctx.Sleep(b.seconds()))
	case 7, 8, 9:
		b.take()
	case 10, 11:
		b.compose()
	case 12, 13:
		b.race()
	case 14, 15, 16:
		b.scope()
	case 17:
		if len(b.open) > 0 {
			b.note(b.open[b.random.IntN(len(b.open))].Await(b.ctx))
		}
	default:
		b.record()
	}
}

func (b *block) seconds() time.Duration { return time.Duration(b.random.IntN(3)) * time.Second }

func (b *block) step() step {
	s := step{Path: b.part()}
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

// retries returns options under which every step comes to its end.
func (b *block) retries() []replay.ActivityOption {
	options := []replay.ActivityOption{
		replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: attemptsMax}),
		replay.StartToClose(time.Minute),
	}
	limits := []replay.ActivityOption{
		replay.ScheduleToClose(forever), replay.ScheduleToStart(forever), replay.HeartbeatTimeout(2 * time.Second),
	}
	return append(options, limits[:b.random.IntN(len(limits)+1)]...)
}

// start starts something that comes to its end by itself.
func (b *block) start() *replay.Future[string] {
	n := b.random.IntN(6)
	switch {
	case n == 0 && b.depth > 0:
		return b.child()
	case n < 3 && b.depth > 0:
		inner := b.in.block(nil, b.part())
		inner.depth = b.depth - 1
		if b.event != "" && !b.in.shared {
			b.in.shared, inner.event = true, "side"
		}
		return replay.Go(b.ctx, func(ctx *replay.Context) (string, error) {
			inner.ctx = ctx
			inner.statements(1 + inner.random.IntN(3))
			inner.settle()
			return inner.end(), nil
		})
	}
	return stepHandle.Start(b.ctx, b.step(), b.retries()...)
}

func (b *block) child() *replay.Future[string] {
	p := plan{Seed: b.in.plan.Seed, Wild: b.in.plan.Wild, Path: b.part(), Depth: b.depth - 1}
	return programHandle.Start(b.ctx, p, b.childOptions(p.Path)...)
}

func (b *block) childOptions(path string) []replay.ChildOption {
	policies := []replay.ClosePolicy{replay.CancelChild, replay.TerminateChild, replay.AbandonChild}
	options := []replay.ChildOption{replay.OnParentClose(policies[b.random.IntN(len(policies))])}
	if b.chance(2) {
		options = append(options, replay.ChildID(path))
	}
	return options
}

// take waits for the next event. Those of one name have been sent in order.
func (b *block) take() {
	if b.event == "" || b.in.taken[b.event] == eventsEach {
		return
	}
	var value int
	var err error
	if b.in.plan.Wild {
		value, err = replay.Event[int](b.event).WaitFor(b.ctx, b.seconds())
	} else {
		value, err = replay.Event[int](b.event).Wait(b.ctx)
	}
	b.note(value, err)
	if err == nil {
		b.in.taken[b.event]++
		b.must(b.in.plan.Wild || value == b.in.taken[b.event], "event %s %d, want %d", b.event, value, b.in.taken[b.event])
	}
}

// compose starts several things and waits for all of them.
func (b *block) compose() {
	several := make([]*replay.Future[string], b.random.IntN(4))
	for i := range several {
		several[i] = b.start()
	}
	switch b.random.IntN(4) {
	case 0:
		results, err := replay.All(b.ctx, several...)
		b.note(results, err)
	case 1:
		results, err := replay.Settle(b.ctx, several...)
		b.note(len(results), err)
	case 2:
		var results []string
		for i, f := range replay.AsCompleted(b.ctx, several...) {
			b.must(f.Done(), "completed and not done")
			results = append(results, fmt.Sprint(i))
		}
		slices.Sort(results)
		b.note(results, nil)
	case 3:
		steps := make([]step, len(several))
		for i := range steps {
			steps[i] = step{Path: b.part()}
		}
		results, err := replay.Map(b.ctx, 2, steps, func(ctx *replay.Context, s step) (string, error) {
			return stepHandle.Call(ctx, s)
		})
		b.note(results, err)
	}
	b.open = append(b.open, several...)
}

// endless starts something that comes to no end by itself.
func (b *block) endless() replay.Awaitable {
	switch b.random.IntN(4) {
	case 0:
		return stepHandle.Start(b.ctx, step{Path: b.part(), Never: true})
	case 1:
		path := b.part()
		return lingerHandle.Start(b.ctx, path, b.childOptions(path)...)
	case 2:
		return never.Subscribe(b.ctx)
	}
	return b.ctx.Timer(forever)
}

// race has one winner that can be.
func (b *block) race() {
	operations := []replay.Awaitable{b.endless(), b.endless()}
	winner := b.random.IntN(3)
	operations = slices.Insert(operations, winner, replay.Awaitable(b.start()))
	index, err := replay.Race(b.ctx, operations...)
	b.must(err != nil || index == winner || b.in.plan.Wild, "%d has won, and not %d", index, winner)
	b.note(index, err)
}

// scope performs some statements in a scope of their own.
func (b *block) scope() {
	outer, open, depth := b.ctx, b.open, b.depth
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
		b.note(never.Wait(limited))
		stop()
		return
	}
	b.open = nil
	if b.depth > 0 {
		b.depth--
		b.statements(1 + b.random.IntN(3))
	}
	b.settle()
	if b.chance(2) {
		inner, giveUp := replay.WithCancel(b.ctx)
		f := stepHandle.Start(inner, step{Path: b.part(), Never: true})
		b.note(nil, inner.Sleep(b.seconds()))
		giveUp()
		b.note(f.Await(inner))
	}
	end()
	b.note(nil, b.ctx.Err())
	b.ctx, b.depth, b.open = outer, depth, append(open, b.open...)
}

// record does what is complete in itself.
func (b *block) record() {
	switch b.random.IntN(7) {
	case 0:
		_, err := replay.Once(b.ctx, "once", b.in.world.once)
		b.note("once", err)
	case 1:
		b.note(replay.Patched(b.ctx, fmt.Sprint("p", b.random.IntN(3))), nil)
	case 2:
		b.note(nil, replay.SetStatus(b.ctx, b.path))
	case 3:
		last := b.part()
		b.ctx.OnClose(func(ctx *replay.Context, _ error) error {
			_, err := stepHandle.Call(ctx, step{Path: last})
			return err
		})
	case 4:
		_, _ = b.ctx.Random(), b.ctx.UUID()
	case 5:
		if err := b.in.lock.Acquire(b.ctx); err == nil {
			b.note(nil, b.ctx.Sleep(b.seconds()))
			b.in.lock.Release(b.ctx)
		}
	case 6:
		p := plan{Seed: b.in.plan.Seed, Wild: b.in.plan.Wild, Path: b.part()}
		b.note(nil, programHandle.Chain(b.ctx, p, replay.ChildID(p.Path)))
	}
}

// wild does what depends on who comes first.
func (b *block) wild() {
	switch b.random.IntN(6) {
	case 0:
		b.note(b.start().AwaitFor(b.ctx, b.seconds()))
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
		b.note(index, err)
	case 5:
		operations := []replay.Awaitable{b.ctx.Timer(b.seconds()), b.start(), replay.Event[int]("side").Subscribe(b.ctx), b.child()}
		b.random.Shuffle(4, func(i, j int) { operations[i], operations[j] = operations[j], operations[i] })
		index, err := replay.Race(b.ctx, operations...)
		b.note(index, err)
	}
}
