package replaytest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Errors of messages, as in package cluster. Each means that nothing was done.
var (
	// ErrNotFound: there is no instance with this ID.
	ErrNotFound = actors.ErrNotFound
	// ErrInstanceExists: an instance with this ID exists, running or ended.
	ErrInstanceExists = actors.ErrInstanceExists
	// ErrEnded: the instance has ended and accepts no input.
	ErrEnded = actors.ErrEnded
	// ErrRequestIDReused: the request ID of an event or an update was used for another one.
	ErrRequestIDReused = actors.ErrRequestIDReused
	// ErrActivityClosed: the attempt is closed or never existed.
	ErrActivityClosed = activity.ErrClosed
	// ErrTokenExpired: the signed token has expired in virtual time.
	ErrTokenExpired = engine.ErrTokenExpired
)

// Send sends an event to an instance. It returns when the event is recorded and everything
// that follows from it at this moment has happened. The body of an activity may call Send too;
// Send then returns when the event is recorded. The options are [RequestID] and [Headers].
//
// Errors: [ErrNotFound], [ErrEnded], [ErrRequestIDReused], [*replay.InvalidError], a
// [*replay.PayloadError] if the instance refuses the data (see [replay.Receives]), errors of
// encoding/json.
func Send[T any](env *Env, id string, event replay.EventHandle[T], data T, options ...replay.Option) error {
	env.t.Helper()
	var chosen actors.InputOptions
	headers, err := applyOptions(options, &chosen, "an event")
	if err = cmp.Or(err, engine.CheckInstanceID(id), engine.CheckCallName("event name", event.Name()), chosen.Check()); err != nil {
		return fmt.Errorf("send %.140q to %.140s: %w", event.Name(), id, err)
	}
	payload, err := engine.Encode(data)
	if err != nil {
		return fmt.Errorf("send %q to %s: encode data: %w", event.Name(), id, err)
	}
	answer := env.deliver(id, checkedEvent(event.Name(), payload, chosen.RequestID, headers))
	if env.node.journal.isRepeat(id, chosen.RequestID, answer.Err) {
		return nil
	}
	return wrap(answer.Err, "send %q to %s", event.Name(), id)
}

// checkedEvent returns the message of an event that is recorded only if its data fits the code.
func checkedEvent(name string, data *journalpb.Payload, requestID string, headers []*journalpb.Header) actors.Message {
	m := externalEvent(name, data, requestID, headers)
	m.CheckData = true
	return m
}

func externalEvent(name string, data *journalpb.Payload, requestID string, headers []*journalpb.Header) actors.Message {
	return eventMessage(&journalpb.Event{Body: &journalpb.Event_ExternalEvent{
		ExternalEvent: &journalpb.ExternalEvent{Name: name, Data: data, RequestId: requestID, Headers: headers},
	}})
}

func eventMessage(event *journalpb.Event) actors.Message {
	return actors.Message{Message: engine.Message{Event: event}}
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// Cancel requests the cancellation of an instance. It returns like [Send]. Errors:
// [ErrNotFound], [ErrEnded].
func (e *Env) Cancel(id, reason string) error {
	e.t.Helper()
	return control(e, "cancel", id, reason, eventMessage(&journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
		OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: reason},
	}}))
}

// Terminate ends an instance at once, without running its code. It returns like [Send]; its
// errors are those of [Env.Cancel].
func (e *Env) Terminate(id, reason string) error {
	e.t.Helper()
	return control(e, "terminate", id, reason, eventMessage(&journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: reason},
	}}))
}

// Suspend stops the code of an instance until [Env.Resume]. It returns like [Send]; its errors
// are those of [Env.Cancel].
func (e *Env) Suspend(id, reason string) error {
	e.t.Helper()
	return control(e, "suspend", id, reason, eventMessage(&journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{
		OrchestrationSuspended: &journalpb.OrchestrationSuspended{Reason: reason},
	}}))
}

// Resume continues a suspended instance. It returns like [Send]; its errors are those of
// [Env.Cancel].
func (e *Env) Resume(id, reason string) error {
	e.t.Helper()
	return control(e, "resume", id, reason, eventMessage(&journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{
		OrchestrationResumed: &journalpb.OrchestrationResumed{Reason: reason},
	}}))
}

// control delivers a request about an instance, with a reason of at most reasonMax bytes.
func control(e *Env, verb, id, reason string, m actors.Message) error {
	e.t.Helper()
	err := cmp.Or(engine.CheckInstanceID(id), engine.CheckText("reason", reason, 0, reasonMax))
	if err == nil {
		err = e.deliver(id, m).Err
	}
	return wrap(err, "%s %.140s", verb, id)
}

