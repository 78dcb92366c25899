package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// checkMembers checks the members after each step of a fault that changed them.
func (c *checker) checkMembers() {
	for _, f := range c.record.Faults {
		for _, m := range f.Members {
			if !m.AsWanted() {
				c.addViolation("%s, %s: at %v %v vote; want %d members, with %v and without %v", f.Name, m.Step, m.At, m.Voters, m.Wanted, m.Required, m.Excluded)
			}
		}
	}
}

// awaitingAll are the orchestrations that complete only after all of their activities.
var awaitingAll = []string{host.Chain, host.Fan, host.Cycle, host.Tree, host.Relay}

// checkWorkers checks the activities that began on a worker: each has one completion once its
// execution has completed, and it began again only because of a fault.
func (c *checker) checkWorkers() {
	for key, effects := range c.effects {
		var begun []evidence.Effect
		for _, effect := range effects {
			if !effect.Finished {
				begun = append(begun, effect)
			}
		}
		if !slices.ContainsFunc(begun, func(e evidence.Effect) bool { return e.Worker }) {
			continue
		}
		h := c.history(key.instance, key.execution)
		if h != nil && slices.Contains(awaitingAll, h.instance.name()) && h.hasCompleted() {
			if n := h.completions(key.eventID); n != 1 {
				c.addViolation("%v: the execution has completed, and %d events complete the activity", key, n)
			}
		}
		c.checkBeginnings(key, begun)
	}
}

// hasCompleted reports whether an execution has completed or continued as new.
func (h *history) hasCompleted() bool {
	last := h.last().TypeNumber()
	return last == journalpb.TypeOrchestrationCompleted || last == journalpb.TypeOrchestrationContinuedAsNew
}

// completions counts the events that complete an activity.
func (h *history) completions(eventID uint64) int {
	n := 0
	for _, event := range h.events {
		if event.SourceEventId == eventID && (event.GetActivityCompleted() != nil || event.GetActivityFailed() != nil) {
			n++
		}
	}
	return n
}

// A process of a fault may make an activity begin again when it is lost and when it is healed, and
// so may each change of a leader.
const beginningsPerProcess = 3

// checkBeginnings checks that an activity began again only during faults, and not more often than
// these explain.
func (c *checker) checkBeginnings(key operation, begun []evidence.Effect) {
	slices.SortFunc(begun, func(a, b evidence.Effect) int { return cmp.Compare(a.At, b.At) })
	first, last := begun[0].At, begun[len(begun)-1].At
	for i, effect := range begun[1:] {
		if before := begun[i]; c.mayRepeat(before.At, effect.At) == 0 {
			c.addViolation("%v began on %s at %v and again on %s at %v, without a fault", key, before.Node, before.At, effect.Node, effect.At)
		}
	}
	if most := c.mayRepeat(first, last); len(begun) > 1+most {
		c.addViolation("%v began %d times; the faults explain %d", key, len(begun), 1+most)
	}
}

// mayRepeat returns how often an activity may begin again between two times.
func (c *checker) mayRepeat(from, to time.Duration) int {
	n := 0
	for _, f := range c.record.Faults {
		if f.Begin <= to && from <= f.End+f.Recovery+attemptGrace {
			n += beginningsPerProcess * (1 + len(f.Nodes))
		}
	}
	for _, phase := range c.record.FaultFreePhases {
		if phase.Begin <= to && from <= phase.End {
			n += phase.LeaderChanges
		}
	}
	return n
}
