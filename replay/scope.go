package replay

import "time"

// A scope is the stretch of code that one cancellation reaches. The root scope
// is that of the instance. The outermost scope is that of a phase, the body or the
// clean-up: it ends with that, and nothing outlives it.
type scope struct {
	parent  *scope
	cause   error  // why it ended; nil while it has not
	endedAt uint64 // how many promises were resolved before it ended
}

// told notes that an error is returned to the code. Only so does the code learn of
// a request to cancel the instance: from an await or from [Context.Err].
func (x *Execution) told(err error) error {
	if err != nil && err == x.root.cause {
		x.cancelSeen = true
	}
	return err
}

// canceled returns the cause of a request to cancel the instance.
func (x *Execution) canceled(reason string) error {
	return &CanceledError{Reason: reason, earlier: !x.origin.protocol3}
}

// ended returns the scope that has ended first, of s and those around it, nil if
// none has. An inner scope ends with the outer one, so it is the innermost.
func (s *scope) ended() *scope {
	for ; s != nil; s = s.parent {
		if s.cause != nil {
			return s
		}
	}
	return nil
}

// err returns why the scope, or one around it, ended.
func (s *scope) err() error {
	if ended := s.ended(); ended != nil {
		return ended.cause
	}
	return nil
}

// includes reports whether the promise was resolved before the scope ended, if it
// has.
func (s *scope) includes(p *promise) bool {
	if p.pending() {
		return false
	}
	ended := s.ended()
	return ended == nil || p.settled <= ended.endedAt
}

// within tells whether s is outer or lies in it.
func (s *scope) within(outer *scope) bool {
	for ; s != nil; s = s.parent {
		if s == outer {
			return true
		}
	}
	return false
}

// cancelScope ends a scope: its open operations are canceled in the order in
// which they were scheduled, and every coroutine that waits in it gets cause,
// whichever of these operations it waits for.
func (x *Execution) cancelScope(s *scope, cause error) {
	if s.err() != nil || x.dropping {
		return
	}
	s.cause, s.endedAt = cause, x.settlements
	for _, op := range x.unfinished() {
		if op.scope.within(s) {
			x.giveUp(op, cause)
		}
	}
	for _, c := range x.coroutines.all {
		if c.waiting != nil && c.waiting.scope.within(s) {
			x.wakeUp(c, cause)
		}
	}
}

// outermost returns the scope around s that nothing but the end of its phase ends.
func (s *scope) outermost() *scope {
	for s.parent != nil {
		s = s.parent
	}
	return s
}

// WithCancel returns a Context whose scope ends when cancel is called, or when
// that of ctx does: what is open in it is given up, and awaits in it return
// [ErrCanceled].
func WithCancel(ctx *Context) (inner *Context, cancel func()) {
	inner = &Context{x: ctx.x, scope: &scope{parent: ctx.scope}}
	return inner, func() {
		ctx.x.running("cancel")
		ctx.x.cancelScope(inner.scope, ErrCanceled)
	}
}

// WithTimeout is [WithCancel] with a limit of time: when d has passed, the scope
// ends and awaits in it return [ErrTimeout]. cancel also stops the timer; call it
// when the scope is no longer needed.
func WithTimeout(ctx *Context, d time.Duration) (inner *Context, cancel func()) {
	inner, end := WithCancel(ctx)
	limit := ctx.Timer(d)
	if limit.p.pending() {
		limit.p.onSettled = append(limit.p.onSettled, func() {
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

// WithoutCancel returns a Context that no cancellation of ctx reaches, for
// clean-up where [Context.OnClose] does not fit. It ends with the body of the
// orchestration.
func WithoutCancel(ctx *Context) *Context {
	return &Context{x: ctx.x, scope: &scope{parent: ctx.scope.outermost()}}
}
