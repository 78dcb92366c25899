package api

import (
	"context"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// operationView is an open operation as answers have it.
type operationView struct {
	EventID        uint64     `json:"event_id"`
	Execution      uint64     `json:"execution,omitempty"`
	Type           string     `json:"type"`
	Name           string     `json:"name,omitempty"`
	Since          *time.Time `json:"since,omitempty"`
	State          string     `json:"state,omitempty"`
	FailedAttempts int        `json:"failed_attempts,omitempty"`
	LastError      *errorView `json:"last_error,omitempty"`
	// Attempts are the latest failed ones and the one that runs or is pending.
	Attempts     []attemptView `json:"attempts,omitempty"`
	NextAttempt  *time.Time    `json:"next_attempt,omitempty"`
	FireAt       *time.Time    `json:"fire_at,omitempty"`
	ChildID      string        `json:"child_id,omitempty"`
	Receiver     string        `json:"receiver,omitempty"`
	Held         bool          `json:"held,omitempty"`
	PausedBy     string        `json:"paused_by,omitempty"`
	PausedReason string        `json:"paused_reason,omitempty"`
	PausedSince  *time.Time    `json:"paused_since,omitempty"`
	Buffered     int           `json:"buffered,omitempty"`
	Heartbeat    *payload      `json:"heartbeat,omitempty"`
}

// attemptView is an attempt of an activity.
type attemptView struct {
	Number int        `json:"number"` // from 1
	From   *time.Time `json:"from"`
	To     *time.Time `json:"to"`              // null while it runs
	Error  *errorView `json:"error,omitempty"` // why it failed; of the last attempt, the event has it
}

func failedAttempts(failures []history.FailedAttempt) []attemptView {
	var all []attemptView
	for _, f := range failures {
		all = append(all, attemptView{f.Number, timeOf(f.StartedAt), timeOf(f.EndedAt), &errorView{Code: f.Code, Message: f.Message}})
	}
	return all
}

// openAttempts returns the known attempts of an open activity.
func openAttempts(o *cluster.OpenOperation) []attemptView {
	all := failedAttempts(o.Failures)
	if !o.AttemptStarted.IsZero() {
		all = append(all, attemptView{Number: o.FailedAttempts + 1, From: timeOf(o.AttemptStarted)})
	}
	return all
}

// endedAttempts returns the known attempts of the activity that an event ends: none if there was
// one.
func (a *API) endedAttempts(e history.Event) []attemptView {
	all := failedAttempts(e.Failures())
	if started := e.LastAttemptStarted(); !started.IsZero() {
		all = append(all, attemptView{e.Attempts(), timeOf(started), timeOf(e.Time), a.errorViewOf(e.Err())})
	}
	return all
}

type pendingAnswer struct {
	Operations []operationView `json:"operations"`
}

func (a *instanceAPI) listPending(ctx context.Context, r *request) (*pendingAnswer, error) {
	open, err := a.config.Client.Pending(ctx, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	answer := &pendingAnswer{Operations: []operationView{}}
	for _, o := range open {
		answer.Operations = append(answer.Operations, operationView{
			EventID: o.EventID, Execution: o.Execution, Type: o.EventType, Name: o.Name, Since: timeOf(o.Since), State: string(o.State),
			FailedAttempts: o.FailedAttempts, LastError: a.errorViewOf(o.LastError), Attempts: openAttempts(o), NextAttempt: timeOf(o.NextAttempt),
			FireAt: timeOf(o.FireAt), ChildID: o.ChildID, Receiver: o.Receiver, Held: o.Held,
			PausedBy: o.PausedBy, PausedReason: o.PausedReason, PausedSince: timeOf(o.PausedSince), Buffered: o.Buffered,
			Heartbeat: a.heartbeatOf(o),
		})
	}
	return answer, nil
}

func (a *instanceAPI) heartbeatOf(o *cluster.OpenOperation) *payload {
	return a.payloadOf(replay.PayloadInfo{Kind: "activity", Name: o.Name, Part: "details"}, false, o.Heartbeat)
}

// coroutineView is where a coroutine of an instance is.
type coroutineView struct {
	Call     string          `json:"call,omitempty"` // "": the instance is hung
	WaitsFor []operationView `json:"waits_for,omitempty"`
	Since    *time.Time      `json:"since"`
	Source   string          `json:"source,omitempty"`
	Stack    string          `json:"stack"`
}

type stackAnswer struct {
	Coroutines []coroutineView `json:"coroutines"`
}

func (a *instanceAPI) showStack(ctx context.Context, r *request) (*stackAnswer, error) {
	coroutines, err := a.config.Client.Stack(ctx, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	answer := &stackAnswer{Coroutines: []coroutineView{}}
	for _, c := range coroutines {
		v := coroutineView{Call: c.Call, Since: timeOf(c.Since), Source: c.Source, Stack: c.Stack}
		for _, awaited := range c.WaitsFor {
			o := operationView{EventID: awaited.EventID, Type: awaited.Type, Name: awaited.Name, ChildID: awaited.Instance}
			if awaited.Type == "MessageSent" {
				o.ChildID, o.Receiver = "", awaited.Instance
			}
			v.WaitsFor = append(v.WaitsFor, o)
		}
		answer.Coroutines = append(answer.Coroutines, v)
	}
	return answer, nil
}
