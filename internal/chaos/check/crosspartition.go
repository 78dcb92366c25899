package check

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// chainPrefix begins the request IDs of chained starts.
const chainPrefix = "tenuto.chain/"

// isStartedByCall reports whether a client started this execution: it is neither a child, nor
// chained, nor a successor.
func (h *history) isStartedByCall() bool {
	started := h.events[0].GetOrchestrationStarted()
	return h.number == 1 && started.GetParent() == nil && !strings.HasPrefix(started.GetRequestId(), chainPrefix)
}

// checkChained checks that every chained start was executed.
func (c *checker) checkChained() {
	for _, h := range c.histories {
		for _, event := range h.events {
			chained := event.GetOrchestrationChained()
			if chained == nil {
				continue
			}
			of := c.instances[chained.Instance]
			if !of.exists() {
				c.addViolation("%v: event %d starts %q, which does not exist", h, event.EventId, chained.Instance)
				continue
			}
			started := of.executions[0].events[0].GetOrchestrationStarted()
			by := chainPrefix + h.operationRef(event.EventId).Key()
			if started.GetRequestId() != by || !proto.Equal(started.GetInput(), chained.Input) {
				c.addViolation("%v: event %d starts %s, but that was started by %q with %.100q", h, event.EventId, of.id, started.GetRequestId(), started.GetInput().GetData())
			}
		}
	}
}

// checkStarters checks that each instance that names a chained start was started by one.
func (c *checker) checkStarters() {
	requested := make(map[string]bool)
	for _, h := range c.histories {
		for _, event := range h.events {
			if chained := event.GetOrchestrationChained(); chained != nil {
				requested[chained.Instance] = true
			}
		}
	}
	for _, h := range c.histories {
		by := h.events[0].GetOrchestrationStarted().GetRequestId()
		if h.number == 1 && strings.HasPrefix(by, chainPrefix) && !requested[h.instance.id] {
			c.addViolation("%v names %q as its starter, which did not start it", h, by)
		}
	}
}

// updateResult returns the recorded result of an update.
func (c *checker) updateResult(of *instance, requestID string) (output []byte, done bool) {
	for _, h := range of.executions {
		for _, event := range h.events {
			if record := event.GetSideEffectRecorded(); record.GetLabel() == engine.UpdatePrefix+requestID {
				return record.GetValue().GetData(), true
			}
		}
	}
	return nil, false
}

// checkUpdates checks the updates of tallies: each sum must be the previous sum plus the update's
// number.
func (c *checker) checkUpdates() {
	for _, of := range c.instances {
		if of.exists() && of.name() == host.Tally {
			c.checkTally(of.executions[0])
		}
	}
}

func (c *checker) checkTally(h *history) {
	var sum int
	if !c.decode(h, h.events[0].GetOrchestrationStarted().GetInput(), &sum) {
		return
	}
	inputs, done := make(map[string]*journalpb.Payload), make(map[string]bool)
	for _, event := range h.events {
		var got, n int
		switch record := event.GetSideEffectRecorded(); {
		case event.GetExternalEvent() != nil:
			inputs[event.GetExternalEvent().RequestId] = event.GetExternalEvent().Data
			continue
		case event.GetOrchestrationCompleted() != nil:
			if c.decode(h, event.GetOrchestrationCompleted().Output, &got) && got != sum {
				c.addViolation("%v returned %d, but its updates add up to %d", h, got, sum)
			}
			continue
		case record == nil:
			continue
		default:
			id := strings.TrimPrefix(record.Label, engine.UpdatePrefix)
			if done[id] {
				c.addViolation("%v: update %s was executed again at event %d", h, id, event.EventId)
			}
			done[id] = true
			if !c.decode(h, inputs[id], &n) || !c.decode(h, record.Value, &got) {
				return
			}
		}
		if sum += n; got != sum {
			c.addViolation("%v: event %d has sum %d; want %d", h, event.EventId, got, sum)
			return
		}
	}
}

// countCrossPartition counts children and chained starts in another partition than the instance
// that requested them.
func (c *checker) countCrossPartition(n map[string]int) {
	for _, h := range c.histories {
		from := c.partitionOf(h.instance.id)
		for _, event := range h.events {
			if child := event.GetSubOrchestrationScheduled(); child != nil && c.partitionOf(child.Instance) != from {
				n[countChildrenCrossed]++
			}
			chained := event.GetOrchestrationChained()
			if chained == nil {
				continue
			}
			n[countChained]++
			if c.partitionOf(chained.Instance) != from {
				n[countChainedCrossed]++
			}
		}
	}
}
