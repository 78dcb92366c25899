package actors

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	// pingInterval is how often each side of a worker session sends a message.
	pingInterval = 200 * time.Millisecond
	// peerTimeout is the silence after which a side considers its peer unreachable.
	peerTimeout = 600 * time.Millisecond
	// drainTimeout is how long a stopping worker waits for the leader to take its drain message.
	drainTimeout = 500 * time.Millisecond
)

// ErrPeerUnreachable is returned if the peer of a worker session has sent nothing for 600 ms.
var ErrPeerUnreachable = errors.New("tenuto: worker session: peer unreachable")

// ErrWorkerDrained is returned if the worker is stopping and will not come back.
var ErrWorkerDrained = errors.New("tenuto: worker drained")

var errSessionEnded = errors.New("tenuto: worker session ended by the peer")

// An AttemptID identifies one attempt of an activity.
type AttemptID struct {
	Ref    *journalpb.OperationRef
	Number int
}

func (id AttemptID) key() attemptKey { return attemptKey{operation.KeyOf(id.Ref), id.Number} }

// An attemptKey is a comparable AttemptID.
type attemptKey struct {
	operation operation.Key
	number    int
}

// FromWorker is a message from a worker to the leader. At most one field is set; with none it is
// only a sign of life.
type FromWorker struct {
	// Register comes first.
	Register *RegisterWorker
	// RunningAttempt is an attempt that the worker has run since an earlier session.
	RunningAttempt *RunningAttempt
	// FreeSlots is how many slots have become free. The first comes after all RunningAttempts, so
	// that the leader assigns nothing that the worker already has.
	FreeSlots int
	Heartbeat *Heartbeat
	Result    *Result
	// Drain comes last: the worker is stopping, and attempts without a result are to begin again
	// elsewhere. The leader then ends the session.
	Drain bool
}

// RegisterWorker says what a worker can run.
type RegisterWorker struct {
	Node string
	// Partition is the partition that the session is for.
	Partition int
	// Activities are the names of activities that the worker has code for. Tags are those it
	// serves.
	Activities []string
	Tags       []string
	// Limits bounds, by activity name, how many attempts the worker runs at once.
	Limits map[string]int
	// Orchestrations are those that the node has code for. The list is complete if CodeKnown is
	// set; otherwise the node has not said which code it has.
	Orchestrations []Code
	CodeKnown      bool
}

// Code identifies an orchestration and its version.
type Code struct{ Name, Version string }

// A RunningAttempt is an attempt that runs on a worker.
type RunningAttempt struct {
	AttemptID
	Name string
	Age  time.Duration // since it began
}

// A Heartbeat is a sign of life of an attempt. Details may be nil.
type Heartbeat struct {
	AttemptID
	Details *journalpb.Payload
}

// A Result is what an attempt returned: an output, an error, or that its end will come from
// outside. The worker keeps it until the leader acknowledges it.
type Result struct {
	AttemptID
	Output  *journalpb.Payload
	Error   *journalpb.Error
	Pending bool
	// Details are those of the last heartbeat; nil if there are none.
	Details *journalpb.Payload
}

// ToWorker is a message from the leader to a worker. At most one field is set; with none it is
// only a sign of life.
type ToWorker struct {
	AssignAttempt *AssignAttempt
	CancelAttempt *CancelAttempt
	// Ack says that the result of the attempt is recorded or no longer wanted.
	Ack *AttemptID
}

// An AssignAttempt asks a worker to make an attempt. A worker that already has the attempt does
// not make it again.
type AssignAttempt struct {
	AttemptID
	Name      string
	Input     *journalpb.Payload
	Scheduled clustertime.Time
	LastError *journalpb.Error
	Details   *journalpb.Payload
	// TimeLeft is how much time the attempt has. It is a duration because the nodes' clocks
	// differ. 0 means no limit.
	TimeLeft time.Duration
	// QueuedFor is how long the activity has waited since it was recorded; 0 means unknown.
	QueuedFor time.Duration
	// TraceContext is for the worker's tracer; see [Tracer].
	TraceContext string
}

// A CancelAttempt cancels the context of an attempt. Timeout is the timeout that has passed, or ""
// if the result is no longer wanted.
type CancelAttempt struct {
	AttemptID
	Timeout replay.TimeoutKind
}

// An outbox holds the unsent messages of one side of a session. The worker's slots bound their
// number.
type outbox[M any] struct {
	nonEmpty chan struct{} // has room for one

	mu       sync.Mutex
	messages []*outboxEntry[M]
	latest   map[attemptKey]*outboxEntry[M] // entries that replace may overwrite
}

type outboxEntry[M any] struct {
	message M
	key     attemptKey
}

func newOutbox[M any]() *outbox[M] {
	return &outbox[M]{nonEmpty: make(chan struct{}, 1), latest: make(map[attemptKey]*outboxEntry[M])}
}

func (b *outbox[M]) put(m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append(&outboxEntry[M]{message: m})
}

// replace adds a message, or overwrites an unsent one with the same key.
func (b *outbox[M]) replace(key attemptKey, m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if waiting := b.latest[key]; waiting != nil {
		waiting.message = m
		return
	}
	b.latest[key] = &outboxEntry[M]{m, key}
	b.append(b.latest[key])
}

func (b *outbox[M]) append(m *outboxEntry[M]) {
	b.messages = append(b.messages, m)
	select {
	case b.nonEmpty <- struct{}{}:
	default:
	}
}

// take removes and returns the next message, nil if there is none.
func (b *outbox[M]) take() *M {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.messages) == 0 {
		return nil
	}
	next := b.messages[0]
	b.messages[0] = nil
	b.messages = b.messages[1:]
	if b.latest[next.key] == next {
		delete(b.latest, next.key)
	}
	return &next.message
}

// runSession sends the messages of the outbox and passes received ones to handle. It returns when
// ctx ends, the peer ends the session, or the peer is unreachable. handle must not block.
func runSession[In, Out any](ctx context.Context, in <-chan In, out chan<- Out, box *outbox[Out], handle func(In)) error {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	received := time.Now()
	next := box.take()
	for {
		to, message := out, new(Out)
		if next == nil {
			to = nil
		} else {
			message = next
		}
		select {
		case m, more := <-in:
			if !more {
				return errSessionEnded
			}
			received = time.Now()
			handle(m)
		case to <- *message:
			next = nil
		case <-box.nonEmpty:
		case <-ticker.C:
			if time.Since(received) >= peerTimeout {
				return ErrPeerUnreachable
			}
			if next == nil {
				next = new(Out)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if next == nil {
			next = box.take()
		}
	}
}
