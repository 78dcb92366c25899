package operation

import "github.com/tenuto-dev/tenuto/proto/journalpb"

// A History gives access to recorded events.
type History interface {
	// Event returns one event.
	Event(instance string, execution, eventID uint64) (*journalpb.Event, error)
}

// MatchesRun reports whether the execution of a reference belongs to the run that the reference
// names. After a purge another run may have the same ID.
func MatchesRun(h History, ref *journalpb.OperationRef) bool {
	first, err := h.Event(ref.Instance, ref.Execution, 1)
	return err == nil && first.GetOrchestrationStarted().GetIncarnation() == ref.Incarnation
}
