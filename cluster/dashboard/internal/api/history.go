package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// eventView is an event as answers have it. It has at most one of Input, Output, Value and Data.
type eventView struct {
	Execution     uint64     `json:"execution"`
	EventID       uint64     `json:"event_id"`
	Type          string     `json:"type"`
	Time          *time.Time `json:"time"`
	SourceEventID uint64     `json:"source_event_id,omitempty"` // of the operation that it ends
	Operation     uint64     `json:"operation,omitempty"`       // on which an operator acted
	Name          string     `json:"name,omitempty"`
	// AttemptCount and Attempts are those of a timeline's row.
	AttemptCount int           `json:"attempt_count,omitempty"`
	Attempts     []attemptView `json:"attempts,omitempty"`
	FireAt       *time.Time    `json:"fire_at,omitempty"`
	ChildID      string        `json:"child_id,omitempty"`
	Receiver     string        `json:"receiver,omitempty"`
	Error        *errorView    `json:"error,omitempty"`
	Principal    string        `json:"principal,omitempty"`
	Reason       string        `json:"reason,omitempty"`
	Input        *payload      `json:"input,omitempty"`
	Output       *payload      `json:"output,omitempty"`
	Value        *payload      `json:"value,omitempty"`
	Data         *payload      `json:"data,omitempty"`
}

// part says what the payload of an event is, with the words of replay.PayloadInfo.
type part struct {
	kind  string
	field string // of an eventView
	part  string // in the argument of Options.Redact, if it is not field
}

var parts = map[history.EventType]part{
	history.OrchestrationStarted:        {kind: "orchestration", field: "input"},
	history.OrchestrationCompleted:      {kind: "orchestration", field: "output"},
	history.OrchestrationContinuedAsNew: {kind: "orchestration", field: "input"},
	history.OrchestrationChained:        {kind: "orchestration", field: "input"},
	history.ActivityScheduled:           {kind: "activity", field: "input"},
	history.ActivityCompleted:           {kind: "activity", field: "output"},
	history.SubOrchestrationScheduled:   {kind: "orchestration", field: "input"},
	history.SubOrchestrationCompleted:   {kind: "orchestration", field: "output"},
	history.SideEffectRecorded:          {kind: "side effect", field: "value"},
	history.StatusSet:                   {kind: "orchestration", field: "value", part: "status"},
	history.ValueSet:                    {kind: "key-value map", field: "value"},
	history.ExternalEvent:               {kind: "event", field: "data"},
	history.MessageSent:                 {kind: "event", field: "data"},
}

// view returns an event, with its payload if it is wanted.
func (viewer *eventViewer) view(ctx context.Context, e history.Event) *eventView {
	a := viewer.api
	v := &eventView{
		Execution: e.Execution, EventID: e.EventID, Type: string(e.Type), Time: timeOf(e.Time), SourceEventID: e.SourceEventID,
		Operation: e.Operation(), Name: e.Name, AttemptCount: e.Attempts(), Attempts: a.endedAttempts(e), FireAt: timeOf(e.FireAt()), ChildID: e.Child(),
		Receiver: e.Receiver(), Error: a.errorViewOf(e.Err()), Principal: e.Principal, Reason: e.Reason,
	}
	p, ok := parts[e.Type]
	if !viewer.payloads || !ok {
		return v
	}
	shown := viewer.payloadOf(ctx, e, p)
	switch p.field {
	case "input":
		v.Input = shown
	case "output":
		v.Output = shown
	case "value":
		v.Value = shown
	default:
		v.Data = shown
	}
	return v
}

// historyAnswer is a part of a history.
type historyAnswer struct {
	Execution uint64       `json:"execution"`
	Events    []*eventView `json:"events"`
	// Next is the parameter "after" of the next part; absent if no event follows yet.
	Next uint64 `json:"next,omitempty"`
}

// answerBytesMax is about the size from which a part of a history takes no further event.
const answerBytesMax = 4 << 20

func (a *historyAPI) readHistory(ctx context.Context, r *request) (*historyAnswer, error) {
	limit, err := r.number("limit", pageDefault, 1, 5000)
	if err != nil {
		return nil, err
	}
	after, err := r.number("after", 0, 0, 1<<62)
	if err != nil {
		return nil, err
	}
	answer, size := &historyAnswer{Events: []*eventView{}}, 0
	viewer := a.newEventViewer(r.PathValue("id"), r.FormValue("payloads") == "true", false)
	answer.Execution, err = a.eachEvent(ctx, r, after, func(e history.Event) bool {
		v := viewer.view(ctx, e)
		answer.Events = append(answer.Events, v)
		for _, p := range []*payload{v.Input, v.Output, v.Value, v.Data} {
			if p != nil {
				size += len(p.JSON)
			}
		}
		if len(answer.Events) == int(limit) || size > answerBytesMax {
			answer.Next = e.EventID
			return false
		}
		return true
	})
	return answer, err
}

