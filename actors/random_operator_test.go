package actors_test

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// operate acts on random open operations of all instances, as an operator would: it holds and
// releases them, begins attempts without their backoff and adjusts retry policies. None of these
// changes what a settled program returns. In wild programs it also fires timers early.
func (w *world) operate() {
	for i := range w.intn(6) {
		time.Sleep(time.Duration(w.intn(3000)) * time.Millisecond)
		op := w.pickOperation()
		if op == nil {
			continue
		}
		request := fmt.Sprint("operator-", i)
		isTimer := op.Kind == journalpb.TypeTimerCreated
		switch choice := w.intn(4); {
		case choice < 2:
			w.control(op, &journalpb.OperationControlled{Kind: journalpb.OperationControlled_KIND_HOLD, RequestId: request})
			time.Sleep(time.Duration(w.intn(5000)) * time.Millisecond)
			w.control(op, &journalpb.OperationControlled{Kind: journalpb.OperationControlled_KIND_RELEASE, RequestId: request + "-release"})
		case isTimer && w.nondeterministic:
			w.fire(op, request)
		case isTimer:
		case choice == 2:
			w.control(op, &journalpb.OperationControlled{
				Kind: journalpb.OperationControlled_KIND_RETRY_NOW, RequestId: request, Attempt: op.Attempt.GetFailed() + 1,
			})
		default:
			w.adjust(op, request)
		}
	}
}

// pickOperation returns a random open activity or timer; nil if there is none.
func (w *world) pickOperation() *journalpb.Operation {
	var open []*journalpb.Operation
	for op := range w.journal.OpenOperations() {
		if op.Ref.Instance != decoyID && (op.Kind == journalpb.TypeActivityScheduled || op.Kind == journalpb.TypeTimerCreated) {
			open = append(open, op)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[w.intn(len(open))]
}

func (w *world) control(op *journalpb.Operation, action *journalpb.OperationControlled) {
	action.EventId = op.Ref.EventId
	w.act(op.Ref, &journalpb.Event{Body: &journalpb.Event_OperationControlled{OperationControlled: action}})
}

// adjust shortens the backoff of an activity.
func (w *world) adjust(op *journalpb.Operation, request string) {
	scheduled, err := w.journal.Event(op.Ref.Instance, op.Ref.Execution, op.Ref.EventId)
	if err != nil {
		w.t.Error(err)
		return
	}
	options := new(journalpb.ActivityOptions)
	if recorded := scheduled.GetActivityScheduled().GetOptions(); recorded != nil {
		options = proto.CloneOf(recorded)
	}
	if options.Retry != nil {
		options.Retry.InitialInterval = max(options.Retry.InitialInterval/2, 1)
	}
	w.control(op, &journalpb.OperationControlled{
		Kind: journalpb.OperationControlled_KIND_ADJUST, RequestId: request, Options: options, Replaces: op.AdjustedBy,
	})
}

// fire fires a timer early, unless it ends an instance that is to run until it is canceled.
func (w *world) fire(op *journalpb.Operation, request string) {
	if meta, _ := w.journal.Instance(op.Ref.Instance); meta.GetName() == lingerHandle.Name() {
		return
	}
	w.act(op.Ref, &journalpb.Event{
		SourceEventId: op.Ref.EventId, Origin: &journalpb.Origin{Principal: "operator", RequestId: request},
		Body: &journalpb.Event_TimerFired{TimerFired: &journalpb.TimerFired{FireAt: op.FireAt}},
	})
}

// act delivers an action to the current leader until it is recorded or rejected.
func (w *world) act(ref *journalpb.OperationRef, event *journalpb.Event) {
	for {
		m := actors.Message{Message: engine.Message{Execution: ref.Execution, Incarnation: ref.Incarnation, Event: proto.CloneOf(event)}}
		err := w.leader().deliver(ref.Instance, m).get().Err
		for _, final := range []error{nil, actors.ErrEnded, engine.ErrOperationClosed, engine.ErrOperationHeld, engine.ErrAdjusted} {
			if errors.Is(err, final) {
				return
			}
		}
		time.Sleep(time.Second)
	}
}
