package actors

import (
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// repeatAfter is the pause before a message that was not taken is sent again.
const repeatAfter = 100 * time.Millisecond

// release lets the effects of committed events out.
func (p *Partition) release(instance string, execution uint64, events []*journalpb.Event) {
	for _, event := range events {
		ref := operation(instance, execution, event.EventId)
		switch body := event.Body.(type) {
		case *journalpb.Event_ActivityScheduled:
			p.startActivity(ref, body.ActivityScheduled)
		case *journalpb.Event_TimerCreated:
			p.armTimer(ref, body.TimerCreated.FireAt)
		case *journalpb.Event_SubOrchestrationScheduled:
			p.startChild(ref, body.SubOrchestrationScheduled)
		case *journalpb.Event_CancelRequested:
			p.giveUp(operation(instance, execution, event.SourceEventId))
		default:
			if journalpb.Terminal(event.Arm()) {
				p.reportEnd(instance, event)
			}
		}
	}
}

// takeUp lets out the effects of what the journal has open: what the node
// before had begun, or had not come to.
func (p *Partition) takeUp() {
	for open := range p.journal.Open() {
		switch int(open.Kind) {
		case journalpb.ArmTimerCreated:
			p.armTimer(open.Ref, open.FireAt)
		case journalpb.ArmActivityScheduled, journalpb.ArmSubOrchestrationScheduled:
			event, err := p.journal.Event(open.Ref.Instance, open.Ref.Execution, open.Ref.EventId)
			if err != nil {
				p.logger.Error("take up operation", "instance", open.Ref.Instance, "event_id", open.Ref.EventId, "error", err)
				continue
			}
			if scheduled := event.GetActivityScheduled(); scheduled != nil {
				p.startActivity(open.Ref, scheduled)
			} else {
				p.takeUpChild(open.Ref, event.GetSubOrchestrationScheduled())
			}
		}
	}
}

func keyOf(ref *journalpb.OperationRef) alarmKey {
	return alarmKey{ref.Instance, ref.Execution, ref.EventId}
}

func (p *Partition) startActivity(ref *journalpb.OperationRef, scheduled *journalpb.ActivityScheduled) {
	p.system.activities.submit(&task{partition: p, ref: ref, scheduled: scheduled})
}

func (p *Partition) armTimer(ref *journalpb.OperationRef, fireAt int64) {
	p.clock.at(time.Unix(0, fireAt), keyOf(ref), func() {
		p.insist(ref.Instance, completion(ref, &journalpb.Event{Body: &journalpb.Event_TimerFired{
			TimerFired: &journalpb.TimerFired{FireAt: fireAt},
		}}, nil))
	})
}

// giveUp ends the operation that code does not want any more.
func (p *Partition) giveUp(ref *journalpb.OperationRef) {
	event, err := p.journal.Event(ref.Instance, ref.Execution, ref.EventId)
	if err != nil {
		p.logger.Error("give up operation", "instance", ref.Instance, "event_id", ref.EventId, "error", err)
		return
	}
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		p.system.activities.giveUp(p, keyOf(ref))
	case *journalpb.Event_TimerCreated:
		p.clock.disarm(keyOf(ref))
	case *journalpb.Event_SubOrchestrationScheduled:
		p.cancelChild(body.SubOrchestrationScheduled)
	}
}

// insist delivers an internal message until it is taken: recorded, or of no use
// any more. After the partition is closed the next leader sees to it.
func (p *Partition) insist(instance string, m Message) {
	done := m.Done
	event := m.Event
	m.Done = func(a Answer) {
		if a.Err == nil {
			if done != nil {
				done(a)
			}
			return
		}
		if p.context.Err() == nil {
			again := m
			again.Event = &journalpb.Event{SourceEventId: event.SourceEventId, Body: event.Body}
			again.Done = done
			p.clock.after(repeatAfter, func() { p.insist(instance, again) })
		}
	}
	p.Deliver(instance, m)
}
