package session

import (
	"context"
	"errors"
	"time"
)

const (
	// pingInterval is how often each side of a worker session sends a message.
	pingInterval = 200 * time.Millisecond
	// peerTimeout is the silence after which a side considers its peer unreachable.
	peerTimeout = 600 * time.Millisecond
)

// ErrPeerUnreachable is returned if the peer of a worker session has sent nothing for 600 ms.
var ErrPeerUnreachable = errors.New("tenuto: worker session: peer unreachable")

// ErrWorkerDrained is returned if the worker is stopping and will not come back.
var ErrWorkerDrained = errors.New("tenuto: worker drained")

var errSessionEnded = errors.New("tenuto: worker session ended by the peer")

// Run sends the messages of the outbox and passes received ones to handle. It returns when
// ctx ends, the peer ends the session, or the peer is unreachable. Unsent messages stay in the
// outbox. handle must not block.
func Run[In, Out any](ctx context.Context, in <-chan *In, out chan<- *Out, box *Outbox[Out], handle func(*In)) error {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	received := time.Now()
	next, pinging := box.take(), false
	defer func() {
		if next != nil && !pinging {
			box.putBack(next)
		}
	}()
	for {
		to := out
		if next == nil {
			to = nil
		}
		select {
		case m, more := <-in:
			if !more {
				return errSessionEnded
			}
			received = time.Now()
			handle(m)
		case to <- next:
			next, pinging = nil, false
		case <-box.nonEmpty:
		case <-ticker.C:
			if time.Since(received) >= peerTimeout {
				return ErrPeerUnreachable
			}
			if next == nil {
				next, pinging = new(Out), true
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if next == nil {
			next = box.take()
		}
	}
}
