package actors

import (
	"maps"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// releaseEffects starts the effects of a turn's committed events.
func (in *instance) releaseEffects(events []*journalpb.Event) {
	p, instance := in.partition, in.id
	for _, event := range events {
		ref := func() *journalpb.OperationRef { return in.operationRef(event.EventId) }
		switch body := event.Body.(type) {
		case *journalpb.Event_OrchestrationStarted:
			p.closeIfOrphaned(instance, body.OrchestrationStarted.Parent)
		case *journalpb.Event_ActivityScheduled:
			p.activities.Submit(instance, in.incarnation, in.executionNumber, event)
		case *journalpb.Event_TimerCreated:
			p.scheduleTimer(ref(), body.TimerCreated.FireAt)
		case *journalpb.Event_SubOrchestrationScheduled:
			p.startChild(ref(), body.SubOrchestrationScheduled)
		case *journalpb.Event_OrchestrationChained:
			p.startChained(ref(), body.OrchestrationChained)
		case *journalpb.Event_CancelRequested:
			p.cancelOperation(in.operationRef(event.SourceEventId))
		case *journalpb.Event_OrchestrationTerminated:
			in.cancelOpenOperations()
			p.reportEnd(in.parent(), event)
		default:
			if journalpb.IsTerminal(event.TypeNumber()) {
				p.reportEnd(in.parent(), event)
			}
		}
	}
}

// parent returns the operation that waits for the end of the instance, nil if there is none.
func (in *instance) parent() *journalpb.OperationRef {
	if in.execution != nil {
		return in.execution.Parent()
	}
	meta, _ := in.partition.journal.Instance(in.id)
	return meta.GetParent()
}

// nudge makes an instance take a turn with an empty message. An instance whose code has not run
// yet has no open operation that would wake it.
func (p *Partition) nudge(instance string) {
	p.deliverReliably(instance, Message{Message: replay.Message{Event: new(journalpb.Event)}, Internal: true})
}

func (p *Partition) scheduleTimer(ref *journalpb.OperationRef, fireAt int64) {
	p.timers.Schedule(clustertime.FromUnixNano(fireAt), operation.KeyOf(ref), func() {
		p.observeTimerFired(fireAt)
		p.deliverReliably(ref.Instance, completion(ref, &journalpb.Event{Body: &journalpb.Event_TimerFired{
			TimerFired: &journalpb.TimerFired{FireAt: fireAt},
		}}, nil))
	})
}

// cancelOperation cancels an operation that code no longer wants.
func (p *Partition) cancelOperation(ref *journalpb.OperationRef) {
	event, err := p.journal.Event(ref.Instance, ref.Execution, ref.EventId)
	if err != nil {
		p.logger.Error("cannot cancel operation", "instance", ref.Instance, "execution", ref.Execution, "event_id", ref.EventId, "error", err)
		return
	}
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		p.activities.Cancel(ref)
	case *journalpb.Event_TimerCreated:
		p.timers.Cancel(operation.KeyOf(ref))
	case *journalpb.Event_SubOrchestrationScheduled:
		p.cancelChild(ref, body.SubOrchestrationScheduled, sched.BackoffMin)
	}
}

// cancelOpenOperations cancels what is open in a terminated execution. A termination runs no code,
// so no events record the cancellations.
func (in *instance) cancelOpenOperations() {
	p, open := in.partition, make(map[uint64]bool)
	for event, err := range p.journal.Events(in.id, in.executionNumber, 1) {
		if err != nil {
			p.logger.Error("cannot cancel open operations", "instance", in.id, "execution", in.executionNumber, "error", err)
			return
		}
		switch event.TypeNumber() {
		case journalpb.TypeActivityScheduled, journalpb.TypeTimerCreated, journalpb.TypeSubOrchestrationScheduled:
			open[event.EventId] = true
		default:
			delete(open, event.SourceEventId)
		}
	}
	for _, eventID := range slices.Sorted(maps.Keys(open)) {
		p.cancelOperation(in.operationRef(eventID))
	}
}

// deliverReliably delivers an internal message until it is recorded or no longer needed. After the
// partition is closed, the next leader delivers it.
func (p *Partition) deliverReliably(instance string, m Message) {
	p.deliverReliablyAfter(instance, m, sched.BackoffMin)
}

// deliverReliablyAfter is deliverReliably with the delay before the first repetition.
func (p *Partition) deliverReliablyAfter(instance string, m Message, delay time.Duration) {
	if p.isInOtherPartition(instance) {
		p.sendReliably(&CrossMessage{Instance: instance, Execution: m.Execution, Incarnation: m.Incarnation, Event: m.Event, Attach: m.Attach}, m.Done, delay)
		return
	}
	sent := m
	sent.Done = func(a Answer) {
		switch {
		case a.Err == nil && m.Done != nil:
			m.Done(a)
		case a.Err != nil && p.context.Err() == nil:
			again := m
			again.Event = &journalpb.Event{SourceEventId: m.Event.SourceEventId, Body: m.Event.Body}
			p.timers.ScheduleAfter(delay, func() { p.deliverReliablyAfter(instance, again, sched.NextBackoff(delay)) })
		}
	}
	p.Deliver(instance, sent)
}
