package admission

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/stats"

	"github.com/tenuto-dev/tenuto/actors"
)

// A node bounds the bytes of long answers in flight. A history may have 64 MiB; clients of this
// build read it in pages, those of the previous build in one answer.
const (
	// AnswersInFlightBytesMax bounds the bytes of long answers in flight.
	AnswersInFlightBytesMax = 256 << 20
	// HistoryPageBytes: a page takes no further event after this many bytes of events.
	HistoryPageBytes = 1 << 20
	// PageReserveBytes is reserved for a page: the events and the encoded message, each up to twice
	// HistoryPageBytes. A page with a last event of 4 MiB (the limit of an append) takes up to 10
	// MiB, which exceeds the reservation.
	PageReserveBytes = 4 * HistoryPageBytes
	// Reserved for a whole history, because its size is unknown before it is read.
	historyReserveBytes = 2 * 64 << 20
	// How long an answer waits for its reservation, and when to retry after a rejection.
	answerWait       = 2 * time.Second
	answerRetryAfter = 250 * time.Millisecond
)

// BoundAnswers bounds the long answers that a node sends at once.
const BoundAnswers = actors.Bound("answers")

// An AnswerLimiter bounds the bytes of answers in flight.
type AnswerLimiter struct{ bytes *semaphore.Weighted }

// NewAnswerLimiter returns a limiter of that many bytes.
func NewAnswerLimiter(most int64) AnswerLimiter { return AnswerLimiter{semaphore.NewWeighted(most)} }

// Reserve waits until the bytes of an answer are available. The reservation ends when the call of
// ctx ends. Calls from within the process reserve nothing.
func (a AnswerLimiter) Reserve(ctx context.Context, paged bool) error {
	call, remote := ctx.Value(answerCallKey{}).(*answerCall)
	if !remote {
		return nil
	}
	bytes := int64(historyReserveBytes)
	if paged {
		bytes = PageReserveBytes
	}
	waiting, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	if err := a.bytes.Acquire(waiting, bytes); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &actors.BusyError{RetryAfter: answerRetryAfter, Bound: BoundAnswers, Reason: "the node is sending too many long answers"}
	}
	call.releaseAtEnd(func() { a.bytes.Release(bytes) })
	return nil
}

// answerCallKey is the context key for the answerCall of a call that came over the network.
type answerCallKey struct{}

// An answerCall releases what a call holds after gRPC has encoded its answer.
type answerCall struct {
	mu      sync.Mutex
	release []func()
	ended   bool
}

func (c *answerCall) releaseAtEnd(release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		release()
		return
	}
	c.release = append(c.release, release)
}

func (c *answerCall) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, release := range c.release {
		release()
	}
	c.release, c.ended = nil, true
}

// StatsHandler notifies an answerCall when its call has ended.
type StatsHandler struct{}

// TagRPC implements stats.Handler.
func (StatsHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, answerCallKey{}, new(answerCall))
}

// HandleRPC implements stats.Handler.
func (StatsHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ended := s.(*stats.End); ended {
		ctx.Value(answerCallKey{}).(*answerCall).end()
	}
}

// TagConn implements stats.Handler.
func (StatsHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

// HandleConn implements stats.Handler.
func (StatsHandler) HandleConn(context.Context, stats.ConnStats) {}
