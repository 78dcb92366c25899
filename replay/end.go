package replay

import (
	"errors"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// OnClose has fn called when the instance ends: when its body has returned,
// failed, panicked or was cancelled, but not when it is terminated, dehydrated or
// continues as new. err is what the body ended with, nil if it completed.
//
// What is registered last is called first, one after the other, after
// everything that is open was given up, and with a Context that cancellation
// does not reach. Its durable calls are recorded like all others, so that it
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

// end is called when the body is done, one way or another, and again when the
// clean-up crashes: what was registered by OnClose runs in a coroutine of its
// own, then the terminal event is queued.
func (x *Execution) end(output *journalpb.Payload, err error) {
	var next *continuation
	if errors.As(err, &next) && !x.closing {
		x.finish(x.continued(next))
		return
	}
	if x.closing {
		x.cleanUpFailed = true
		err = joined(x.failure, err)
	}
	x.closing = true
	x.giveUpAll()
	x.coroutines.freeze()
	x.failure = err
	if len(x.closers) == 0 {
		x.finish(x.outcome(output))
		return
	}
	x.coroutines.spawn(func() { x.cleanUp(output) })
}

// cleanUp calls what is left of the closers, the latest first.
func (x *Execution) cleanUp(output *journalpb.Payload) {
	for len(x.closers) > 0 {
		last := len(x.closers) - 1
		closer := x.closers[last]
		x.closers = x.closers[:last]
		failure := closer(&Context{x: x, scope: new(scope)}, x.failure)
		if x.dropping {
			return
		}
		if failure != nil {
			x.cleanUpFailed = true
			x.failure = joined(x.failure, failure)
		}
	}
	x.finish(x.outcome(output))
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
func (x *Execution) outcome(output *journalpb.Payload) *journalpb.Event {
	switch {
	case x.failure == nil:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{
			OrchestrationCompleted: &journalpb.OrchestrationCompleted{Output: output},
		}}
	case x.cancelled && !x.cleanUpFailed && isCanceled(x.failure):
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelled{
			OrchestrationCancelled: &journalpb.OrchestrationCancelled{Reason: x.root.cause.Error()},
		}}
	}
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: encodeError(x.failure)},
	}}
}

// finish gives up whatever is open and queues the terminal event.
func (x *Execution) finish(terminal *journalpb.Event) {
	x.giveUpAll()
	x.enqueue(terminal, nil)
	x.returned = true
	// What other coroutines do from here on must not be recorded.
	x.coroutines.ready = nil
}

func (x *Execution) giveUpAll() {
	for _, op := range x.unfinished() {
		x.giveUp(op, ErrCanceled)
	}
}
