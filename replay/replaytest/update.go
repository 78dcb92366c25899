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
)

// ErrUpdateGivenUp: the update was accepted, and its instance has ended or
// continued as new before it was done.
var ErrUpdateGivenUp = actors.ErrUpdateGivenUp

// A RefusedError reports that an instance has refused an update. Nothing was
// recorded. Its field Err is what the validation returned.
type RefusedError = actors.RefusedError

// Update has a running instance carry out an update, and lets time pass until
// its result is recorded.
//
// Errors: what the instance's function returned; a [*RefusedError] with what the
// validation returned; a [*replay.NoUpdateError] when there is no handler;
// [ErrUpdateGivenUp]; [ErrNotFound]; [ErrEnded].
func Update[I, O any](env *Env, id string, update replay.UpdateHandle[I, O], input I) (O, error) {
	env.t.Helper()
	var output O
	payload, err := replay.Encode(input)
	if err == nil {
		payload, err = env.update(id, update.Name(), payload)
	}
	if err == nil {
		err = replay.Decode(payload, &output)
	}
	return output, wrap(err, "update %q of %s", update.Name(), id)
}

func (e *Env) update(id, name string, payload *journalpb.Payload) (*journalpb.Payload, error) {
	e.t.Helper()
	event := replay.UpdatePrefix + name
	if err := e.ask(id, actors.Message{Query: &actors.Query{Name: event, Input: payload}}).Err; err != nil {
		return nil, refusal(name, err)
	}
	e.requests++
	u := &update{id: id, requestID: fmt.Sprintf("replaytest-%d", e.requests)}
	e.updates[u.requestID] = u
	defer delete(e.updates, u.requestID)
	if err := e.ask(id, externalEvent(event, payload, u.requestID)).Err; err != nil {
		return nil, err
	}
	if !e.run(func() bool { return u.done }, time.Time{}) {
		e.t.Fatalf("replaytest: update %q of %s does not come to its end%s", name, id, e.running())
	}
	return u.output, u.err
}

// refusal tells an update without a handler from one that was refused.
func refusal(name string, err error) error {
	var none *replay.NoQueryError
	switch {
	case errors.As(err, &none) && strings.HasPrefix(none.Name, replay.UpdatePrefix):
		return &replay.NoUpdateError{Name: name}
	case isOurs(err):
		return err
	}
	return &RefusedError{Err: replay.DecodeError(replay.EncodeError(err))}
}

// updates are those that somebody waits for, by request ID.
type updates map[string]*update

type update struct {
	id, requestID string
	done          bool
	output        *journalpb.Payload
	err           error
}

// recorded looks whether an event ends an update.
func (us updates) recorded(id string, event *journalpb.Event) {
	for _, u := range us {
		if u.id != id || u.done {
			continue
		}
		switch body := event.Body.(type) {
		case *journalpb.Event_SideEffectRecorded:
			if record := body.SideEffectRecorded; record.Label == replay.UpdatePrefix+u.requestID {
				u.done, u.output, u.err = true, record.Value, replay.DecodeError(record.Error)
			}
		case *journalpb.Event_OrchestrationContinuedAsNew:
			// One that has not begun waits in the inbox of the next execution.
			u.giveUp(!slices.ContainsFunc(body.OrchestrationContinuedAsNew.Inbox, func(carried *journalpb.ExternalEvent) bool {
				return carried.RequestId == u.requestID
			}))
		default:
			u.giveUp(journalpb.Terminal(event.Arm()))
		}
	}
}

func (u *update) giveUp(lost bool) {
	if lost {
		u.done, u.err = true, ErrUpdateGivenUp
	}
}
