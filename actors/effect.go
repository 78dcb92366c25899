package actors

import (
	"maps"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// What was not taken is sent again, after a pause that grows from the first to
// the longest.
const (
	repeatFirst   = 100 * time.Millisecond
	repeatLongest = 5 * time.Second
)

func growing(pause time.Duration) time.Duration { return min(2*pause, repeatLongest) }

// release lets the effects of the events of a turn out, which are committed.
func (in *instance) release(events []*journalpb.Event) {
	p, instance := in.partition, in.id
	for _, event := range events {
		ref := func() *journalpb.OperationRef { return in.operation(event.EventId) }
		switch body := event.Body.(type) {
		case *journalpb.Event_OrchestrationStarted:
			p.reviewChild(instance, body.OrchestrationStarted.Parent)
		case *journalpb.Event_ActivityScheduled:
			p.system.activities.submit(p.newTask(instance, in.incarnation, in.number, event), nil)
		case *journalpb.Event_TimerCreated:
			p.armTimer(ref(), body.TimerCreated.FireAt)
		case *journalpb.Event_SubOrchestrationScheduled:
			p.startChild(ref(), body.SubOrchestrationScheduled)
		case *journalpb.Event_OrchestrationChained:
			p.startChained(ref(), body.OrchestrationChained)
		case *journalpb.Event_CancelRequested:
			p.giveUp(in.operation(event.SourceEventId))
		case *journalpb.Event_OrchestrationTerminated:
			in.giveUpAll()
			p.reportEnd(in.parent(), event)
		default:
			if journalpb.Terminal(event.Arm()) {
				p.reportEnd(in.parent(), event)
			}
		}
	}
}

// parent returns who waits for the end of the instance, nil if nobody does.
func (in *instance) parent() *journalpb.OperationRef {
	if in.execution != nil {
		return in.execution.Parent()
	}
	known, _ := in.partition.journal.Instance(in.id)
	return known.GetParent()
}

// nudge makes an instance take a turn with a message that says nothing. One
// whose code has not run yet has nothing open that would wake it.
func (p *Partition) nudge(instance string) {
	p.insist(instance, Message{Message: replay.Message{Event: new(journalpb.Event)}, Internal: true})
}

func keyOf(ref *journalpb.OperationRef) alarmKey {
	return alarmKey{instance: ref.Instance, incarnation: ref.Incarnation, execution: ref.Execution, eventID: ref.EventId}
}

// newTask returns the activity that an event of an execution has scheduled.
func (p *Partition) newTask(instance string, incarnation, execution uint64, event *journalpb.Event) *task {
	made := &struct {
		task task
		ref  journalpb.OperationRef
	}{}
	made.ref.Instance, made.ref.Incarnation = instance, incarnation
	made.ref.Execution, made.ref.EventId = execution, event.EventId
	t := &made.task
	t.partition, t.ref = p, &made.ref
	t.scheduled = event.GetActivityScheduled()
	t.since = clustertime.FromUnix(event.Timestamp)
	t.carried = p.system.carried(instance, execution)
	return t
}

func (p *Partition) armTimer(ref *journalpb.OperationRef, fireAt int64) {
	p.clock.at(clustertime.FromUnix(fireAt), keyOf(ref), func() {
		p.timerFired(fireAt)
		p.insist(ref.Instance, completion(ref, &journalpb.Event{Body: &journalpb.Event_TimerFired{
			TimerFired: &journalpb.TimerFired{FireAt: fireAt},
		}}, nil))
	})
}

// giveUp ends the operation that code does not want any more.
func (p *Partition) giveUp(ref *journalpb.OperationRef) {
	event, err := p.journal.Event(ref.Instance, ref.Execution, ref.EventId)
	if err != nil {
		p.logger.Error("give up operation", "instance", ref.Instance, "execution", ref.Execution, "event_id", ref.EventId, "error", err)
		return
	}
	switch body := event.Body.(type) {
	case *journalpb.Event_ActivityScheduled:
		p.system.activities.giveUp(p, keyOf(ref))
	case *journalpb.Event_TimerCreated:
		p.clock.disarm(keyOf(ref))
	case *journalpb.Event_SubOrchestrationScheduled:
		p.cancelChild(ref, body.SubOrchestrationScheduled, repeatFirst)
	}
}

// giveUpAll ends what is open in an execution that was terminated: no code ran
// that could have recorded each decision.
func (in *instance) giveUpAll() {
	p, open := in.partition, make(map[uint64]bool)
	for event, err := range p.journal.Events(in.id, in.number, 1) {
		if err != nil {
			p.logger.Error("give up operations", "instance", in.id, "execution", in.number, "error", err)
			return
		}
		switch event.Arm() {
		case journalpb.ArmActivityScheduled, journalpb.ArmTimerCreated, journalpb.ArmSubOrchestrationScheduled:
			open[event.EventId] = true
		default:
			delete(open, event.SourceEventId)
		}
	}
	for _, eventID := range slices.Sorted(maps.Keys(open)) {
		p.giveUp(in.operation(eventID))
	}
}

// insist delivers an internal message until it is taken: recorded, or of no use
// any more. After the partition is closed the next leader sees to it.
func (p *Partition) insist(instance string, m Message) { p.insistAfter(instance, m, repeatFirst) }

// insistAfter is insist with the pause before the first repetition.
func (p *Partition) insistAfter(instance string, m Message, pause time.Duration) {
	if p.elsewhere(instance) {
		p.cross(&Crossing{Instance: instance, Execution: m.Execution, Incarnation: m.Incarnation, Event: m.Event, Attach: m.Attach}, m.Done, pause)
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
			p.clock.after(pause, func() { p.insistAfter(instance, again, growing(pause)) })
		}
	}
	p.Deliver(instance, sent)
}
