package replay

import (
	"fmt"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A Semaphore bounds how many coroutines of one instance run a section of code that blocks. With
// one slot it is a mutex. Sections that do not block need none, because coroutines run one at a
// time. A Semaphore belongs to the first execution that uses it; any other execution that uses it
// stalls (see [ForeignFuture]).
type Semaphore struct {
	owner   atomic.Pointer[host.ID]
	slots   int
	free    int
	waiting []host.Promise
}

// NewSemaphore returns a semaphore with the given number of slots, at least 1.
func NewSemaphore(slots int) *Semaphore {
	slots = max(slots, 1)
	return &Semaphore{slots: slots, free: slots}
}

// Acquire waits for a slot, first come, first served. It returns an error if the scope of ctx ends
// first; then no slot is taken.
func (s *Semaphore) Acquire(ctx *Context) error {
	s.checkUse(ctx, "Acquire")
	if err := endedScopeError(ctx); err != nil {
		return err
	}
	if s.free > 0 {
		s.free--
		return nil
	}
	waiter := ctx.execution().NewPromise()
	s.waiting = append(s.waiting, waiter)
	err := ctx.scope.Observe(ctx.scope.Wait(waiter))
	if err == nil {
		return nil
	}
	if waiter.Seq() != 0 {
		// Release has granted the slot, but the scope has ended: pass the slot on.
		s.Release(ctx)
		return err
	}
	for i := range s.waiting {
		if s.waiting[i] == waiter {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			break
		}
	}
	return err
}

// Release returns a slot. It panics if no slot is taken, like [sync.Mutex.Unlock]; otherwise more
// coroutines could enter than there are slots.
func (s *Semaphore) Release(ctx *Context) {
	s.checkUse(ctx, "Release")
	if s.free == s.slots {
		if ctx.execution().Evicting() {
			return // Acquire returned ErrEvicting without a slot, and the code ignored the error
		}
		panic(fmt.Sprintf("tenuto: Release of a Semaphore without Acquire, in instance %q: all its slots are free", ctx.InstanceID()))
	}
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	waiter := s.waiting[0]
	s.waiting = s.waiting[1:]
	ctx.execution().Resolve(waiter, nil)
}

func (s *Semaphore) checkUse(ctx *Context, what string) {
	checkOwner(ctx, what, "semaphore", &s.owner)
}

// checkOwner checks a call of a method of an object before it has any effect. The first execution
// that uses the object becomes its owner. checkOwner does not return if a durable call is not
// allowed here, or if another execution is the owner.
func checkOwner(ctx *Context, what, kind string, owner *atomic.Pointer[host.ID]) {
	x := ctx.execution()
	x.Check(what)
	if !owner.CompareAndSwap(nil, x.ID()) {
		x.CheckOwner(what, kind, owner.Load())
	}
}
