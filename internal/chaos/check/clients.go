package check

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// checkNotExecuted checks that calls that report "not executed" or a rejection had no effect.
func (c *checker) checkNotExecuted() {
	recorded := c.recordedEvents()
	for _, call := range c.record.Calls {
		rejected := call.Outcome == evidence.Rejected && !call.MaybeExecuted
		if call.RequestID == "" || call.Repeated || call.Outcome != evidence.NotExecuted && !rejected {
			continue
		}
		of := c.instances[call.Instance]
		if !of.exists() {
			continue
		}
		if recorded[of.id][call.RequestID] > 0 || of.executions[0].events[0].GetOrchestrationStarted().GetRequestId() == call.RequestID {
			c.addViolation("%s: %s %s returned %q (%s) at %v, but it is recorded", of.id, call.Kind, call.RequestID, call.Outcome, call.Code, call.End)
		}
	}
}

// checkReads checks what gets and lists return.
func (c *checker) checkReads() {
	gets := make(map[string][]evidence.Call)
	for _, call := range c.record.Calls {
		switch {
		case call.Outcome != evidence.Acked || call.Stale:
		case call.Kind == evidence.Get:
			gets[call.Instance] = append(gets[call.Instance], call)
		case call.Kind == evidence.List:
			c.checkList(call)
		}
	}
	for id, calls := range gets {
		for _, later := range calls {
			for _, earlier := range calls {
				if earlier.End < later.Begin && comparePositions(positionOf(later), positionOf(earlier)) < 0 {
					c.addViolation("%s: a get at %v returned %+v, a later one that began at %v returned %+v", id, earlier.End, positionOf(earlier), later.Begin, positionOf(later))
				}
			}
			if of := c.instances[id]; of.exists() && comparePositions(positionOf(later), of.endPosition()) > 0 {
				c.addViolation("%s: a get at %v returned %+v, but the history ends at %+v", id, later.End, positionOf(later), of.endPosition())
			}
		}
	}
}

func positionOf(get evidence.Call) evidence.Position {
	return evidence.Position{Execution: get.Execution, EventID: get.LastEventID}
}

// endPosition returns the position of the last event.
func (i *instance) endPosition() evidence.Position {
	last := i.executions[len(i.executions)-1]
	return evidence.Position{Execution: last.number, EventID: uint64(len(last.events))}
}

func comparePositions(a, b evidence.Position) int {
	return cmp.Or(cmp.Compare(a.Execution, b.Execution), cmp.Compare(a.EventID, b.EventID))
}

// checkList checks that a list shows each instance that existed before it exactly once, and nothing
// else.
func (c *checker) checkList(list evidence.Call) {
	shown := slices.Sorted(slices.Values(list.ListedIDs))
	if len(slices.Compact(slices.Clone(shown))) < len(shown) {
		c.addViolation("a list at %v shows an instance twice: %q", list.End, shown)
	}
	for _, id := range shown {
		if of := c.instances[id]; !strings.HasPrefix(id, list.Instance) || !of.exists() && !of.mayBePurged() {
			c.addViolation("a list of %s at %v shows %s, which does not belong there", list.Instance, list.End, id)
		}
	}
	for _, start := range c.record.Calls {
		if start.Kind != evidence.Start || start.Outcome != evidence.Acked || start.End >= list.Begin ||
			!strings.HasPrefix(start.Instance, list.Instance) || c.instances[start.Instance].mayBePurged() {
			continue
		}
		if _, found := slices.BinarySearch(shown, start.Instance); !found {
			c.addViolation("%s was started at %v, but a list that began at %v does not show it", start.Instance, start.End, list.Begin)
		}
	}
}

// checkWatches checks that a watch shows every event from its start on, once and in order.
func (c *checker) checkWatches() {
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Watch && call.Outcome == evidence.Acked && !c.instances[call.Instance].mayBePurged() {
			c.checkWatch(call)
		}
	}
}

