package cluster

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A callGate bounds how many calls of a node, or of a remote client, are with the leader of a
// group at once, or wait for one. The others wait before it, in the order of arrival, for a
// while, and are refused then. Without it all of them would be woken and come at once when
// a leader is found, which is when it has most to do, and could lose the lead over them.
// The zero value bounds nothing.
type callGate struct{ places chan struct{} }

const (
	callsMax = 1024
	// How long a call waits for its place; one that is not to be repeated, and so wants
	// to know soon, waits less.
	placeWait      = holdMax
	placeWaitBrief = 25 * time.Millisecond
	// After how long to try again then.
	placeAgain = 250 * time.Millisecond
)

func newCallGate() callGate { return callGate{make(chan struct{}, callsMax)} }

// A place is that of one call, or of one that has none yet.
type place struct {
	gate callGate
	held bool
}

// guard has the call ask once there is a place; without one it is refused.
func (p *place) guard(ask asker) asker {
	return func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		if !p.held {
			if p.held = p.gate.enter(ctx); !p.held {
				return noPlace(ctx)
			}
		}
		return ask(ctx, request)
	}
}

// leave gives the place to another call.
func (p *place) leave() {
	if p.held && p.gate.places != nil {
		<-p.gate.places
	}
	p.held = false
}

func noPlace(ctx context.Context) *clusterpb.Response {
	if ctx.Err() != nil {
		return notLeader("the call's time was over before it could be sent")
	}
	return &clusterpb.Response{Failure: failure(&BusyError{
		RetryAfter: placeAgain, Bound: BoundCalls, Reason: "too many calls are on their way to the leader",
	})}
}

// enter tells whether a call has got a place.
func (g callGate) enter(ctx context.Context) bool {
	if g.places == nil {
		return true
	}
	select {
	case g.places <- struct{}{}:
		return true
	default:
	}
	wait := placeWait
	if !repeatsBusy(ctx) {
		wait = placeWaitBrief
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case g.places <- struct{}{}:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}
