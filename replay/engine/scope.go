package engine

import (
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A scope is the part of the code that one cancellation affects. Each outermost scope is a phase of
// the execution: the body or the clean-up. All scopes in a phase end with it. The root scope,
// directly inside the body's phase, ends when the instance is canceled.
//
// Its exported methods are the calls of package replay; see [host.Scope].
type scope struct {
	x       *Execution
	parent  *scope
	cause   error  // why it ended; nil until it ends
	endedAt uint64 // number of promises resolved before it ended
}

func (x *Execution) newScope(parent *scope) *scope { return &scope{x: x, parent: parent} }

// observeCancel records that the cancellation of the instance was returned to the code. Code sees
// it only in the error of an await or of Context.Err.
func (x *Execution) observeCancel(err error) error {
	if err != nil && err == x.root.cause {
		x.cancelObserved = true
	}
	return err
}

// canceledError returns the cause for a request to cancel the instance.
func (x *Execution) canceledError(reason string) error {
	canceled := &replay.CanceledError{Reason: reason}
	canceled.Host().Legacy = !x.startInfo.protocol3
	return canceled
}

// endedScope returns the innermost of s and its ancestors that is marked as ended, nil if none is.
// It ended before the others, because cancelScope never marks a scope inside an ended one.
func (s *scope) endedScope() *scope {
	for ; s != nil; s = s.parent {
		if s.cause != nil {
			return s
		}
	}
	return nil
}

// err returns why the scope or an ancestor ended, nil if none has ended.
func (s *scope) err() error {
	if ended := s.endedScope(); ended != nil {
		return ended.cause
	}
	return nil
}

// includes reports whether the promise is resolved and, if the scope has ended, was resolved before
// that.
func (s *scope) includes(p *promise) bool {
	if p.pending() {
		return false
	}
	ended := s.endedScope()
	return ended == nil || p.resolvedSeq <= ended.endedAt
}

// within reports whether s is outer or is nested in it.
func (s *scope) within(outer *scope) bool {
	for ; s != nil; s = s.parent {
		if s == outer {
			return true
		}
	}
	return false
}

// cancelScope ends a scope. It cancels the scope's unfinished operations in the order in which they
// were scheduled, and every coroutine that waits in the scope gets cause.
func (x *Execution) cancelScope(s *scope, cause error) {
	if s.err() != nil || x.evicting {
		return
	}
	s.cause, s.endedAt = cause, x.resolvedCount
	for _, op := range x.unfinishedOperations() {
		if op.scope.within(s) {
			x.cancelOperation(op, cause)
		}
	}
	for _, c := range x.coroutines.all {
		if c.waiting != nil && c.waiting.scope.within(s) {
			x.wakeUp(c, cause)
		}
	}
}

// outermost returns the scope of the phase that s belongs to.
func (s *scope) outermost() *scope {
	for s.parent != nil {
		s = s.parent
	}
	return s
}

func (s *scope) Execution() host.Execution { return (*codeView)(s.x) }

func (s *scope) Nested() host.Scope { return s.x.newScope(s) }

func (s *scope) Shielded() host.Scope { return s.x.newScope(s.outermost()) }

func (s *scope) End(cause error) { s.x.cancelScope(s, cause) }

func (s *scope) Cause() error { return s.err() }

func (s *scope) Observe(err error) error { return s.x.observeCancel(err) }

func (s *scope) Includes(p host.Promise) bool { return s.includes(p.(*promise)) }

func (s *scope) CheckFuture(what string, p host.Promise) { s.x.checkOwners(what, p.(*promise)) }

func (s *scope) Cancel(p host.Promise) {
	if !s.x.evicting {
		s.x.cancelPromise(p.(*promise))
	}
}

func (s *scope) Await(p host.Promise, into any) (value any, err error) {
	x, q := s.x, p.(*promise)
	if q.owner == x && !q.pending() && !x.evicting {
		x.currentCoroutine("Await")
		return x.result(q, into)
	}
	if err := x.await(s, q); err != nil {
		return nil, err
	}
	return x.result(q, into)
}

func (s *scope) Result(p host.Promise, into any) (value any, err error) {
	return s.x.result(p.(*promise), into)
}

func (s *scope) Wait(p host.Promise) error { return s.x.park(s, p.(*promise)) }

func (s *scope) WaitAny(promises []host.Promise) error {
	var few [4]*promise
	list := few[:0]
	for _, p := range promises {
		list = append(list, p.(*promise))
	}
	return s.x.park(s, list...)
}

func (s *scope) Go(fn func(inner host.Scope) (any, error)) *host.Future {
	x := s.x
	x.currentCoroutine("Go")
	if x.evicting {
		return x.resolvedFuture(replay.ErrEvicting)
	}
	if s.outermost() != x.phase {
		return x.resolvedFuture(replay.ErrCanceled)
	}
	inner := x.newScope(s)
	p := &promise{coroutineScope: inner, owner: x}
	c := x.coroutines.spawn(inner, func() {
		value, err := fn(inner)
		if !x.evicting {
			p.value = value
			x.resolveErr(p, err)
		}
	})
	c.future = p
	return p.newFuture()
}
