package cluster

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A callGate bounds how many calls of a node, or of a remote client, are with the leader at
// once, or wait for one. The others wait before it, in the order of arrival, for a
// while, and are refused then. Without it all of them would come at once when a leader
// is found, which is when it has most to do, and could lose the lead over them.
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

// guard has requests pass the gate before they are asked.
func (g callGate) guard(ask asker) asker {
	return func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		switch {
		case g.enter(ctx):
		case ctx.Err() != nil:
			return notLeader("the call's time was over before it could be sent")
		default:
			return &clusterpb.Response{Failure: &clusterpb.Failure{
				Code: codeBusy, NotExecuted: true, RetryAfter: int64(placeAgain), Message: "too many calls are on their way to the leader",
				Bound: string(BoundCalls),
			}}
		}
		defer func() { <-g.places }()
		return ask(ctx, request)
	}
}

// enter tells whether a call has got a place.
func (g callGate) enter(ctx context.Context) bool {
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
