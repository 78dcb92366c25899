package replaytest

import (
	"fmt"
	"maps"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A Run is an instance that was started, with the type of its result.
type Run[O any] struct {
	ID    string
	env   *Env
	first uint64 // the execution with which it began
}

// A StartOption changes how an instance is started.
type StartOption func(*start)

type start struct {
	*journalpb.OrchestrationStarted
	reuse actors.Reuse
}

// StartVersion names the version of the orchestration to run. Defaults to the
// pinned one, or else the highest.
func StartVersion(version string) StartOption { return func(s *start) { s.Version = version } }

// StartAt lets the code begin at a virtual time; the instance exists from now
// on.
func StartAt(at time.Time) StartOption { return func(s *start) { s.StartAt = at.UnixNano() } }

// Tags adds tags.
func Tags(tags map[string]string) StartOption {
	return func(s *start) {
		if s.Tags == nil {
			s.Tags = make(map[string]string)
		}
		maps.Copy(s.Tags, tags)
	}
}

// ReuseWhenEnded allows that an instance of that ID exists, if it has ended.
func ReuseWhenEnded() StartOption { return func(s *start) { s.reuse = actors.ReuseEnded } }

// ReuseWhenFailed is [ReuseWhenEnded] for an instance that has ended otherwise
// than by completing.
func ReuseWhenFailed() StartOption { return func(s *start) { s.reuse = actors.ReuseFailed } }

// Start starts an instance of an orchestration. When it returns, everything has
// happened that follows at this moment: activities whose bodies take no virtual
// time are done. The test fails if the instance cannot be started.
func Start[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...StartOption) *Run[O] {
	env.t.Helper()
	run, err := TryStart(env, orchestration, id, in, options...)
	if err != nil {
		env.t.Fatalf("replaytest: %v", err)
	}
	return run
}

// TryStart is [Start] for a test that expects an error: [ErrInstanceExists], or
// encoding/json's.
func TryStart[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...StartOption) (*Run[O], error) {
	env.t.Helper()
	payload, err := replay.Encode(in)
	if err != nil {
		return nil, fmt.Errorf("start %s: encode input: %w", id, err)
	}
	answer := env.ask(id, env.startMessage(orchestration.Name(), payload, options))
	if answer.Err != nil {
		return nil, fmt.Errorf("start %s: %w", id, answer.Err)
	}
	return &Run[O]{ID: id, env: env, first: answer.FirstExecution}, nil
}

// SendOrStart sends an event to an instance, starting it first if there is none
// of that ID (or, with a reuse option, if its run has ended). Nothing comes
// between the start and the event. It returns as [Send] does; errors are
// [ErrEnded] and encoding/json's.
func SendOrStart[I, O, T any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, event replay.EventHandle[T], data T, options ...StartOption) (*Run[O], error) {
	env.t.Helper()
	payload, err := replay.Encode(in)
	if err != nil {
		return nil, fmt.Errorf("start %s: encode input: %w", id, err)
	}
	sent, err := replay.Encode(data)
	if err != nil {
		return nil, fmt.Errorf("send %q to %s: encode data: %w", event.Name(), id, err)
	}
	m := env.startMessage(orchestration.Name(), payload, options)
	m.Attach = true
	answers := env.askAll(id, m, externalEvent(event.Name(), sent, ""))
	for _, answer := range answers {
		if answer.Err != nil {
			return nil, fmt.Errorf("send %q to %s: %w", event.Name(), id, answer.Err)
		}
	}
	return &Run[O]{ID: id, env: env, first: answers[0].FirstExecution}, nil
}

// startMessage returns the start of an instance. The test fails if there is no
// code for it.
func (e *Env) startMessage(name string, payload *journalpb.Payload, options []StartOption) actors.Message {
	e.t.Helper()
	e.begin()
	s := &start{OrchestrationStarted: &journalpb.OrchestrationStarted{Name: name, Input: payload}}
	for _, option := range options {
		option(s)
	}
	if s.Version == "" {
		s.Version = e.registry.Newest(s.Name)
	}
	if !e.registry.HasOrchestration(s.Name, s.Version) {
		e.t.Fatalf("replaytest: orchestration %q, version %q, is not bound: give its Definition to New", s.Name, s.Version)
	}
	m := input(&journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: s.OrchestrationStarted}})
	m.Reuse = s.reuse
	return m
}

// Call starts an instance of an orchestration and lets time pass until it has
// ended. The error is a [*RunError] when it did not complete. The test fails if
// the instance cannot be started, or if nothing is left that could end it.
func Call[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...StartOption) (O, error) {
	env.t.Helper()
	return Start(env, orchestration, id, in, options...).Wait()
}

// Wait lets time pass until the run has ended, and returns its result. The error
// is a [*RunError] when it did not complete. The test fails if nothing is left
// that could end it.
func (r *Run[O]) Wait() (O, error) {
	r.env.t.Helper()
	var output O
	if !r.env.run(r.ended, time.Time{}) {
		r.env.t.Fatalf("replaytest: %s has not ended, and nothing is going to happen any more%s", r.ID, r.env.running())
	}
	status := r.Status()
	if status.State != Completed {
		return output, &RunError{ID: r.ID, State: status.State, Err: status.Err}
	}
	if err := status.Output(&output); err != nil {
		return output, fmt.Errorf("decode output of %s: %w", r.ID, err)
	}
	return output, nil
}

// ended tells whether the run has: another one may have followed it.
func (r *Run[O]) ended() bool {
	known, ok := r.env.node.journal.Instance(r.ID)
	return ok && (known.FirstExecution != r.first || known.Status != journalpb.Status_STATUS_RUNNING)
}

// Status returns the state of the run.
func (r *Run[O]) Status() *Status {
	r.env.t.Helper()
	known, _ := r.env.node.journal.Instance(r.ID)
	if known.GetFirstExecution() == r.first {
		return r.env.Status(r.ID)
	}
	for execution := r.first; ; execution++ {
		events, err := r.env.events(r.ID, execution)
		if err != nil {
			r.env.t.Fatalf("replaytest: history of %s: %v", r.ID, err)
		}
		if status := statusOf(r.ID, execution, events); status.State != ContinuedAsNew {
			return status
		}
	}
}

// History returns the history of the instance's latest execution.
func (r *Run[O]) History() *history.History {
	r.env.t.Helper()
	return r.env.History(r.ID)
}

// A RunError is the end of a run that did not complete. Its fields:
//
//	ID    string
//	State State // Failed, Cancelled or Terminated
//	Err   error // what the orchestration returned; replay.ErrCanceled or replay.ErrTerminated with the reason
type RunError = actors.RunError
