package engine

import (
	"reflect"
	"runtime"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// An action is what a step of the code scheduled, queued until the cursor binds it to an event.
type action struct {
	event *journalpb.Event // without event_id and timestamp
	op    *operation       // nil for an action that needs no completion
	// valueType is the type, in the handle, of the value that the event holds; nil if it holds none.
	valueType       reflect.Type
	recordedCallers *[callersMax]uintptr // the call stack, if it was recorded
	elided          bool                 // canceled before it was bound: leaves no event
}

// callersMax bounds the recorded part of a call stack.
const callersMax = 8

// callers returns the recorded call stack, nil if there is none.
func (a *action) callers() []uintptr {
	if a.recordedCallers == nil {
		return nil
	}
	return a.recordedCallers[:]
}

// An actionQueue holds the actions of the code that are not bound to an event yet, in the order of
// the calls.
type actionQueue struct {
	actions        []*action
	recordsCallers bool // set while a replay locates the call for a mismatch
}

// add adds an action and returns it. op is nil if it needs no completion.
func (q *actionQueue) add(event *journalpb.Event, op *operation) *action {
	var a *action
	if op != nil {
		a = &op.action
	} else {
		a = new(action)
	}
	a.event, a.op = event, op
	if q.recordsCallers {
		a.recordedCallers = new([callersMax]uintptr)
		runtime.Callers(3, a.recordedCallers[:]) // 3: the caller of schedule, or the author
	}
	q.actions = append(q.actions, a)
	return a
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
