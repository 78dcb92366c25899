package replay

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// A promise is the untyped core of a [Future]: pending, then resolved once.
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
}

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
		x.resolveErr(c.future, ErrCanceled)
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

// await parks the running coroutine until one of the promises is resolved. It returns the error of
// the scope of ctx if that ends first, and ErrEvicting if the instance is being evicted.
func (x *Execution) await(ctx *Context, promises ...*promise) error {
	return x.observeCancel(x.park(ctx, promises))
}

// park is await without marking a cancellation as observed.
func (x *Execution) park(ctx *Context, promises []*promise) error {
	c := x.currentCoroutine("Await")
	if x.evicting {
		return ErrEvicting
	}
	x.checkOwners("Await", promises...)
	for _, p := range promises {
		if ctx.scope.includes(p) {
			return nil
		}
	}
	if err := ctx.scope.err(); err != nil {
		x.countRejectedCall(c)
		return err
	}
	w := &c.waitBuf
	w.promises = append(w.promises[:0], promises...)
	w.scope, w.err = ctx.scope, nil
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

// earliestIndex returns the index of the promise that was resolved first, -1 if all are pending.
func earliestIndex(promises []*promise) int {
	first := -1
	for i, p := range promises {
		if !p.pending() && (first < 0 || p.resolvedSeq < promises[first].resolvedSeq) {
			first = i
		}
	}
	return first
}
