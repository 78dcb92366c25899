package judge

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

// nothingDone judges the calls that say that nothing was done.
func (c *trial) nothingDone() {
	recorded := c.recorded()
	for _, call := range c.record.Calls {
		refused := call.Outcome == evidence.Refused && !call.Doubtful
		if call.RequestID == "" || call.Repeated || call.Outcome != evidence.NotExecuted && !refused {
			continue
		}
		of := c.instances[call.Instance]
		if !of.exists() {
			continue
		}
		if recorded[of.id][call.RequestID] > 0 || of.executions[0].events[0].GetOrchestrationStarted().GetRequestId() == call.RequestID {
			c.violated("%s: %s %s was answered with %q (%s) at %v, and it is recorded", of.id, call.Kind, call.RequestID, call.Outcome, call.Code, call.End)
		}
	}
}

// looks judges what gets and lists show.
func (c *trial) looks() {
	gets := make(map[string][]evidence.Call)
	for _, call := range c.record.Calls {
		switch {
		case call.Outcome != evidence.Acked || call.Stale:
		case call.Kind == evidence.Get:
			gets[call.Instance] = append(gets[call.Instance], call)
		case call.Kind == evidence.List:
			c.listed(call)
		}
	}
	for id, calls := range gets {
		for _, later := range calls {
			for _, earlier := range calls {
				if earlier.End < later.Begin && comparePlaces(placeOf(later), placeOf(earlier)) < 0 {
					c.violated("%s: a get at %v showed %+v, and one that began at %v %+v", id, earlier.End, placeOf(earlier), later.Begin, placeOf(later))
				}
			}
			if of := c.instances[id]; of.exists() && comparePlaces(placeOf(later), of.end()) > 0 {
				c.violated("%s: a get at %v showed %+v, and it ends at %+v", id, later.End, placeOf(later), of.end())
			}
		}
	}
}

func placeOf(get evidence.Call) evidence.Position {
	return evidence.Position{Execution: get.Execution, EventID: get.LastEventID}
}

// end is the place of the last event.
func (of *instance) end() evidence.Position {
	last := of.executions[len(of.executions)-1]
	return evidence.Position{Execution: last.number, EventID: uint64(len(last.events))}
}

func comparePlaces(a, b evidence.Position) int {
	return cmp.Or(cmp.Compare(a.Execution, b.Execution), cmp.Compare(a.EventID, b.EventID))
}

// listed judges that a list shows once what was there before it, and nothing else.
func (c *trial) listed(list evidence.Call) {
	shown := slices.Sorted(slices.Values(list.Listed))
	if len(slices.Compact(slices.Clone(shown))) < len(shown) {
		c.violated("a list at %v shows something twice: %q", list.End, shown)
	}
	for _, id := range shown {
		if of := c.instances[id]; !strings.HasPrefix(id, list.Instance) || !of.exists() && !of.mayBeGone() {
			c.violated("a list of %s at %v shows %s", list.Instance, list.End, id)
		}
	}
	for _, start := range c.record.Calls {
		if start.Kind != evidence.Start || start.Outcome != evidence.Acked || start.End >= list.Begin ||
			!strings.HasPrefix(start.Instance, list.Instance) || c.instances[start.Instance].mayBeGone() {
			continue
		}
		if _, found := slices.BinarySearch(shown, start.Instance); !found {
			c.violated("%s was started at %v, and a list that began at %v lacks it", start.Instance, start.End, list.Begin)
		}
	}
}

// watches judges that a watch shows every event from its beginning on, once and in order.
func (c *trial) watches() {
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Watch && call.Outcome == evidence.Acked && !c.instances[call.Instance].mayBeGone() {
			c.watched(call)
		}
	}
}

func (c *trial) watched(call evidence.Call) {
	next := evidence.Position{Execution: max(1, call.From.Execution), EventID: max(1, call.From.EventID)}
	for _, shown := range call.Watched {
		at := evidence.Position{Execution: shown.Execution, EventID: shown.EventID}
		if at.Execution == next.Execution+1 && at.EventID == 1 {
			h := c.history(call.Instance, next.Execution)
			if h != nil && next.EventID == uint64(len(h.events))+1 {
				next = at
			}
		}
		if at != next {
			c.violated("%s: a watch at %v shows %+v; %+v was next", call.Instance, call.End, at, next)
			return
		}
		h := c.history(call.Instance, at.Execution)
		if h == nil || h.at(at.EventID) == nil || shown.Digest != c.digestOf(h.at(at.EventID)) {
			c.violated("%s: a watch at %v shows another event %+v than there is", call.Instance, call.End, at)
			return
		}
		next.EventID++
	}
	if of := c.instances[call.Instance]; call.State == evidence.Ended && of.exists() && len(call.Watched) > 0 {
		if end := of.end(); next != (evidence.Position{Execution: end.Execution, EventID: end.EventID + 1}) {
			c.violated("%s: a watch ended at %v before %+v, and there is %+v", call.Instance, call.End, next, end)
		}
	}
}

func (c *trial) digestOf(event *journalpb.Event) string {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
	if err != nil {
		c.violated("an event does not encode: %v", err)
	}
	return host.Digest(encoded)
}

// commands judges that what was asked of an instance from outside, and acknowledged, is recorded.
func (c *trial) commands() {
	suspended := make(map[string]bool)
	for _, call := range c.record.Calls {
		suspended[call.Instance] = suspended[call.Instance] || call.Kind == evidence.Suspend
		of := c.instances[call.Instance]
		if !of.exists() {
			continue
		}
		arm, isCommand := commandArms[call.Kind]
		switch {
		case isCommand && call.Outcome == evidence.Acked && !of.has(arm):
			c.violated("%s: a %s was acknowledged at %v, and is not recorded", of.id, call.Kind, call.End)
		case call.Kind == evidence.Complete:
			c.completedFromOutside(of, call)
		}
	}
	for _, of := range c.instances {
		if of.exists() && of.has(journalpb.ArmOrchestrationSuspended) && !suspended[of.id] {
			c.violated("%s was suspended by nobody", of.id)
		}
	}
}

// commandArms gives the type of event that each command records.
var commandArms = map[evidence.Kind]int{
	evidence.Cancel:  journalpb.ArmOrchestrationCancelRequested,
	evidence.Suspend: journalpb.ArmOrchestrationSuspended,
}

func (of *instance) has(arm int) bool {
	return slices.ContainsFunc(of.executions, func(h *history) bool {
		return slices.ContainsFunc(h.events, func(event *journalpb.Event) bool { return event.Arm() == arm })
	})
}

// completedFromOutside judges a completion by what is recorded.
func (c *trial) completedFromOutside(of *instance, call evidence.Call) {
	var recorded json.RawMessage
	for _, event := range of.executions[0].events {
		if completed := event.GetActivityCompleted(); completed != nil {
			recorded = completed.Result.GetData()
		}
	}
	same := bytes.Equal(recorded, call.Input)
	switch {
	case call.Outcome == evidence.Acked && !same:
		c.violated("%s: completion with %s was acknowledged at %v, and %q is recorded", of.id, call.Input, call.End, recorded)
	case call.Outcome == evidence.Refused && same:
		c.violated("%s: completion with %s was refused (%s) at %v, and it is recorded", of.id, call.Input, call.Code, call.End)
	}
}