// eachEvent passes the events of the execution that a request names to pass, after an event and up
// to the last that is known when the call begins, until pass returns false.
func (a *historyAPI) eachEvent(ctx context.Context, r *request, after uint64, pass func(history.Event) bool) (execution uint64, err error) {
	execution, err = r.number("execution", 0, 0, 1<<62)
	if err != nil {
		return 0, err
	}
	id := r.PathValue("id")
	status, err := a.config.Client.Get(ctx, id, r.readOptions()...)
	if err != nil {
		return 0, err
	}
	if execution == 0 {
		execution = status.Execution
	}
	last := status.LastEventID
	switch {
	case execution > status.Execution:
		return 0, notFound("there is no such execution")
	case execution < status.Execution:
		if last, err = a.lastEventOf(ctx, r, id, execution); err != nil {
			return 0, err
		}
	}
	if after >= last {
		return execution, nil
	}
	for e, err := range a.config.Client.Watch(ctx, id, history.Position{Execution: execution, EventID: after + 1}) {
		if err != nil {
			return execution, err
		}
		if e.Execution != execution || !pass(e) || e.EventID >= last {
			break
		}
	}
	return execution, nil
}

// lastEventOf returns the number of events of an execution that is not the latest.
func (a *historyAPI) lastEventOf(ctx context.Context, r *request, id string, execution uint64) (uint64, error) {
	executions, err := a.config.Client.Executions(ctx, id, r.readOptions()...)
	if err != nil {
		return 0, err
	}
	for _, x := range executions {
		if x.Number == execution {
			return x.Events, nil
		}
	}
	return 0, notFound("there is no such execution")
}

// readPayload returns the payload of one event, however large.
func (a *historyAPI) readPayload(ctx context.Context, r *request) (*eventView, error) {
	event, err := r.number("event", 0, 1, 1<<62)
	if err != nil {
		return nil, err
	}
	var found *eventView
	viewer := a.newEventViewer(r.PathValue("id"), true, true)
	if _, err := a.eachEvent(ctx, r, event-1, func(e history.Event) bool {
		found = viewer.view(ctx, e)
		return false
	}); err != nil {
		return nil, err
	}
	if found == nil {
		return nil, notFound("there is no such event")
	}
	return found, nil
}

// watchInstance sends the events of an instance as server-sent events until its run ends. The id of
// each is the position after it, so a client that connects again misses none and gets none twice.
func (a *historyAPI) watchInstance(w http.ResponseWriter, r *request) error {
	from, err := r.lastPosition()
	if err != nil {
		return err
	}
	id := r.PathValue("id")
	if _, err := a.config.Client.Get(r.context(), id, cluster.Stale()); err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		_, err := newEventWriter(w)
		return err
	}
	release, err := a.streams.enter()
	if err != nil {
		return err
	}
	defer release()
	ctx, end := a.whilePermitted(r, func(r *request) error { return r.authorize(cluster.ActionHistory, id) })
	defer end()
	out, err := newEventWriter(w)
	if err != nil {
		return err
	}
	viewer := a.newEventViewer(id, true, true)
	for e, err := range a.config.Client.Watch(ctx, id, from) {
		if err != nil {
			out.send("error", "", errorAnswerOf(err))
			return nil
		}
		next := e.Next()
		if out.send("event", positionText(next), viewer.view(ctx, e)) != nil {
			return nil // the client has gone
		}
	}
	out.send("end", "", struct{}{})
	return nil
}

// lastPosition returns the position that the header Last-Event-ID names; the zero one without it.
func (r *request) lastPosition() (from history.Position, err error) {
	last := r.Header.Get("Last-Event-ID")
	if last == "" {
		return from, nil
	}
	execution, event, _ := strings.Cut(last, ",")
	from.Execution, err = strconv.ParseUint(execution, 10, 64)
	if err == nil {
		from.EventID, err = strconv.ParseUint(event, 10, 64)
	}
	if err != nil || positionText(from) != last || from.Execution == 0 || from.EventID == 0 {
		return from, &replay.InvalidError{Field: "Last-Event-ID", Reason: "must be an id of this stream"}
	}
	return from, nil
}
