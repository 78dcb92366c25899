package session

import (
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An AttemptID identifies one attempt of an activity.
type AttemptID struct {
	Ref    *journalpb.OperationRef
	Number int
}

// Key returns the comparable form.
func (id AttemptID) Key() AttemptKey { return AttemptKey{operation.KeyOf(id.Ref), id.Number} }

// An AttemptKey is a comparable AttemptID.
type AttemptKey struct {
	operation operation.Key
	number    int
}

// FromWorker is a message from a worker to the leader. At most one field is set; with none it is
// only a sign of life.
type FromWorker struct {
	// Register comes first.
	Register *RegisterWorker
	// RunningAttempt is an attempt that the worker has run since an earlier session.
	RunningAttempt *RunningAttempt
	// FreeSlots is how many slots have become free. The first comes after all RunningAttempts, so
	// that the leader assigns nothing that the worker already has.
	FreeSlots int
	Heartbeat *Heartbeat
	Result    *Result
	// Drain comes last: the worker is stopping, and attempts without a result are to begin again
	// on another node. The leader then ends the session.
	Drain bool
}

// RegisterWorker says what a worker can run.
type RegisterWorker struct {
	Node string
	// Partition is the partition that the session is for.
	Partition int
	// Activities are the names of activities that the worker has code for. Tags are those it
	// serves.
	Activities []string
	Tags       []string
	// Limits bounds, by activity name, how many attempts the worker runs at once.
	Limits map[string]int
	// Orchestrations are those that the node has code for. The list is complete if CodeKnown is
	// set; otherwise the node has not said which code it has.
	Orchestrations []Code
	CodeKnown      bool
}

// Code identifies an orchestration and its version.
type Code struct{ Name, Version string }

// A RunningAttempt is an attempt that runs on a worker.
type RunningAttempt struct {
	AttemptID
	Name string
	Age  time.Duration // since it began
}

// A Heartbeat is a sign of life of an attempt. Details may be nil.
type Heartbeat struct {
	AttemptID
	Details *journalpb.Payload
}

// A Result is what an attempt returned: an output, an error, or that its end will come from
// outside. The worker keeps it until the leader acknowledges it.
type Result struct {
	AttemptID
	Output  *journalpb.Payload
	Error   *journalpb.Error
	Pending bool
	// Details are those of the last heartbeat; nil if there are none.
	Details *journalpb.Payload
}

// ToWorker is a message from the leader to a worker. At most one field is set; with none it is
// only a sign of life.
type ToWorker struct {
	AssignAttempt *AssignAttempt
	CancelAttempt *CancelAttempt
	// Ack says that the result of the attempt is recorded or no longer wanted.
	Ack *AttemptID
}

// An AssignAttempt asks a worker to make an attempt. A worker that already has the attempt does
// not make it again.
type AssignAttempt struct {
	AttemptID
	Name      string
	Input     *journalpb.Payload
	Scheduled clustertime.Time
	LastError *journalpb.Error
	Details   *journalpb.Payload
	// TimeLeft is how much time the attempt has. It is a duration because the nodes' clocks
	// differ. 0 means no limit.
	TimeLeft time.Duration
	// QueuedFor is how long the activity has waited since it was recorded; 0 means unknown.
	QueuedFor time.Duration
	// TraceContext is for the worker's tracer.
	TraceContext string
}

// A CancelAttempt cancels the context of an attempt. Timeout is the timeout that has passed, or ""
// if the result is no longer wanted.
type CancelAttempt struct {
	AttemptID
	Timeout replay.TimeoutKind
}
