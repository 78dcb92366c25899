package check

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

const (
	// How long after the end of an instance an attempt may still start, because it was already
	// assigned to a node that was paused or slow.
	attemptGrace = 15 * time.Second
	// The tolerance of a duration that the harness's clock measures between two activities. It
	// includes how early a timer may fire while the cluster time catches up.
	clockSlack = 5 * time.Millisecond
)

func (c *checker) checkActivitiesScheduled() {
	for key, effects := range c.effects {
		of := c.instances[key.instance]
		if of.mayBePurged() {
			continue
		}
		h := c.history(key.instance, key.execution)
		var event *journalpb.Event
		if h != nil {
			event = h.event(key.eventID)
		}
		scheduled := event.GetActivityScheduled()
		if scheduled == nil {
			c.addViolation("%v: an activity started on %s that was not scheduled", key, effects[0].Node)
			continue
		}
		var task evidence.Task
		if c.decode(h, scheduled.Input, &task) && task != effects[0].Task {
			c.addViolation("%v: %+v started, but %+v is scheduled", key, effects[0].Task, task)
		}
		for _, effect := range effects {
			if effect.ScheduleNotApplied {
				c.addViolation("%v started on %s before its schedule was committed", key, effect.Node)
			}
		}
	}
}

func (c *checker) checkResults() {
	results := c.clientResults()
	for _, h := range c.histories {
		for _, event := range h.events {
			completed := event.GetActivityCompleted()
			if completed == nil {
				continue
			}
			var done evidence.TaskResult
			if c.decode(h, completed.Result, &done) && !c.hasResult(operation{h.instance.id, h.number, event.SourceEventId}, done) && !results[done] {
				c.addViolation("%v: event %d has result %+v, which no attempt returned", h, event.EventId, done)
			}
		}
	}
}

// clientResults returns the results with which clients have completed activities, or may have.
func (c *checker) clientResults() map[evidence.TaskResult]bool {
	results := make(map[evidence.TaskResult]bool)
	for _, call := range c.record.Calls {
		if call.Kind != evidence.Complete || call.Outcome == evidence.Rejected || call.Outcome == evidence.NotExecuted {
			continue
		}
		var done evidence.TaskResult
		if err := json.Unmarshal(call.Input, &done); err == nil {
			results[done] = true
		}
	}
	return results
}

// hasResult reports whether an attempt returned that result.
func (c *checker) hasResult(key operation, done evidence.TaskResult) bool {
	for _, effect := range c.effects[key] {
		if effect.Finished && effect.Result == done {
			return true
		}
	}
	return false
}

func (c *checker) checkAttempts() {
	ends := make(map[string]time.Duration)
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Wait && call.Outcome == evidence.Acked {
			ends[call.Instance] = call.End
		}
	}
	disturbed := c.record.LeaderChanges > 0 ||
		slices.ContainsFunc(c.record.FaultFreePhases, func(q evidence.FaultFreePhase) bool { return q.LeaderChanges > 0 })
	for key, effects := range c.effects {
		begun := 0
		for _, effect := range effects {
			if effect.Finished {
				continue
			}
			begun++
			if end, ended := ends[key.instance]; ended && effect.At > end+attemptGrace {
				c.addViolation("%v started on %s %v after the end was reported", key, effect.Node, effect.At-end)
			}
		}
		if begun > 1 && len(c.record.Faults) == 0 && !disturbed {
			c.addViolation("%v started %d times without a fault", key, begun)
		}
	}
}

func (c *checker) checkTimersNotEarly() {
	finished := make(map[string]time.Duration)
	for _, effect := range c.record.Effects {
		if effect.Finished {
			finished[effect.Result.Nonce] = effect.At
		}
	}
	for _, effect := range c.record.Effects {
		if effect.Finished || effect.Task.After == "" {
			continue
		}
		before, ok := finished[effect.Task.After]
		if took := effect.At - before; ok && took < effect.Task.Delay-clockSlack {
			c.addViolation("%s/%d: a timer of %v fired after %v", effect.Instance, effect.Execution, effect.Task.Delay, took)
		}
	}
}

func (c *checker) checkTerminated() {
	acked := make(map[string]time.Duration)
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Terminate && call.Outcome == evidence.Acked {
			acked[call.Instance] = call.End
			if of := c.instances[call.Instance]; of.exists() && of.state != "terminated" {
				c.addViolation("%s was terminated at %v, but is %s", call.Instance, call.End, of.state)
			}
		}
	}
	for _, effect := range c.record.Effects {
		if at, ok := acked[effect.Instance]; ok && !effect.Finished && effect.At > at+attemptGrace {
			c.addViolation("%s: an activity started %v after the termination was acknowledged", effect.Instance, effect.At-at)
		}
	}
}
