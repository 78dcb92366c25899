package actors

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

var (
	// ErrNotFound is returned if no instance has that ID. Nothing was done.
	ErrNotFound = replay.ErrNotFound
	// ErrInstanceExists is returned if an instance with that ID exists, running or ended. Nothing
	// was done.
	ErrInstanceExists = replay.ErrInstanceExists
	// ErrEnded is returned if the instance has ended and takes no more input. Nothing was done.
	ErrEnded = replay.ErrEnded
	// ErrForgotten is returned for a repeated message if the instance cannot tell whether the
	// message was recorded before, either long ago or by an earlier run. This time nothing was
	// done.
	ErrForgotten = errors.New("tenuto: it is no longer known whether the call was recorded before")
	// ErrRequestIDReused is returned if the execution has recorded an input of another kind or
	// name under the same request ID, or a start with another input. Nothing was done.
	ErrRequestIDReused = errors.New("tenuto: the request ID was used for a different input")
	// ErrStopped is returned if this node no longer leads the instance's partition. Nothing was
	// done here; the next leader continues.
	ErrStopped = errors.New("tenuto: this node is not, or no longer, the leader of the instance's partition")
	// ErrBusy is returned under overload; see [BusyError]. Nothing was done. Try again later.
	ErrBusy = errors.New("tenuto: busy")
	// ErrUpdateAborted is returned if the update was accepted, and its instance ended or continued
	// as new before the update completed.
	ErrUpdateAborted = errors.New("tenuto: the instance ended before the update completed")
)

// OtherOrchestrationError returns the error of a start that would attach to an instance of another
// orchestration: an [ErrInstanceExists] with both names.
func OtherOrchestrationError(existing, requested string) error {
	return fmt.Errorf("%w: it is an instance of orchestration %q, not of %q", ErrInstanceExists, existing, requested)
}

// The errors that callers see are declared here once, for the cluster client and for tests in
// virtual time. Therefore errors.As in user code finds them in both.

// State is what an instance is doing, or how it ended.
type State string

// The states. An instance in one of the first five has not ended.
const (
	StateRunning State = "running"
	// StateHung: the code has run for longer than Config.HungAfter without reaching a durable call.
	StateHung State = "hung"
	// StateStalled: code and history disagree.
	StateStalled State = "stalled"
	// StateSuspended: the instance accepts input, but its code does not run.
	StateSuspended State = "suspended"
	// StateWaitingForCode: the leader has no code for the instance.
	StateWaitingForCode State = "waiting for code"
	StateCompleted      State = "completed"
	StateFailed         State = "failed"
	StateCanceled       State = "canceled"
	StateTerminated     State = "terminated"
	// StateContinuedAsNew: another execution of the same run has followed this one.
	StateContinuedAsNew State = "continued as new"
)

// A RunError reports a run that did not complete.
type RunError struct {
	ID    string
	State State // failed, canceled or terminated
	// Err is what the orchestration returned, or [replay.ErrCanceled] or [replay.ErrTerminated]
	// with the reason.
	Err error
}

func (e *RunError) Error() string {
	if e.State == StateFailed {
		return fmt.Sprintf("%s failed: %v", e.ID, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.ID, e.Err) // Err says how the run ended
}

func (e *RunError) Unwrap() error { return e.Err }

// A RejectedError reports that an instance rejected an update. Nothing was recorded.
type RejectedError struct{ Err error }

func (e *RejectedError) Error() string { return "rejected: " + e.Err.Error() }
func (e *RejectedError) Unwrap() error { return e.Err }

// A BusyError reports that a message was rejected under overload: too many messages are in flight
// to its instance or in its partition, or, for a start, messages take too long to commit. Nothing
// was done. It matches [ErrBusy].
type BusyError struct {
	// RetryAfter is the suggested delay before the next try: 50 ms to 2 s.
	RetryAfter time.Duration
	// Bound is the bound that was exceeded; "" if a node of an earlier version does not say.
	Bound  Bound
	Reason string
}

// A Bound names a limit that protects a node from overload.
type Bound string

// The bounds.
const (
	// BoundInstance limits the messages and bytes in flight to one instance, and the events
	// buffered in it.
	BoundInstance Bound = "instance"
	// BoundInFlight limits the messages and bytes in flight in a partition.
	BoundInFlight Bound = "in flight"
	// BoundDelay limits how long messages take until they are recorded. It applies to starts only.
	BoundDelay Bound = "delay"
	// BoundJournal limits what waits for the journal.
	BoundJournal Bound = "journal"
)

func (e *BusyError) Error() string { return ErrBusy.Error() + ": " + e.Reason }

// Is implements errors.Is.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// A FaultError reports a panic of the engine: a bug in Tenuto. The instance was evicted and
// continues from its history with the next message. Whether the messages of that turn were
// recorded is unknown.
type FaultError struct {
	Instance string
	Value    any
	Stack    string
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("tenuto: fault in instance %q: %v", e.Instance, e.Value)
}
