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

// AllResults waits until every operation is complete and returns all results, including failed
// ones, in the order of the arguments. It returns an error only if the scope of ctx ends first.
func AllResults[T any](ctx *Context, futures ...*Future[T]) ([]Result[T], error) {
	results := make([]Result[T], len(futures))
	for i, f := range futures {
		if err := ctx.x.await(ctx, f.p); err != nil {
			return nil, err
		}
		results[i].Value, results[i].Err = f.result(ctx.x)
	}
	return results, nil
}

// AsCompleted yields the indexes and futures in the order of completion, waiting for each; awaiting
// a yielded future returns at once. The sequence ends early if the scope of ctx ends; then
// ctx.Err() is not nil.
func AsCompleted[T any](ctx *Context, futures ...*Future[T]) iter.Seq2[int, *Future[T]] {
	return func(yield func(int, *Future[T]) bool) {
		ctx.x.currentCoroutine("AsCompleted")
		arrived := make([]*promise, 0, len(futures))
		index := make(map[*promise][]int, len(futures))
		wakeup := new(promise)
		for i, f := range futures {
			ctx.x.checkOwners("AsCompleted", f.p)
			index[f.p] = append(index[f.p], i)
			if len(index[f.p]) == 1 {
				ctx.x.collectResolved(f.p, &arrived, &wakeup)
			}
		}
		for next := 0; next < len(index); next++ {
			if next == len(arrived) {
				wakeup = new(promise)
				if err := ctx.x.park(ctx, []*promise{wakeup}); err != nil {
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

// collectResolved appends p to arrived when p is resolved, and then resolves the current wakeup
// promise.
func (x *Execution) collectResolved(p *promise, arrived *[]*promise, wakeup **promise) {
	arrive := func() {
		*arrived = append(*arrived, p)
		if (*wakeup).pending() {
			x.resolve(*wakeup)
		}
	}
	if !p.pending() {
		at := len(*arrived)
		for at > 0 && (*arrived)[at-1].resolvedSeq > p.resolvedSeq {
			at--
		}
		*arrived = append(*arrived, nil)
		copy((*arrived)[at+1:], (*arrived)[at:])
		(*arrived)[at] = p
		return
	}
	p.onResolved = append(p.onResolved, arrive)
}

// Err returns why the scope of c has ended, [ErrCanceled] or [ErrTimeout], or nil while it has not.
func (c *Context) Err() error {
	if c.x.evicting {
		return ErrEvicting
	}
	return c.x.observeCancel(c.scope.err())
}

// Map calls fn for each input in its own coroutine, at most limit at a time, and returns the
// results in the order of the inputs. The first error ends the scope of the other calls; Map
// returns that error after all calls have returned. If the scope of ctx ends first, Map returns the
// error of that scope. A limit below 1 means no limit.
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
	if _, err := AllResults(WithoutCancel(ctx), workers...); err != nil {
		return nil, err
	}
	if first == nil && next < len(inputs) {
		first = ctx.scope.err() // the scope ended before a worker started
	}
	if first != nil {
		return nil, ctx.x.observeCancel(first)
	}
	return results, nil
}

// A Semaphore bounds how many coroutines of one instance run a section of code that blocks. With
// one slot it is a mutex. Sections that do not block need none, because coroutines run one at a
// time. A Semaphore belongs to the first execution that uses it; any other execution that uses it
// stalls (see [ForeignFuture]).
type Semaphore struct {
	owner   atomic.Pointer[Execution]
	slots   int
	free    int
	waiting []*promise
}

// NewSemaphore returns a semaphore with the given number of slots, at least 1.
func NewSemaphore(slots int) *Semaphore {
	slots = max(slots, 1)
	return &Semaphore{slots: slots, free: slots}
}

// Acquire waits for a slot, first come, first served. It returns an error if the scope of ctx ends
// first; then no slot is taken.
func (s *Semaphore) Acquire(ctx *Context) error {
	s.checkUse(ctx.x, "Acquire")
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
		// Release has granted the slot, but the scope has ended: pass the slot on.
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

// Release returns a slot. It panics if no slot is taken, like [sync.Mutex.Unlock]; otherwise more
// coroutines could enter than there are slots.
func (s *Semaphore) Release(ctx *Context) {
	s.checkUse(ctx.x, "Release")
	if s.free == s.slots {
		if ctx.x.evicting {
			return // Acquire returned ErrEvicting without a slot, and the code ignored the error
		}
		panic(fmt.Sprintf("tenuto: Release of a Semaphore without Acquire, in instance %q: all its slots are free", ctx.x.instance))
	}
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	place := s.waiting[0]
	s.waiting = s.waiting[1:]
	ctx.x.resolve(place)
}

// checkUse checks a call of a method before it has any effect. It does not return if a durable call
// is not allowed here, or if the semaphore belongs to another execution.
func (s *Semaphore) checkUse(x *Execution, what string) {
	x.currentCoroutine(what)
	if !s.owner.CompareAndSwap(nil, x) {
		x.checkOwner(what, "semaphore", s.owner.Load())
	}
}
