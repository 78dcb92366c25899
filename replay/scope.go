package replay

import "time"

// A scope is the stretch of code that one cancellation reaches. The root scope
// is that of the instance.
type scope struct {
	parent *scope
	cause  error // why it ended; nil while it has not
}

// scopeErr returns why the scope of c, or one around it, has ended. Asking is how
// code learns of a cancellation.
func (c *Context) scopeErr() error {
	err := c.scope.err()
	if err != nil && err == c.x.root.cause {
		c.x.cancelSeen = true
	}
	return err
}

// err returns why the scope, or one around it, ended.
func (s *scope) err() error {
	for ; s != nil; s = s.parent {
		if s.cause != nil {
			return s.cause
		}
	}
	return nil
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

// cancelScope ends a scope: its open operations are given up in the order in
// which they were scheduled, and whoever waits in it gets cause.
func (x *Execution) cancelScope(s *scope, cause error) {
	if s.err() != nil || x.dropping {
		return
	}
	s.cause = cause
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
// clean-up where [Context.OnClose] does not fit.
func WithoutCancel(ctx *Context) *Context { return &Context{x: ctx.x, scope: new(scope)} }
