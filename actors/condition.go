package actors

import (
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// conditionOf returns what is recorded of an instance that stalls for a reason: nil if
// that is one of this node alone, which has no code for it.
func conditionOf(reason error) *journalpb.Condition {
	var mismatch *replay.Mismatch
	if !errors.As(reason, &mismatch) {
		return nil
	}
	shown := mismatch.WithoutPayloads()
	return &journalpb.Condition{
		Kind: journalpb.ConditionKind_CONDITION_KIND_STALLED, Mismatch: string(shown.Kind), EventId: shown.EventID,
		Expected: shown.Expected, Found: shown.Found, Source: shown.Source,
	}
}

// recordCondition has the journal keep why an instance does not go on, so that every node
// shows it and a new leader knows of it; nil: nothing holds it up. It is repeated until it
// is taken, or is no longer so.
func (p *Partition) recordCondition(known *journalpb.Instance, condition *journalpb.Condition) {
	p.proposeCondition(&journalpb.SetCondition{
		Instance: known.Instance, Epoch: p.epoch, Incarnation: known.Incarnation,
		Execution: known.Execution, LastEventId: known.LastEventId, Condition: condition,
	}, repeatFirst)
}

func (p *Partition) proposeCondition(c *journalpb.SetCondition, pause time.Duration) {
	p.journal.SetCondition(c, func(err error) {
		if err == nil || p.context.Err() != nil {
			return
		}
		p.clock.after(pause, func() {
			known, ok := p.journal.Instance(c.Instance)
			if ok && known.Incarnation == c.Incarnation && known.Execution == c.Execution && known.LastEventId == c.LastEventId && (c.Condition != nil) == (p.Stalled(c.Instance) != nil) {
				p.proposeCondition(c, growing(pause))
			}
		})
	})
}

// retryHeld has the instances try again that did not go on under a leader before: their
// code may be another one here. One after the other, for half of the time at most, so that
// however many there are they do not keep others waiting. One that stalls again leaves
// memory.
func (p *Partition) retryHeld() {
	for known := range p.journal.Held() {
		began, answered := time.Now(), make(chan struct{})
		if !p.retry(known.Instance, func(Answer) { close(answered) }) {
			continue
		}
		select {
		case <-answered:
		case <-p.context.Done():
			return
		}
		rest := time.NewTimer(time.Since(began))
		select {
		case <-rest.C:
		case <-p.context.Done():
			rest.Stop()
			return
		}
	}
}

// Retry has an instance that is stalled try again; it does nothing to any other.
func (p *Partition) Retry(id string) { p.retry(id, nil) }

// retry reports whether done will be called when the instance has tried: it was not in
// memory, and has a condition.
func (p *Partition) retry(id string, done func(Answer)) bool {
	p.mu.Lock()
	in := p.instances[id]
	if in != nil && in.stalled != nil {
		p.setStalled(in, nil)
		p.tell(in, wakeUp{})
	}
	p.mu.Unlock()
	if in != nil {
		return false
	}
	if known, ok := p.journal.Instance(id); !ok || known.Condition == nil {
		return false
	}
	p.Deliver(id, Message{Message: replay.Message{Event: new(journalpb.Event)}, Internal: true, Retry: true, Done: done})
	return true
}

// answerRetries answers the messages of a batch that did no more than to try, and returns
// the others.
func answerRetries(batch []Message, reason error) (others []Message) {
	for _, m := range batch {
		if m.Retry {
			m.answer(Answer{Err: reason})
			continue
		}
		others = append(others, m)
	}
	return others
}
