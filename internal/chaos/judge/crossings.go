package judge

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// chainPrefix begins the request IDs of chained starts.
const chainPrefix = "tenuto.chain/"

// isBegunByCall tells whether somebody has called for it: it is neither a child, nor
// chained, nor a later execution.
func (h *history) isBegunByCall() bool {
	started := h.events[0].GetOrchestrationStarted()
	return h.number == 1 && started.GetParent() == nil && !strings.HasPrefix(started.GetRequestId(), chainPrefix)
}

// chained checks that every chained start was made, and that nothing else claims to be
// one.
func (c *trial) chained() {
	asked := make(map[string]bool)
	for _, h := range c.histories {
		for _, event := range h.events {
			chained := event.GetOrchestrationChained()
			if chained == nil {
				continue
			}
			asked[chained.Instance] = true
			of := c.instances[chained.Instance]
			if !of.exists() {
				c.violated("%v: event %d starts %q, which is not there", h, event.EventId, chained.Instance)
				continue
			}
			started := of.executions[0].events[0].GetOrchestrationStarted()
			by := chainPrefix + h.operation(event.EventId).Key()
			if started.GetRequestId() != by || !proto.Equal(started.GetInput(), chained.Input) {
				c.violated("%v: event %d starts %s, which was begun by %q with %.100q", h, event.EventId, of.id, started.GetRequestId(), started.GetInput().GetData())
			}
		}
	}
	for _, h := range c.histories {
		by := h.events[0].GetOrchestrationStarted().GetRequestId()
		if h.number == 1 && strings.HasPrefix(by, chainPrefix) && !asked[h.of.id] {
			c.violated("%v was begun by %q, which did not start it", h, by)
		}
	}
}

// updated returns what an update of an instance came to, as it is recorded.
func (c *trial) updated(of *instance, requestID string) (output []byte, done bool) {
	for _, h := range of.executions {
		for _, event := range h.events {
			if record := event.GetSideEffectRecorded(); record.GetLabel() == replay.UpdatePrefix+requestID {
				return record.GetValue().GetData(), true
			}
		}
	}
	return nil, false
}

// updates checks what tallies have answered: each sum is the one before, and what the
// update has brought.
func (c *trial) updates() {
	for _, of := range c.instances {
		if of.exists() && of.name() == host.Tally {
			c.tallied(of.executions[0])
		}
	}
}

func (c *trial) tallied(h *history) {
	var sum int
	if !c.decode(h, h.events[0].GetOrchestrationStarted().GetInput(), &sum) {
		return
	}
	brought, done := make(map[string]*journalpb.Payload), make(map[string]bool)
	for _, event := range h.events {
		var got, n int
		switch record := event.GetSideEffectRecorded(); {
		case event.GetExternalEvent() != nil:
			brought[event.GetExternalEvent().RequestId] = event.GetExternalEvent().Data
			continue
		case event.GetOrchestrationCompleted() != nil:
			if c.decode(h, event.GetOrchestrationCompleted().Output, &got) && got != sum {
				c.violated("%v came to %d, and its updates to %d", h, got, sum)
			}
			continue
		case record == nil:
			continue
		default:
			id := strings.TrimPrefix(record.Label, replay.UpdatePrefix)
			if done[id] {
				c.violated("%v: update %s was carried out again at event %d", h, id, event.EventId)
			}
			done[id] = true
			if !c.decode(h, brought[id], &n) || !c.decode(h, record.Value, &got) {
				return
			}
		}
		if sum += n; got != sum {
			c.violated("%v: event %d says %d; %d was due", h, event.EventId, got, sum)
			return
		}
	}
}

// crossings counts what has gone from one group to another.
func (c *trial) crossings(n map[string]int) {
	for _, h := range c.histories {
		from := c.groupOf(h.of.id)
		for _, event := range h.events {
			if child := event.GetSubOrchestrationScheduled(); child != nil && c.groupOf(child.Instance) != from {
				n[countChildrenCrossed]++
			}
			chained := event.GetOrchestrationChained()
			if chained == nil {
				continue
			}
			n[countChained]++
			if c.groupOf(chained.Instance) != from {
				n[countChainedCrossed]++
			}
		}
	}
}
