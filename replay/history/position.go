package history

// A Position is a place in the histories of an instance.
type Position struct {
	// Execution counts from 1; 0 means the first execution of the latest run.
	Execution uint64
	// EventID counts from 1; 0 means 1.
	EventID uint64
}

// Next returns the position after the event, from which an interrupted watch continues.
func (e Event) Next() Position {
	if e.Type == OrchestrationContinuedAsNew {
		return Position{e.Execution + 1, 1}
	}
	return Position{e.Execution, e.EventID + 1}
}
