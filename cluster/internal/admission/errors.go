package admission

import (
	"errors"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// ErrClosed means that the node, or the client, was closed.
var ErrClosed = errors.New("tenuto: the node or client is closed")

// An UnavailableError reports that no leader answered in time, or that no leader can determine the
// outcome.
type UnavailableError struct {
	NotExecuted bool // nothing was done and nothing will be; if false, the outcome is unknown
	Err         error
}

// Error implements error.
func (e *UnavailableError) Error() string { return "no answer: " + e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// A FailureError reports a failure that is the outcome of a call.
type FailureError struct{ Failure *clusterpb.Failure }

// Error implements error.
func (e *FailureError) Error() string { return e.Failure.Message }

func (e *FailureError) Unwrap() error {
	if e.Failure.Code == wire.CodeBusy {
		return wire.BusyError(e.Failure)
	}
	return nil
}
