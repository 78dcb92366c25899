package actors

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	// pingEvery is how often each side of an exchange says that it is alive.
	pingEvery = 200 * time.Millisecond
	// silentMax is after how long without a sign of life the other side counts as
	// gone.
	silentMax = 600 * time.Millisecond
	// goodbyeMax is how long a worker that stops waits until its goodbye is heard.
	goodbyeMax = 500 * time.Millisecond
)

// ErrSilent: the other side of an exchange has not been heard of for 600 ms.
var ErrSilent = errors.New("tenuto: the other node is silent")

// ErrGoodbye: the worker stops and does not come back.
var ErrGoodbye = errors.New("tenuto: the worker has said goodbye")

var errExchangeEnded = errors.New("tenuto: the other node has ended the exchange")

// An AttemptID names one attempt of an activity.
type AttemptID struct {
	Ref    *journalpb.OperationRef
	Number int
}

func (id AttemptID) key() attemptKey { return attemptKey{keyOf(id.Ref), id.Number} }

// An attemptKey is an AttemptID that can be compared.
type attemptKey struct {
	operation alarmKey
	number    int
}

// FromWorker is what a worker says to the node that leads. One field is set;
// with none it says no more than that it is alive.
type FromWorker struct {
	// First of all.
	Hello *Hello
	// An attempt that runs on the worker since an exchange before.
	Run *Run
	// So many places have become free; for the first time after all Runs, so that
	// nothing is handed to the worker that it has already.
	Freed  int
	Beat   *Beat
	Result *Result
	// Last of all: the worker stops, and what it has not brought a result of is to
	// be begun again elsewhere. The leader ends the exchange then.
	Goodbye bool
}

// A Hello says what a worker can do.
type Hello struct {
	Node string
	// The group of the partition that the exchange is about.
	Group int
	// The names of those that it has code for, and the tags that it serves.
	Activities []string
	Tags       []string
	// How many attempts it takes at once of those with a name that is limited.
	Limits map[string]int
	// The orchestrations that the node has code for. They are all if CodeKnown is set; otherwise
	// it has not told which they are.
	Orchestrations []Code
	CodeKnown      bool
}

// Code names an orchestration in a version.
type Code struct{ Name, Version string }

// A Run is an attempt that runs on a worker.
type Run struct {
	AttemptID
	Name string
	Age  time.Duration // since it began
}

// A Beat is a heartbeat. Details may be nil.
type Beat struct {
	AttemptID
	Details *journalpb.Payload
}

// A Result is what an attempt has come to: an output, an error, or that its end
// will come from outside. The worker keeps it until it is acknowledged.
type Result struct {
	AttemptID
	Output  *journalpb.Payload
	Error   *journalpb.Error
	Pending bool
	// What was reported last; nil for nothing.
	Details *journalpb.Payload
}

// ToWorker is what the node that leads says to a worker. One field is set; with
// none it says no more than that it is alive.
type ToWorker struct {
	Task   *Task
	GiveUp *GiveUp
	// The result of the attempt is recorded, or not wanted any more.
	Ack *AttemptID
}

// A Task is an attempt that a worker is to make. One that it has already is not
// made twice.
type Task struct {
	AttemptID
	Name      string
	Input     *journalpb.Payload
	Scheduled clustertime.Time
	LastError *journalpb.Error
	Details   *journalpb.Payload
	// How much time it has, as clocks differ; 0 means no limit.
	Left time.Duration
	// How long it has waited since it was recorded; 0 means unknown.
	Waited time.Duration
	// For the worker's tracer; see [Tracer].
	Carried string
}

// A GiveUp ends the context of an attempt: because of a limit of time, or with ""
// because the result is not wanted any more.
type GiveUp struct {
	AttemptID
	Timeout replay.TimeoutKind
}

// An outbox is what one side of an exchange has to say. How much there can be is
// bounded by the places of the worker.
type outbox[M any] struct {
	filled chan struct{} // has room for one

	mu       sync.Mutex
	messages []*pending[M]
	latest   map[attemptKey]*pending[M] // of those that a later one replaces
}

type pending[M any] struct {
	message M
	key     attemptKey
}

func newOutbox[M any]() *outbox[M] {
	return &outbox[M]{filled: make(chan struct{}, 1), latest: make(map[attemptKey]*pending[M])}
}

func (b *outbox[M]) put(m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append(&pending[M]{message: m})
}

// replace puts a message, in the place of the one with that key that was not
// taken yet.
func (b *outbox[M]) replace(key attemptKey, m M) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if waiting := b.latest[key]; waiting != nil {
		waiting.message = m
		return
	}
	b.latest[key] = &pending[M]{m, key}
	b.append(b.latest[key])
}

func (b *outbox[M]) append(m *pending[M]) {
	b.messages = append(b.messages, m)
	select {
	case b.filled <- struct{}{}:
	default:
	}
}

// take returns the next message, nil if there is none.
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

// exchange passes on what is in the box, and what comes in, until ctx ends, the
// other side has ended, or it is silent. handle must not block.
func exchange[In, Out any](ctx context.Context, in <-chan In, out chan<- Out, box *outbox[Out], handle func(In)) error {
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	heard := time.Now()
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
				return errExchangeEnded
			}
			heard = time.Now()
			handle(m)
		case to <- *message:
			next = nil
		case <-box.filled:
		case <-ping.C:
			if time.Since(heard) >= silentMax {
				return ErrSilent
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
