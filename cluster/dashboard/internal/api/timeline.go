package api

import (
	"context"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay/history"
)

// timelineAnswer is an execution as operations and moments.
type timelineAnswer struct {
	Execution uint64         `json:"execution"`
	StartedAt *time.Time     `json:"started_at"`
	EndedAt   *time.Time     `json:"ended_at"` // null while it runs
	LastEvent uint64         `json:"last_event_id"`
	Rows      []*timelineRow `json:"rows"` // in the order of event_id
	Marks     []timelineMark `json:"marks"`
}

// timelineRow is an operation.
type timelineRow struct {
	EventID uint64     `json:"event_id"`
	Kind    string     `json:"kind"` // activity, timer, event, child or message
	Name    string     `json:"name,omitempty"`
	From    *time.Time `json:"from"`
	To      *time.Time `json:"to"` // null while it is open
	Outcome string     `json:"outcome,omitempty"`
	// AttemptCount is how many attempts an activity took that has ended. Attempts are the known
	// ones of several: the latest 21 at most.
	AttemptCount int           `json:"attempt_count,omitempty"`
	Attempts     []attemptView `json:"attempts,omitempty"`
	ChildID      string        `json:"child_id,omitempty"`
	Receiver     string        `json:"receiver,omitempty"`
}

// timelineMark is a moment.
type timelineMark struct {
	EventID uint64     `json:"event_id"`
	Time    *time.Time `json:"time"`
	Kind    string     `json:"kind"`
	Text    string     `json:"text,omitempty"`
}

var rowKinds = map[history.EventType]string{
	history.ActivityScheduled:         "activity",
	history.TimerCreated:              "timer",
	history.ExternalSubscribed:        "event",
	history.SubOrchestrationScheduled: "child",
	history.MessageSent:               "message",
}

// outcomes are those of the events that end an operation.
var outcomes = map[history.EventType]string{
	history.ActivityCompleted:         "completed",
	history.ActivityFailed:            "failed",
	history.TimerFired:                "fired",
	history.SubOrchestrationCompleted: "completed",
	history.SubOrchestrationFailed:    "failed",
	history.CancelRequested:           "canceled",
	history.MessageDelivered:          "delivered",
	history.MessageRejected:           "rejected",
}

// markKinds are the events that are marks.
var markKinds = map[history.EventType]string{
	history.SideEffectRecorded:           "side effect",
	history.ExternalEvent:                "event",
	history.StatusSet:                    "status",
	history.AttributeSet:                 "attribute",
	history.ValueSet:                     "value",
	history.OrchestrationSuspended:       "suspended",
	history.OrchestrationResumed:         "resumed",
	history.OrchestrationCancelRequested: "cancel requested",
	history.OrchestrationChained:         "chained start",
	history.OperationControlled:          "operator",
	history.HistoryCopied:                "copied",
}

// timeline collects the rows and marks of an execution.
type timeline struct {
	api *API
	timelineAnswer
	rows    map[uint64]*timelineRow
	waiting map[string][]*timelineRow // subscriptions that no event has ended, by name, oldest first
}

func (a *historyAPI) readTimeline(ctx context.Context, r *request) (*timelineAnswer, error) {
	t := &timeline{api: a.API, rows: map[uint64]*timelineRow{}, waiting: map[string][]*timelineRow{}}
	t.Rows, t.Marks = []*timelineRow{}, []timelineMark{}
	var err error
	t.Execution, err = a.eachEvent(ctx, r, 0, func(e history.Event) bool {
		t.add(e)
		return true
	})
	return &t.timelineAnswer, err
}

func (t *timeline) add(e history.Event) {
	at := timeOf(e.Time)
	t.LastEvent = e.EventID
	if e.EventID == 1 {
		t.StartedAt = at
	}
	if e.Type.EndsExecution() {
		t.EndedAt = at
		t.Marks = append(t.Marks, timelineMark{e.EventID, at, "end", strings.ToLower(strings.TrimPrefix(string(e.Type), "Orchestration"))})
	}
	if kind, ok := rowKinds[e.Type]; ok {
		row := &timelineRow{EventID: e.EventID, Kind: kind, Name: e.Name, From: at, ChildID: e.Child(), Receiver: e.Receiver()}
		t.Rows = append(t.Rows, row)
		t.rows[e.EventID] = row
		if e.Type == history.ExternalSubscribed {
			t.waiting[e.Name] = append(t.waiting[e.Name], row)
		}
	}
	t.end(e, at)
	if kind, ok := markKinds[e.Type]; ok {
		t.Marks = append(t.Marks, timelineMark{e.EventID, at, kind, e.Name})
	}
}

// end ends the operation that an event ends. An external event ends the oldest subscription to its
// name.
func (t *timeline) end(e history.Event, at *time.Time) {
	row := t.rows[e.SourceEventID]
	outcome, ends := outcomes[e.Type]
	if e.Type == history.ExternalEvent {
		waiting := t.waiting[e.Name]
		for len(waiting) > 0 && waiting[0].To != nil {
			waiting = waiting[1:]
		}
		if outcome, ends = "received", len(waiting) > 0; ends {
			row, waiting = waiting[0], waiting[1:]
		}
		t.waiting[e.Name] = waiting
	}
	if row == nil || !ends || row.To != nil {
		return
	}
	row.To, row.Outcome, row.AttemptCount, row.Attempts = at, outcome, e.Attempts(), t.api.endedAttempts(e)
}
