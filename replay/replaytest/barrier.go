package replaytest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A barrier holds results of activities and messages between instances, and releases them one at a
// time, so that the Go scheduler does not decide which comes first.
type barrier struct {
	bodies atomic.Pointer[engine.Registry]
	notify func()

	mu       sync.Mutex
	waiting  []*heldItem
	released bool // all items pass
}

// A heldItem is an attempt of an activity whose body has returned, or a message that was sent.
type heldItem struct {
	instance  string // that gets the result, or sends the message
	execution uint64
	eventID   uint64 // of the operation
	number    int    // of the attempt
	what      string

	released chan struct{}
	arrival  *arrival // set by toArrival
}

// wrap binds an activity to a body that runs the real one and then waits. Payloads and errors
// pass unchanged.
func (b *barrier) wrap(activity string) replay.Definition {
	handle := replay.Activity[json.RawMessage, json.RawMessage](activity)
	return handle.Bind(func(ctx context.Context, _ json.RawMessage) (output json.RawMessage, err error) {
		current := engine.CurrentAttempt(ctx)
		inner := &engine.Attempt{
			Attempt: current.Attempt, Input: current.Input, Headers: current.Headers, Details: current.Details, Worker: current.Worker,
		}
		b.bodies.Load().RunActivity(ctx, inner, func(payload *journalpb.Payload, failure error) {
			output, err = payload.GetData(), failure
		})
		b.await(ctx, &heldItem{
			instance: current.Instance, execution: current.Execution, eventID: current.EventID, number: current.Number, what: current.Name,
		})
		return output, err
	})
}

// await waits until h is released. It does not wait if ctx has ended.
func (b *barrier) await(ctx context.Context, h *heldItem) {
	h.released = make(chan struct{})
	b.mu.Lock()
	released := b.released || ctx.Err() != nil
	if !released {
		b.waiting = append(b.waiting, h)
	}
	b.mu.Unlock()
	if released {
		return
	}
	b.notify()
	<-h.released
}

// waitingNow returns the waiting items.
func (b *barrier) waitingNow() []*heldItem {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting[:len(b.waiting):len(b.waiting)]
}

// release releases a waiting item. It has no effect on others.
func (b *barrier) release(h *heldItem) {
	b.mu.Lock()
	at := slices.Index(b.waiting, h)
	if at >= 0 {
		b.waiting = append(b.waiting[:at:at], b.waiting[at+1:]...)
	}
	b.mu.Unlock()
	if at >= 0 {
		close(h.released)
	}
}

// releaseAll releases all items, now and in future.
func (b *barrier) releaseAll() {
	b.mu.Lock()
	b.released = true
	waiting := b.waiting
	b.waiting = nil
	b.mu.Unlock()
	for _, h := range waiting {
		close(h.released)
	}
}
