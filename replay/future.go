package replay

import (
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Future is the result of an operation that was scheduled: pending, then a
// value or an error for ever. It may be awaited any number of times, from any
// coroutine of its instance.
type Future[T any] struct{ p *promise }

// call schedules an operation of that name and returns its future, which is made
// in one piece with it.
func call[T any](ctx *Context, name string, event *journalpb.Event) *Future[T] {
	made := &struct {
		operation operation
		future    Future[T]
	}{}
	made.operation.name = name
	made.future.p = &made.operation.promise
	ctx.x.schedule(ctx, event, &made.operation)
	return &made.future
}

func settledFuture[T any](x *Execution, err error) *Future[T] {
	p := &promise{err: err, of: x}
	x.settle(p)
	return &Future[T]{p}
}

// An Awaitable is a [Future] of any type.
type Awaitable interface {
	core() *promise
}

func (f *Future[T]) core() *promise { return f.p }

// Await blocks the coroutine until the operation is complete and returns its
// result.
//
// The error is the operation's own ([*ActivityError], [*ChildError]);
// [ErrCanceled] when the operation was given up or the scope of ctx ended first;
// or a [*PayloadError] when the result is there but is no T. Which of two operations was completed first makes no difference to
// awaiting one and then the other.
func (f *Future[T]) Await(ctx *Context) (T, error) {
	x := ctx.x
	if f.p.of == x && !f.p.pending() && !x.dropping {
		x.running("Await")
		return f.result(x)
	}
	if err := x.await(ctx, f.p); err != nil {
		var zero T
		return zero, err
	}
	return f.result(x)
}

// AwaitFor is Await with a limit of time: when d passes first, the operation is
// given up as if by [Future.Cancel] and the error is [ErrTimeout]. To go on
// without giving it up, use [Next] with a timer.
func (f *Future[T]) AwaitFor(ctx *Context, d time.Duration) (T, error) {
	ctx.x.running("AwaitFor")
	ctx.x.ownsAll("AwaitFor", f.p)
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

// Done tells, without waiting, whether the result is there.
func (f *Future[T]) Done() bool { return !f.p.pending() }

// Cancel gives the operation up if it is still pending: a running activity's
// context is cancelled, a timer stopped, a subscription withdrawn, a child
// asked to cancel. Whoever awaits the future gets [ErrCanceled]; a result that
// arrives all the same is dropped. An operation that is given up in the step
// that scheduled it leaves no trace. Of a coroutine the scope ends: its awaits
// return ErrCanceled, and the future is resolved with what the function returns.
func (f *Future[T]) Cancel(ctx *Context) {
	ctx.x.running("Cancel")
	if !ctx.x.dropping {
		ctx.x.cancel(f.p)
	}
}

func (f *Future[T]) result(x *Execution) (T, error) {
	var value T
	if f.p.value != nil {
		value = f.p.value.(T)
	}
	switch {
	case f.p.err != nil:
		return value, x.told(f.p.err)
	case f.p.value != nil || f.p.op == nil: // a coroutine's may be nil
		return value, nil
	}
	if err := x.decode(f.p.op, &value); err != nil {
		var zero T
		return zero, err
	}
	return value, nil
}

// Go starts a coroutine of the same instance. It first runs when the calling
// one blocks. The future's value is what fn returns; unlike an operation's it
// is not recorded, because fn itself runs again on replay. The Context of fn has a
// scope of its own within that of ctx. It ends when the future is canceled, when
// the coroutine loses a [Race], and when the body of the orchestration returns: then
// awaits in it return [ErrCanceled], and what it has open is canceled.
func Go[T any](ctx *Context, fn func(ctx *Context) (T, error)) *Future[T] {
	x := ctx.x
	x.running("Go")
	if x.dropping {
		return settledFuture[T](x, ErrDehydrating)
	}
	if ctx.scope.outermost() != x.phase {
		return settledFuture[T](x, ErrCanceled)
	}
	inner := &scope{parent: ctx.scope}
	p := &promise{inside: inner, of: x}
	c := x.coroutines.spawn(inner, func() {
		value, err := fn(&Context{x: x, scope: inner})
		if !x.dropping {
			p.value = any(value)
			x.resolve(p, err)
		}
	})
	c.future = p
	return &Future[T]{p}
}

// All waits for every future and returns the results in the order of the
// arguments, or the first error, by the order of events, as soon as there is
// one. The others stay as they are.
func All[T any](ctx *Context, futures ...*Future[T]) ([]T, error) {
	ctx.x.running("All")
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

// awaitAll returns when every promise is resolved, or one has failed: its error.
func (x *Execution) awaitAll(ctx *Context, promises []*promise) error {
	if x.dropping {
		return ErrDehydrating
	}
	x.ownsAll("Await", promises...)
	var pending, failed []*promise
	for _, p := range promises {
		switch {
		case !ctx.scope.includes(p):
			pending = append(pending, p)
		case p.err != nil:
			failed = append(failed, p)
		}
	}
	if first := earliest(failed); first >= 0 {
		return x.told(failed[first].err)
	}
	left := len(pending)
	if left == 0 {
		return nil
	}
	if err := ctx.scope.err(); err != nil {
		return x.told(err)
	}
	gate := new(promise)
	for _, p := range pending {
		p.onSettled = append(p.onSettled, func() {
			left--
			if gate.pending() && (p.err != nil || left == 0) {
				gate.err = p.err
				x.settle(gate)
			}
		})
	}
	if err := x.await(ctx, gate); err != nil {
		return err
	}
	return x.told(gate.err)
}

// Race waits until the first of the operations is complete, gives up the
// others, and returns the index of the winner: the one whose completion has the
// lowest event_id, however the code looks at them. The winner's own error is
// had by awaiting it. The error of Race is [ErrCanceled] when the scope of ctx
// ends first; then nothing is given up but what the scope itself gives up.
func Race(ctx *Context, operations ...Awaitable) (int, error) {
	winner, err := Next(ctx, operations...)
	if err != nil {
		return winner, err
	}
	winning := operations[winner].core()
	for _, a := range operations {
		if p := a.core(); p != winning {
			ctx.x.cancel(p)
		}
	}
	return winner, nil
}

// Next waits until the first of the operations is complete and returns its
// index, as [Race] does, and gives nothing up.
func Next(ctx *Context, operations ...Awaitable) (int, error) {
	if len(operations) == 0 {
		return -1, errors.New("tenuto: a race of no operations has no winner")
	}
	promises := make([]*promise, len(operations))
	for i, a := range operations {
		promises[i] = a.core()
	}
	if err := ctx.x.await(ctx, promises...); err != nil {
		return -1, err
	}
	return earliest(promises), nil
}
