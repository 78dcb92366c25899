package actors

import (
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
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

// recordCondition records why an instance does not continue, so that every node can show it and a
// new leader knows it; nil removes the condition. The proposal is repeated until it is committed or
// no longer true.
func (p *Partition) recordCondition(meta *journalpb.Instance, condition *journalpb.Condition) {
	p.proposeCondition(&journalpb.SetCondition{
		Instance: meta.Instance, Epoch: p.epoch, Incarnation: meta.Incarnation,
		Execution: meta.Execution, LastEventId: meta.LastEventId, Condition: condition,
	}, sched.BackoffMin)
}

func (p *Partition) proposeCondition(c *journalpb.SetCondition, delay time.Duration) {
	p.journal.SetCondition(c, func(err error) {
		if err == nil || p.context.Err() != nil {
			return
		}
		p.timers.ScheduleAfter(delay, func() {
			meta, ok := p.journal.Instance(c.Instance)
			if ok && meta.Incarnation == c.Incarnation && meta.Execution == c.Execution && meta.LastEventId == c.LastEventId && (c.Condition != nil) == (p.StallReason(c.Instance) != nil) {
				p.proposeCondition(c, sched.NextBackoff(delay))
			}
		})
	})
}

// retryStalled retries instances that stalled under an earlier leader, because this node's code
// may differ. It retries one at a time, and pauses as long as each retry took, so that many retries
// do not delay other instances. An instance that stalls again is evicted.
func (p *Partition) retryStalled() {
	for meta := range p.journal.WithCondition() {
		start, done := time.Now(), make(chan struct{})
		if !p.retryRecorded(meta.Instance, func(Answer) { close(done) }) {
			continue
		}
		select {
		case <-done:
		case <-p.context.Done():
			return
		}
		cooldown := time.NewTimer(time.Since(start))
		select {
		case <-cooldown.C:
		case <-p.context.Done():
			cooldown.Stop()
			return
		}
	}
}

// Retry makes a stalled instance try again. It has no effect on an instance that is not stalled.
func (p *Partition) Retry(id string) {
	p.mu.Lock()
	in := p.instances[id]
	if in != nil && in.stallReason != nil {
		p.setStalled(in, nil)
		p.send(in, wakeUp{})
	}
	p.mu.Unlock()
	if in == nil {
		p.retryRecorded(id, nil)
	}
}

// retryRecorded makes an instance with a recorded condition try again. It does nothing if the
// instance is in memory, because then the instance has run in this epoch. It reports whether done
// will be called.
func (p *Partition) retryRecorded(id string, done func(Answer)) bool {
	p.mu.Lock()
	resident := p.instances[id] != nil
	p.mu.Unlock()
	if resident {
		return false
	}
	if meta, ok := p.journal.Instance(id); !ok || meta.Condition == nil {
		return false
	}
	p.Deliver(id, Message{Message: replay.Message{Event: new(journalpb.Event)}, Internal: true, Retry: true, Done: done})
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
