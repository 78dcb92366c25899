package replay

import (
	"cmp"
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// Await waits until a condition on the variables of the code holds. The condition is checked at
// once, and again after each step in which code of the instance has run: coroutines, and handlers
// of updates and events. Conditions are checked in the order in which the coroutines began to wait,
// live and on replay. The coroutine continues before any other code runs, except for coroutines
// whose conditions were checked before.
//
// holds must only read variables of the orchestration; a durable call in it panics. Await returns
// the error of the scope of ctx if that ends first, or an [*InvalidError] if holds is nil. Each
// check of a condition costs a switch to its coroutine, so let few coroutines wait for conditions.
func Await(ctx *Context, holds func() bool) error {
	return awaitCondition(ctx, "Await", holds, nil)
}

// AwaitFor is [Await] with a timeout. If the condition does not hold after d, the error is
// [ErrTimeout].
func AwaitFor(ctx *Context, d time.Duration, holds func() bool) error {
	x := ctx.execution()
	x.Check("AwaitFor")
	if holds == nil || ctx.scope.Cause() != nil || x.Holds(holds) {
		return Await(ctx, holds) // which returns at once
	}
	timer := ctx.Timer(d)
	err := awaitCondition(ctx, "AwaitFor", holds, timer.core())
	if err == nil && !timer.Done() {
		timer.Cancel(ctx)
	}
	return err
}

// awaitCondition waits until a condition holds, or until timer, which may be nil, is resolved.
func awaitCondition(ctx *Context, what string, holds func() bool, timer host.Promise) error {
	x := ctx.execution()
	x.Check(what)
	if holds == nil {
		return &InvalidError{Field: "condition", Reason: "is nil"}
	}
	for position := x.NewPosition(); ; {
		if err := endedScopeError(ctx); err != nil {
			return err
		}
		switch {
		case x.Holds(holds):
			return nil
		case timer != nil && timer.Seq() != 0:
			return cmp.Or(timer.Err(), ErrTimeout)
		}
		promises := []host.Promise{x.NextCheck(position)}
		if timer != nil {
			promises = append(promises, timer)
		}
		if err := ctx.scope.Observe(ctx.scope.WaitAny(promises)); err != nil {
			return err
		}
	}
}
