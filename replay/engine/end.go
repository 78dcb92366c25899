package engine

import (
	"cmp"
	"errors"
	"reflect"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Limits of ShouldContinueAsNew.
const (
	continueAfterEvents = 10_000
	continueAfterBytes  = 8 << 20
)

// A continuation is the error with which an orchestration continues as new.
type continuation struct {
	input     *journalpb.Payload
	inputType reflect.Type
	version   string
}

func (c *continuation) Error() string {
	return "tenuto: continue as new, which the orchestration must return"
}

// An outcome is how the code ended: what its body returned, and the errors of its clean-up.
type outcome struct {
	output        *journalpb.Payload
	outputType    reflect.Type
	failure       error // includes errors of the clean-up
	continuation  *continuation
	cleanUpFailed bool
}

// setBody sets what the body returned.
func (o *outcome) setBody(output *journalpb.Payload, err error) {
	if !errors.As(err, &o.continuation) {
		o.output, o.failure = output, err
	}
}

// addCleanUpError adds an error of the clean-up.
func (o *outcome) addCleanUpError(err error) {
	o.cleanUpFailed = true
	o.failure = joinErrors(o.failure, err)
}

// continues reports whether the execution continues as new, unless the clean-up fails.
func (o *outcome) continues() bool { return o.continuation != nil && o.failure == nil }

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

// terminalEvent returns the terminal event. request is the recorded cancel request, nil if there is
// none. unconsumed returns the external events to carry over, and is called only if the execution
// continues as new.
func (o *outcome) terminalEvent(request *journalpb.OrchestrationCancelRequested, unconsumed func() []*journalpb.ExternalEvent) *journalpb.Event {
	switch {
	case o.continues():
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationContinuedAsNew{
			OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{
				Input: o.continuation.input, Version: o.continuation.version, Inbox: unconsumed(),
			},
		}}
	case o.failure == nil:
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCompleted{
			OrchestrationCompleted: &journalpb.OrchestrationCompleted{Output: o.output},
		}}
	case request != nil && !o.cleanUpFailed && isCanceled(o.failure):
		return &journalpb.Event{Body: &journalpb.Event_OrchestrationCanceled{
			OrchestrationCanceled: &journalpb.OrchestrationCanceled{Reason: cmp.Or(request.Reason, replay.ErrCanceled.Error())},
		}}
	}
	return &journalpb.Event{Body: &journalpb.Event_OrchestrationFailed{
		OrchestrationFailed: &journalpb.OrchestrationFailed{Error: encodeError(o.failure)},
	}}
}

// valueType returns the type of the value in the terminal event, nil if it has none.
func (o *outcome) valueType() reflect.Type {
	if o.continues() {
		return o.continuation.inputType
	}
	return o.outputType
}

func isCanceled(err error) bool { return errors.Is(err, replay.ErrCanceled) }

// endBody is called when the body has returned or a coroutine has crashed. It ends running
// coroutines, then runs the OnClose functions, then queues the terminal event.
func (p *program) endBody(output *journalpb.Payload, err error) {
	p.progress = inCleanUp
	p.outcome.setBody(output, err)
	p.endPhase()
	if p.coroutines.idle() && (len(p.closers) == 0 || p.outcome.continuation != nil) {
		p.finish()
		return
	}
	p.coroutines.spawn(p.phase, p.cleanUp)
}

// endPhase cancels what is open and lets each started coroutine run to its end, in the order in
// which they were started. Coroutines that have not started are discarded. Coroutines that are
// spawned later run after them.
func (p *program) endPhase() {
	previous := p.phase
	p.phase = p.newScope(nil)
	p.operations.endScope(previous, replay.ErrCanceled)
	for _, c := range p.coroutines.readyStarted() {
		if c.future != nil {
			p.coroutines.resolveErr(c.future, replay.ErrCanceled)
		}
	}
}

// handleCrash handles a coroutine that ended by a panic or by runtime.Goexit. It fails the instance
// and interrupts the running body or clean-up function; clean-up continues with the next function.
// A coroutine that crashes while it is being ended interrupts nothing.
func (p *program) handleCrash(c *coroutine) {
	err := c.crash.error()
	if c.future != nil {
		p.coroutines.resolveErr(c.future, err)
	}
	switch {
	case p.progress == inBody:
		p.endBody(nil, err)
		return
	case c.scope.outermost() == p.phase:
		p.endPhase()
		p.coroutines.spawn(p.phase, p.cleanUp)
	}
	p.outcome.addCleanUpError(err)
}

