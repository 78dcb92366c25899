package main

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/replay/history"
)

// check returns an error if a history breaks a rule that holds for any code. It checks the rules
// for event IDs, for the first and last event, and for completions. replaytest.Replay checks
// whether a history fits the code.
func check(h *history.History) error {
	if len(h.Events) == 0 {
		return fmt.Errorf("the history of %s/%d has no events", h.Instance, h.Execution)
	}
	c := &checker{open: make(map[uint64]string), closed: make(map[uint64]bool)}
	for i, e := range h.Events {
		err := c.checkOrder(e)
		if err == nil {
			err = c.applyEvent(e)
		}
		if fired := e.GetTimerFired(); err == nil && fired != nil && e.GetTimestamp() < fired.GetFireAt() {
			err = fmt.Errorf("fired before it was due")
		}
		if err != nil {
			return fmt.Errorf("event %d, %s: %w", i+1, e.Type(), err)
		}
	}
	return nil
}

// An event is the part of any event that is checked.
type event interface {
	GetEventId() uint64
	GetSourceEventId() uint64
	Type() string
}

// A checker checks the events of a history in order.
type checker struct {
	last   uint64
	ended  bool
	open   map[uint64]string // types of the scheduling events of open operations
	closed map[uint64]bool
}

const startedType = "OrchestrationStarted"

// checkOrder returns an error if an event must not follow the ones before it.
func (c *checker) checkOrder(e event) error {
	switch {
	case e.GetEventId() != c.last+1:
		return fmt.Errorf("event_id %d after %d", e.GetEventId(), c.last)
	case e.Type() == "Unknown":
		return fmt.Errorf("unknown event type")
	case c.ended:
		return fmt.Errorf("comes after the end of the execution")
	case c.last == 0 && e.Type() != startedType:
		return fmt.Errorf("the first event must be %s", startedType)
	case c.last > 0 && e.Type() == startedType:
		return fmt.Errorf("appears a second time")
	}
	c.last = e.GetEventId()
	return nil
}

// What event types open, complete and end: operations and the execution.
var (
	schedulingTypes = map[string]bool{
		"ActivityScheduled": true, "TimerCreated": true, "ExternalSubscribed": true, "SubOrchestrationScheduled": true,
	}
	scheduledTypeOf = map[string]string{
		"ActivityCompleted":         "ActivityScheduled",
		"ActivityFailed":            "ActivityScheduled",
		"TimerFired":                "TimerCreated",
		"SubOrchestrationCompleted": "SubOrchestrationScheduled",
		"SubOrchestrationFailed":    "SubOrchestrationScheduled",
	}
	terminalTypes = map[string]bool{
		"OrchestrationCompleted": true, "OrchestrationFailed": true, "OrchestrationCanceled": true,
		"OrchestrationTerminated": true, "OrchestrationContinuedAsNew": true,
	}
)

// applyEvent checks the operation that an event closes, and records the one that it opens.
func (c *checker) applyEvent(e event) error {
	kind, source := e.Type(), e.GetSourceEventId()
	c.ended = terminalTypes[kind]
	if schedulingTypes[kind] {
		c.open[e.GetEventId()] = kind
	}
	completed, isCompletion := scheduledTypeOf[kind]
	if !isCompletion && kind != "CancelRequested" {
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
