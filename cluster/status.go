package cluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// State is what an instance is doing, or how it ended.
type State = actors.State

// The states. An instance in one of the first four can still go on.
const (
	Running State = "running"
	// Stalled: code and history disagree; see Status.Mismatch. Every node knows it, from
	// protocol 3 on. A new leader has all that are stalled try again, one after the other.
	Stalled State = "stalled"
	// Suspended: it takes input, but its code does not run.
	Suspended State = "suspended"
	// WaitingForCode: the node that leads has no code for it. When something arrives for it,
	// leadership moves to a node that has the code, if that one has all that the leader has.
	WaitingForCode State = "waiting for code"
	Completed      State = "completed"
	Failed         State = "failed"
	Cancelled      State = "cancelled"
	Terminated     State = "terminated"
	// ContinuedAsNew: of an execution that another has followed in the same run.
	ContinuedAsNew State = "continued as new"
)

// instanceStates are the states that an instance can be in, as opposed to one of its executions.
var instanceStates = []State{Running, Stalled, Suspended, WaitingForCode, Completed, Failed, Cancelled, Terminated}

// Status is the state of an instance's latest run.
type Status struct {
	InstanceID     string
	Execution      uint64
	FirstExecution uint64 // the execution with which the run began
	Name           string
	Version        string
	State          State
	LastEventID    uint64
	CreatedAt      time.Time // by the cluster time, as all times that are shown
	UpdatedAt      time.Time
	// Of a child: the instance that started it.
	ParentID string
	Tags     map[string]string
	// Why it ended, for every end but Completed.
	Err error
	// Why it is stalled.
	Mismatch *replay.Mismatch
	// Of what Get returns: the index of the journal that it shows at least.
	AppliedIndex uint64

	run       runRef
	output    *journalpb.Payload
	published *journalpb.Payload
	payloads  replay.Payloads
}

// Ended tells whether the run has come to its end.
func (s *Status) Ended() bool {
	switch s.State {
	case Completed, Failed, Cancelled, Terminated:
		return true
	}
	return false
}

// Output decodes the output of a completed run into what into points to.
func (s *Status) Output(into any) error {
	return s.payloads.Decode(replay.PayloadOf{Kind: "orchestration", Name: s.Name, Part: "output"}, s.output, into)
}

// Published decodes what the instance has published last, with
// [replay.SetStatus], into what into points to; it leaves it as it is when
// nothing was.
func (s *Status) Published(into any) error {
	return s.payloads.Decode(replay.PayloadOf{Kind: "orchestration", Name: s.Name, Part: "status"}, s.published, into)
}

func newStatus(wire *clusterpb.Status, payloads replay.Payloads) *Status {
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
		run:            runRef{wire.GetFirstExecution(), wire.GetIncarnation()},
		output:         wire.GetOutput(),
		published:      wire.GetPublished(),
		payloads:       payloads,
	}
	switch s.State {
	case Failed:
		s.Err = payloads.DecodeError(wire.GetError())
	case Cancelled:
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
	Events     []*journalpb.Event
	// The index of the journal that it shows at least.
	AppliedIndex uint64
}

// String returns the history as a table, one event a line: event_id, time since
// the first event, type and fields.
func (h *History) String() string {
	var b strings.Builder
	for _, event := range h.Events {
		since := time.Duration(event.Timestamp - h.Events[0].Timestamp)
		fmt.Fprintf(&b, "%5d  %10s  %s\n", event.EventId, "+"+since.Round(10*time.Microsecond).String(), replay.Describe(event))
	}
	return b.String()
}
