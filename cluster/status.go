package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// State is what an instance is doing, or how it ended.
type State = actors.State

// The states. An instance in one of the first five has not ended. States are recorded in the
// journal: every replica shows them, some milliseconds after their cause.
const (
	Running = actors.StateRunning
	// Hung: the code has run for longer than Config.HungAfter without reaching a durable call: it
	// blocks, or computes for long. The leader logs its stack; see [Client.Stack]. It ends when the
	// code goes on, or the instance is terminated.
	Hung = actors.StateHung
	// Stalled: code and history disagree; see Status.Mismatch. A new leader retries all stalled
	// instances, one after the other, and those that are hung.
	Stalled = actors.StateStalled
	// Suspended: the instance takes input, but its code does not run.
	Suspended = actors.StateSuspended
	// WaitingForCode: the leader has no code for the instance. When input arrives for it,
	// leadership moves to a node that has the code, if that node has all the code that the leader
	// has. A new leader adds and removes this state for idle instances in the background.
	WaitingForCode = actors.StateWaitingForCode
	Completed      = actors.StateCompleted
	Failed         = actors.StateFailed
	Canceled       = actors.StateCanceled
	Terminated     = actors.StateTerminated
	// ContinuedAsNew: the state of an execution that was followed by another one in the same run.
	ContinuedAsNew = actors.StateContinuedAsNew
)

// instanceStates are the states of an instance, as opposed to those of an execution.
var instanceStates = instances.States()

// Status is the state of an instance's latest run.
type Status struct {
	InstanceID     string
	Execution      uint64
	FirstExecution uint64 // of the run
	Name           string
	Version        string
	State          State
	LastEventID    uint64
	CreatedAt      time.Time // in cluster time, like all times here
	UpdatedAt      time.Time
	// ParentID is the instance that started this one, if it is a child.
	ParentID string
	Tags     map[string]string
	// Attributes are the texts of the attributes that the code has set, by name; see
	// [replay.AttributeHandle.In].
	Attributes map[string]string
	// Summary is what the start of the run said with [replay.Summary].
	Summary string
	// Err says why the run ended; nil if it completed or has not ended.
	Err error
	// Mismatch is why the instance is stalled.
	Mismatch *replay.Mismatch
	// Quarantined are the nodes whose replicas of the instance are not used, because they differ
	// from those of the majority. They are repaired from these.
	Quarantined []string
	// AppliedIndex is a journal index: the status shows all entries up to it. Get sets it.
	AppliedIndex uint64
	// Continued is "restored" if the cluster was restored from a backup after the run began, or
	// "recovered" if it was recovered after the loss of a majority (packages cluster/backup and
	// cluster/recovery); the latest of these counts, and it is "" if there was none. What the run
	// did after the journal index ContinuedIndex, in the cluster that was lost, is lost.
	// ContinuedAt is when the cluster was restored or recovered, by the wall clock.
	Continued      string
	ContinuedAt    time.Time
	ContinuedIndex uint64

	run          runRef
	output       *journalpb.Payload
	customStatus *journalpb.Payload
	converter    engine.PayloadConverter
}

// Ended reports whether the run has ended.
func (s *Status) Ended() bool {
	switch s.State {
	case Completed, Failed, Canceled, Terminated:
		return true
	}
	return false
}

// Output decodes the output of a completed run into the value that into points to.
func (s *Status) Output(into any) error {
	return s.converter.Decode(replay.PayloadInfo{Kind: "orchestration", Name: s.Name, Part: "output"}, s.output, into)
}

// CustomStatus decodes what the instance last set with [replay.SetStatus] into the value that into
// points to. It leaves the value unchanged if the instance has set none.
func (s *Status) CustomStatus(into any) error {
	return s.converter.Decode(replay.PayloadInfo{Kind: "orchestration", Name: s.Name, Part: "status"}, s.customStatus, into)
}

