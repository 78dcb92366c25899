package actors

import (
	"sync/atomic"

	"google.golang.org/protobuf/proto"

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
	journal    Journal
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
	started.Incarnation = r.newIncarnation(instance, execution)
	started.RequestHorizon = r.appliedIndex()
	started.PayloadMax = r.registry.RecordedPayloadMax()
	if started.Version == engine.NewestVersion { // from a partition whose leader has no code for it
		started.Version = r.chooseVersion(started.Name, started.Version)
	}
	m.Event = &journalpb.Event{Origin: m.Event.Origin, Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: started}}
}

// copyHistory proposes the copy that is the turn's only message, without running code. A repetition
// gets the run that the first request has begun.
func (t *turn) copyHistory(requested *journalpb.CopyHistory) {
	in, m := t.in, &t.batch[0]
	p := in.partition
	meta, ok := p.journal.Instance(in.id)
	if ok {
		in.executionNumber, in.incarnation = meta.Execution, meta.Incarnation
		if first, incarnation := p.runs.findCopy(meta, requested.RequestId); first != 0 {
			in.unblock()
			t.reply(m, Answer{Dropped: true, FirstExecution: first, Incarnation: incarnation})
			in.propose(t)
			return
		}
	}
	if m.isForOtherRun(meta.GetIncarnation()) {
		in.unblock()
		t.reply(m, Answer{Err: ErrEnded})
		in.propose(t)
		return
	}
	c := proto.CloneOf(requested)
	c.Epoch, c.Target = p.epoch, in.id
	c.Execution, c.LastEventId = meta.GetExecution(), meta.GetLastEventId()
	c.Timestamp, c.RequestHorizon = max(p.now().UnixNano(), meta.GetUpdatedAt()), p.runs.appliedIndex()
	c.Incarnation = p.runs.newIncarnation(in.id, c.Execution+1)
	if meta.GetStatus() == journalpb.Status_STATUS_RUNNING {
		t.events = []*journalpb.Event{{EventId: c.LastEventId + 1, Timestamp: c.Timestamp, Origin: c.Origin, Body: &journalpb.Event_OrchestrationTerminated{
			OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: journalpb.CopiedReason},
		}}}
	}
	t.copied = c
	t.replies = append(t.replies, reply{message: m, answer: Answer{FirstExecution: c.Execution + 1, Incarnation: c.Incarnation}})
	in.propose(t)
}

// copySearchMax bounds how many executions are searched for an earlier copy.
const copySearchMax = 1000

// findCopy returns the run that a copy with that request ID has begun; 0 if there is none.
func (r *runs) findCopy(meta *journalpb.Instance, requestID string) (first, incarnation uint64) {
	if meta.RequestId == requestID {
		return meta.FirstExecution, meta.Incarnation
	}
	for execution := max(meta.FirstExecution, copySearchMax+1) - copySearchMax; execution < meta.FirstExecution; execution++ {
		event, err := r.journal.Event(meta.Instance, execution, 1)
		if started := event.GetOrchestrationStarted(); err == nil && started.GetRequestId() == requestID {
			return execution, started.GetIncarnation()
		}
	}
	return 0, 0
}

// newIncarnation returns the incarnation of the next run of an instance.
func (r *runs) newIncarnation(instance string, execution uint64) uint64 {
	if r.config.NewIncarnation != nil {
		return r.config.NewIncarnation(instance, execution)
	}
	return journalpb.NewIncarnation(r.epoch, r.startCount.Add(1))
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
