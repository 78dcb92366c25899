package actors

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// hasRun reports whether the execution of a reference belongs to the run that the
// reference names, and not to another one that has got its ID after a purge.
func hasRun(r Replica, ref *journalpb.OperationRef) bool {
	first, err := r.Event(ref.Instance, ref.Execution, 1)
	return err == nil && first.GetOrchestrationStarted().GetIncarnation() == ref.Incarnation
}

// eventOf returns the event that a reference names. The error is [ErrNotFound] if the run
// is not there any more.
func eventOf(r Replica, ref *journalpb.OperationRef) (*journalpb.Event, error) {
	if !hasRun(r, ref) {
		return nil, ErrNotFound
	}
	return r.Event(ref.Instance, ref.Execution, ref.EventId)
}
