package instances

import (
	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Get returns the status of an instance.
func (re *Reads) Get(p *actors.Partition, instance string) (*clusterpb.Response, error) {
	known, ok := re.Journal.Instance(instance)
	if !ok {
		return nil, actors.ErrNotFound
	}
	status, err := re.statusOf(p, known)
	if err != nil {
		return nil, err
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Get{Get: &clusterpb.GetResult{Status: status}}}, nil
}

// statusOf returns the status of an instance.
func (re *Reads) statusOf(p *actors.Partition, known *journalpb.Instance) (*clusterpb.Status, error) {
	status := IndexedStatus(known)
	return status, re.FillStatus(p, known, status)
}

// FillStatus adds the fields of a status that only the histories hold, the lineage and quarantines.
// p is nil where this node does not lead.
func (re *Reads) FillStatus(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	markLineage(re.Journal.Lineages(), status)
	for _, q := range re.Journal.Quarantines() {
		if q.Instance == known.Instance && q.Node != "" {
			status.Quarantined = append(status.Quarantined, q.Node)
		}
	}
	if err := re.fillState(p, known, status); err != nil {
		return err
	}
	return re.fillCustomStatus(known, status)
}

// Continued says how a lineage began: "restored" or "recovered".
func Continued(of *journalpb.Lineage) string {
	switch of.GetKind() {
	case journalpb.Lineage_KIND_RESTORED:
		return "restored"
	case journalpb.Lineage_KIND_RECOVERED:
		return "recovered"
	}
	return "" // of a later build
}

// markLineage adds the latest lineage to the statuses of runs that had begun before it.
func markLineage(lineages []*journalpb.Lineage, statuses ...*clusterpb.Status) {
	latest := lineage.Latest(lineages)
	if latest == nil {
		return
	}
	for _, status := range statuses {
		if status.CreatedAt < latest.Clock {
			status.Lineage = latest
		}
	}
}

// IndexedStatus returns the part of a status that the index holds.
func IndexedStatus(known *journalpb.Instance) *clusterpb.Status {
	return &clusterpb.Status{
		Instance:       known.Instance,
		Execution:      known.Execution,
		FirstExecution: known.FirstExecution,
		Name:           known.Name,
		Version:        known.Version,
		LastEventId:    known.LastEventId,
		CreatedAt:      known.CreatedAt,
		UpdatedAt:      known.UpdatedAt,
		Parent:         known.Parent,
		Tags:           known.Tags,
		Summary:        known.Summary,
		Incarnation:    known.Incarnation,
		Attributes:     known.Attributes,
	}
}

// fillCustomStatus adds the custom status, set in this execution or carried over from an earlier
// one. The first execution of a run has one from the beginning if it is a copy.
func (re *Reads) fillCustomStatus(known *journalpb.Instance, status *clusterpb.Status) error {
	if known.StatusEventId == 0 && known.Execution == known.FirstExecution && known.CopiedEventId == 0 {
		return nil
	}
	source := max(known.StatusEventId, 1)
	event, err := re.Journal.Event(known.Instance, known.Execution, source)
	if err != nil {
		return err
	}
	status.CustomStatus = event.GetOrchestrationStarted().GetStatus()
	if set := event.GetStatusSet(); set != nil {
		status.CustomStatus = set.Value
	}
	return nil
}

// fillState adds the instance's state, and its result or mismatch.
func (re *Reads) fillState(p *actors.Partition, known *journalpb.Instance, status *clusterpb.Status) error {
	if known.Status != journalpb.Status_STATUS_RUNNING {
		last, err := re.Journal.Event(known.Instance, known.Execution, known.LastEventId)
		if err == nil {
			FillEnd(last, status)
		}
		return err
	}
	status.State = string(StateOf(known))
	if status.State != string(actors.StateStalled) {
		return nil
	}
	if mismatch := mismatchOf(p, known.Instance); mismatch != nil {
		status.Mismatch = &clusterpb.Mismatch{
			Kind:     string(mismatch.Kind),
			EventId:  mismatch.EventID,
			Expected: mismatch.Expected,
			Found:    mismatch.Found,
			Source:   mismatch.Source,
		}
		return nil
	}
	c := known.Condition
	status.Mismatch = &clusterpb.Mismatch{Kind: c.Mismatch, EventId: c.EventId, Expected: c.Expected, Found: c.Found, Source: c.Source}
	return nil
}

// mismatchOf returns why an instance is stalled, nil if it is not, or if this node does not lead.
func mismatchOf(p *actors.Partition, instance string) *replay.Mismatch {
	if p == nil {
		return nil
	}
	mismatch, _ := p.StallReason(instance).(*replay.Mismatch)
	return mismatch
}

// OpenStates returns the states of instances that have not ended.
func OpenStates() []actors.State {
	return []actors.State{actors.StateRunning, actors.StateSuspended, actors.StateStalled, actors.StateHung, actors.StateWaitingForCode}
}

// StateOf returns the recorded state of an instance, which all replicas show.
func StateOf(known *journalpb.Instance) actors.State {
	return actors.State(state.RunState(known.Status, known.Condition.GetKind(), known.Suspended).String())
}

// liveStateOf returns the state of an instance as its leader knows it. It may differ from the
// recorded one until a condition is committed.
func (re *Reads) liveStateOf(p *actors.Partition, known *journalpb.Instance) actors.State {
	recorded := StateOf(known)
	if known.Status != journalpb.Status_STATUS_RUNNING {
		return recorded
	}
	hung, stallReason := p.LiveState(known.Instance)
	_, mismatched := stallReason.(*replay.Mismatch)
	switch {
	case hung:
		return actors.StateHung
	case mismatched:
		return actors.StateStalled
	case !re.Registry.HasOrchestration(known.Name, known.Version):
		return actors.StateWaitingForCode
	case recorded == actors.StateHung || recorded == actors.StateWaitingForCode:
		return actors.StateRunning // recorded by an earlier leader, or out of date
	}
	return recorded
}

// FillEnd adds the end of an execution, given its last event.
func FillEnd(last *journalpb.Event, status *clusterpb.Status) {
	switch body := last.Body.(type) {
	case *journalpb.Event_OrchestrationCompleted:
		status.State = string(actors.StateCompleted)
		status.Output = body.OrchestrationCompleted.Output
	case *journalpb.Event_OrchestrationFailed:
		status.State = string(actors.StateFailed)
		status.Error = body.OrchestrationFailed.Error
	case *journalpb.Event_OrchestrationCanceled:
		status.State = string(actors.StateCanceled)
		status.Reason = body.OrchestrationCanceled.Reason
	case *journalpb.Event_OrchestrationTerminated:
		status.State = string(actors.StateTerminated)
		status.Reason = body.OrchestrationTerminated.Reason
	case *journalpb.Event_OrchestrationContinuedAsNew:
		status.State = string(actors.StateContinuedAsNew)
	}
}
