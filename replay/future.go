package replay

import (
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A Future is the result of a scheduled operation: pending, then permanently a value or an error.
// It may be awaited any number of times, from any coroutine of its instance.
type Future[T any] host.Future

// An Awaitable is a [Future] of any type.
type Awaitable interface {
	core() host.Promise
}

func (f *Future[T]) core() host.Promise { return (*host.Future)(f).Promise() }

// Await blocks the coroutine until the operation is complete and returns its result.
//
// The error is the operation's own ([*ActivityError], [*ChildError]); [ErrCanceled] if the
// operation was canceled; the error of the scope of ctx, [ErrCanceled] or [ErrTimeout], if that
// scope ended first; or a [*PayloadError] if the recorded result is not a T. The order in which two
// futures are awaited need not match the order in which their operations completed.
func (f *Future[T]) Await(ctx *Context) (T, error) {
	var value T
	other, err := ctx.scope.Await(f.core(), &value)
	return typed(value, other, err)
}

// typed returns the result of a promise: the decoded value, or another one that was not recorded.
func typed[T any](decoded T, other any, err error) (T, error) {
	switch {
	case other != nil:
		return other.(T), err
	case err != nil:
		var zero T
		return zero, err
	}
	return decoded, nil
}

func (f *Future[T]) result(ctx *Context) (T, error) {
	var value T
	other, err := ctx.scope.Result(f.core(), &value)
	return typed(value, other, err)
}

// AwaitFor is Await with a timeout. After d the operation is canceled as by [Future.Cancel], and
// the error is [ErrTimeout]. To keep the operation running, use [Next] with a timer.
func (f *Future[T]) AwaitFor(ctx *Context, d time.Duration) (T, error) {
	ctx.execution().Check("AwaitFor")
	ctx.scope.CheckFuture("AwaitFor", f.core())
	var zero T
	if ctx.scope.Includes(f.core()) {
		return f.Await(ctx)
	}
	winner, err := Race(ctx, f, ctx.Timer(d))
	switch {
	case err != nil:
		return zero, err
	case winner == 0:
		return f.result(ctx)
	}
	return zero, ErrTimeout
}

// Done reports, without waiting, whether the result is available.
func (f *Future[T]) Done() bool { return f.core().Seq() != 0 }

// Cancel cancels the operation if it is pending: it cancels the context of a running activity,
// stops a timer, withdraws a subscription, or asks a child to cancel. Awaits of the future return
// [ErrCanceled]; a result that arrives later is dropped. An operation that is canceled in the step
// that scheduled it leaves no trace in the history. Canceling a coroutine ends its scope: its
// awaits return ErrCanceled, and the future is resolved with what its function returns.
func (f *Future[T]) Cancel(ctx *Context) {
	ctx.execution().Check("Cancel")
	ctx.scope.Cancel(f.core())
}

// Go starts a coroutine of the same instance. It first runs when the calling coroutine blocks. The
// future's value is what fn returns; it is not recorded, because fn runs again on replay.
//
// The Context of fn has its own scope within that of ctx. The scope ends when the future is
// canceled, when the coroutine loses a [Race], and when the body of the orchestration returns. Then
// awaits in it return [ErrCanceled], and its open operations are canceled. If fn is nil, no
// coroutine starts, and the future fails with an [*InvalidError].
func Go[T any](ctx *Context, fn func(ctx *Context) (T, error)) *Future[T] {
	if fn == nil {
		return (*Future[T])(ctx.scope.Go(nil))
	}
	return (*Future[T])(ctx.scope.Go(func(inner host.Scope) (any, error) { return fn(&Context{inner}) }))
}

// All waits for every future and returns the results in the order of the arguments. It returns the
// first error, in event order, as soon as there is one. The other operations continue.
func All[T any](ctx *Context, futures ...*Future[T]) ([]T, error) {
	ctx.execution().Check("All")
	promises := make([]host.Promise, len(futures))
	for i, f := range futures {
		promises[i] = f.core()
	}
	if err := awaitAll(ctx, promises); err != nil {
		return nil, err
	}
	results := make([]T, len(futures))
	for i, f := range futures {
		value, err := f.result(ctx)
		if err != nil {
			return nil, err
		}
		results[i] = value
	}
	return results, nil
}

// awaitAll returns nil after every promise is resolved, or the error of the first promise that
// fails.
func awaitAll(ctx *Context, promises []host.Promise) error {
	x := ctx.execution()
	if x.Evicting() {
		return ErrEvicting
	}
	var pending, failed []host.Promise
	for _, p := range promises {
		ctx.scope.CheckFuture("Await", p)
	}
	for _, p := range promises {
		switch {
		case !ctx.scope.Includes(p):
			pending = append(pending, p)
		case p.Err() != nil:
			failed = append(failed, p)
		}
	}
	if first := earliestIndex(failed); first >= 0 {
		return ctx.scope.Observe(failed[first].Err())
	}
	left := len(pending)
	if left == 0 {
		return nil
	}
	if err := ctx.scope.Cause(); err != nil {
		return ctx.scope.Observe(err)
	}
	wakeup := x.NewPromise()
	for _, p := range pending {
		p.OnResolved(func() {
			left--
			if wakeup.Seq() == 0 && (p.Err() != nil || left == 0) {
				x.Resolve(wakeup, p.Err())
			}
		})
	}
	if err := ctx.scope.Wait(wakeup); err != nil {
		return ctx.scope.Observe(err)
	}
	return ctx.scope.Observe(wakeup.Err())
}

// earliestIndex returns the index of the promise that was resolved first, -1 if all are pending.
func earliestIndex(promises []host.Promise) int {
	first, lowest := -1, uint64(0)
	for i, p := range promises {
		if seq := p.Seq(); seq != 0 && (first < 0 || seq < lowest) {
			first, lowest = i, seq
		}
	}
	return first
}

// Race waits until the first operation is complete, cancels the others, and returns the index of
// the winner: the one whose completion has the lowest event_id. To get the winner's result or
// error, await it. If the scope of ctx ends first, Race returns the error of that scope and cancels
// no operation.
func Race(ctx *Context, operations ...Awaitable) (int, error) {
	winner, err := Next(ctx, operations...)
	if err != nil {
		return winner, err
	}
	winnerPromise := operations[winner].core()
	for _, a := range operations {
		if p := a.core(); p != winnerPromise {
			ctx.scope.Cancel(p)
		}
	}
	return winner, nil
}

// Next waits until the first operation is complete and returns its index, like [Race], but cancels
// nothing.
func Next(ctx *Context, operations ...Awaitable) (int, error) {
	if len(operations) == 0 {
		return -1, errors.New("tenuto: Race and Next need at least one operation")
	}
	promises := make([]host.Promise, len(operations))
	for i, a := range operations {
		promises[i] = a.core()
	}
	if err := ctx.scope.WaitAny(promises); err != nil {
		return -1, ctx.scope.Observe(err)
	}
	return earliestIndex(promises), nil
}
