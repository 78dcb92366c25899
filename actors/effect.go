package actors

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// effects begins, recovers and cancels operations.
type effects struct {
	context    context.Context // of the partition
	journal    Journal
	timers     *timerActor
	activities *activity.Partition
	children   *children
	sender     *sender
	outbox     *outbox
	now        func() clustertime.Time
	observer   Observer // nil if there is none
	logger     *slog.Logger
}

// releaseEffects starts the effects of a turn's committed events.
func (in *instance) releaseEffects(events []*journalpb.Event) {
	p, instance := in.partition, in.id
	for _, event := range events {
		if event.IsOperated() {
			p.effects.releaseOperated(in, event)
			continue
		}
		ref := func() *journalpb.OperationRef { return in.operationRef(event.EventId) }
		switch body := event.Body.(type) {
		case *journalpb.Event_OrchestrationStarted:
			p.children.closeIfOrphaned(instance, body.OrchestrationStarted.Parent)
		case *journalpb.Event_ActivityScheduled:
			p.activities.Submit(instance, in.incarnation, in.executionNumber, event)
		case *journalpb.Event_TimerCreated:
			p.effects.scheduleTimer(ref(), body.TimerCreated.FireAt)
		case *journalpb.Event_SubOrchestrationScheduled:
			p.children.startChild(ref(), body.SubOrchestrationScheduled)
		case *journalpb.Event_OrchestrationChained:
			p.children.startChained(ref(), body.OrchestrationChained)
		case *journalpb.Event_MessageSent:
			p.effects.outbox.put(ref(), body.MessageSent, false)
		case *journalpb.Event_CancelRequested:
			p.effects.cancelOperation(in.operationRef(event.SourceEventId))
		case *journalpb.Event_OrchestrationTerminated:
			in.cancelOpenOperations()
			p.children.reportEnd(in.parent(), event)
		default:
			if journalpb.IsTerminal(event.TypeNumber()) {
				p.children.reportEnd(in.parent(), event)
			}
		}
	}
}

// releaseOperated starts the effects of an action of an operator. An operation that it has closed
// is canceled: nothing waits for its result any more.
func (e *effects) releaseOperated(in *instance, event *journalpb.Event) {
	if action := event.GetOperationControlled(); action != nil {
		e.controlOperation(in.operationRef(action.EventId), action)
		return
	}
	e.cancelOperation(in.operationRef(event.SourceEventId))
}

// parent returns the operation that waits for the end of the instance, nil if there is none.
func (in *instance) parent() *journalpb.OperationRef {
	if in.execution != nil {
		return in.execution.Parent()
	}
	meta, _ := in.partition.journal.Instance(in.id)
	return meta.GetParent()
}

// cancelOpenOperations cancels the open operations of a terminated execution. A termination runs no
// code, so no events record the cancellations.
func (in *instance) cancelOpenOperations() {
	p, open := in.partition, make(map[uint64]bool)
	for event, err := range p.journal.Events(in.id, in.executionNumber, 1) {
		if err != nil {
			p.logger.Error("cannot cancel open operations", "instance", in.id, "execution", in.executionNumber, "error", err)
			return
		}
		if journalpb.OpensOperation(event.TypeNumber()) {
			open[event.EventId] = true
		} else {
			delete(open, event.SourceEventId)
		}
	}
	for _, eventID := range slices.Sorted(maps.Keys(open)) {
		p.effects.cancelOperation(in.operationRef(eventID))
	}
}

func (e *effects) scheduleTimer(ref *journalpb.OperationRef, fireAt int64) {
	e.timers.Schedule(clustertime.FromUnixNano(fireAt), operation.KeyOf(ref), func() {
		e.observeTimerFired(fireAt)
		e.sender.deliverReliably(ref.Instance, completion(ref, &journalpb.Event{Body: &journalpb.Event_TimerFired{
			TimerFired: &journalpb.TimerFired{FireAt: fireAt},
		}}, nil))
	})
}

func (e *effects) observeTimerFired(due int64) {
	if e.observer != nil {
		e.observer.TimerFired(e.now().Sub(clustertime.FromUnixNano(due)))
	}
}

