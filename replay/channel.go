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

// A channelWait is a coroutine that waits to receive or to send a value.
type channelWait[T any] struct {
	promise host.Promise
	value   T
	ok      bool
}

// NewChannel returns a channel that holds up to capacity values that no coroutine has received. With
// 0 or less, a sender waits until its value is received.
func NewChannel[T any](capacity int) *Channel[T] {
	return &Channel[T]{capacity: max(capacity, 0)}
}

// Send sends a value, and waits while the channel is full. It returns [ErrChannelClosed] if the
// channel is closed, or the error of the scope of ctx if that ends first; then nothing is sent.
func (c *Channel[T]) Send(ctx *Context, value T) error {
	c.checkUse(ctx, "Send")
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.closed:
		return ErrChannelClosed
	case c.handOver(ctx, value):
		return nil
	case len(c.values) < c.capacity:
		c.values = append(c.values, value)
		return nil
	}
	w := &channelWait[T]{promise: ctx.execution().NewPromise(), value: value}
	c.senders = append(c.senders, w)
	err := ctx.scope.Observe(ctx.scope.Wait(w.promise))
	switch {
	case w.promise.Seq() != 0: // received, or the channel is closed; perhaps before the scope ended
		return w.promise.Err()
	case err != nil:
		c.senders = withoutWait(c.senders, w)
	}
	return err
}

// Receive waits for a value. ok is false if the channel is closed and has no more values. It returns
// the error of the scope of ctx if that ends first; then no value is taken.
func (c *Channel[T]) Receive(ctx *Context) (value T, ok bool, err error) {
	c.checkUse(ctx, "Receive")
	switch {
	case ctx.Err() != nil:
		return value, false, ctx.Err()
	case len(c.values) > 0 || len(c.senders) > 0:
		return c.take(ctx), true, nil
	case c.closed:
		return value, false, nil
	}
	w := &channelWait[T]{promise: ctx.execution().NewPromise()}
	c.receivers = append(c.receivers, w)
	if err := ctx.scope.Observe(ctx.scope.Wait(w.promise)); err != nil {
		if w.promise.Seq() == 0 {
			c.receivers = withoutWait(c.receivers, w)
		} else if w.ok && !c.handOver(ctx, w.value) {
			// A sender has handed its value over, but the scope has ended: it is the next value.
			c.values = append([]T{w.value}, c.values...)
		}
		return value, false, err
	}
	return w.value, w.ok, nil
}

// Close closes the channel: waiting and later senders get [ErrChannelClosed], and receivers get the
// values that are left. Closing it twice has no effect.
func (c *Channel[T]) Close(ctx *Context) {
	c.checkUse(ctx, "Close")
	c.closed = true
	for _, w := range c.senders {
		ctx.execution().Resolve(w.promise, ErrChannelClosed)
	}
	for _, w := range c.receivers { // there are none while there are values
		ctx.execution().Resolve(w.promise, nil)
	}
	c.senders, c.receivers = nil, nil
}

// handOver gives a value to the first waiting receiver, and reports whether there was one.
func (c *Channel[T]) handOver(ctx *Context, value T) bool {
	if len(c.receivers) == 0 {
		return false
	}
	w := c.receivers[0]
	c.receivers = c.receivers[1:]
	w.value, w.ok = value, true
	ctx.execution().Resolve(w.promise, nil)
	return true
}

// take removes the next value. A waiting sender then sends its own.
func (c *Channel[T]) take(ctx *Context) (value T) {
	if len(c.senders) > 0 {
		w := c.senders[0]
		c.senders = c.senders[1:]
		c.values = append(c.values, w.value)
		ctx.execution().Resolve(w.promise, nil)
	}
	value = c.values[0]
	c.values = c.values[1:]
	return value
}

func withoutWait[T any](waits []*channelWait[T], without *channelWait[T]) []*channelWait[T] {
	for i, w := range waits {
		if w == without {
			return append(waits[:i], waits[i+1:]...)
		}
	}
	return waits
}

func (c *Channel[T]) checkUse(ctx *Context, what string) { checkOwner(ctx, what, "channel", &c.owner) }
