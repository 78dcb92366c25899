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

	owner          *host.ID      // of the execution that may await it; nil if user code cannot
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

func (p *promise) Seq() uint64 { return p.resolvedSeq }

func (p *promise) Err() error { return p.err }

func (p *promise) OnResolved(fn func()) { p.onResolved = append(p.onResolved, fn) }

func (p *promise) Header(name string) (value string, ok bool) {
	if p.op == nil {
		return "", false
	}
	return headerIn(p.op.receivedEvent.event.GetHeaders(), name)
}

func (p *promise) pending() bool { return p.resolvedSeq == 0 }

// A wait is what a parked coroutine waits for: the first of some promises, or the end of its scope.
type wait struct {
	promises []*promise
	scope    *scope
	since    int64 // cluster time, in Unix nanoseconds
	err      error // set if the scope ended first
}

func (p *promise) removeWaiter(c *coroutine) {
	for i, waiter := range p.waiters {
		if waiter == c {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			return
		}
	}
}

func (p *program) resolvedFuture(err error) *host.Future {
	resolved := &promise{owner: &p.id.ID}
	p.coroutines.resolveErr(resolved, err)
	return resolved.newFuture()
}

// rejectedCallsMax bounds how many durable calls and awaits of a coroutine fail after the end of
// its phase. At the next one the engine ends the coroutine.
const rejectedCallsMax = 1000

// countRejectedCall counts a durable call or await that fails because a scope has ended. It ends a
// coroutine that loops forever and ignores these errors after the end of its phase.
func (p *program) countRejectedCall(c *coroutine) {
	if c.scope.outermost() == p.phase {
		return
	}
	if c.rejectedCalls++; c.rejectedCalls <= rejectedCallsMax {
		return
	}
	if c.future != nil && c.future.pending() {
		p.coroutines.resolveErr(c.future, replay.ErrCanceled)
	}
	c.exit()
}

// await parks the running coroutine until the promise is resolved. It returns the error of the
// scope if that ends first, and ErrEvicting if the instance is being evicted.
func (p *program) await(s *scope, awaited *promise) error {
	return p.cancellation.observe(p.park(s, awaited))
}

// park is await for the first of several promises, without marking a cancellation as observed.
func (p *program) park(s *scope, promises ...*promise) error {
	c := p.calls.current("Await")
	if p.coroutines.evicting() {
		return replay.ErrEvicting
	}
	p.calls.checkOwners("Await", promises...)
	for _, one := range promises {
		if s.includes(one) {
			return nil
		}
	}
	if err := s.err(); err != nil {
		p.countRejectedCall(c)
		return err
	}
	return c.wait(s, promises, p.cursor.now)
}

// result returns the result of a resolved promise. A recorded value is stored in the variable that
// into points to, any other is returned. Code of executions that began before protocol 3 may have
// recorded the text of errors, so theirs are not detailed.
func (p *program) result(resolved *promise, into any) (value any, err error) {
	switch {
	case resolved.err != nil:
		return resolved.value, p.cancellation.observe(resolved.err)
	case resolved.value != nil || resolved.op == nil: // the value of a coroutine may be nil
		return resolved.value, nil
	}
	return nil, resolved.op.decode(into, p.id.protocol3)
}
