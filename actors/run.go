package actors

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// matchesRun reports whether the execution of a reference belongs to the run that the reference
// names. After a purge another run may have the same ID.
func matchesRun(r Replica, ref *journalpb.OperationRef) bool {
	first, err := r.Event(ref.Instance, ref.Execution, 1)
	return err == nil && first.GetOrchestrationStarted().GetIncarnation() == ref.Incarnation
}

// eventOf returns the event that a reference names. It returns [ErrNotFound] if the run no longer
// exists.
func eventOf(r Replica, ref *journalpb.OperationRef) (*journalpb.Event, error) {
	if !matchesRun(r, ref) {
		return nil, ErrNotFound
	}
	return r.Event(ref.Instance, ref.Execution, ref.EventId)
}
