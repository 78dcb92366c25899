package replaytest

import (
	"fmt"
	"maps"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A Run is an instance that was started, with the type of its result.
type Run[O any] struct {
	ID             string
	env            *Env
	firstExecution uint64
}

// A StartOption changes how an instance is started.
type StartOption func(*startRequest)

type startRequest struct {
	*journalpb.OrchestrationStarted
	reuse actors.Reuse
}

// StartVersion sets the version of the orchestration. Defaults to the pinned version, or else the
// highest.
func StartVersion(version string) StartOption { return func(s *startRequest) { s.Version = version } }

// StartAt delays the code until a virtual time. The instance exists at once.
func StartAt(at time.Time) StartOption { return func(s *startRequest) { s.StartAt = at.UnixNano() } }

// Tags adds tags.
func Tags(tags map[string]string) StartOption {
	return func(s *startRequest) {
		if s.Tags == nil {
			s.Tags = make(map[string]string)
		}
		maps.Copy(s.Tags, tags)
	}
}

// ReuseWhenEnded allows the ID of an instance that has ended.
func ReuseWhenEnded() StartOption { return func(s *startRequest) { s.reuse = actors.ReuseEnded } }

// ReuseWhenFailed allows the ID of an instance that has ended without completing.
func ReuseWhenFailed() StartOption { return func(s *startRequest) { s.reuse = actors.ReuseFailed } }

// Start starts an instance of an orchestration and returns when the instance is idle at this
// moment: activities whose bodies take no virtual time have ended. The test fails if the
// instance cannot be started.
func Start[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...StartOption) *Run[O] {
	env.t.Helper()
	run, err := TryStart(env, orchestration, id, in, options...)
	if err != nil {
		env.t.Fatalf("replaytest: %v", err)
	}
	return run
}

// TryStart is [Start] for a test that expects an error: [ErrInstanceExists], or an error of
// encoding/json.
func TryStart[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...StartOption) (*Run[O], error) {
	env.t.Helper()
	payload, err := engine.Encode(in)
	if err != nil {
		return nil, fmt.Errorf("start %s: encode input: %w", id, err)
	}
	answer := env.deliver(id, env.startMessage(orchestration.Name(), payload, options))
	if answer.Err != nil {
		return nil, fmt.Errorf("start %s: %w", id, answer.Err)
	}
	return &Run[O]{ID: id, env: env, firstExecution: answer.FirstExecution}, nil
}

// SendOrStart sends an event to an instance, starting it first if there is no instance with
// this ID (or, with a reuse option, if its run has ended). Nothing comes between the start and
// the event. It returns like [Send]. Errors: [ErrEnded], errors of encoding/json.
func SendOrStart[I, O, T any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, event replay.EventHandle[T], data T, options ...StartOption) (*Run[O], error) {
	env.t.Helper()
	payload, err := engine.Encode(in)
	if err != nil {
		return nil, fmt.Errorf("start %s: encode input: %w", id, err)
	}
	sent, err := engine.Encode(data)
	if err != nil {
		return nil, fmt.Errorf("send %q to %s: encode data: %w", event.Name(), id, err)
	}
	m := env.startMessage(orchestration.Name(), payload, options)
	m.Attach = true
	answers := env.deliverAll(id, m, externalEvent(event.Name(), sent, ""))
	for _, answer := range answers {
		if answer.Err != nil {
			return nil, fmt.Errorf("send %q to %s: %w", event.Name(), id, answer.Err)
		}
	}
	return &Run[O]{ID: id, env: env, firstExecution: answers[0].FirstExecution}, nil
}

// startMessage returns the start of an instance. The test fails if its code is not bound.
func (e *Env) startMessage(name string, payload *journalpb.Payload, options []StartOption) actors.Message {
	e.t.Helper()
	e.start()
	s := &startRequest{OrchestrationStarted: &journalpb.OrchestrationStarted{Name: name, Input: payload}}
	for _, option := range options {
		option(s)
	}
	if s.Version == "" {
		s.Version = e.registry.Newest(s.Name)
	}
	if !e.registry.HasOrchestration(s.Name, s.Version) {
		e.t.Fatalf("replaytest: orchestration %q, version %q, is not bound: pass its Definition to New", s.Name, s.Version)
	}
	m := eventMessage(&journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: s.OrchestrationStarted}})
	m.Reuse = s.reuse
	return m
}

// Call starts an instance of an orchestration and lets time pass until it has ended. The error
// is a [*RunError] if it did not complete. The test fails if the instance cannot be started,
// or if nothing can end it any more.
func Call[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...StartOption) (O, error) {
	env.t.Helper()
	return Start(env, orchestration, id, in, options...).Wait()
}

// Wait lets time pass until the run has ended, and returns its result. The error is a
// [*RunError] if it did not complete. The test fails if nothing can end it any more.
func (r *Run[O]) Wait() (O, error) {
	r.env.t.Helper()
	var output O
	if !r.env.runUntil(r.hasEnded, time.Time{}) {
		r.env.t.Fatalf("replaytest: instance %s has not ended, and nothing more can happen%s", r.ID, r.env.describeRunning())
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

// hasEnded reports whether the run has ended, even if a later run of the same ID has started.
func (r *Run[O]) hasEnded() bool {
	known, ok := r.env.node.journal.Instance(r.ID)
	return ok && (known.FirstExecution != r.firstExecution || known.Status != journalpb.Status_STATUS_RUNNING)
}

// Status returns the state of the run.
func (r *Run[O]) Status() *Status {
	r.env.t.Helper()
	known, _ := r.env.node.journal.Instance(r.ID)
	if known.GetFirstExecution() == r.firstExecution {
		return r.env.Status(r.ID)
	}
	for execution := r.firstExecution; ; execution++ {
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

// A RunError reports a run that ended without completing. Its fields:
//
//	ID    string
//	State State // Failed, Canceled or Terminated
//	Err   error // the orchestration's error; or replay.ErrCanceled or ErrTerminated, with the reason
type RunError = actors.RunError
