package judge

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

const (
	// How long after the end an attempt may still begin: one that had been
	// handed out, on a node that was paused or slow.
	fence = 15 * time.Second
	// How exact the harness's clock is, from the end of one activity to the
	// beginning of another, and by how much a timer of these loads is early at most
	// while the cluster time catches up.
	clockSlack = 5 * time.Millisecond
)

func (c *trial) noGhosts() {
	for key, effects := range c.effects {
		of := c.instances[key.instance]
		if of.mayBeGone() {
			continue
		}
		h := c.history(key.instance, key.execution)
		var event *journalpb.Event
		if h != nil {
			event = h.at(key.eventID)
		}
		scheduled := event.GetActivityScheduled()
		if scheduled == nil {
			c.violated("%v: an activity began on %s that nobody scheduled", key, effects[0].Node)
			continue
		}
		var task evidence.Task
		if c.decode(h, scheduled.Input, &task) && task != effects[0].Task {
			c.violated("%v: %+v began; %+v is scheduled", key, effects[0].Task, task)
		}
		for _, effect := range effects {
			if effect.Unseen {
				c.violated("%v began on %s before its schedule was committed", key, effect.Node)
			}
		}
	}
}

func (c *trial) realResults() {
	given := c.given()
	for _, h := range c.histories {
		for _, event := range h.events {
			completed := event.GetActivityCompleted()
			if completed == nil {
				continue
			}
			var done evidence.Done
			if c.decode(h, completed.Result, &done) && !c.came(operation{h.of.id, h.number, event.SourceEventId}, done) && !given[done] {
				c.violated("%v: event %d says %+v, which no attempt came to", h, event.EventId, done)
			}
		}
	}
}

// given are the results that clients have completed activities with, or may have.
func (c *trial) given() map[evidence.Done]bool {
	given := make(map[evidence.Done]bool)
	for _, call := range c.record.Calls {
		if call.Kind != evidence.Complete || call.Outcome == evidence.Refused || call.Outcome == evidence.NotExecuted {
			continue
		}
		var done evidence.Done
		if err := json.Unmarshal(call.Input, &done); err == nil {
			given[done] = true
		}
	}
	return given
}

// came tells whether an attempt has come to a result.
func (c *trial) came(key operation, done evidence.Done) bool {
	for _, effect := range c.effects[key] {
		if effect.Finished && effect.Done == done {
			return true
		}
	}
	return false
}

func (c *trial) attempts() {
	ends := make(map[string]time.Duration)
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Wait && call.Outcome == evidence.Acked {
			ends[call.Instance] = call.End
		}
	}
	disturbed := slices.ContainsFunc(c.record.Quiets, func(q evidence.Quiet) bool { return q.Changes > 0 })
	for key, effects := range c.effects {
		begun := 0
		for _, effect := range effects {
			if effect.Finished {
				continue
			}
			begun++
			if end, ended := ends[key.instance]; ended && effect.At > end+fence {
				c.violated("%v began on %s %v after the end was told", key, effect.Node, effect.At-end)
			}
		}
		if begun > 1 && len(c.record.Faults) == 0 && !disturbed {
			c.violated("%v began %d times, and there was no fault", key, begun)
		}
	}
}

func (c *trial) neverEarly() {
	finished := make(map[string]time.Duration)
	for _, effect := range c.record.Effects {
		if effect.Finished {
			finished[effect.Done.Nonce] = effect.At
		}
	}
	for _, effect := range c.record.Effects {
		if effect.Finished || effect.Task.After == "" {
			continue
		}
		before, ok := finished[effect.Task.After]
		if took := effect.At - before; ok && took < effect.Task.Delay-clockSlack {
			c.violated("%s/%d: a timer of %v fired after %v", effect.Instance, effect.Execution, effect.Task.Delay, took)
		}
	}
}

func (c *trial) terminated() {
	acked := make(map[string]time.Duration)
	for _, call := range c.record.Calls {
		if call.Kind == evidence.Terminate && call.Outcome == evidence.Acked {
			acked[call.Instance] = call.End
			if of := c.instances[call.Instance]; of.exists() && of.state != "terminated" {
				c.violated("%s was terminated at %v and is %s", call.Instance, call.End, of.state)
			}
		}
	}
	for _, effect := range c.record.Effects {
		if at, ok := acked[effect.Instance]; ok && !effect.Finished && effect.At > at+fence {
			c.violated("%s: an activity began %v after the termination was acknowledged", effect.Instance, effect.At-at)
		}
	}
}
