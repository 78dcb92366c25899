package replaytest

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A barrier holds attempts whose bodies have returned and releases them one at a time, so that
// the Go scheduler does not decide which result comes first.
type barrier struct {
	bodies atomic.Pointer[engine.Registry]
	notify func()

	mu       sync.Mutex
	waiting  []*attempt
	released bool // all attempts pass
}

// An attempt is an attempt of an activity whose body has returned.
type attempt struct {
	*replay.Attempt
	released chan struct{}
	arrival  *arrival // set by toArrival
}

// wrap binds an activity to a body that runs the real one and then waits. Payloads and errors
// pass unchanged.
func (b *barrier) wrap(activity string) replay.Definition {
	handle := replay.Activity[json.RawMessage, json.RawMessage](activity)
	return handle.Bind(func(ctx context.Context, _ json.RawMessage) (output json.RawMessage, err error) {
		current := engine.CurrentAttempt(ctx)
		inner := &engine.Attempt{Attempt: current.Attempt, Input: current.Input, Details: current.Details, Worker: current.Worker}
		b.bodies.Load().RunActivity(ctx, inner, func(payload *journalpb.Payload, failure error) {
			output, err = payload.GetData(), failure
		})
		b.await(ctx, &current.Attempt)
		return output, err
	})
}

// await waits until the attempt is released. It does not wait if the attempt was canceled.
func (b *barrier) await(ctx context.Context, current *replay.Attempt) {
	a := &attempt{Attempt: current, released: make(chan struct{})}
	b.mu.Lock()
	released := b.released || ctx.Err() != nil
	if !released {
		b.waiting = append(b.waiting, a)
	}
	b.mu.Unlock()
	if released {
		return
	}
	b.notify()
	<-a.released
}

// waitingAttempts returns the attempts that wait.
func (b *barrier) waitingAttempts() []*attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting[:len(b.waiting):len(b.waiting)]
}

// release lets one attempt return its result.
func (b *barrier) release(a *attempt) {
	b.mu.Lock()
	for i := range b.waiting {
		if b.waiting[i] == a {
			b.waiting = append(b.waiting[:i:i], b.waiting[i+1:]...)
			break
		}
	}
	b.mu.Unlock()
	close(a.released)
}

// releaseAll releases all attempts, also later ones.
func (b *barrier) releaseAll() {
	b.mu.Lock()
	b.released = true
	waiting := b.waiting
	b.waiting = nil
	b.mu.Unlock()
	for _, a := range waiting {
		close(a.released)
	}
}
