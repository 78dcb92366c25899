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

	op      *operation    // what it is the promise of; nil for a coroutine's
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
		x.wakeUp(c, nil)
	}
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

func (p *promise) forget(c *coroutine) {
	for i, waiter := range p.waiters {
		if waiter == c {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			return
		}
	}
}

// await parks the running coroutine until one of the promises is settled. It
// returns an error instead when the scope of ctx has ended, or when the
// instance is being dropped from memory.
func (x *Execution) await(ctx *Context, promises ...*promise) error {
	c := x.running("Await")
	if x.dropping {
		return ErrDehydrating
	}
	for _, p := range promises {
		if !p.pending() {
			return nil
		}
	}
	if err := ctx.scopeErr(); err != nil {
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
