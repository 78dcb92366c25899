package replaytest

import (
	"context"
	"slices"
	"sync"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Stubbed is an activity whose body is the test's.
type Stubbed[I, O any] struct {
	env      *Env
	activity replay.ActivityHandle[I, O]

	mu       sync.Mutex
	attempts int // that fail, of each call
	failure  error
}

// Stub gives an activity a body for the test, instead of the one that it was
// bound to, if it was. The body runs as the real one would: with retries, limits
// of time, heartbeats, and a context that ends. While a body runs, time is
// virtual: one that sleeps for an hour takes an hour of virtual time, and one
// that waits for nothing takes none.
//
// A stub may be replaced at any time by another one of the same activity.
func Stub[I, O any](env *Env, activity replay.ActivityHandle[I, O], body func(ctx context.Context, input I) (O, error)) *Stubbed[I, O] {
	env.t.Helper()
	s := &Stubbed[I, O]{env: env, activity: activity}
	name := activity.Name()
	if _, bound := env.activities[name]; !bound {
		env.mustBeginLater("the first Stub of an activity that is not bound")
	}
	env.activities[name] = activity.Bind(func(ctx context.Context, input I) (O, error) {
		if err := s.failing(replay.ActivityInfo(ctx).Number); err != nil {
			var zero O
			return zero, err
		}
		return body(ctx, input)
	})
	env.bind()
	return s
}

// Returns is the body of an activity that always returns the same.
func Returns[I, O any](output O, err error) func(context.Context, I) (O, error) {
	return func(context.Context, I) (O, error) { return output, err }
}

// FailFirst has the first attempts of every call fail with an error. The pauses
// between them pass in virtual time, as the call's retry policy says.
func (s *Stubbed[I, O]) FailFirst(attempts int, failure error) *Stubbed[I, O] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts, s.failure = attempts, failure
	return s
}

func (s *Stubbed[I, O]) failing(attempt int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if attempt <= s.attempts {
		return s.failure
	}
	return nil
}

// Calls returns the inputs of the calls of this activity; see [Calls].
func (s *Stubbed[I, O]) Calls() []I {
	s.env.t.Helper()
	return Calls(s.env, s.activity)
}

// StubChild gives an orchestration a body for the test, instead of all those
// that its versions were bound to, if they were. It comes before anything is
// started.
func StubChild[I, O any](env *Env, orchestration replay.OrchestrationHandle[I, O], body func(ctx *replay.Context, input I) (O, error), options ...replay.BindOption) {
	env.t.Helper()
	env.mustBeginLater("StubChild")
	env.orchestrations = slices.DeleteFunc(env.orchestrations, func(d replay.Definition) bool {
		name, _, _ := d.Orchestration()
		return name == orchestration.Name()
	})
	env.orchestrations = append(env.orchestrations, orchestration.Bind(body, options...))
}

// Calls returns the inputs of the calls of an activity, stubbed or not, by
// whichever instance, in the order in which they were recorded. Attempts that
// follow a failed one are no calls of their own. A call that was given up in the
// step that made it was never recorded.
func Calls[I, O any](env *Env, activity replay.ActivityHandle[I, O]) []I {
	env.t.Helper()
	return decodeCalls[I](env, activity.Name(), env.calls[activity.Name()])
}

func decodeCalls[I any](env *Env, name string, recorded []*journalpb.Payload) []I {
	env.t.Helper()
	inputs := make([]I, len(recorded))
	for i, payload := range recorded {
		if err := replay.Decode(payload, &inputs[i]); err != nil {
			env.t.Fatalf("replaytest: input of call %d of %s: %v", i+1, name, err)
		}
	}
	return inputs
}