// cleanUp calls the remaining closers, the latest first.
func (p *program) cleanUp() {
	phase := p.phase
	for len(p.closers) > 0 && !p.outcome.continues() {
		last := len(p.closers) - 1
		closer := p.closers[last]
		p.closers = p.closers[:last]
		failure := closer(p.newScope(phase), p.outcome.failure)
		if p.coroutines.evicting() || p.phase != phase {
			return
		}
		if failure != nil {
			p.outcome.addCleanUpError(failure)
		}
	}
	p.endPhase()
	if p.coroutines.idle() {
		p.finish()
	} else {
		p.coroutines.spawn(p.phase, p.finish)
	}
}

// finish queues the terminal event. No operation may be open.
func (p *program) finish() {
	event := p.outcome.terminalEvent(p.cancellation.request, p.operations.unconsumedEvents)
	if failed := event.GetOrchestrationFailed(); failed != nil && p.retries(failed.Error) {
		event = &journalpb.Event{Body: &journalpb.Event_OrchestrationContinuedAsNew{
			OrchestrationContinuedAsNew: &journalpb.OrchestrationContinuedAsNew{
				Input: p.id.options.retryInput, Version: p.id.version, Inbox: p.operations.unconsumedEvents(), Retried: failed.Error,
			},
		}}
	}
	added := p.operations.queue.add(event, nil)
	added.valueType = p.outcome.valueType()
	p.progress = codeDone
}

// retries reports whether a failure of the run is retried. A run that was asked to cancel is not.
func (p *program) retries(failure *journalpb.Error) bool {
	policy := p.id.options.retry
	return policy != nil && p.cancellation.request == nil && permitsRetry(policy, p.id.attempt(), failure)
}

// A carryOver holds the values with which the next execution starts, encoded as they were recorded.
type carryOver struct {
	status      *journalpb.Payload // last value of SetStatus
	state       instanceState
	continuedAs *journalpb.OrchestrationContinuedAsNew
	countsAll   bool // ShouldContinueAsNew of the next execution counts all payloads
}

// add takes what a recorded event carries over.
func (c *carryOver) add(recorded *journalpb.Event) {
	switch body := recorded.Body.(type) {
	case *journalpb.Event_OrchestrationStarted:
		c.status = body.OrchestrationStarted.Status
		c.state.restore(body.OrchestrationStarted)
	case *journalpb.Event_StatusSet:
		c.status = body.StatusSet.Value
	case *journalpb.Event_AttributeSet:
		c.state.setAttribute(body.AttributeSet)
	case *journalpb.Event_ValueSet:
		c.state.setValue(body.ValueSet)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		c.continuedAs = body.OrchestrationContinuedAsNew
	}
}

// CountAllPayloadsNext makes the next execution count all payloads in ShouldContinueAsNew. Every
// node that may replay it must support that.
func (x *Execution) CountAllPayloadsNext() { x.carryOver.countsAll = true }

// remainingDeadline returns the deadline of the next execution. If the code has observed the
// cancellation at the deadline and continues, there is none: it chose to continue.
func (x *Execution) remainingDeadline() int64 {
	if x.program.deadlinePassed && x.program.cancellation.observed {
		return 0
	}
	return x.id.options.deadline
}

// setRetry makes the start of the next execution a retry after a failure. The jitter of its backoff
// derives from the identity of this execution.
func (id *identity) setRetry(started *journalpb.OrchestrationStarted, failure *journalpb.Error, now time.Time) {
	backoff := backoffAfter(id.options.retry, id.attempt(), id.newRandom().Float64())
	started.Attempt, started.LastFailure = id.options.failedAttempts+1, failure
	started.StartAt = now.Add(backoff).UnixNano()
}

// Successor returns the first event of the next execution if this one has continued as new, nil
// otherwise.
func (x *Execution) Successor() *journalpb.Event {
	next := x.carryOver.continuedAs
	if next == nil {
		return nil
	}
	started := &journalpb.OrchestrationStarted{
		Name:      x.id.name,
		Version:   next.Version,
		Input:     next.Input,
		Parent:    x.id.parent,
		Inbox:     next.Inbox,
		Tags:      x.id.options.tags,
		RequestId: x.id.requestID,
		Status:    x.carryOver.status,
		Trace:     x.id.options.trace,
		Deadline:  x.remainingDeadline(),
		Headers:   x.id.options.headers,
		Summary:   x.id.options.summary,
		Retry:     x.id.options.retry,

		Incarnation:       x.id.incarnation,
		CountsAllPayloads: x.id.protocol3 || x.carryOver.countsAll,
	}
	if x.id.protocol3 {
		started.PayloadMax = x.program.registry.payloads.recordedMax() // the next execution begins with the present bound
	}
	if next.Retried != nil {
		x.id.setRetry(started, next.Retried, x.cursor.now)
	}
	x.requestIDs.carryOver(started)
	x.program.cancellation.carryOver(started)
	x.carryOver.state.carryOver(started)
	return &journalpb.Event{
		EventId:   1,
		Timestamp: x.cursor.now.UnixNano(),
		Body:      &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started},
	}
}
