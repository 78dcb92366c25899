package replaytest

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// State is the state of an instance.
type State = actors.State

// The states. An instance in one of the first two has not ended.
const (
	Running = actors.StateRunning
	// Suspended: the instance accepts input, but its code does not run.
	Suspended  = actors.StateSuspended
	Completed  = actors.StateCompleted
	Failed     = actors.StateFailed
	Canceled   = actors.StateCanceled
	Terminated = actors.StateTerminated
	// ContinuedAsNew: another execution of the same run has followed.
	ContinuedAsNew = actors.StateContinuedAsNew
)

// Status is the state of an instance's run.
type Status struct {
	InstanceID string
	Execution  uint64 // the latest one
	Name       string
	Version    string
	State      State
	// Attributes are the texts of the attributes that the code has set, by name; see
	// [replay.AttributeHandle.In].
	Attributes map[string]string
	Summary    string // what the start said with [replay.Summary]
	// Why the run ended, unless it completed.
	Err error

	output       *journalpb.Payload
	customStatus *journalpb.Payload
}

// Ended reports whether the run has ended.
func (s *Status) Ended() bool { return s.State != Running && s.State != Suspended }

// Output stores the decoded output of a completed run in the variable that into points to.
func (s *Status) Output(into any) error { return engine.Decode(s.output, into) }

// CustomStatus stores the decoded custom status that was last set with [replay.SetStatus] in the
// variable that into points to. It changes nothing if none was set.
func (s *Status) CustomStatus(into any) error { return engine.Decode(s.customStatus, into) }

// Get returns the state of an instance's latest run. The error is [ErrNotFound] if there is no
// instance with this ID.
func (e *Env) Get(id string) (*Status, error) {
	e.t.Helper()
	if _, ok := e.node.journal.Instance(id); !ok {
		return nil, fmt.Errorf("get %s: %w", id, ErrNotFound)
	}
	execution, events := e.readExecution(id, 0)
	return statusOf(id, execution, events), nil
}

// Wait lets time pass until the latest run of an instance has ended, and returns its state. The
// error is [ErrNotFound] if there is no instance with this ID. The test fails if nothing can end
// the run any more.
func (e *Env) Wait(id string) (*Status, error) {
	e.t.Helper()
	known, ok := e.node.journal.Instance(id)
	if !ok {
		return nil, fmt.Errorf("wait for %s: %w", id, ErrNotFound)
	}
	return (&Run[any]{ID: id, env: e, firstExecution: known.FirstExecution}).wait(), nil
}

// History returns the history of an instance's latest execution. The test fails if there is no
// instance with this ID.
func (e *Env) History(id string) *history.History {
	e.t.Helper()
	return e.HistoryOf(id, 0)
}

// HistoryOf returns the history of one execution of an instance, counted from 1; 0 means the
// latest. The test fails if there is none.
func (e *Env) HistoryOf(id string, execution uint64) *history.History {
	e.t.Helper()
	execution, events := e.readExecution(id, execution)
	return &history.History{Instance: id, Execution: execution, Events: eventpb.NewList(execution, events)}
}

// readExecution reads an execution, 0 for the latest, and returns its number and events.
func (e *Env) readExecution(id string, execution uint64) (uint64, []*journalpb.Event) {
	e.t.Helper()
	known, ok := e.node.journal.Instance(id)
	if !ok {
		e.t.Fatalf("replaytest: there is no instance %q", id)
	}
	if execution == 0 {
		execution = known.Execution
	}
	events, err := e.node.journal.events(id, execution)
	if err != nil {
		e.t.Fatalf("replaytest: history of %s: %v", id, err)
	}
	return execution, events
}

// ReadKV returns a key-value map of an instance's latest run; empty if the run has set none of its
// keys. The error is [ErrNotFound] if there is no instance with this ID, or a
// [*replay.PayloadError] if a value is not a T.
func ReadKV[T any](env *Env, id string, kv replay.KVHandle[T]) (map[string]T, error) {
	env.t.Helper()
	if _, ok := env.node.journal.Instance(id); !ok {
		return nil, fmt.Errorf("read key-value map %q of %s: %w", kv.Name(), id, ErrNotFound)
	}
	values, err := env.node.journal.Values(id, kv.Name())
	if err != nil {
		return nil, fmt.Errorf("read key-value map %q of %s: %w", kv.Name(), id, err)
	}
	read, err := engine.DecodeValues[T](engine.PayloadConverter{}, values)
	if err != nil {
		return nil, fmt.Errorf("read key-value map of %s: %w", id, err)
	}
	return read, nil
}

// Instances returns the sorted IDs of all instances, including children.
func (e *Env) Instances() []string {
	var ids []string
	for known := range e.node.journal.Instances() {
		ids = append(ids, known.Instance)
	}
	return ids
}

// statusOf derives the state from a history.
func statusOf(id string, execution uint64, events []*journalpb.Event) *Status {
	s := &Status{InstanceID: id, Execution: execution, State: Running}
	var attributes []*journalpb.AttributeSet
	for _, event := range events {
		switch body := event.Body.(type) {
		case *journalpb.Event_OrchestrationStarted:
			s.Name, s.Version, s.customStatus = body.OrchestrationStarted.Name, body.OrchestrationStarted.Version, body.OrchestrationStarted.Status
			attributes = body.OrchestrationStarted.Attributes
			s.Summary = body.OrchestrationStarted.Summary
		case *journalpb.Event_StatusSet:
			s.customStatus = body.StatusSet.Value
		case *journalpb.Event_AttributeSet:
			attributes = journalpb.WithAttribute(attributes, body.AttributeSet)
		case *journalpb.Event_OrchestrationSuspended:
			s.State = Suspended
		case *journalpb.Event_OrchestrationResumed:
			s.State = Running
		default:
			s.applyTerminal(event)
		}
	}
	s.Attributes = engine.AttributeTexts(attributes)
	return s
}

// applyTerminal applies a terminal event.
func (s *Status) applyTerminal(event *journalpb.Event) {
	switch body := event.Body.(type) {
	case *journalpb.Event_OrchestrationCompleted:
		s.State, s.output = Completed, body.OrchestrationCompleted.Output
	case *journalpb.Event_OrchestrationFailed:
		s.State, s.Err = Failed, engine.DecodeError(body.OrchestrationFailed.Error)
	case *journalpb.Event_OrchestrationCanceled:
		s.State, s.Err = Canceled, &replay.CanceledError{Reason: body.OrchestrationCanceled.Reason}
	case *journalpb.Event_OrchestrationTerminated:
		s.State, s.Err = Terminated, fmt.Errorf("%w: %s", replay.ErrTerminated, body.OrchestrationTerminated.Reason)
	case *journalpb.Event_OrchestrationContinuedAsNew:
		s.State = ContinuedAsNew
	}
}
