package replaytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// ErrUpdateAborted: the update was accepted, but its instance ended or continued as new before
// the update was done.
var ErrUpdateAborted = actors.ErrUpdateAborted

// A RefusedError reports that an instance refused an update. Nothing was recorded. Its field
// Err is the error of the validation.
type RefusedError = actors.RefusedError

// Update sends an update to a running instance and lets time pass until its result is
// recorded.
//
// Errors: the error of the instance's handler; a [*RefusedError] with the error of the
// validation; a [*replay.NoUpdateError] if there is no handler; [ErrUpdateAborted];
// [ErrNotFound]; [ErrEnded].
func Update[I, O any](env *Env, id string, update replay.UpdateHandle[I, O], input I) (O, error) {
	env.t.Helper()
	var output O
	payload, err := engine.Encode(input)
	if err == nil {
		payload, err = env.update(id, update.Name(), payload)
	}
	if err == nil {
		err = engine.Decode(payload, &output)
	}
	return output, wrap(err, "update %q of %s", update.Name(), id)
}

func (e *Env) update(id, name string, payload *journalpb.Payload) (*journalpb.Payload, error) {
	e.t.Helper()
	event := engine.UpdatePrefix + name
	if err := e.deliver(id, actors.Message{Query: &actors.Query{Name: event, Input: payload}}).Err; err != nil {
		return nil, refusalError(name, err)
	}
	e.requestCount++
	u := &update{id: id, requestID: fmt.Sprintf("replaytest-%d", e.requestCount)}
	e.updates[u.requestID] = u
	defer delete(e.updates, u.requestID)
	if err := e.deliver(id, externalEvent(event, payload, u.requestID)).Err; err != nil {
		return nil, err
	}
	if !e.runUntil(func() bool { return u.done }, time.Time{}) {
		e.t.Fatalf("replaytest: update %q of %s does not end%s", name, id, e.describeRunning())
	}
	return u.output, u.err
}

// refusalError distinguishes an update without a handler from a refused one.
func refusalError(name string, err error) error {
	var noQuery *replay.NoQueryError
	switch {
	case errors.As(err, &noQuery) && strings.HasPrefix(noQuery.Name, engine.UpdatePrefix):
		return &replay.NoUpdateError{Name: name}
	case isEngineError(err):
		return err
	}
	return &RefusedError{Err: engine.DecodeError(engine.EncodeError(err))}
}

// updates holds the updates for which a caller waits, by request ID.
type updates map[string]*update

type update struct {
	id, requestID string
	done          bool
	output        *journalpb.Payload
	err           error
}

// observe ends the updates that an event completes or aborts.
func (up updates) observe(id string, event *journalpb.Event) {
	for _, u := range up {
		if u.id != id || u.done {
			continue
		}
		switch body := event.Body.(type) {
		case *journalpb.Event_SideEffectRecorded:
			if record := body.SideEffectRecorded; record.Label == engine.UpdatePrefix+u.requestID {
				u.done, u.output, u.err = true, record.Value, engine.DecodeError(record.Error)
			}
		case *journalpb.Event_OrchestrationContinuedAsNew:
			// An update that has not begun is carried over to the next execution.
			u.abortIf(!slices.ContainsFunc(body.OrchestrationContinuedAsNew.Inbox, func(carried *journalpb.ExternalEvent) bool {
				return carried.RequestId == u.requestID
			}))
		default:
			u.abortIf(journalpb.IsTerminal(event.TypeNumber()))
		}
	}
}

func (u *update) abortIf(lost bool) {
	if lost {
		u.done, u.err = true, ErrUpdateAborted
	}
}
