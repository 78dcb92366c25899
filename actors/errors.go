package actors

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

var (
	// ErrNotFound: there is no instance of that ID. Nothing was done.
	ErrNotFound = errors.New("tenuto: no such instance")
	// ErrInstanceExists: an instance of that ID exists, running or ended.
	// Nothing was done.
	ErrInstanceExists = replay.ErrInstanceExists
	// ErrEnded: the instance has come to its end and takes no more input.
	// Nothing was done.
	ErrEnded = errors.New("tenuto: the instance has ended")
	// ErrForgotten: the message was sent again, and may have been recorded so long ago, or
	// by a run before this one, that the instance does not know it. Nothing was done now.
	ErrForgotten = errors.New("tenuto: whether the call was carried out before is not known any more")
	// ErrRequestID: the execution has recorded an input of another kind or name under the
	// same request ID. Nothing was done.
	ErrRequestID = errors.New("tenuto: the request ID was used for something else")
	// ErrStopped: this node does not own the instance any more. Nothing was
	// done; another node will do it.
	ErrStopped = errors.New("tenuto: this node has lost the lead")
	// ErrBusy: there is more to do than can be done in time; see [BusyError].
	// Nothing was done; try again later.
	ErrBusy = errors.New("tenuto: busy")
	// ErrActivityClosed: the attempt does not count any more, or never was: the
	// activity is done, or was given up, or this attempt has failed. Nothing was
	// done.
	ErrActivityClosed = errors.New("tenuto: the attempt of the activity is over")
	// ErrUpdateGivenUp: the update was accepted, and its instance has ended or
	// continued as new before it was done.
	ErrUpdateGivenUp = errors.New("tenuto: the instance has ended before the update was done")
)

// What callers meet is declared here, once for the client of a cluster and for tests in
// virtual time: errors.As in the code of a user finds it in both.

// State is what an instance is doing, or how it ended.
type State string

const stateFailed State = "failed"

// A RunError is the end of a run that did not complete.
type RunError struct {
	ID    string
	State State // failed, cancelled or terminated
	// What the orchestration returned; [replay.ErrCanceled] or
	// [replay.ErrTerminated] with the reason.
	Err error
}

func (e *RunError) Error() string {
	if e.State == stateFailed {
		return fmt.Sprintf("%s failed: %v", e.ID, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.ID, e.Err) // which says how it ended
}

func (e *RunError) Unwrap() error { return e.Err }

// A RefusedError reports that an instance has refused an update. Nothing was
// recorded.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return "refused: " + e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// A BusyError reports that a message was refused because too many are on their
// way already: to its instance, or to all of them; or, for a start, because those
// take too long. Nothing was done. errors.Is finds [ErrBusy].
type BusyError struct {
	// After how long it may be of use to try again: 50 ms to 2 s.
	RetryAfter time.Duration
	// Which bound was met; "" if a node of an earlier version does not say.
	Bound  Bound
	Reason string
}

// A Bound is one of those that keep a node from taking more than it can do.
type Bound string

// The bounds.
const (
	// Of the messages, and bytes, that are on their way to one instance or wait in it.
	BoundInstance Bound = "instance"
	// Of the messages, and bytes, that are on their way to all of them.
	BoundWindow Bound = "window"
	// Of the time that messages take until they are recorded; it is for starts alone.
	BoundDelay Bound = "delay"
	// Of what waits for the journal.
	BoundJournal Bound = "journal"
)

func (e *BusyError) Error() string { return ErrBusy.Error() + ": " + e.Reason }

// Is implements errors.Is.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// A FaultError is a panic in the engine itself: a bug in Tenuto. The instance
// was dropped from memory and goes on from its history with the next message.
// Whether the messages of that turn were recorded is unknown.
type FaultError struct {
	Instance string
	Value    any
	Stack    string
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("tenuto: fault in instance %q: %v", e.Instance, e.Value)
}