func (c *checker) checkWatch(call evidence.Call) {
	next := evidence.Position{Execution: max(1, call.From.Execution), EventID: max(1, call.From.EventID)}
	for _, shown := range call.WatchedEvents {
		at := evidence.Position{Execution: shown.Execution, EventID: shown.EventID}
		if at.Execution == next.Execution+1 && at.EventID == 1 {
			h := c.history(call.Instance, next.Execution)
			if h != nil && next.EventID == uint64(len(h.events))+1 {
				next = at
			}
		}
		if at != next {
			c.addViolation("%s: a watch at %v shows %+v; want %+v", call.Instance, call.End, at, next)
			return
		}
		h := c.history(call.Instance, at.Execution)
		if h == nil || h.event(at.EventID) == nil || shown.Digest != c.digestOf(h.event(at.EventID)) {
			c.addViolation("%s: a watch at %v shows an event at %+v that differs from the recorded one", call.Instance, call.End, at)
			return
		}
		next.EventID++
	}
	if of := c.instances[call.Instance]; call.State == evidence.Ended && of.exists() && len(call.WatchedEvents) > 0 {
		if end := of.endPosition(); next != (evidence.Position{Execution: end.Execution, EventID: end.EventID + 1}) {
			c.addViolation("%s: a watch ended at %v at %+v, but the last event is %+v", call.Instance, call.End, next, end)
		}
	}
}

func (c *checker) digestOf(event *journalpb.Event) string {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
	if err != nil {
		c.addViolation("cannot encode event: %v", err)
	}
	return host.Digest(encoded)
}

// checkCommands checks that acknowledged commands are recorded, and that no instance was suspended
// without a call.
func (c *checker) checkCommands() {
	suspended := make(map[string]bool)
	for _, call := range c.record.Calls {
		suspended[call.Instance] = suspended[call.Instance] || call.Kind == evidence.Suspend
		of := c.instances[call.Instance]
		if !of.exists() {
			continue
		}
		eventType, isCommand := commandEventTypes[call.Kind]
		switch {
		case isCommand && call.Outcome == evidence.Acked && !of.has(eventType):
			c.addViolation("%s: a %s was acknowledged at %v, but is not recorded", of.id, call.Kind, call.End)
		case call.Kind == evidence.Complete:
			c.checkCompletion(of, call)
		}
	}
	for _, of := range c.instances {
		if of.exists() && of.has(journalpb.TypeOrchestrationSuspended) && !suspended[of.id] {
			c.addViolation("%s was suspended without a call", of.id)
		}
	}
}

// commandEventTypes maps each command to the type of event that it records.
var commandEventTypes = map[evidence.Kind]int{
	evidence.Cancel:  journalpb.TypeOrchestrationCancelRequested,
	evidence.Suspend: journalpb.TypeOrchestrationSuspended,
}

func (i *instance) has(eventType int) bool {
	return slices.ContainsFunc(i.executions, func(h *history) bool {
		return slices.ContainsFunc(h.events, func(event *journalpb.Event) bool { return event.TypeNumber() == eventType })
	})
}

// checkCompletion compares an external completion with the recorded result.
func (c *checker) checkCompletion(of *instance, call evidence.Call) {
	var recorded json.RawMessage
	for _, event := range of.executions[0].events {
		if completed := event.GetActivityCompleted(); completed != nil {
			recorded = completed.Result.GetData()
		}
	}
	same := bytes.Equal(recorded, call.Input)
	switch {
	case call.Outcome == evidence.Acked && !same:
		c.addViolation("%s: completion with %s was acknowledged at %v, but %q is recorded", of.id, call.Input, call.End, recorded)
	case call.Outcome == evidence.Rejected && same:
		c.addViolation("%s: completion with %s was rejected (%s) at %v, but it is recorded", of.id, call.Input, call.Code, call.End)
	}
}
