package replaytest

import (
	"context"
	"slices"
	"sync"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An ActivityStub is an activity whose body the test provides.
type ActivityStub[I, O any] struct {
	env      *Env
	activity replay.ActivityHandle[I, O]

	mu              sync.Mutex
	failingAttempts int // of each call
	failure         error
}

// Stub binds an activity to a body for the test, in place of its bound body if it has one. The
// engine treats the body like any other: with retries, timeouts, heartbeats and a context that
// ends. Time in the body is virtual: a body that sleeps for an hour takes an hour of virtual
// time, and a body that does not wait takes none.
//
// A stub may be replaced at any time by another stub of the same activity.
func Stub[I, O any](env *Env, activity replay.ActivityHandle[I, O], body func(ctx context.Context, input I) (O, error)) *ActivityStub[I, O] {
	env.t.Helper()
	s := &ActivityStub[I, O]{env: env, activity: activity}
	name := activity.Name()
	if _, bound := env.activities[name]; !bound {
		env.mustNotBeStarted("the first Stub of an activity that is not bound")
	}
	env.activities[name] = activity.Bind(func(ctx context.Context, input I) (O, error) {
		if err := s.failureFor(replay.ActivityInfo(ctx).Number); err != nil {
			var zero O
			return zero, err
		}
		return body(ctx, input)
	})
	env.bindActivities()
	return s
}

// Returns returns an activity body with a constant result.
func Returns[I, O any](output O, err error) func(context.Context, I) (O, error) {
	return func(context.Context, I) (O, error) { return output, err }
}

// FailFirst makes the first attempts of every call fail. The backoff of the call's retry
// policy passes in virtual time.
func (s *ActivityStub[I, O]) FailFirst(attempts int, failure error) *ActivityStub[I, O] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failingAttempts, s.failure = attempts, failure
	return s
}

func (s *ActivityStub[I, O]) failureFor(attempt int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if attempt <= s.failingAttempts {
		return s.failure
	}
	return nil
}

// Calls returns the inputs of the calls of this activity; see [Calls].
func (s *ActivityStub[I, O]) Calls() []I {
	s.env.t.Helper()
	return Calls(s.env, s.activity)
}

// StubChild binds an orchestration to a body for the test, in place of all its bound versions.
// It must be called before the first start.
func StubChild[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], body func(ctx *replay.Context, input I) (O, error), options ...replay.Option) {
	env.t.Helper()
	env.mustNotBeStarted("StubChild")
	env.orchestrations = slices.DeleteFunc(env.orchestrations, func(d replay.Definition) bool {
		name, _, _ := d.Orchestration()
		return name == orchestration.Name()
	})
	env.orchestrations = append(env.orchestrations, orchestration.Bind(body, options...))
}

// Calls returns the inputs of all calls of an activity, stubbed or not, by any instance, in the
// order in which they were recorded. Retries are not calls. A call that was canceled in the step
// that made it is not recorded.
func Calls[I, O any](env *Env, activity replay.ActivityHandle[I, O]) []I {
	env.t.Helper()
	return decodeCalls[I](env, activity.Name(), env.calls[activity.Name()])
}

func decodeCalls[I any](env *Env, name string, recorded []*journalpb.Payload) []I {
	env.t.Helper()
	inputs := make([]I, len(recorded))
	for i, payload := range recorded {
		if err := engine.Decode(payload, &inputs[i]); err != nil {
			env.t.Fatalf("replaytest: input of call %d of %s: %v", i+1, name, err)
		}
	}
	return inputs
}
