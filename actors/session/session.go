package session

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Pings say how often each side of a session sends at least one message, and after how long a
// silence it considers its peer unreachable. Both sides must use the same.
type Pings struct{ Interval, Timeout time.Duration }

var (
	// NodePings are those of a session between two nodes.
	NodePings = Pings{200 * time.Millisecond, 600 * time.Millisecond}
	// WorkerPings are those of a session with a worker that is no node: there may be hundreds. The
	// end of such a process ends its connections, which is noticed at once; a lost machine after 3
	// s, because TCP acknowledges nothing.
	WorkerPings = Pings{2 * time.Second, 10 * time.Second}
)

// PingsOf returns the pings of the session of a worker.
func PingsOf(registration *clusterpb.RegisterWorker) Pings {
	if registration.GetWorker() != "" {
		return WorkerPings
	}
	return NodePings
}

// ErrPeerUnreachable is returned if the peer of a worker session has sent nothing for
// Pings.Timeout.
var ErrPeerUnreachable = errors.New("tenuto: worker session: peer unreachable")

// ErrWorkerDrained is returned if the worker is stopping and will not come back.
var ErrWorkerDrained = errors.New("tenuto: worker drained")

var errSessionEnded = errors.New("tenuto: worker session ended by the peer")

// Run sends the messages of the outbox and passes received ones to handle. It returns when
// ctx ends, the peer ends the session, or the peer is unreachable. Unsent messages stay in the
// outbox. handle must not block.
func Run[In, Out any](ctx context.Context, pings Pings, in <-chan *In, out chan<- *Out, box *Outbox[Out], handle func(*In)) error {
	ticker := time.NewTicker(pings.Interval)
	defer ticker.Stop()
	received, silentTicks := time.Now(), 0
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
			received, silentTicks = time.Now(), 0
			handle(m)
		case to <- next:
			next, pinging = nil, false
		case <-box.nonEmpty:
		case <-ticker.C:
			// A ticker drops ticks while this process does not run, so a pause of this process,
			// however long, counts as one interval of silence: the peer may have sent messages
			// meanwhile.
			silentTicks++
			if time.Since(received) >= pings.Timeout && time.Duration(silentTicks)*pings.Interval >= pings.Timeout {
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
