package replay

import (
	"errors"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// ErrChannelClosed means that a value was sent on a closed [Channel].
var ErrChannelClosed = errors.New("tenuto: channel closed")

// A Channel passes values between the coroutines of one instance, first come, first served. It is
// what a Go channel is between goroutines, which orchestration code must not use. Values stay in
// memory and are not recorded: a replay passes the same ones. A Channel belongs to the first
// execution that uses it; any other execution that uses it stalls (see [ForeignFuture]).
type Channel[T any] struct {
	owner     atomic.Pointer[host.ID]
	capacity  int
	closed    bool
	values    []T
	receivers []*channelWait[T]
	senders   []*channelWait[T]
}

// A channelWait is a coroutine that waits in a scope to receive or to send a value.
type channelWait[T any] struct {
	promise host.Promise
	scope   host.Scope
	value   T
	ok      bool
}

// NewChannel returns a channel that holds up to capacity values that no coroutine has received.
// With 0 or less, a sender waits until its value is received.
func NewChannel[T any](capacity int) *Channel[T] {
	return &Channel[T]{capacity: max(capacity, 0)}
}

// Send sends a value, and waits while the channel is full. It returns [ErrChannelClosed] if the
// channel is closed, or the error of the scope of ctx if that ends first; then nothing is sent.
func (c *Channel[T]) Send(ctx *Context, value T) error {
	c.checkUse(ctx, "Send")
	if err := endedScopeError(ctx); err != nil {
		return err
	}
	if c.closed {
		return ErrChannelClosed
	}
	if w := next(&c.receivers); w != nil {
		w.value, w.ok = value, true
		ctx.execution().Resolve(w.promise, nil)
		return nil
	}
	if len(c.values) < c.capacity {
		c.values = append(c.values, value)
		return nil
	}
	w := &channelWait[T]{promise: ctx.execution().NewPromise(), scope: ctx.scope, value: value}
	c.senders = append(c.senders, w)
	return w.wait()
}

// Receive waits for a value. ok is false if the channel is closed and has no more values. It
// returns the error of the scope of ctx if that ends first; then no value is taken.
func (c *Channel[T]) Receive(ctx *Context) (value T, ok bool, err error) {
	c.checkUse(ctx, "Receive")
	if err := endedScopeError(ctx); err != nil {
		return value, false, err
	}
	if w := next(&c.senders); w != nil { // its value comes after those that the channel holds
		c.values = append(c.values, w.value)
		ctx.execution().Resolve(w.promise, nil)
	}
	if len(c.values) > 0 {
		value, c.values = c.values[0], c.values[1:]
		return value, true, nil
	}
	if c.closed {
		return value, false, nil
	}
	w := &channelWait[T]{promise: ctx.execution().NewPromise(), scope: ctx.scope}
	c.receivers = append(c.receivers, w)
	err = w.wait()
	return w.value, w.ok, err
}

// Close closes the channel: waiting and later senders get [ErrChannelClosed], and receivers get the
// values that are left. Closing it twice has no effect.
func (c *Channel[T]) Close(ctx *Context) {
	c.checkUse(ctx, "Close")
	c.closed = true
	for w := next(&c.senders); w != nil; w = next(&c.senders) {
		ctx.execution().Resolve(w.promise, ErrChannelClosed)
	}
	for w := next(&c.receivers); w != nil; w = next(&c.receivers) { // none while there are values
		ctx.execution().Resolve(w.promise, nil)
	}
}

// next removes and returns the first of some waits, without those whose scopes have ended: they get
// the error of the scope. It returns nil if there is none.
func next[T any](waits *[]*channelWait[T]) *channelWait[T] {
	for len(*waits) > 0 {
		w := (*waits)[0]
		*waits = (*waits)[1:]
		if w.scope.Cause() == nil {
			return w
		}
	}
	return nil
}

// wait waits until the promise is resolved, and returns its error, or that of the scope.
func (w *channelWait[T]) wait() error {
	if err := w.scope.Wait(w.promise); err != nil && w.promise.Seq() == 0 {
		return w.scope.Observe(err)
	}
	return w.promise.Err()
}

func (c *Channel[T]) checkUse(ctx *Context, what string) { checkOwner(ctx, what, "channel", &c.owner) }

// endedScopeError returns the error of the scope of ctx if that has ended. A coroutine that calls
// it forever after the end of the body is ended.
func endedScopeError(ctx *Context) error {
	if ctx.scope.Cause() == nil {
		return nil
	}
	return ctx.scope.Observe(ctx.scope.Wait(ctx.execution().NewPromise()))
}
