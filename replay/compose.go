package replay

import (
	"fmt"
	"iter"
	"sync/atomic"
)

// A Result is how one operation ended.
type Result[T any] struct {
	Value T
	Err   error
}

// Settle waits until every operation is complete and returns all results, in
// the order of the arguments, failed ones among them. The error is only that of
// the scope of ctx, if that ends before all are complete.
func Settle[T any](ctx *Context, futures ...*Future[T]) ([]Result[T], error) {
	results := make([]Result[T], len(futures))
	for i, f := range futures {
		if err := ctx.x.await(ctx, f.p); err != nil {
			return nil, err
		}
		results[i].Value, results[i].Err = f.result(ctx.x)
	}
	return results, nil
}

// AsCompleted yields the indexes of the futures and the futures themselves in
// the order in which they are completed, waiting for each; awaiting a yielded
// one returns at once. It ends early when the scope of ctx does: then
// ctx.Err() is not nil.
func AsCompleted[T any](ctx *Context, futures ...*Future[T]) iter.Seq2[int, *Future[T]] {
	return func(yield func(int, *Future[T]) bool) {
		ctx.x.running("AsCompleted")
		arrived := make([]*promise, 0, len(futures))
		index := make(map[*promise][]int, len(futures))
		gate := new(promise)
		for i, f := range futures {
			ctx.x.ownsAll("AsCompleted", f.p)
			index[f.p] = append(index[f.p], i)
			if len(index[f.p]) == 1 {
				ctx.x.notify(f.p, &arrived, &gate)
			}
		}
		for next := 0; next < len(index); next++ {
			if next == len(arrived) {
				gate = new(promise)
				if err := ctx.x.park(ctx, []*promise{gate}); err != nil {
					return
				}
			}
			if !ctx.scope.includes(arrived[next]) {
				return
			}
			for _, i := range index[arrived[next]] {
				if !yield(i, futures[i]) {
					return
				}
			}
		}
	}
}

// notify appends p to arrived when it is settled and settles the gate that is
// current then.
func (x *Execution) notify(p *promise, arrived *[]*promise, gate **promise) {
	arrive := func() {
		*arrived = append(*arrived, p)
		if (*gate).pending() {
			x.settle(*gate)
		}
	}
	if !p.pending() {
		at := len(*arrived)
		for at > 0 && (*arrived)[at-1].settled > p.settled {
			at--
		}
		*arrived = append(*arrived, nil)
		copy((*arrived)[at+1:], (*arrived)[at:])
		(*arrived)[at] = p
		return
	}
	p.onSettled = append(p.onSettled, arrive)
}

// Err returns why the scope of c has ended: [ErrCanceled] or [ErrTimeout]; nil
// while it has not.
func (c *Context) Err() error {
	if c.x.dropping {
		return ErrDehydrating
	}
	return c.x.told(c.scope.err())
}

// Map calls fn for each input in a coroutine of its own, at most limit at a
// time, and returns the results in the order of the inputs. At the first error
// the others' scope ends, and Map returns that error when all have returned; it is
// that of the scope of ctx if that ends first. A limit below 1 is no limit.
func Map[I, O any](ctx *Context, limit int, inputs []I, fn func(ctx *Context, input I) (O, error)) ([]O, error) {
	if limit < 1 || limit > len(inputs) {
		limit = len(inputs)
	}
	scope, cancel := WithCancel(ctx)
	results := make([]O, len(inputs))
	next := 0
	var first error
	work := func(*Context) (struct{}, error) {
		for next < len(inputs) && scope.scope.err() == nil {
			i := next
			next++
			output, err := fn(scope, inputs[i])
			if ended := ctx.scope.err(); ended != nil {
				err = ended
			}
			if err != nil && first == nil {
				first = err
				cancel()
			}
			results[i] = output
		}
		return struct{}{}, nil
	}
	workers := make([]*Future[struct{}], limit)
	for i := range workers {
		workers[i] = Go(ctx, work)
	}
	if _, err := Settle(WithoutCancel(ctx), workers...); err != nil {
		return nil, err
	}
	if first == nil && next < len(inputs) {
		first = ctx.scope.err() // before any worker began
	}
	if first != nil {
		return nil, ctx.x.told(first)
	}
	return results, nil
}

// A Semaphore bounds how many coroutines of one instance are in a stretch of
// code at once. One with a single place is a mutex. Coroutines run one at a time
// anyway; it is for stretches in which they block. It belongs to the first
// execution that uses it; any other that does stalls, see [ForeignFuture].
type Semaphore struct {
	owner   atomic.Pointer[Execution]
	places  int
	free    int
	waiting []*promise
}

// NewSemaphore returns a semaphore with that many places, at least 1.
func NewSemaphore(places int) *Semaphore {
	places = max(places, 1)
	return &Semaphore{places: places, free: places}
}

// Acquire waits for a place, first come, first served. The error is that of the
// scope of ctx; then no place is taken.
func (s *Semaphore) Acquire(ctx *Context) error {
	s.use(ctx.x, "Acquire")
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.free > 0 {
		s.free--
		return nil
	}
	place := new(promise)
	s.waiting = append(s.waiting, place)
	err := ctx.x.await(ctx, place)
	if err == nil {
		return nil
	}
	if !place.pending() {
		// The place came in the same moment: it is the next one's.
		s.Release(ctx)
		return err
	}
	for i := range s.waiting {
		if s.waiting[i] == place {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			break
		}
	}
	return err
}

// Release gives a place back. It panics if no place is taken, as [sync.Mutex.Unlock] does:
// a place more would let in more coroutines than there are places.
func (s *Semaphore) Release(ctx *Context) {
	s.use(ctx.x, "Release")
	if s.free == s.places {
		if ctx.x.dropping {
			return // Acquire has taken none, and code that does not look at its error is ending
		}
		panic(fmt.Sprintf("tenuto: Release of a Semaphore without Acquire, in instance %q: all its places are free", ctx.x.instance))
	}
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	place := s.waiting[0]
	s.waiting = s.waiting[1:]
	ctx.x.settle(place)
}

// use begins an operation of the semaphore. It does not return where durable calls may not be
// made, or when the semaphore belongs to another execution.
func (s *Semaphore) use(x *Execution, what string) {
	x.running(what)
	if !s.owner.CompareAndSwap(nil, x) {
		x.owns(what, "semaphore", s.owner.Load())
	}
}
