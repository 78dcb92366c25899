package cluster

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/stats"
)

// A node bounds the bytes of the long answers that it is about to send over the network. A
// history can have 64 MiB; clients of this build read it in pages, those of the build before
// in one answer.
const (
	answersBytesMax = 256 << 20
	// After so many bytes of events a page takes no further event.
	historyPageBytes = 1 << 20
	// What is reserved for a page: the events, and the message that they are encoded into,
	// each up to twice historyPageBytes. The last event of a page may have 4 MiB, as much as
	// an append; such a page takes up to 10 MiB, more than is reserved.
	pageReserve = 4 * historyPageBytes
	// And for a whole history, of which the size is not known before it is read.
	wholeReserve = 2 * 64 << 20
	// How long an answer waits for its turn, and after how long to try again then.
	answerWait  = 2 * time.Second
	answerAgain = 250 * time.Millisecond
)

// An answerBound is a bound of the bytes of answers in flight.
type answerBound struct{ bytes *semaphore.Weighted }

func newAnswerBound(most int64) answerBound { return answerBound{semaphore.NewWeighted(most)} }

// reserve waits until there is room for an answer. The room is free again when the call is
// over in whose context it was reserved. A call of the process itself needs none.
func (b answerBound) reserve(ctx context.Context, paged bool) error {
	call, remote := ctx.Value(answerKey{}).(*answerCall)
	if !remote {
		return nil
	}
	bytes := int64(wholeReserve)
	if paged {
		bytes = pageReserve
	}
	waiting, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	if err := b.bytes.Acquire(waiting, bytes); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &BusyError{RetryAfter: answerAgain, Bound: BoundAnswers, Reason: "too many long answers are being sent by the node"}
	}
	call.holds(func() { b.bytes.Release(bytes) })
	return nil
}

// answerKey is the key of the answerCall in the context of a call that came over the network.
type answerKey struct{}

// An answerCall gives back what a call holds when its answer was handed to the connection.
type answerCall struct {
	mu      sync.Mutex
	release []func()
	over    bool
}

func (c *answerCall) holds(release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
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
	c.release, c.over = nil, true
}

// answerStats hears from gRPC when a call is over, which is after its answer was encoded.
type answerStats struct{}

// TagRPC implements stats.Handler.
func (answerStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, answerKey{}, new(answerCall))
}

// HandleRPC implements stats.Handler.
func (answerStats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ended := s.(*stats.End); ended {
		ctx.Value(answerKey{}).(*answerCall).end()
	}
}

// TagConn implements stats.Handler.
func (answerStats) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (answerStats) HandleConn(context.Context, stats.ConnStats) {}