func newStatus(wire *clusterpb.Status, converter engine.PayloadConverter) *Status {
	s := &Status{
		InstanceID:     wire.GetInstance(),
		Execution:      wire.GetExecution(),
		FirstExecution: wire.GetFirstExecution(),
		Name:           wire.GetName(),
		Version:        wire.GetVersion(),
		State:          State(wire.GetState()),
		LastEventID:    wire.GetLastEventId(),
		CreatedAt:      time.Unix(0, wire.GetCreatedAt()),
		UpdatedAt:      time.Unix(0, wire.GetUpdatedAt()),
		ParentID:       wire.GetParent().GetInstance(),
		Tags:           wire.GetTags(),
		Attributes:     engine.AttributeTexts(wire.GetAttributes()),
		Summary:        wire.GetSummary(),
		Quarantined:    wire.GetQuarantined(),
		run:            runRef{wire.GetFirstExecution(), wire.GetIncarnation()},
		output:         wire.GetOutput(),
		customStatus:   wire.GetCustomStatus(),
		converter:      converter,
	}
	if l := wire.GetLineage(); l != nil {
		s.Continued, s.ContinuedAt, s.ContinuedIndex = instances.Continued(l), time.Unix(0, l.GetTime()), l.GetIndex()
	}
	switch s.State {
	case Failed:
		s.Err = converter.DecodeError(wire.GetError())
	case Canceled:
		s.Err = &replay.CanceledError{Reason: wire.GetReason()}
	case Terminated:
		s.Err = fmt.Errorf("%w: %s", replay.ErrTerminated, wire.GetReason())
	}
	if m := wire.GetMismatch(); m != nil {
		s.Mismatch = &replay.Mismatch{
			Kind:      replay.MismatchKind(m.Kind),
			Instance:  s.InstanceID,
			Execution: s.Execution,
			EventID:   m.EventId,
			Expected:  m.Expected,
			Found:     m.Found,
			Source:    m.Source,
		}
	}
	return s
}

// History is the history of one execution.
type History struct {
	InstanceID string
	Execution  uint64
	Events     []history.Event
	// AppliedIndex is a journal index: the history shows all entries up to it.
	AppliedIndex uint64
}

// String returns the history as a table, one event per line: event_id, time since the first event,
// type and fields.
func (h *History) String() string { return (&history.History{Events: h.Events}).String() }

// An Execution is one execution of an instance: the part of a run up to the next continue-as-new.
type Execution struct {
	Number  uint64
	Version string
	// State is [ContinuedAsNew] for every execution of a run but its last.
	State State
	// Events is the number of events in its history.
	Events uint64
	// StartedAt and UpdatedAt are when its first and its last event were recorded.
	StartedAt time.Time
	UpdatedAt time.Time
	// Err is the failure of an execution that was a failed attempt of its run and was retried; see
	// [replay.Retry]. It is nil for all others, also for the last execution of a failed run.
	Err error
}

// Executions returns the executions of an instance, including those of earlier runs under its ID,
// oldest first; of more than 1,000, the latest. It returns [ErrNotFound] if the instance does not
// exist.
func (c *Client) Executions(ctx context.Context, id string, options ...replay.Option) ([]Execution, error) {
	if err := checkID(id); err != nil {
		return nil, ofInstance("executions of", id, err)
	}
	response, err := c.read(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Executions{
		Executions: new(clusterpb.ExecutionsRequest),
	}}, options)
	if err != nil {
		return nil, fmt.Errorf("executions of %s: %w", id, err)
	}
	var executions []Execution
	for _, wire := range response.GetExecutions().GetExecutions() {
		executions = append(executions, Execution{
			Number:    wire.Execution,
			Version:   wire.Version,
			State:     State(wire.State),
			Events:    wire.Events,
			StartedAt: time.Unix(0, wire.StartedAt),
			UpdatedAt: time.Unix(0, wire.UpdatedAt),
			Err:       c.converter.DecodeError(wire.Retried),
		})
	}
	return executions, nil
}
