package pairing

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/replay/history"
)

// Check returns an error if a history breaks a rule that holds for any code. It checks the rules
// for event IDs, for the first and last event, and for completions. replaytest.Replay checks
// whether a history fits the code.
func Check(h *history.History) error {
	if len(h.Events) == 0 {
		return fmt.Errorf("the history of %s/%d has no events", h.Instance, h.Execution)
	}
	c := &checker{open: make(map[uint64]history.EventType), closed: make(map[uint64]bool)}
	for i, e := range h.Events {
		err := c.checkOrder(e)
		if err == nil {
			err = c.applyEvent(e)
		}
		if err == nil && e.Type == history.TimerFired && e.Time.Before(e.FireAt()) {
			err = fmt.Errorf("fired before it was due")
		}
		if err != nil {
			return fmt.Errorf("event %d, %s: %w", i+1, e.Type, err)
		}
	}
	return nil
}

// A checker checks the events of a history in order.
type checker struct {
	last   uint64
	ended  bool
	open   map[uint64]history.EventType // types of the scheduling events of open operations
	closed map[uint64]bool
}

// checkOrder returns an error if an event must not follow the ones before it.
func (c *checker) checkOrder(e history.Event) error {
	switch {
	case e.EventID != c.last+1:
		return fmt.Errorf("event_id %d after %d", e.EventID, c.last)
	case e.Type == history.Unknown:
		return fmt.Errorf("unknown event type")
	case c.ended:
		return fmt.Errorf("comes after the end of the execution")
	case c.last == 0 && e.Type != history.OrchestrationStarted:
		return fmt.Errorf("the first event must be %s", history.OrchestrationStarted)
	case c.last > 0 && e.Type == history.OrchestrationStarted:
		return fmt.Errorf("appears a second time")
	}
	c.last = e.EventID
	return nil
}

// Scheduling are the types of events that open an operation. scheduledTypeOf maps the type of
// a completion to the type of the event that opened the operation.
var (
	Scheduling = map[history.EventType]bool{
		history.ActivityScheduled: true, history.TimerCreated: true, history.ExternalSubscribed: true, history.SubOrchestrationScheduled: true,
		history.MessageSent: true,
	}
	scheduledTypeOf = map[history.EventType]history.EventType{
		history.ActivityCompleted:         history.ActivityScheduled,
		history.ActivityFailed:            history.ActivityScheduled,
		history.TimerFired:                history.TimerCreated,
		history.SubOrchestrationCompleted: history.SubOrchestrationScheduled,
		history.SubOrchestrationFailed:    history.SubOrchestrationScheduled,
		history.MessageDelivered:          history.MessageSent,
		history.MessageRejected:           history.MessageSent,
	}
)

// applyEvent checks the operation that an event closes, and records the one that it opens.
func (c *checker) applyEvent(e history.Event) error {
	kind, source := e.Type, e.SourceEventID
	c.ended = kind.EndsExecution()
	if Scheduling[kind] {
		c.open[e.EventID] = kind
	}
	completed, isCompletion := scheduledTypeOf[kind]
	if !isCompletion && kind != history.CancelRequested {
		if source != 0 {
			return fmt.Errorf("has source_event_id %d but completes nothing", source)
		}
		return nil
	}
	scheduled, isOpen := c.open[source]
	switch {
	case c.closed[source]:
		return fmt.Errorf("operation %d was closed before", source)
	case !isOpen:
		return fmt.Errorf("event %d scheduled no operation", source)
	case isCompletion && scheduled != completed:
		return fmt.Errorf("event %d is %s", source, scheduled)
	}
	delete(c.open, source)
	c.closed[source] = true
	return nil
}
