package slot

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An Item is an attempt to be made on this node. Its Run calls [Pool.RunSlot], which makes the
// attempt in its slot, and then other waiting attempts in the same slot.
type Item interface {
	sched.Runnable
	Name() string // of the activity
	// Begin returns the invocation, or reports that the attempt is no longer wanted. The pool's
	// lock is held.
	Begin() (run *Invocation, requested bool)
}

// An Invocation is what a node needs to run the body of an attempt.
type Invocation struct {
	Context      context.Context
	Cancel       context.CancelCauseFunc
	Info         engine.Attempt
	TraceContext string // for the tracer
	Resolver     Resolver
	// QueuedFor is the time from the recording of the activity until the attempt got its slot.
	// BodyStartedAt is when its body began, by the local clock.
	QueuedFor     time.Duration
	BodyStartedAt time.Time
}

// UnknownQueueTime is the QueuedFor of an attempt whose leader did not send it.
const UnknownQueueTime = -1

// A Resolver takes what the body of an attempt has returned.
type Resolver interface {
	Resolve(output *journalpb.Payload, end End)
}

// An End says how a body returned.
type End struct {
	Failure error // as it will be read from its record; nil if the body returned no error
	Pending bool  // the end of the attempt will come from outside
}

// LocalDeadline returns the local time when the duration left will have passed; the zero time if
// left is 0. No other function converts a limit in cluster time to local time.
func LocalDeadline(left time.Duration) time.Time {
	if left <= 0 {
		return time.Time{}
	}
	return time.Now().Add(left)
}
