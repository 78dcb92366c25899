package replay

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// A promise is the untyped core of a [Future]: pending, then settled once.
type promise struct {
	// The order in which promises of this execution were settled, from 1; 0
	// while pending. It follows the order of events, so that the lower of two
	// is the one whose event has the lower event_id.
	settled uint64

	payload *journalpb.Payload // the result, if recorded
	value   any                // the result, if it never crossed the journal
	err     error

	of      *Execution    // whose code may await it; nil if no code can
	op      *operation    // what it is the promise of; nil for a coroutine's
	inside  *scope        // of a coroutine's: the scope that the coroutine runs in
	waiters []*coroutine  // in the order in which they began to wait
	first   [1]*coroutine // room for the only one that most have
	// Called when it is settled, before waiters are woken.
	onSettled []func()
}

func (p *promise) pending() bool { return p.settled == 0 }

// A wait is what a parked coroutine is parked for: the first of some promises,
// or the end of its scope.
type wait struct {
	promises []*promise
	scope    *scope
	err      error // set when the scope ended first
}

// settle resolves the promise and makes whoever waits for it ready.
func (x *Execution) settle(p *promise) {
	x.settlements++
	p.settled = x.settlements
	for _, call := range p.onSettled {
		call()
	}
	p.onSettled = nil
	waiters := p.waiters
	p.waiters = nil
	for _, c := range waiters {
		if c.waiting != nil {
			x.wakeUp(c, c.waiting.scope.err())
		}
	}
}

// resolve settles a promise with an error, or with nil.
func (x *Execution) resolve(p *promise, err error) {
	p.err = err
	x.settle(p)
}

// wakeUp makes a waiting coroutine ready and withdraws it from everything else
// that it waited for.
func (x *Execution) wakeUp(c *coroutine, err error) {
	w := c.waiting
	if w == nil {
		return
	}
	c.waiting = nil
	w.err = err
	for _, p := range w.promises {
		p.forget(c)
	}
	x.coroutines.ready = append(x.coroutines.ready, c)
}

// refusalsMax is how many durable calls and awaits of a coroutine may fail after the
// end of its phase before the coroutine is ended by force.
const refusalsMax = 1000

// refuse counts a durable call or an await that fails because a scope has ended. A
// coroutine whose phase is over may ignore these errors in an endless loop, which
// nothing else would end.
func (x *Execution) refuse(c *coroutine) {
	if c.scope.outermost() == x.phase {
		return
	}
	if c.refused++; c.refused <= refusalsMax {
		return
	}
	if c.future != nil && c.future.pending() {
		x.resolve(c.future, ErrCanceled)
	}
	c.leave()
}

func (p *promise) forget(c *coroutine) {
	for i, waiter := range p.waiters {
		if waiter == c {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			return
		}
	}
}

// await parks the running coroutine until one of the promises is resolved. It
// returns the error of the scope of ctx instead if that ends before, and
// ErrDehydrating when the instance is being dropped from memory.
func (x *Execution) await(ctx *Context, promises ...*promise) error {
	return x.told(x.park(ctx, promises))
}

// park is await without telling the code of a cancellation.
func (x *Execution) park(ctx *Context, promises []*promise) error {
	c := x.running("Await")
	if x.dropping {
		return ErrDehydrating
	}
	x.ownsAll("Await", promises...)
	for _, p := range promises {
		if ctx.scope.includes(p) {
			return nil
		}
	}
	if err := ctx.scope.err(); err != nil {
		x.refuse(c)
		return err
	}
	w := &c.wait
	w.promises = append(w.promises[:0], promises...)
	w.scope, w.err = ctx.scope, nil
	for _, p := range promises {
		if p.waiters == nil {
			p.waiters = p.first[:0]
		}
		p.waiters = append(p.waiters, c)
	}
	c.waiting = w
	c.park()
	clear(w.promises)
	return w.err
}

// earliest returns the index of the promise that was settled first, -1 if all
// are pending.
func earliest(promises []*promise) int {
	first := -1
	for i, p := range promises {
		if !p.pending() && (first < 0 || p.settled < promises[first].settled) {
			first = i
		}
	}
	return first
}
