package replay

import (
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Future is the result of a scheduled operation: pending, then permanently a value or an error.
// It may be awaited any number of times, from any coroutine of its instance.
type Future[T any] struct{ p *promise }

// scheduleFuture schedules a named operation. It allocates the operation and its future together.
func scheduleFuture[T any](ctx *Context, name string, event *journalpb.Event) *Future[T] {
	alloc := &struct {
		operation operation
		future    Future[T]
	}{}
	alloc.operation.name = name
	alloc.future.p = &alloc.operation.promise
	ctx.x.schedule(ctx, event, &alloc.operation)
	return &alloc.future
}

func resolvedFuture[T any](x *Execution, err error) *Future[T] {
	p := &promise{err: err, owner: x}
	x.resolve(p)
	return &Future[T]{p}
}

// An Awaitable is a [Future] of any type.
type Awaitable interface {
	core() *promise
}

func (f *Future[T]) core() *promise { return f.p }

// Await blocks the coroutine until the operation is complete and returns its result.
//
// The error is the operation's own ([*ActivityError], [*ChildError]); [ErrCanceled] if the
// operation was canceled; the error of the scope of ctx, [ErrCanceled] or [ErrTimeout], if that
// scope ended first; or a [*PayloadError] if the recorded result is not a T. The order in which two
// futures are awaited need not match the order in which their operations completed.
func (f *Future[T]) Await(ctx *Context) (T, error) {
	x := ctx.x
	if f.p.owner == x && !f.p.pending() && !x.evicting {
		x.currentCoroutine("Await")
		return f.result(x)
	}
	if err := x.await(ctx, f.p); err != nil {
		var zero T
		return zero, err
	}
	return f.result(x)
}

// AwaitFor is Await with a timeout. After d the operation is canceled as by [Future.Cancel], and
// the error is [ErrTimeout]. To keep the operation running, use [Next] with a timer.
func (f *Future[T]) AwaitFor(ctx *Context, d time.Duration) (T, error) {
	ctx.x.currentCoroutine("AwaitFor")
	ctx.x.checkOwners("AwaitFor", f.p)
	var zero T
	if ctx.scope.includes(f.p) {
		return f.Await(ctx)
	}
	winner, err := Race(ctx, f, ctx.Timer(d))
	switch {
	case err != nil:
		return zero, err
	case winner == 0:
		return f.result(ctx.x)
	}
	return zero, ErrTimeout
}

// Done reports, without waiting, whether the result is available.
func (f *Future[T]) Done() bool { return !f.p.pending() }

// Cancel cancels the operation if it is pending: it cancels the context of a running activity,
// stops a timer, withdraws a subscription, or asks a child to cancel. Awaits of the future return
// [ErrCanceled]; a result that arrives later is dropped. An operation that is canceled in the step
// that scheduled it leaves no trace in the history. Canceling a coroutine ends its scope: its
// awaits return ErrCanceled, and the future is resolved with what its function returns.
func (f *Future[T]) Cancel(ctx *Context) {
	ctx.x.currentCoroutine("Cancel")
	if !ctx.x.evicting {
		ctx.x.cancelPromise(f.p)
	}
}

func (f *Future[T]) result(x *Execution) (T, error) {
	var value T
	if f.p.value != nil {
		value = f.p.value.(T)
	}
	switch {
	case f.p.err != nil:
		return value, x.observeCancel(f.p.err)
	case f.p.value != nil || f.p.op == nil: // the value of a coroutine may be nil
		return value, nil
	}
	if err := x.decode(f.p.op, &value); err != nil {
		var zero T
		return zero, err
	}
	return value, nil
}

// Go starts a coroutine of the same instance. It first runs when the calling coroutine blocks. The
// future's value is what fn returns; it is not recorded, because fn runs again on replay.
//
// The Context of fn has its own scope within that of ctx. The scope ends when the future is
// canceled, when the coroutine loses a [Race], and when the body of the orchestration returns. Then
// awaits in it return [ErrCanceled], and its open operations are canceled.
func Go[T any](ctx *Context, fn func(ctx *Context) (T, error)) *Future[T] {
	x := ctx.x
	x.currentCoroutine("Go")
	if x.evicting {
		return resolvedFuture[T](x, ErrEvicting)
	}
	if ctx.scope.outermost() != x.phase {
		return resolvedFuture[T](x, ErrCanceled)
	}
	inner := &scope{parent: ctx.scope}
	p := &promise{coroutineScope: inner, owner: x}
	c := x.coroutines.spawn(inner, func() {
		value, err := fn(&Context{x: x, scope: inner})
		if !x.evicting {
			p.value = any(value)
			x.resolveErr(p, err)
		}
	})
	c.future = p
	return &Future[T]{p}
}

// All waits for every future and returns the results in the order of the arguments. It returns the
// first error, in event order, as soon as there is one. The other operations continue.
func All[T any](ctx *Context, futures ...*Future[T]) ([]T, error) {
	ctx.x.currentCoroutine("All")
	promises := make([]*promise, len(futures))
	for i, f := range futures {
		promises[i] = f.p
	}
	if err := ctx.x.awaitAll(ctx, promises); err != nil {
		return nil, err
	}
	results := make([]T, len(futures))
	for i, f := range futures {
		value, err := f.result(ctx.x)
		if err != nil {
			return nil, err
		}
		results[i] = value
	}
	return results, nil
}

// awaitAll returns nil after every promise is resolved, or the error of the first promise that
// fails.
func (x *Execution) awaitAll(ctx *Context, promises []*promise) error {
	if x.evicting {
		return ErrEvicting
	}
	x.checkOwners("Await", promises...)
	var pending, failed []*promise
	for _, p := range promises {
		switch {
		case !ctx.scope.includes(p):
			pending = append(pending, p)
		case p.err != nil:
			failed = append(failed, p)
		}
	}
	if first := earliestIndex(failed); first >= 0 {
		return x.observeCancel(failed[first].err)
	}
	left := len(pending)
	if left == 0 {
		return nil
	}
	if err := ctx.scope.err(); err != nil {
		return x.observeCancel(err)
	}
	wakeup := new(promise)
	for _, p := range pending {
		p.onResolved = append(p.onResolved, func() {
			left--
			if wakeup.pending() && (p.err != nil || left == 0) {
				wakeup.err = p.err
				x.resolve(wakeup)
			}
		})
	}
	if err := x.await(ctx, wakeup); err != nil {
		return err
	}
	return x.observeCancel(wakeup.err)
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
			ctx.x.cancelPromise(p)
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
	promises := make([]*promise, len(operations))
	for i, a := range operations {
		promises[i] = a.core()
	}
	if err := ctx.x.await(ctx, promises...); err != nil {
		return -1, err
	}
	return earliestIndex(promises), nil
}
