package replaytest

import (
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Errors of messages, as the client of a cluster has them. With each of them
// nothing was done.
var (
	// ErrNotFound: there is no instance of that ID.
	ErrNotFound = actors.ErrNotFound
	// ErrInstanceExists: an instance of that ID exists, running or ended.
	ErrInstanceExists = actors.ErrInstanceExists
	// ErrEnded: the instance has come to its end and takes no more input.
	ErrEnded = actors.ErrEnded
	// ErrActivityClosed: the attempt does not count any more, or never was.
	ErrActivityClosed = actors.ErrActivityClosed
)

// Send sends an event to an instance. When it returns, the event is recorded and
// everything has happened that follows from it at this moment. The body of an
// activity may call it too; then it returns when the event is recorded.
//
// Errors: [ErrNotFound], [ErrEnded], encoding/json's.
func Send[T any](env *Env, id string, event replay.EventHandle[T], data T) error {
	env.t.Helper()
	payload, err := replay.Encode(data)
	if err != nil {
		return fmt.Errorf("send %q to %s: encode data: %w", event.Name(), id, err)
	}
	answer := env.ask(id, externalEvent(event.Name(), payload, ""))
	return wrap(answer.Err, "send %q to %s", event.Name(), id)
}

func externalEvent(name string, data *journalpb.Payload, requestID string) actors.Message {
	return input(&journalpb.Event{Body: &journalpb.Event_ExternalEvent{
		ExternalEvent: &journalpb.ExternalEvent{Name: name, Data: data, RequestId: requestID},
	}})
}

func input(event *journalpb.Event) actors.Message {
	return actors.Message{Message: replay.Message{Event: event}}
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// Cancel asks an instance to cancel. It returns as [Send] does; errors are
// [ErrNotFound] and [ErrEnded].
func (e *Env) Cancel(id, reason string) error {
	e.t.Helper()
	answer := e.ask(id, input(&journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
		OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: reason},
	}}))
	return wrap(answer.Err, "cancel %s", id)
}

// Terminate ends an instance at once, without running its code. It returns as
// [Send] does; errors are those of [Env.Cancel].
func (e *Env) Terminate(id, reason string) error {
	e.t.Helper()
	answer := e.ask(id, input(&journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
		OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: reason},
	}}))
	return wrap(answer.Err, "terminate %s", id)
}

// Suspend keeps the code of an instance from running until [Env.Resume]. It
// returns as [Send] does; errors are those of [Env.Cancel].
func (e *Env) Suspend(id, reason string) error {
	e.t.Helper()
	answer := e.ask(id, input(&journalpb.Event{Body: &journalpb.Event_OrchestrationSuspended{
		OrchestrationSuspended: &journalpb.OrchestrationSuspended{Reason: reason},
	}}))
	return wrap(answer.Err, "suspend %s", id)
}

// Resume lets a suspended instance go on. It returns as [Send] does; errors are
// those of [Env.Cancel].
func (e *Env) Resume(id, reason string) error {
	e.t.Helper()
	answer := e.ask(id, input(&journalpb.Event{Body: &journalpb.Event_OrchestrationResumed{
		OrchestrationResumed: &journalpb.OrchestrationResumed{Reason: reason},
	}}))
	return wrap(answer.Err, "resume %s", id)
}

// Query asks a running instance and returns its answer.
//
// Errors: [ErrNotFound]; [ErrEnded]; what the instance's function returned; a
// [*replay.NoQueryError] when it does not answer that query.
func Query[I, O any](env *Env, id string, query replay.QueryHandle[I, O], question I) (O, error) {
	env.t.Helper()
	var output O
	payload, err := replay.Encode(question)
	if err == nil {
		answer := env.ask(id, actors.Message{Query: &actors.Query{Name: query.Name(), Input: payload}})
		// What the function has returned, as it is on the other side of a wire.
		if err = answer.Err; err != nil && !isOurs(err) {
			err = replay.DecodeError(replay.EncodeError(err))
		}
		if err == nil {
			err = replay.Decode(answer.Output, &output)
		}
	}
	return output, wrap(err, "query %q of %s", query.Name(), id)
}

// isOurs tells whether an error is the engine's and not the author's.
func isOurs(err error) bool {
	var none *replay.NoQueryError
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrEnded) || errors.As(err, &none)
}

// CompleteActivity ends an activity from outside with a result; see
// [replay.ErrPending]. The token is that of the attempt. It returns as [Send]
// does.
//
// Errors: [ErrActivityClosed], [*replay.TokenError], encoding/json's.
func CompleteActivity[O any](env *Env, token string, value O) error {
	env.t.Helper()
	payload, err := replay.Encode(value)
	if err != nil {
		return fmt.Errorf("complete activity: encode value: %w", err)
	}
	return env.complete(token, actors.Completion{Result: payload})
}

// FailActivity fails an attempt of an activity from outside, as if its body had
// returned failure, which must not be nil. Errors are those of
// [CompleteActivity].
func (e *Env) FailActivity(token string, failure error) error {
	e.t.Helper()
	if failure == nil {
		e.t.Fatal("replaytest: FailActivity needs to know what the activity failed with")
	}
	return e.complete(token, actors.Completion{Error: replay.EncodeError(failure)})
}

func (e *Env) complete(token string, c actors.Completion) error {
	e.t.Helper()
	named, err := replay.ParseToken(token)
	if err != nil {
		return fmt.Errorf("complete activity: %w", err)
	}
	c.Ref = &journalpb.OperationRef{Instance: named.Instance, Incarnation: named.Incarnation, Execution: named.Execution, EventId: named.EventID}
	c.Attempt = named.Number
	outcomes := make(chan error, 1)
	e.begin()
	e.do(func() { e.node.partition.Load().CompleteActivity(c, func(err error) { outcomes <- err }) })
	e.settle()
	select {
	case err := <-outcomes:
		return wrap(err, "complete activity %s", named.IdempotencyKey())
	default:
		e.t.Fatalf("replaytest: activity %s is not completed%s", named.IdempotencyKey(), e.running())
		return nil
	}
}
