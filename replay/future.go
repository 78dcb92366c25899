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
	p := &promise{err: err}
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
	if err := ctx.x.await(ctx, f.p); err != nil {
		var zero T
		return zero, err
	}
	return f.result(ctx.x)
}

// AwaitFor is Await with a limit of time: when d passes first, the operation is
// given up as if by [Future.Cancel] and the error is [ErrTimeout]. To go on
// without giving it up, use [Next] with a timer.
func (f *Future[T]) AwaitFor(ctx *Context, d time.Duration) (T, error) {
	ctx.x.running("AwaitFor")
	var zero T
	if !f.p.pending() {
		return f.Await(ctx)
	}
	limit := ctx.Timer(d)
	winner, err := Race(ctx, f, limit)
	switch {
	case err != nil:
		return zero, err
	case winner == 0:
		return f.result(ctx.x)
	case limit.p.err != nil:
		return zero, limit.p.err
	}
	return zero, ErrTimeout
}

// Done tells, without waiting, whether the result is there.
func (f *Future[T]) Done() bool { return !f.p.pending() }

// Cancel gives the operation up if it is still pending: a running activity's
// context is cancelled, a timer stopped, a subscription withdrawn, a child
// asked to cancel. Whoever awaits the future gets [ErrCanceled]; a result that
// arrives all the same is dropped. An operation that is given up in the step
// that scheduled it leaves no trace.
func (f *Future[T]) Cancel(ctx *Context) {
	ctx.x.running("Cancel")
	if f.p.op != nil && !ctx.x.dropping {
		ctx.x.giveUp(f.p.op, ErrCanceled)
	}
}

func (f *Future[T]) result(x *Execution) (T, error) {
	var value T
	switch {
	case f.p.err != nil:
		return value, f.p.err
	case f.p.value != nil:
		return f.p.value.(T), nil
	case f.p.op == nil:
		return value, nil // a coroutine's nil
	}
	if err := deserialize(f.p.op.result(), f.p.payload, &value); err != nil {
		var zero T
		return zero, err
	}
	return value, nil
}

// Go starts a coroutine of the same instance. It first runs when the calling
// one blocks. The future's value is what fn returns; unlike an operation's it
// is not recorded, because fn itself runs again on replay.
func Go[T any](ctx *Context, fn func(ctx *Context) (T, error)) *Future[T] {
	x := ctx.x
	x.running("Go")
	if x.dropping {
		return settledFuture[T](x, ErrDehydrating)
	}
	p := new(promise)
	inner := &Context{x: x, scope: ctx.scope}
	x.coroutines.spawn(func() {
		value, err := fn(inner)
		if x.dropping {
			return
		}
		p.value, p.err = any(value), err
		x.settle(p)
	})
	return &Future[T]{p}
}

// All waits for every future and returns the results in the order of the
// arguments, or the first error, by the order of events, as soon as there is
// one. The others stay as they are.
func All[T any](ctx *Context, futures ...*Future[T]) ([]T, error) {
	ctx.x.running("All")
	if ctx.x.dropping {
		return nil, ErrDehydrating
	}
	pending := make([]*promise, 0, len(futures))
	var settled []*promise
	for _, f := range futures {
		if f.p.pending() {
			pending = append(pending, f.p)
		} else if f.p.err != nil {
			settled = append(settled, f.p)
		}
	}
	if first := earliest(settled); first >= 0 {
		return nil, settled[first].err
	}
	if err := ctx.x.awaitAll(ctx, pending); err != nil {
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

// awaitAll returns when every promise is settled, or one has failed: its error.
func (x *Execution) awaitAll(ctx *Context, promises []*promise) error {
	left := len(promises)
	if left == 0 {
		return nil
	}
	gate := new(promise)
	for _, p := range promises {
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
	return gate.err
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
	for i, a := range operations {
		if p := a.core(); i != winner && p.op != nil {
			ctx.x.giveUp(p.op, ErrCanceled)
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
