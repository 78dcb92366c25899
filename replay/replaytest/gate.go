package replaytest

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A gate is where attempts of activities wait when their bodies have returned,
// until they are let through one at a time: which of two results comes first is
// then not up to the Go scheduler.
type gate struct {
	code   atomic.Pointer[replay.Registry] // the bodies
	notify func()

	mu      sync.Mutex
	waiting []*attempt
	open    bool // everybody goes through
}

// An attempt of an activity whose body has returned.
type attempt struct {
	*replay.Attempt
	through chan struct{}
	waits   *arrival // once it was looked at
}

// guard binds an activity to a body that runs the real one and then waits. What
// goes in and comes out passes as it is.
func (g *gate) guard(activity string) replay.Definition {
	handle := replay.Activity[json.RawMessage, json.RawMessage](activity)
	return handle.Bind(func(ctx context.Context, _ json.RawMessage) (output json.RawMessage, err error) {
		current := replay.ActivityInfo(ctx)
		g.code.Load().Run(ctx, current, func(payload *journalpb.Payload, failure error) {
			output, err = payload.GetData(), failure
		})
		g.pass(ctx, current)
		return output, err
	})
}

// pass waits until the attempt is let through. One whose result is not wanted
// any more goes on at once.
func (g *gate) pass(ctx context.Context, current *replay.Attempt) {
	a := &attempt{Attempt: current, through: make(chan struct{})}
	g.mu.Lock()
	open := g.open || ctx.Err() != nil
	if !open {
		g.waiting = append(g.waiting, a)
	}
	g.mu.Unlock()
	if open {
		return
	}
	g.notify()
	<-a.through
}

// attempts returns those that wait.
func (g *gate) attempts() []*attempt {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting[:len(g.waiting):len(g.waiting)]
}

// let lets one of them through.
func (g *gate) let(a *attempt) {
	g.mu.Lock()
	for i := range g.waiting {
		if g.waiting[i] == a {
			g.waiting = append(g.waiting[:i:i], g.waiting[i+1:]...)
			break
		}
	}
	g.mu.Unlock()
	close(a.through)
}

// letAll opens the gate for good.
func (g *gate) letAll() {
	g.mu.Lock()
	g.open = true
	waiting := g.waiting
	g.waiting = nil
	g.mu.Unlock()
	for _, a := range waiting {
		close(a.through)
	}
}