// reasonMax bounds the reason of a request, as in package cluster.
const reasonMax = 4096

// Query queries an instance, which may have ended.
//
// Errors: [ErrNotFound]; the error of the instance's query handler; a
// [*replay.NotRegisteredError] if there is no handler.
func Query[I, O any](env *Env, id string, query replay.QueryHandle[I, O], input I) (O, error) {
	env.t.Helper()
	var output O
	payload, err := engine.Encode(input)
	err = cmp.Or(err, engine.CheckInstanceID(id), engine.CheckCallName("query name", query.Name()))
	if err == nil {
		asked := &actors.Query{Name: query.Name(), Input: payload}
		answer := env.deliver(id, actors.Message{Query: asked})
		if errors.Is(answer.Err, ErrEnded) && asked.IsAnsweredAfterEnd() {
			env.runInBubble(func() {
				if a, ended := env.node.partition.Load().QueryEnded(context.Background(), id, asked); ended {
					answer = a
				}
			})
		}
		// The handler's error, as a client of a cluster would receive it.
		if err = answer.Err; err != nil && !isEngineError(err) {
			err = engine.DecodeError(engine.EncodeError(err))
		}
		if err == nil {
			err = engine.Decode(answer.Output, &output)
		}
	}
	return output, wrap(err, "query %q of %s", query.Name(), id)
}

// Stack returns where each coroutine of a running instance waits; see [replay.Coroutine]. Its
// errors are those of [Query] and [ErrEnded].
func (e *Env) Stack(id string) ([]replay.Coroutine, error) {
	e.t.Helper()
	return Query(e, id, replay.Query[any, []replay.Coroutine](engine.StackQuery), nil)
}

// isEngineError reports whether an error is the engine's and not the author's.
func isEngineError(err error) bool {
	var none *replay.NotRegisteredError
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrEnded) || errors.As(err, &none) && none.Kind == "query"
}

// CompleteActivity completes an activity from outside with a result; see
// [replay.ErrResultPending]. The token is that of the attempt, plain or signed. It returns like
// [Send].
//
// Errors: [ErrActivityClosed], [*replay.TokenError], [ErrTokenExpired], errors of encoding/json.
func CompleteActivity[O any](env *Env, token string, value O) error {
	env.t.Helper()
	payload, err := engine.Encode(value)
	if err != nil {
		return fmt.Errorf("complete activity: encode value: %w", err)
	}
	return completeActivity(env, token, activity.Completion{Result: payload})
}

// FailActivity fails an attempt of an activity from outside, as if its body had returned
// failure, which must not be nil. Its errors are those of [CompleteActivity].
func FailActivity(env *Env, token string, failure error) error {
	env.t.Helper()
	if failure == nil {
		env.t.Fatal("replaytest: FailActivity: failure must not be nil")
	}
	return completeActivity(env, token, activity.Completion{Error: engine.EncodeError(failure)})
}

func completeActivity(e *Env, token string, c activity.Completion) error {
	e.t.Helper()
	parsed, err := parseToken(e, token)
	if err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	c.Ref = &journalpb.OperationRef{Instance: parsed.Instance, Incarnation: parsed.Incarnation, Execution: parsed.Execution, EventId: parsed.EventID}
	c.Attempt = parsed.Number
	outcomes := make(chan error, 1)
	e.start()
	e.runInBubble(func() { e.node.partition.Load().CompleteActivity(c, func(err error) { outcomes <- err }) })
	e.runUntilIdle()
	select {
	case err := <-outcomes:
		return wrap(err, "complete activity %s", parsed.IdempotencyKey())
	default:
		e.t.Fatalf("replaytest: activity %s is not completed%s", parsed.IdempotencyKey(), e.describeRunning())
		return nil
	}
}

// tokenSigner signs and verifies the tokens of every environment. Its key is the same in every run,
// so that a test gets the same tokens. No cluster has that key.
var tokenSigner = &engine.TokenSigner{
	Cluster: "replaytest",
	URL:     "https://replaytest.invalid",
	Key:     func(context.Context) ([]byte, error) { return []byte("replaytest"), nil },
	Now:     func(context.Context, string) (time.Time, error) { return time.Now(), nil },
}

// parseToken returns the attempt that a token names. It verifies a signed one in virtual time.
func parseToken(e *Env, token string) (attempt *replay.Attempt, err error) {
	e.t.Helper()
	if !engine.IsSignedToken(token) {
		return engine.ParseToken(token)
	}
	e.runInBubble(func() { attempt, err = tokenSigner.Verify(context.Background(), token) })
	return attempt, err
}
