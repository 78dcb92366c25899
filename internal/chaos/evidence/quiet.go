package evidence

import (
	"slices"
	"time"
)

// A Quiet is a phase of a run without faults. Clients work until Loaded and begin nothing from
// then on, so that everything comes to its end, with no new leader that would derive open work
// anew.
type Quiet struct {
	Begin, Loaded, End time.Duration
	// How often a leader changed all the same, as happens on a machine under load.
	Changes int `json:",omitempty"`
	// The instances that had not come to their end by End, although the cluster took writes.
	Stuck []string `json:",omitempty"`
	// How long it took, one time after the other, to ask a node about itself and to sync a
	// file: the noise of the machine, in which the cluster has no part.
	Control []time.Duration
}

// Quiet adds a phase without faults that is over.
func (l *Log) Quiet(q Quiet) { add(l, &l.quiets, q) }

// Token returns that of the latest attempt of an instance's activity that is completed from
// outside, "" while there is none.
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

// Finished tells whether an activity of an instance has told that it is done.
func (l *Log) Finished(instance string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.effects, func(e Effect) bool { return e.Instance == instance && e.Finished })
}

// Known returns the IDs of instances of an orchestration that were started last, at most n.
func (l *Log) Known(name string, n int) []string {
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
