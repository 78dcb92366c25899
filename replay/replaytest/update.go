package replaytest

import (
	"cmp"
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

// A RejectedError reports that an instance rejected an update. Nothing was recorded. Its field
// Err is the error of the validation.
type RejectedError = actors.RejectedError

// CallUpdate sends an update to a running instance and lets time pass until its result is
// recorded. The options are [RequestID] and [Headers]. An update that is repeated with its ID is
// not executed again and has the same result.
//
// Errors: the error of the instance's handler; a [*RejectedError] with the error of the
// validation; a [*replay.NotRegisteredError] if there is no handler; [ErrUpdateAborted];
// [ErrNotFound]; [ErrEnded]; [ErrRequestIDReused]; [*replay.InvalidError].
func CallUpdate[I, O any](env *Env, id string, update replay.UpdateHandle[I, O], input I, options ...replay.Option) (O, error) {
	env.t.Helper()
	var output O
	var chosen actors.InputOptions
	payload, err := engine.Encode(input)
	if err == nil {
		var headers []*journalpb.Header
		if headers, err = applyOptions(options, &chosen, "an update"); err == nil {
			err = cmp.Or(engine.CheckInstanceID(id), engine.CheckCallName("update name", update.Name()), chosen.Check())
		}
		if err == nil {
			payload, err = env.update(id, 0, chosen.RequestID, updateEvent(env, update.Name(), chosen.RequestID, payload, headers))
		}
	}
	if err == nil {
		err = engine.Decode(payload, &output)
	}
	return output, wrap(err, "update %q of %s", update.Name(), id)
}

// UpdateOrStart executes an update as [CallUpdate] does, and starts the instance first if there is
// none with this ID (or, with a reuse option, if its run has ended). [RequestID] names both: a
// repeated call starts no second run and executes the update once. Options and errors are those of
// [StartRun] and [CallUpdate]. The run is not nil if the error comes from the update.
func UpdateOrStart[I, O, UI, UO any](env *Env, id string, orchestration replay.OrchestrationHandle[I, O], in I, update replay.UpdateHandle[UI, UO], updateInput UI, options ...replay.Option) (*Run[O], UO, error) {
	env.t.Helper()
	var output UO
	payload, err := engine.Encode(updateInput)
	if err = cmp.Or(err, engine.CheckCallName("update name", update.Name())); err != nil {
		return nil, output, wrap(err, "update %q of %s", update.Name(), id)
	}
	m, err := env.startMessage(id, orchestration.Name(), in, true, options)
	if err != nil {
		return nil, output, wrap(err, "start %s", id)
	}
	started := m.Event.GetOrchestrationStarted()
	m.Update = updateEvent(env, update.Name(), started.RequestId, payload, started.Headers)
	answer, err := startForUpdate(env, id, m)
	if err != nil {
		return nil, output, wrap(err, "start %s", id)
	}
	run := &Run[O]{ID: id, Attached: answer.Attached, env: env, firstExecution: answer.FirstExecution}
	requestID := started.RequestId
	switch {
	case answer.UpdateErr != nil:
		err = rejectionError(update.Name(), answer.UpdateErr)
	case answer.UpdateRecorded:
		requestID = m.Update.RequestId
		fallthrough
	default:
		payload, err = env.update(id, run.firstExecution, requestID, m.Update)
	}
	if err == nil {
		err = engine.Decode(payload, &output)
	}
	return run, output, wrap(err, "update %q of %s", update.Name(), id)
}

// startForUpdate starts an instance, or returns the run that the start or its update has reached
// before.
func startForUpdate(e *Env, id string, m actors.Message) (actors.Answer, error) {
	e.t.Helper()
	started := m.Event.GetOrchestrationStarted()
	if first, err := e.node.journal.startedRun(id, started); first > 0 || err != nil {
		return actors.Answer{FirstExecution: first}, err
	}
	known, _ := e.node.journal.Instance(id)
	if known.GetRequestId() != started.RequestId && e.node.journal.recordedInput(id, 0, started.RequestId) != nil {
		return actors.Answer{FirstExecution: known.FirstExecution, Attached: true}, nil
	}
	answer := e.deliver(id, m)
	return answer, answer.Err
}

// updateEvent returns the event of an update. Without a request ID it gets one.
func updateEvent(e *Env, name, requestID string, payload *journalpb.Payload, headers []*journalpb.Header) *journalpb.ExternalEvent {
	if requestID == "" {
		e.requestCount++
		requestID = fmt.Sprintf("replaytest-%d", e.requestCount)
	}
	return &journalpb.ExternalEvent{Name: engine.UpdatePrefix + name, Data: payload, RequestId: requestID, Headers: headers}
}

// update executes an update in a run, named by its first execution; 0 means the latest. The request
// ID is "" if the update cannot have been recorded.
func (e *Env) update(id string, firstExecution uint64, requestID string, event *journalpb.ExternalEvent) (*journalpb.Payload, error) {
	e.t.Helper()
	u := &update{id: id, firstExecution: firstExecution, requestID: event.RequestId}
	recorded := e.node.journal.recordedInput(id, firstExecution, requestID)
	known, _ := e.node.journal.Instance(id)
	switch {
	case recorded == nil && firstExecution != 0 && firstExecution != known.FirstExecution:
		return nil, ErrEnded
	case recorded != nil && recorded.GetExternalEvent().GetName() != event.Name:
		return nil, ErrRequestIDReused
	case recorded == nil:
		if err := recordUpdate(e, id, event); err != nil {
			return nil, err
		}
	}
	u.observeRecorded(e.node.journal, known, recorded != nil)
	e.updates[u] = true
	defer delete(e.updates, u)
	name := strings.TrimPrefix(event.Name, engine.UpdatePrefix)
	if !e.runUntil(func() bool { return u.done }, time.Time{}) {
		e.t.Fatalf("replaytest: update %q of %s does not end%s", name, id, e.describeRunning())
	}
	return u.output, u.err
}

// recordUpdate delivers an update and returns when it is recorded. It lets time pass if the next
// attempt of the run has not begun.
func recordUpdate(e *Env, id string, event *journalpb.ExternalEvent) error {
	e.t.Helper()
	name := strings.TrimPrefix(event.Name, engine.UpdatePrefix)
	m := eventMessage(&journalpb.Event{Body: &journalpb.Event_ExternalEvent{ExternalEvent: event}})
	m.Validation = engine.ValidateFirst
	answers := make(chan actors.Answer, 1)
	e.start()
	e.node.updateWaits = true
	defer func() { e.node.updateWaits = false }()
	e.runInBubble(func() { e.node.deliver(id, m, answers) })
	if !e.runUntil(func() bool { return len(answers) > 0 }, time.Time{}) {
		e.checkStalled()
		e.t.Fatalf("replaytest: update %q of %s is not answered%s", name, id, e.describeRunning())
	}
	err := (<-answers).Err
	var rejected *actors.RejectedError
	if errors.As(err, &rejected) {
		return rejectionError(name, rejected.Err)
	}
	return err
}

// observeRecorded ends an update that is recorded, if its end is recorded too. before is the
// instance as it was before the update, unless that was recorded earlier.
func (u *update) observeRecorded(j *journal, before *journalpb.Instance, earlier bool) {
	known, _ := j.Instance(u.id)
	execution, eventID := cmp.Or(u.firstExecution, known.GetFirstExecution()), uint64(1)
	if !earlier && before.GetIncarnation() == known.GetIncarnation() && before.GetFirstExecution() == known.GetFirstExecution() {
		execution, eventID = before.GetExecution(), before.GetLastEventId()+1
	}
	found := false
	j.eachEventFrom(u.id, execution, eventID, func(event *journalpb.Event) bool {
		if found {
			u.observe(event)
		}
		found = found || event.InputWithID(u.requestID) != nil
		return !u.done
	})
}

// rejectionError distinguishes an update without a handler from a rejected one.
func rejectionError(name string, err error) error {
	var none *replay.NotRegisteredError
	switch {
	case errors.As(err, &none) && none.Kind == "query" && strings.HasPrefix(none.Name, engine.UpdatePrefix):
		notHandled := &replay.NotRegisteredError{Kind: "update", Name: name}
		*notHandled.Host() = *none.Host()
		return notHandled
	case isEngineError(err):
		return err
	}
	return &RejectedError{Err: engine.DecodeError(engine.EncodeError(err))}
}

// updates holds the updates for which a caller waits.
type updates map[*update]bool

type update struct {
	id, requestID  string
	firstExecution uint64 // of its run; 0: the latest
	done           bool
	output         *journalpb.Payload
	err            error
}

// observe ends the updates that an event completes or aborts.
func (up updates) observe(id string, event *journalpb.Event) {
	for u := range up {
		if u.id == id && !u.done {
			u.observe(event)
		}
	}
}

// observe ends the update if an event of its instance completes or aborts it.
func (u *update) observe(event *journalpb.Event) {
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

func (u *update) abortIf(lost bool) {
	if lost {
		u.done, u.err = true, ErrUpdateAborted
	}
}
