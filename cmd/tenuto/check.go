package main

import (
	"fmt"

	"github.com/tenuto-dev/tenuto/replay/history"
)

// check tells whether a history can be one, whatever the code: what is said of ids,
// of the first and the last event, and of completions holds for every history that
// a cluster has recorded. Whether it fits the code, replaytest.Replay tells.
func check(h *history.History) error {
	if len(h.Events) == 0 {
		return fmt.Errorf("the history of %s/%d has no events", h.Instance, h.Execution)
	}
	c := &checker{open: make(map[uint64]string), closed: make(map[uint64]bool)}
	for i, e := range h.Events {
		err := c.place(e)
		if err == nil {
			err = c.follow(e)
		}
		if fired := e.GetTimerFired(); err == nil && fired != nil && e.GetTimestamp() < fired.GetFireAt() {
			err = fmt.Errorf("before it was due")
		}
		if err != nil {
			return fmt.Errorf("event %d, %s: %w", i+1, e.Type(), err)
		}
	}
	return nil
}

// An event is what is asked of any event.
type event interface {
	GetEventId() uint64
	GetSourceEventId() uint64
	Type() string
}

// A checker walks a history.
type checker struct {
	last   uint64
	ended  bool
	open   map[uint64]string // operations, by the type of what has scheduled them
	closed map[uint64]bool
}

const started = "OrchestrationStarted"

// place checks that an event may stand where it stands.
func (c *checker) place(e event) error {
	switch {
	case e.GetEventId() != c.last+1:
		return fmt.Errorf("event_id %d after %d", e.GetEventId(), c.last)
	case e.Type() == "Unknown":
		return fmt.Errorf("is of no type that this build knows")
	case c.ended:
		return fmt.Errorf("stands behind the end of the execution")
	case c.last == 0 && e.Type() != started:
		return fmt.Errorf("is the first event, which has to be %s", started)
	case c.last > 0 && e.Type() == started:
		return fmt.Errorf("is there a second time")
	}
	c.last = e.GetEventId()
	return nil
}

// What a type of event does to operations.
var (
	opens = map[string]bool{
		"ActivityScheduled": true, "TimerCreated": true, "ExternalSubscribed": true, "SubOrchestrationScheduled": true,
	}
	completes = map[string]string{
		"ActivityCompleted":         "ActivityScheduled",
		"ActivityFailed":            "ActivityScheduled",
		"TimerFired":                "TimerCreated",
		"SubOrchestrationCompleted": "SubOrchestrationScheduled",
		"SubOrchestrationFailed":    "SubOrchestrationScheduled",
	}
	ends = map[string]bool{
		"OrchestrationCompleted": true, "OrchestrationFailed": true, "OrchestrationCancelled": true,
		"OrchestrationTerminated": true, "OrchestrationContinuedAsNew": true,
	}
)

// follow checks what an event closes, and takes in what it opens.
func (c *checker) follow(e event) error {
	kind, source := e.Type(), e.GetSourceEventId()
	c.ended = ends[kind]
	if opens[kind] {
		c.open[e.GetEventId()] = kind
	}
	completed, isCompletion := completes[kind]
	if !isCompletion && kind != "CancelRequested" {
		if source != 0 {
			return fmt.Errorf("has source_event_id %d, and completes nothing", source)
		}
		return nil
	}
	scheduled, isOpen := c.open[source]
	switch {
	case c.closed[source]:
		return fmt.Errorf("operation %d was closed before", source)
	case !isOpen:
		return fmt.Errorf("event %d has scheduled no operation", source)
	case isCompletion && scheduled != completed:
		return fmt.Errorf("event %d is %s", source, scheduled)
	}
	delete(c.open, source)
	c.closed[source] = true
	return nil
}
