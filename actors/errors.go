package actors

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound: there is no instance of that ID. Nothing was done.
	ErrNotFound = errors.New("tenuto: no such instance")
	// ErrInstanceExists: an instance of that ID exists, running or ended.
	// Nothing was done.
	ErrInstanceExists = errors.New("tenuto: an instance of that ID exists")
	// ErrEnded: the instance has come to its end and takes no more input.
	// Nothing was done.
	ErrEnded = errors.New("tenuto: the instance has ended")
	// ErrStopped: this node does not own the instance any more. Nothing was
	// done; another node will do it.
	ErrStopped = errors.New("tenuto: this node has lost the lead")
	// ErrBusy: more messages wait for the instance than its inbox holds.
	// Nothing was done; try again later.
	ErrBusy = errors.New("tenuto: the instance's inbox is full")
	// ErrActivityClosed: the attempt does not count any more, or never was: the
	// activity is done, or was given up, or this attempt has failed. Nothing was
	// done.
	ErrActivityClosed = errors.New("tenuto: the attempt of the activity is over")
)

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
