package actors

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// conditionOf returns the condition to record for an instance that stalls for a reason; nil for
// other reasons than a mismatch or missing code.
func conditionOf(reason error) *journalpb.Condition {
	var mismatch *replay.Mismatch
	var noCode *replay.NotRegisteredError
	switch {
	case errors.As(reason, &mismatch):
	case errors.As(reason, &noCode):
		return &journalpb.Condition{Kind: journalpb.ConditionKind_CONDITION_KIND_WAITING_FOR_CODE}
	default:
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
	hasCode   func(name, version string) bool // whether this node has code for an orchestration
	// retryWait bounds how long retryStalled waits for one instance, whose code may be blocked.
	retryWait time.Duration

	hungMu sync.Mutex // orders the proposals of recordHung and clearHung
}

// conditionInstances are the instances of the partition.
type conditionInstances interface {
	deliverer
	// LiveState returns whether the code of an instance is blocked, and why it cannot continue; nil
	// if it can.
	LiveState(id string) (hung bool, stallReason error)
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
			if c.isCurrent(set) {
				c.propose(set, sched.NextBackoff(delay))
			}
		})
	})
}

// isCurrent reports whether a condition that was not recorded still holds.
func (c *conditions) isCurrent(set *journalpb.SetCondition) bool {
	meta, ok := c.journal.Instance(set.Instance)
	if !ok || meta.Status != journalpb.Status_STATUS_RUNNING || meta.Incarnation != set.Incarnation ||
		meta.Execution != set.Execution || meta.LastEventId != set.LastEventId {
		return false
	}
	hung, stallReason := c.instances.LiveState(set.Instance)
	switch set.Condition.GetKind() {
	case journalpb.ConditionKind_CONDITION_KIND_UNSPECIFIED:
		return !hung && stallReason == nil
	case journalpb.ConditionKind_CONDITION_KIND_HUNG:
		return hung
	}
	return stallReason != nil
}

// recordHung records that the code of an instance is blocked, unless it has returned meanwhile.
func (c *conditions) recordHung(id string) {
	c.hungMu.Lock()
	defer c.hungMu.Unlock()
	meta, ok := c.journal.Instance(id)
	if hung, _ := c.instances.LiveState(id); hung && ok && meta.Status == journalpb.Status_STATUS_RUNNING {
		c.record(meta, &journalpb.Condition{Kind: journalpb.ConditionKind_CONDITION_KIND_HUNG})
	}
}

// clearHung removes the condition of an instance whose blocked code has returned.
func (c *conditions) clearHung(id string) {
	c.hungMu.Lock()
	defer c.hungMu.Unlock()
	if meta, ok := c.journal.Instance(id); ok && meta.Status == journalpb.Status_STATUS_RUNNING {
		c.record(meta, nil)
	}
}

// retryStalled retries instances that have a condition of an earlier leader, because this node's
// code may differ. It retries one at a time, and pauses as long as each retry took, so that many
// retries do not delay other instances. An instance that stalls again is evicted. It does not wait
// for an instance whose code blocks again. An instance that waited for code is not run: it has its
// input again after recovery.
func (c *conditions) retryStalled() {
	for meta := range c.journal.WithCondition() {
		if meta.Condition.GetKind() == journalpb.ConditionKind_CONDITION_KIND_WAITING_FOR_CODE {
			// An instance in memory has run in this epoch, and records its own condition.
			if c.hasCode(meta.Name, meta.Version) && !c.instances.isResident(meta.Instance) && !c.removeRecorded(meta) {
				return
			}
			continue
		}
		start, done := time.Now(), make(chan struct{})
		if !c.retryRecorded(meta.Instance, func(Answer) { close(done) }) {
			continue
		}
		limit := time.NewTimer(c.retryWait)
		select {
		case <-done:
		case <-limit.C:
		case <-c.context.Done():
			limit.Stop()
			return
		}
		limit.Stop()
		cooldown := time.NewTimer(time.Since(start))
		select {
		case <-cooldown.C:
		case <-c.context.Done():
			cooldown.Stop()
			return
		}
	}
}

// removeRecorded removes the condition of an instance that waited for code which this node has, and
// waits until that is decided. The instance runs when it has input. It returns false if the
// leadership ends first.
func (c *conditions) removeRecorded(meta *journalpb.Instance) (goOn bool) {
	done := make(chan struct{})
	c.journal.SetCondition(&journalpb.SetCondition{
		Instance: meta.Instance, Epoch: c.epoch, Incarnation: meta.Incarnation,
		Execution: meta.Execution, LastEventId: meta.LastEventId,
	}, func(error) { close(done) })
	select {
	case <-done:
		return true
	case <-c.context.Done():
		return false
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
