package replay

import "time"

// A scope is the part of the code that one cancellation affects. Each outermost scope is a phase of
// the execution: the body or the clean-up. All scopes in a phase end with it. The root scope,
// directly inside the body's phase, ends when the instance is canceled.
type scope struct {
	parent  *scope
	cause   error  // why it ended; nil until it ends
	endedAt uint64 // number of promises resolved before it ended
}

// observeCancel records that the cancellation of the instance was returned to the code. Code sees
// it only in the error of an await or of [Context.Err].
func (x *Execution) observeCancel(err error) error {
	if err != nil && err == x.root.cause {
		x.cancelObserved = true
	}
	return err
}

// canceledError returns the cause for a request to cancel the instance.
func (x *Execution) canceledError(reason string) error {
	return &CanceledError{Reason: reason, legacyText: !x.startInfo.protocol3}
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

// WithCancel returns a Context whose scope ends when cancel is called or the scope of ctx ends.
// Then its open operations are canceled, and awaits in it return [ErrCanceled].
func WithCancel(ctx *Context) (inner *Context, cancel func()) {
	inner = &Context{x: ctx.x, scope: &scope{parent: ctx.scope}}
	return inner, func() {
		ctx.x.currentCoroutine("cancel")
		ctx.x.cancelScope(inner.scope, ErrCanceled)
	}
}

// WithTimeout is [WithCancel] with a timeout. After d the scope ends, and awaits in it return
// [ErrTimeout]. cancel also stops the timer; call it when the scope is no longer needed.
func WithTimeout(ctx *Context, d time.Duration) (inner *Context, cancel func()) {
	inner, end := WithCancel(ctx)
	limit := ctx.Timer(d)
	if limit.p.pending() {
		limit.p.onResolved = append(limit.p.onResolved, func() {
			if limit.p.err == nil {
				ctx.x.cancelScope(inner.scope, ErrTimeout)
			}
		})
	}
	return inner, func() {
		limit.Cancel(ctx)
		end()
	}
}

// WithoutCancel returns a Context that no cancellation of ctx reaches, for clean-up where
// [Context.OnClose] does not fit. It ends with the body of the orchestration.
func WithoutCancel(ctx *Context) *Context {
	return &Context{x: ctx.x, scope: &scope{parent: ctx.scope.outermost()}}
}
