package engine

import (
	"cmp"
	"errors"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// endBody is called when the body has returned or a coroutine has crashed. It ends running
// coroutines, then runs the OnClose functions, then queues the terminal event.
func (x *Execution) endBody(output *journalpb.Payload, err error) {
	x.progress = inCleanUp
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
	x.phase = x.newScope(nil)
	x.cancelScope(previous, replay.ErrCanceled)
	for _, c := range x.coroutines.readyStarted() {
		if c.future != nil {
			x.resolveErr(c.future, replay.ErrCanceled)
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
	case x.progress == inBody:
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
		failure := closer(x.newScope(phase), x.failure)
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
			OrchestrationCanceled: &journalpb.OrchestrationCanceled{Reason: cmp.Or(x.cancelRequest.Reason, replay.ErrCanceled.Error())},
		}}
	}
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: encodeError(x.failure)},
	}}
}

// finish queues the terminal event. No operation may be open.
func (x *Execution) finish() {
	x.enqueue(x.terminalEvent(), nil)
	x.progress = codeDone
}

func isCanceled(err error) bool { return errors.Is(err, replay.ErrCanceled) }
