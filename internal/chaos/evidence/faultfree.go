package evidence

import (
	"slices"
	"time"
)

// A FaultFreePhase is a part of a run without faults. Clients start work until LoadEnd; then all
// instances must end without a new leader, whose recovery would hide lost work.
type FaultFreePhase struct {
	Begin, LoadEnd, End time.Duration
	// How often a leader changed, as happens on a loaded machine.
	LeaderChanges int `json:",omitempty"`
	// The instances that had not ended at End although the cluster accepted writes.
	Stuck []string `json:",omitempty"`
	// Repeated measurements of the machine without the cluster: how long a status request to each
	// node and a sync of a file took.
	Noise []time.Duration
}

// FaultFreePhase adds a phase without faults that is over.
func (l *Log) FaultFreePhase(q FaultFreePhase) { add(l, &l.faultFreePhases, q) }

// Token returns the token of the latest attempt of an instance's externally completed activity, or
// "".
func (l *Log) Token(instance string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, effect := range slices.Backward(l.effects) {
		if effect.Instance == instance && effect.Token != "" {
			return effect.Token
		}
	}
	return ""
}

// HasFinished reports whether an activity of the instance has reported that it finished.
func (l *Log) HasFinished(instance string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.effects, func(e Effect) bool { return e.Instance == instance && e.Finished })
}

// RecentlyStarted returns the IDs of at most n instances of an orchestration that were started
// last.
func (l *Log) RecentlyStarted(name string, n int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for _, call := range slices.Backward(l.calls) {
		if len(ids) == n {
			break
		}
		if call.Kind == Start && call.Name == name && call.Outcome == Acked {
			ids = append(ids, call.Instance)
		}
	}
	return ids
}
