package replay

import (
	"cmp"
	"errors"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// OnClose registers fn to be called when the instance ends: after its body has returned, failed,
// panicked or was canceled. It is not called when the instance is terminated, evicted or continues
// as new. err is the error of the body, nil if it completed.
//
// Before the first function is called, open operations are canceled and running coroutines are
// ended in the order in which they were started: their awaits return [ErrCanceled], and their
// deferred functions run. Then the registered functions run one after another, last registered
// first, with a Context that cancellation does not reach. Their durable calls are recorded like all
// others, so the clean-up runs once even if the node dies. An error that fn returns is joined to
// that of the body.
func (c *Context) OnClose(fn func(ctx *Context, err error) error) {
	c.x.currentCoroutine("OnClose")
	if c.x.evicting || c.x.codeDone {
		return
	}
	c.x.closers = append(c.x.closers, fn)
}

// A Saga undoes completed steps if the instance does not complete.
type Saga struct{ x *Execution }

// NewSaga returns a saga of the instance.
func NewSaga(ctx *Context) *Saga { return &Saga{ctx.x} }

// Compensate registers fn, as [Context.OnClose] does, to be called if the instance ends with an
// error or is canceled. Call it after the step that fn undoes, or before the step if fn can undo a
// step that was not done.
func (s *Saga) Compensate(ctx *Context, fn func(ctx *Context) error) {
	ctx.OnClose(func(ctx *Context, err error) error {
		if err == nil {
			return nil
		}
		return fn(ctx)
	})
}

// endBody is called when the body has returned or a coroutine has crashed. It ends running
// coroutines, then runs the OnClose functions, then queues the terminal event.
func (x *Execution) endBody(output *journalpb.Payload, err error) {
	x.bodyDone = true
	if !errors.As(err, &x.continuation) {
		x.output, x.failure = output, err
	}
	x.endPhase()
	if x.coroutines.idle() && (len(x.closers) == 0 || x.continuation != nil) {
		x.finish()
		return
	}
	x.coroutines.spawn(x.phase, x.cleanUp)
}

// endPhase cancels what is open and lets each started coroutine run to its end, in the order in
// which they were started. Coroutines that have not started are discarded. Coroutines that are
// spawned later run after them.
func (x *Execution) endPhase() {
	previous := x.phase
	x.phase = new(scope)
	x.cancelScope(previous, ErrCanceled)
	for _, c := range x.coroutines.readyStarted() {
		if c.future != nil {
			x.resolveErr(c.future, ErrCanceled)
		}
	}
}

// handleCrash handles a coroutine that ended by a panic or by runtime.Goexit. It fails the instance
// and interrupts the running body or clean-up function; clean-up continues with the next function.
// A coroutine that crashes while it is being ended interrupts nothing.
func (x *Execution) handleCrash(c *coroutine) {
	err := c.crash.error()
	if c.future != nil {
		x.resolveErr(c.future, err)
	}
	switch {
	case !x.bodyDone:
		x.endBody(nil, err)
		return
	case c.scope.outermost() == x.phase:
		x.endPhase()
		x.coroutines.spawn(x.phase, x.cleanUp)
	}
	x.cleanUpFailed = true
	x.failure = joinErrors(x.failure, err)
}

// cleanUp calls the remaining closers, the latest first.
func (x *Execution) cleanUp() {
	phase := x.phase
	for len(x.closers) > 0 && (x.continuation == nil || x.failure != nil) {
		last := len(x.closers) - 1
		closer := x.closers[last]
		x.closers = x.closers[:last]
		failure := closer(&Context{x: x, scope: &scope{parent: phase}}, x.failure)
		if x.evicting || x.phase != phase {
			return
		}
		if failure != nil {
			x.cleanUpFailed = true
			x.failure = joinErrors(x.failure, failure)
		}
	}
	x.endPhase()
	if x.coroutines.idle() {
		x.finish()
	} else {
		x.coroutines.spawn(x.phase, x.finish)
	}
}

// joinErrors joins two errors, the error of the body first.
func joinErrors(err, failure error) error {
	switch {
	case failure == nil:
		return err
	case err == nil:
		return failure
	}
	return errors.Join(err, failure)
}

// terminalEvent returns the terminal event for the outcome of the body and the clean-up.
func (x *Execution) terminalEvent() *journalpb.Event {
	switch {
	case x.failure == nil && x.continuation != nil:
		return x.continuedAsNewEvent(x.continuation)
	case x.failure == nil:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{
			OrchestrationCompleted: &journalpb.OrchestrationCompleted{Output: x.output},
		}}
	case x.cancelRequest != nil && !x.cleanUpFailed && isCanceled(x.failure):
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCanceled{
			OrchestrationCanceled: &journalpb.OrchestrationCanceled{Reason: cmp.Or(x.cancelRequest.Reason, ErrCanceled.Error())},
		}}
	}
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: encodeError(x.failure)},
	}}
}

// finish queues the terminal event. No operation may be open.
func (x *Execution) finish() {
	x.enqueue(x.terminalEvent(), nil)
	x.codeDone = true
}
