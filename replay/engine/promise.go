package engine

import (
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A promise is the result of an operation or a coroutine: pending, then resolved once. It is the
// [host.Promise] of a [replay.Future].
type promise struct {
	// resolvedSeq numbers the promises of this execution in the order in which they were resolved,
	// from 1; 0 while pending. The order follows the history: a lower number means a lower
	// event_id.
	resolvedSeq uint64

	payload *journalpb.Payload // the recorded result
	value   any                // a result that is not recorded
	err     error

	owner          *Execution    // the execution that may await it; nil if user code cannot
	op             *operation    // its operation; nil for a coroutine
	coroutineScope *scope        // the scope of its coroutine
	waiters        []*coroutine  // in the order in which they began to wait
	waiterBuf      [1]*coroutine // memory for a single waiter
	// onResolved functions are called before waiters are woken.
	onResolved []func()
	future     host.Future // of this promise, once newFuture is called
}

// newFuture returns the future of the promise, which is part of it.
func (p *promise) newFuture() *host.Future { return p.future.Init(p) }

func (x *Execution) resolvedFuture(err error) *host.Future {
	p := &promise{err: err, owner: x}
	x.resolve(p)
	return p.newFuture()
}

func (p *promise) Seq() uint64 { return p.resolvedSeq }

func (p *promise) Err() error { return p.err }

func (p *promise) OnResolved(fn func()) { p.onResolved = append(p.onResolved, fn) }

func (p *promise) pending() bool { return p.resolvedSeq == 0 }

// A wait is what a parked coroutine waits for: the first of some promises, or the end of its scope.
type wait struct {
	promises []*promise
	scope    *scope
	err      error // set if the scope ended first
}

// resolve resolves the promise and makes its waiters ready.
func (x *Execution) resolve(p *promise) {
	x.resolvedCount++
	p.resolvedSeq = x.resolvedCount
	for _, call := range p.onResolved {
		call()
	}
	p.onResolved = nil
	waiters := p.waiters
	p.waiters = nil
	for _, c := range waiters {
		if c.waiting != nil {
			x.wakeUp(c, c.waiting.scope.err())
		}
	}
}

// resolveErr resolves a promise with an error or nil.
func (x *Execution) resolveErr(p *promise, err error) {
	p.err = err
	x.resolve(p)
}

// wakeUp makes a waiting coroutine ready and removes it from all promises that it waited for.
func (x *Execution) wakeUp(c *coroutine, err error) {
	w := c.waiting
	if w == nil {
		return
	}
	c.waiting = nil
	w.err = err
	for _, p := range w.promises {
		p.removeWaiter(c)
	}
	x.coroutines.ready = append(x.coroutines.ready, c)
}

// rejectedCallsMax bounds how many durable calls and awaits of a coroutine fail after the end of
// its phase. At the next one the engine ends the coroutine.
const rejectedCallsMax = 1000

// countRejectedCall counts a durable call or await that fails because a scope has ended. It ends a
// coroutine that loops forever and ignores these errors after the end of its phase.
func (x *Execution) countRejectedCall(c *coroutine) {
	if c.scope.outermost() == x.phase {
		return
	}
	if c.rejectedCalls++; c.rejectedCalls <= rejectedCallsMax {
		return
	}
	if c.future != nil && c.future.pending() {
		x.resolveErr(c.future, replay.ErrCanceled)
	}
	c.exit()
}

func (p *promise) removeWaiter(c *coroutine) {
	for i, waiter := range p.waiters {
		if waiter == c {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			return
		}
	}
}

// await parks the running coroutine until the promise is resolved. It returns the error of the
// scope if that ends first, and ErrEvicting if the instance is being evicted.
func (x *Execution) await(s *scope, p *promise) error { return x.observeCancel(x.park(s, p)) }

// park is await for the first of several promises, without marking a cancellation as observed.
func (x *Execution) park(s *scope, promises ...*promise) error {
	c := x.currentCoroutine("Await")
	if x.evicting {
		return replay.ErrEvicting
	}
	x.checkOwners("Await", promises...)
	for _, p := range promises {
		if s.includes(p) {
			return nil
		}
	}
	if err := s.err(); err != nil {
		x.countRejectedCall(c)
		return err
	}
	w := &c.waitBuf
	w.promises = append(w.promises[:0], promises...)
	w.scope, w.err = s, nil
	for _, p := range promises {
		if p.waiters == nil {
			p.waiters = p.waiterBuf[:0]
		}
		p.waiters = append(p.waiters, c)
	}
	c.waiting = w
	c.park()
	clear(w.promises)
	return w.err
}

// result returns the result of a resolved promise. A recorded value is stored in the variable that
// into points to, any other is returned.
func (x *Execution) result(p *promise, into any) (value any, err error) {
	switch {
	case p.err != nil:
		return p.value, x.observeCancel(p.err)
	case p.value != nil || p.op == nil: // the value of a coroutine may be nil
		return p.value, nil
	}
	return nil, x.decode(p.op, into)
}
