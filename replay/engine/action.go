package engine

import (
	"runtime"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An action is what a step of the code scheduled, queued until the cursor binds it to an event.
type action struct {
	event   *journalpb.Event // without event_id and timestamp
	op      *operation       // nil for an action that needs no completion
	callers []uintptr        // the call stack, if it was recorded
	elided  bool             // canceled before it was bound: leaves no event
}

// An actionQueue holds the actions of the code that are not bound to an event yet, in the order of
// the calls.
type actionQueue struct {
	actions        []*action
	recordsCallers bool // set while a replay locates the call for a mismatch
}

// add adds an action. op is nil if it needs no completion.
func (q *actionQueue) add(event *journalpb.Event, op *operation) {
	var a *action
	if op != nil {
		a = &op.action
	} else {
		a = new(action)
	}
	a.event, a.op = event, op
	if q.recordsCallers {
		a.callers = make([]uintptr, 8)
		runtime.Callers(3, a.callers) // 3: the caller of schedule, or the author
	}
	q.actions = append(q.actions, a)
}

// head returns the first action that was not elided, nil if there is none.
func (q *actionQueue) head() *action {
	for len(q.actions) > 0 && q.actions[0].elided {
		q.removeHead()
	}
	if len(q.actions) == 0 {
		return nil
	}
	return q.actions[0]
}

func (q *actionQueue) removeHead() { q.actions = dequeue(q.actions) }
