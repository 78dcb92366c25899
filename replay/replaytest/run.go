package replaytest

import (
	"cmp"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A Run is an instance that was started, with the type of its result.
type Run[O any] struct {
	ID string
	// Attached reports that another start had begun the run; see [Attach].
	Attached bool

	env            *Env
	firstExecution uint64
}

// StartRun starts an instance of an orchestration and returns when the instance is idle at this
// moment: activities whose bodies take no virtual time have ended. The options are
// [replay.Version], [RequestID], [Attach], [ReuseWhenEnded], [ReuseWhenFailed],
// [TerminateExisting], [StartAt], [Deadline], [replay.Retry], [replay.Summary], [Tags] and
// [Headers]. The test fails if no code is bound.
//
// Errors: [ErrInstanceExists], unless [Attach] is given; [*replay.InvalidError]; errors of
// encoding/json.
func StartRun[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...replay.Option) (*Run[O], error) {
	env.t.Helper()
	answer, err := env.startRun(id, orchestration.Name(), in, options)
	if err != nil {
		return nil, fmt.Errorf("start %.140s: %w", id, err)
	}
	return &Run[O]{ID: id, Attached: answer.Attached, env: env, firstExecution: answer.FirstExecution}, nil
}

func (e *Env) startRun(id, name string, in any, options []replay.Option) (actors.Answer, error) {
	e.t.Helper()
	m, err := e.startMessage(id, name, in, false, options)
	if err != nil {
		return actors.Answer{}, err
	}
	if first, err := e.node.journal.startedRun(id, m.Event.GetOrchestrationStarted()); first > 0 || err != nil {
		return actors.Answer{FirstExecution: first}, err
	}
	answer := e.deliver(id, m)
	return answer, answer.Err
}

// SendOrStart sends an event to an instance, starting it first if there is no instance with
// this ID (or, with a reuse option, if its run has ended). Nothing comes between the start and
// the event, and [RequestID] names both. It returns like [Send]. Options and errors are those of
// [StartRun] and [Send].
func SendOrStart[I, O, T any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, event replay.EventHandle[T], data T, options ...replay.Option) (*Run[O], error) {
	env.t.Helper()
	m, err := env.startMessage(id, orchestration.Name(), in, true, options)
	if err == nil {
		err = engine.CheckCallName("event name", event.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("start %.140s: %w", id, err)
	}
	sent, err := engine.Encode(data)
	if err != nil {
		return nil, fmt.Errorf("send %q to %s: encode data: %w", event.Name(), id, err)
	}
	started := m.Event.GetOrchestrationStarted()
	if first, err := env.node.journal.startedRun(id, started); first > 0 || err != nil {
		return &Run[O]{ID: id, env: env, firstExecution: first}, wrap(err, "start %s", id)
	}
	requestID := started.RequestId
	checked := checkedEvent(event.Name(), sent, requestID, started.Headers)
	m.Sent = checked.Event.GetExternalEvent()
	answers := env.deliverAll(id, m, checked)
	if env.node.journal.isRepeat(id, requestID, answers[1].Err) {
		answers[1].Err = nil
	}
	for _, answer := range answers {
		if answer.Err != nil {
			return nil, fmt.Errorf("send %q to %s: %w", event.Name(), id, answer.Err)
		}
	}
	return &Run[O]{ID: id, Attached: answers[0].Attached, env: env, firstExecution: answers[0].FirstExecution}, nil
}

// startMessage returns the start of an instance. The test fails if its code is not bound.
func (e *Env) startMessage(id, name string, in any, attach bool, options []replay.Option) (actors.Message, error) {
	e.t.Helper()
	e.start()
	payload, err := engine.Encode(in)
	if err != nil {
		return actors.Message{}, fmt.Errorf("encode input: %w", err)
	}
	var chosen actors.StartOptions
	headers, err := applyOptions(options, &chosen, "a start")
	chosen.Attach = attach || chosen.Attach
	if err = cmp.Or(err, engine.CheckInstanceID(id), engine.CheckCallName("name", name), chosen.Check()); err != nil {
		return actors.Message{}, err
	}
	version := chosen.Version
	if version == "" {
		version = e.registry.Newest(name)
	}
	if !e.registry.HasOrchestration(name, version) {
		e.t.Fatalf("replaytest: orchestration %q, version %q, is not bound: pass its Definition to New", name, version)
	}
	retry, err := engine.RecordedRetry(chosen.Retry)
	if err != nil {
		return actors.Message{}, err
	}
	m := eventMessage(&journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{
			Name: name, Version: version, Input: payload,
			RequestId: chosen.RequestID, StartAt: chosen.StartAt, Deadline: chosen.Deadline, Tags: chosen.Tags,
			Headers: headers, Retry: retry, Summary: chosen.Summary,
		},
	}})
	m.Attach, m.Reuse = chosen.Attach, chosen.Reuse
	return m, nil
}

// Call starts an instance of an orchestration and lets time pass until it has ended. Options and
// errors are those of [StartRun] and [Run.Wait]. The test fails if nothing can end the run any
// more.
func Call[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], id string, in I, options ...replay.Option) (O, error) {
	env.t.Helper()
	run, err := StartRun(env, orchestration, id, in, options...)
	if err != nil {
		var zero O
		return zero, err
	}
	return run.Wait()
}

// Wait lets time pass until the run has ended, and returns its result. The error is a
// [*RunError] if it did not complete. The test fails if nothing can end it any more.
func (r *Run[O]) Wait() (O, error) {
	r.env.t.Helper()
	var output O
	status := r.wait()
	if status.State != Completed {
		return output, &RunError{ID: r.ID, State: status.State, Err: status.Err}
	}
	if err := status.Output(&output); err != nil {
		return output, fmt.Errorf("decode output of %s: %w", r.ID, err)
	}
	return output, nil
}

// wait lets time pass until the run has ended, and returns its state.
func (r *Run[O]) wait() *Status {
	r.env.t.Helper()
	if !r.env.runUntil(r.hasEnded, time.Time{}) {
		r.env.t.Fatalf("replaytest: instance %s has not ended, and nothing more can happen%s", r.ID, r.env.describeRunning())
	}
	return r.Status()
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
		execution, events := r.env.readExecution(r.ID, 0)
		return statusOf(r.ID, execution, events)
	}
	for execution := r.firstExecution; ; execution++ {
		events, err := r.env.node.journal.events(r.ID, execution)
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
