package actors

import (
	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// eventOf returns the event that a reference names. It returns [ErrNotFound] if the run no longer
// exists.
func eventOf(r Replica, ref *journalpb.OperationRef) (*journalpb.Event, error) {
	if !operation.MatchesRun(r, ref) {
		return nil, ErrNotFound
	}
	return r.Event(ref.Instance, ref.Execution, ref.EventId)
}
