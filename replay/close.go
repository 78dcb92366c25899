package replay

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
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
// that of the body. OnClose panics if fn is nil.
func (c *Context) OnClose(fn func(ctx *Context, err error) error) {
	c.checkFunction("OnClose", fn == nil)
	c.execution().OnClose(func(s host.Scope, err error) error { return fn(&Context{s}, err) })
}

// checkFunction panics if a call that returns no error was given no function.
func (c *Context) checkFunction(call string, isNil bool) {
	if isNil {
		c.execution().Check(call)
		panic(fmt.Sprintf("tenuto: %s with a function that is nil, in instance %q", call, c.InstanceID()))
	}
}

// A Saga undoes completed steps if the instance does not complete.
type Saga struct{ x host.Execution }

// NewSaga returns a saga of the instance.
func NewSaga(ctx *Context) *Saga { return &Saga{ctx.execution()} }

// Compensate registers fn, as [Context.OnClose] does, to be called if the instance ends with an
// error or is canceled. Call it after the step that fn undoes, or before the step if fn can undo a
// step that was not done. Compensate panics if fn is nil.
func (s *Saga) Compensate(ctx *Context, fn func(ctx *Context) error) {
	ctx.checkFunction("Compensate", fn == nil)
	ctx.OnClose(func(ctx *Context, err error) error {
		if err == nil {
			return nil
		}
		return fn(ctx)
	})
}
