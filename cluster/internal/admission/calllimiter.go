package admission

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A CallLimiter bounds the calls of a node, or of a remote client, that are in flight to the leader
// of a partition or wait for one. Further calls wait in order of arrival and are rejected after
// slotWait. Without the bound, all calls would reach a new leader at once, when it has the most
// work, and could cost it the leadership. The zero value bounds nothing.
type CallLimiter struct{ slots chan struct{} }

// LeaderWaitMax bounds how long a node holds a call while leadership changes. A call rejected after
// the wait is retried like any other.
const LeaderWaitMax = 500 * time.Millisecond

// BoundCalls bounds the calls in flight from a node or remote client to the leader.
const BoundCalls = actors.Bound("calls")

const (
	callsInFlightMax = 1024
	// How long a call waits for a slot. A call in a context of WithoutBusyRetries waits only
	// slotWaitWithoutRetries.
	slotWait               = LeaderWaitMax
	slotWaitWithoutRetries = 25 * time.Millisecond
	// When to retry after a rejection.
	slotRetryAfter = 250 * time.Millisecond
)

// NewCallLimiter returns a limiter of callsInFlightMax calls.
func NewCallLimiter() CallLimiter { return CallLimiter{make(chan struct{}, callsInFlightMax)} }

// A callSlot is the slot of one call, if it has acquired one.
type callSlot struct {
	limiter  CallLimiter
	acquired bool
}

// withSlot returns an Asker that acquires a slot before it calls ask. It rejects the call if it
// gets no slot.
func (c *callSlot) withSlot(ask Asker) Asker {
	return func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		if !c.acquired {
			if c.acquired = c.limiter.acquire(ctx); !c.acquired {
				return noSlotResponse(ctx)
			}
		}
		return ask(ctx, request)
	}
}

func (c *callSlot) release() {
	if c.acquired && c.limiter.slots != nil {
		<-c.limiter.slots
	}
	c.acquired = false
}

func noSlotResponse(ctx context.Context) *clusterpb.Response {
	if ctx.Err() != nil {
		return wire.NotLeader("the call's context ended before it was sent")
	}
	return &clusterpb.Response{Failure: wire.Busy(&actors.BusyError{
		RetryAfter: slotRetryAfter, Bound: BoundCalls, Reason: "too many calls in flight to the leader",
	})}
}

// acquire waits for a slot and reports whether it got one.
func (c CallLimiter) acquire(ctx context.Context) bool {
	if c.slots == nil {
		return true
	}
	select {
	case c.slots <- struct{}{}:
		return true
	default:
	}
	wait := slotWait
	if !retriesBusy(ctx) {
		wait = slotWaitWithoutRetries
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case c.slots <- struct{}{}:
		return true
	case <-limit.C:
	case <-ctx.Done():
	}
	return false
}
