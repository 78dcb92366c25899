package actors

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// conditionOf returns the condition to record for an instance that stalls for a reason. It is nil
// for missing code, which concerns this node only.
func conditionOf(reason error) *journalpb.Condition {
	var mismatch *replay.Mismatch
	if !errors.As(reason, &mismatch) {
		return nil
	}
	redacted := mismatch.WithoutPayloads()
	return &journalpb.Condition{
		Kind: journalpb.ConditionKind_CONDITION_KIND_STALLED, Mismatch: string(redacted.Kind), EventId: redacted.EventID,
		Expected: redacted.Expected, Found: redacted.Found, Source: redacted.Source,
	}
}

// conditions records why instances do not continue, and retries those that stalled under an earlier
// leader.
type conditions struct {
	context   context.Context // of the partition
	journal   Journal
	epoch     uint64
	timers    *timerActor
	instances conditionInstances
}

// conditionInstances are the instances of the partition.
type conditionInstances interface {
	deliverer
	// StallReason returns why an instance cannot continue; nil if it can.
	StallReason(id string) error
	// isResident reports whether an instance has an actor.
	isResident(id string) bool
}

// record records why an instance does not continue, so that every node can show it and a new leader
// retries the instance; nil removes the condition. The proposal is repeated until it is committed
// or no longer true.
func (c *conditions) record(meta *journalpb.Instance, condition *journalpb.Condition) {
	c.propose(&journalpb.SetCondition{
		Instance: meta.Instance, Epoch: c.epoch, Incarnation: meta.Incarnation,
		Execution: meta.Execution, LastEventId: meta.LastEventId, Condition: condition,
	}, sched.BackoffMin)
}

func (c *conditions) propose(set *journalpb.SetCondition, delay time.Duration) {
	c.journal.SetCondition(set, func(err error) {
		if err == nil || c.context.Err() != nil {
			return
		}
		c.timers.ScheduleAfter(delay, func() {
			meta, ok := c.journal.Instance(set.Instance)
			if ok && meta.Incarnation == set.Incarnation && meta.Execution == set.Execution && meta.LastEventId == set.LastEventId && (set.Condition != nil) == (c.instances.StallReason(set.Instance) != nil) {
				c.propose(set, sched.NextBackoff(delay))
			}
		})
	})
}

// retryStalled retries instances that stalled under an earlier leader, because this node's code
// may differ. It retries one at a time, and pauses as long as each retry took, so that many retries
// do not delay other instances. An instance that stalls again is evicted.
func (c *conditions) retryStalled() {
	for meta := range c.journal.WithCondition() {
		start, done := time.Now(), make(chan struct{})
		if !c.retryRecorded(meta.Instance, func(Answer) { close(done) }) {
			continue
		}
		select {
		case <-done:
		case <-c.context.Done():
			return
		}
		cooldown := time.NewTimer(time.Since(start))
		select {
		case <-cooldown.C:
		case <-c.context.Done():
			cooldown.Stop()
			return
		}
	}
}

// retryRecorded makes an instance with a recorded condition try again. It does nothing if the
// instance is in memory, because then the instance has run in this epoch. It reports whether done
// will be called.
func (c *conditions) retryRecorded(id string, done func(Answer)) bool {
	if c.instances.isResident(id) {
		return false
	}
	if meta, ok := c.journal.Instance(id); !ok || meta.Condition == nil {
		return false
	}
	c.instances.Deliver(id, Message{Message: engine.Message{Event: new(journalpb.Event)}, Internal: true, Retry: true, Done: done})
	return true
}

// resolveRetries answers the retry messages of a batch, and returns the others.
func resolveRetries(batch []Message, reason error) (others []Message) {
	for _, m := range batch {
		if m.Retry {
			m.resolve(Answer{Err: reason})
			continue
		}
		others = append(others, m)
	}
	return others
}
