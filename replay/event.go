package replay

import "time"

// An EventHandle is the stable name of an external event with the type of its data.
type EventHandle[T any] struct{ name string }

// Event declares an external event. Histories record the name. Each use of the handle checks that
// the name has 1 to 128 bytes.
func Event[T any](name string) EventHandle[T] { return EventHandle[T]{name} }

// Name returns the name.
func (h EventHandle[T]) Name() string { return h.name }

// Wait waits for the next event of that name. Earlier events are buffered and taken in order; none
// is lost.
func (h EventHandle[T]) Wait(ctx *Context) (T, error) { return h.Subscribe(ctx).Await(ctx) }

// WaitFor is Wait with a timeout. After d the subscription is withdrawn, the error is [ErrTimeout],
// and the next event goes to the next subscription.
func (h EventHandle[T]) WaitFor(ctx *Context, d time.Duration) (T, error) {
	return h.Subscribe(ctx).AwaitFor(ctx, d)
}

// Subscribe returns the future of the next event of that name: the k-th subscription, not counting
// canceled ones, gets the k-th event.
func (h EventHandle[T]) Subscribe(ctx *Context) *Future[T] {
	return (*Future[T])(ctx.scope.Subscribe(h.name))
}