// cancelOperation cancels an operation that code no longer wants.
func (e *effects) cancelOperation(ref *journalpb.OperationRef) {
	event, err := e.journal.Event(ref.Instance, ref.Execution, ref.EventId)
	if err != nil {
		e.logger.Error("cannot cancel operation", "instance", ref.Instance, "execution", ref.Execution, "event_id", ref.EventId, "error", err)
		return
	}
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		e.activities.Cancel(ref)
	case *journalpb.Event_TimerCreated:
		e.timers.Cancel(operation.KeyOf(ref))
	case *journalpb.Event_SubOrchestrationScheduled:
		e.children.cancelChild(ref, body.SubOrchestrationScheduled, sched.BackoffMin)
	case *journalpb.Event_MessageSent:
		e.outbox.cancelDelivery(ref)
	}
}

// controlOperation applies a recorded action of an operator to an activity or a timer.
func (e *effects) controlOperation(ref *journalpb.OperationRef, action *journalpb.OperationControlled) {
	event, err := e.journal.Event(ref.Instance, ref.Execution, ref.EventId)
	if err != nil {
		e.logger.Error("cannot control operation", "instance", ref.Instance, "execution", ref.Execution, "event_id", ref.EventId, "error", err)
		return
	}
	created := event.GetTimerCreated()
	switch {
	case created == nil:
		e.activities.Control(ref, action)
	case action.Kind == journalpb.OperationControlled_KIND_HOLD:
		e.timers.Cancel(operation.KeyOf(ref))
	case action.Kind == journalpb.OperationControlled_KIND_RELEASE:
		e.scheduleTimer(ref, created.FireAt)
	}
}

// adjustedOptions returns the options of the last adjustment of an open activity; nil if there is
// none.
func (e *effects) adjustedOptions(open *journalpb.Operation) *journalpb.ActivityOptions {
	if open.AdjustedBy == 0 {
		return nil
	}
	event, err := e.journal.Event(open.Ref.Instance, open.Ref.Execution, open.AdjustedBy)
	if err != nil {
		e.logger.Error("cannot read adjusted options, those of the call apply", "instance", open.Ref.Instance, "execution", open.Ref.Execution,
			"event_id", open.AdjustedBy, "error", err)
		return nil
	}
	return event.GetOperationControlled().GetOptions()
}

func (e *effects) recoverOperation(open *journalpb.Operation) {
	switch int(open.Kind) {
	case journalpb.TypeTimerCreated:
		if !open.Held {
			e.scheduleTimer(open.Ref, open.FireAt)
		}
	case journalpb.TypeActivityScheduled, journalpb.TypeSubOrchestrationScheduled, journalpb.TypeMessageSent:
		event, err := e.journal.Event(open.Ref.Instance, open.Ref.Execution, open.Ref.EventId)
		if err != nil {
			e.logger.Error("cannot recover operation", "instance", open.Ref.Instance, "execution", open.Ref.Execution, "event_id", open.Ref.EventId, "error", err)
			return
		}
		event.Timestamp = max(event.Timestamp, open.CopiedAt) // timeouts count from then
		switch body := event.Body.(type) {
		case *journalpb.Event_ActivityScheduled:
			e.activities.Recover(open, event, e.adjustedOptions(open))
		case *journalpb.Event_SubOrchestrationScheduled:
			e.children.recoverChild(open.Ref, body.SubOrchestrationScheduled)
		case *journalpb.Event_MessageSent:
			e.outbox.put(open.Ref, body.MessageSent, true)
		}
	}
}

// recoverRest recovers the unfinished work in the journal that is not an operation: executions that
// have not begun, orphans, and chained starts. It only delivers messages, so it may run while other
// messages arrive. Its cost grows with the number of running children.
func (e *effects) recoverRest() {
	for instance := range e.journal.Unbegun() {
		if e.context.Err() != nil {
			return
		}
		e.sender.nudge(instance.Instance)
	}
	for orphan := range e.journal.Orphans() {
		if e.context.Err() != nil {
			return
		}
		e.children.closeOrphan(orphan)
	}
	for start := range e.journal.Chained() {
		if e.context.Err() != nil {
			return
		}
		if start.Child != nil {
			e.children.startChild(start.Ref, start.Child)
		} else {
			e.children.startChained(start.Ref, start.Chained)
		}
	}
}
