package actors

import (
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// eventOf returns the event that a reference names. It returns [ErrNotFound] if the run no longer
// exists.
func eventOf(r Replica, ref *journalpb.OperationRef) (*journalpb.Event, error) {
	if !operation.MatchesRun(r, ref) {
		return nil, ErrNotFound
	}
	return r.Event(ref.Instance, ref.Execution, ref.EventId)
}

// runs chooses the version and the incarnation of new runs.
type runs struct {
	config     *PartitionConfig
	registry   *engine.Registry
	epoch      uint64
	startCount atomic.Uint64 // runs started in this epoch; see assignIncarnation
}

// hasIncarnations reports whether new runs get an incarnation.
func (r *runs) hasIncarnations() bool {
	return r.config.HasIncarnations != nil && r.config.HasIncarnations()
}

// appliedIndex returns the journal index that executions record; 0 if it is unknown or some replica
// would not keep it.
func (r *runs) appliedIndex() uint64 {
	if r.config.AppliedIndex == nil || !r.hasIncarnations() {
		return 0
	}
	return r.config.AppliedIndex()
}

// assignIncarnation gives the start of a new run its incarnation. It copies the event, because the
// sender may send the original again.
func (r *runs) assignIncarnation(m *Message, instance string, execution uint64) {
	if !r.hasIncarnations() {
		return
	}
	started := m.startEvent().ShallowCopy()
	if r.config.NewIncarnation != nil {
		started.Incarnation = r.config.NewIncarnation(instance, execution)
	} else {
		started.Incarnation = journalpb.NewIncarnation(r.epoch, r.startCount.Add(1))
	}
	started.RequestHorizon = r.appliedIndex()
	started.PayloadMax = r.registry.RecordedPayloadMax()
	if started.Version == engine.NewestVersion { // from a partition whose leader has no code for it
		started.Version = r.chooseVersion(started.Name, started.Version)
	}
	m.Event = &journalpb.Event{Origin: m.Event.Origin, Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started}}
}

// chooseVersion returns the version that a new instance runs. Without code of that name it returns
// engine.NewestVersion, so that a node with the code chooses. It does so only if every node
// supports that version, which protocol 3 introduced.
func (r *runs) chooseVersion(name, requested string) string {
	switch newest := r.registry.Newest(name); {
	case requested != "" && requested != engine.NewestVersion:
		return requested
	case r.registry.HasOrchestration(name, newest) || !r.hasIncarnations():
		return newest
	}
	return engine.NewestVersion
}
