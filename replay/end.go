package replay

import (
	"cmp"
	"errors"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// OnClose has fn called when the instance ends: when its body has returned,
// failed, panicked or was cancelled, but not when it is terminated, dehydrated or
// continues as new. err is what the body ended with, nil if it completed.
//
// First what is open is canceled, and coroutines that still run are ended, in the
// order in which they were started: their awaits return [ErrCanceled], their
// deferred functions run. Then what is registered last is called first, one after
// the other, with a Context that cancellation does not reach. Its durable calls are recorded like all others, so that it
// runs once, whatever happens to the node meanwhile. An error that fn returns
// joins that of the body, or becomes it.
func (c *Context) OnClose(fn func(ctx *Context, err error) error) {
	c.x.running("OnClose")
	if c.x.dropping || c.x.returned {
		return
	}
	c.x.closers = append(c.x.closers, fn)
}

// A Saga undoes steps that were done, when the instance does not complete.
type Saga struct{ x *Execution }

// NewSaga returns a saga of the instance.
func NewSaga(ctx *Context) *Saga { return &Saga{ctx.x} }

// Compensate has fn called, as by [Context.OnClose], if the instance ends with
// an error or is cancelled. Call it when the step that fn undoes has been done,
// or before it if fn can undo what was not done.
func (s *Saga) Compensate(ctx *Context, fn func(ctx *Context) error) {
	ctx.OnClose(func(ctx *Context, err error) error {
		if err == nil {
			return nil
		}
		return fn(ctx)
	})
}

// end is called when the body is done: it has returned, or a coroutine has crashed.
// Coroutines that still run are ended first, then what was registered by OnClose
// runs, then the terminal event is queued.
func (x *Execution) end(output *journalpb.Payload, err error) {
	x.closing = true
	if !errors.As(err, &x.next) {
		x.output, x.failure = output, err
	}
	x.nextPhase()
	if x.coroutines.idle() && (len(x.closers) == 0 || x.next != nil) {
		x.finish()
		return
	}
	x.coroutines.spawn(x.phase, x.cleanUp)
}

// nextPhase ends all that runs: what is open is canceled, and each coroutine runs to
// its end, in the order in which they were started, because it can wait for nothing.
// One that has not begun does not begin. What is spawned afterwards runs after them.
func (x *Execution) nextPhase() {
	over := x.phase
	x.phase = new(scope)
	x.cancelScope(over, ErrCanceled)
	for _, c := range x.coroutines.rearrange() {
		if c.future != nil {
			x.resolve(c.future, ErrCanceled)
		}
	}
}

// crashed is called when a coroutine has ended by a panic or by runtime.Goexit. That
// fails the instance, and interrupts the body, or the function of the clean-up, that
// is running; the clean-up goes on with the next function. A coroutine that crashes
// on its way to its end interrupts nothing.
func (x *Execution) crashed(c *coroutine) {
	err := c.crash.error()
	if c.future != nil {
		x.resolve(c.future, err)
	}
	switch {
	case !x.closing:
		x.end(nil, err)
		return
	case c.scope.outermost() == x.phase:
		x.nextPhase()
		x.coroutines.spawn(x.phase, x.cleanUp)
	}
	x.cleanUpFailed = true
	x.failure = joined(x.failure, err)
}

// cleanUp calls what is left of the closers, the latest first.
func (x *Execution) cleanUp() {
	phase := x.phase
	for len(x.closers) > 0 && (x.next == nil || x.failure != nil) {
		last := len(x.closers) - 1
		closer := x.closers[last]
		x.closers = x.closers[:last]
		failure := closer(&Context{x: x, scope: &scope{parent: phase}}, x.failure)
		if x.dropping || x.phase != phase {
			return
		}
		if failure != nil {
			x.cleanUpFailed = true
			x.failure = joined(x.failure, failure)
		}
	}
	x.nextPhase()
	if x.coroutines.idle() {
		x.finish()
	} else {
		x.coroutines.spawn(x.phase, x.finish)
	}
}

// joined keeps the error of the body in front.
func joined(err, failure error) error {
	switch {
	case failure == nil:
		return err
	case err == nil:
		return failure
	}
	return errors.Join(err, failure)
}

// outcome returns the terminal event for what the code and the clean-up came to.
func (x *Execution) outcome() *journalpb.Event {
	switch {
	case x.failure == nil && x.next != nil:
		return x.continued(x.next)
	case x.failure == nil:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{
			OrchestrationCompleted: &journalpb.OrchestrationCompleted{Output: x.output},
		}}
	case x.cancelRequest != nil && !x.cleanUpFailed && isCanceled(x.failure):
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelled{
			OrchestrationCancelled: &journalpb.OrchestrationCancelled{Reason: cmp.Or(x.cancelRequest.Reason, ErrCanceled.Error())},
		}}
	}
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: encodeError(x.failure)},
	}}
}

// finish queues the terminal event. Nothing is open any more.
func (x *Execution) finish() {
	x.enqueue(x.outcome(), nil)
	x.returned = true
}
