package actors

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// recovery is the progress of recovering the journal's open operations while messages arrive. An
// instance takes no turn before its operations are recovered. Otherwise the turn could cancel an
// operation that is not recovered, or schedule one that would be recovered a second time. Instances
// with waiting messages are recovered first. The partition's lock guards it.
type recovery struct {
	cursor         string          // instances with smaller IDs are recovered
	recoveredEarly map[string]bool // instances recovered ahead of the cursor
	waiting        []*instance     // have messages and are not recovered
	// Functions to call after an instance is recovered.
	deferred map[string][]func()
}

// isRecovered reports whether the operations of an instance are recovered. A nil recovery has
// ended.
func (o *recovery) isRecovered(id string) bool {
	return o == nil || id < o.cursor || o.recoveredEarly[id]
}

// deferUntilRecovered calls f after the operations of an instance are recovered, or the partition
// is closed. It reports false, without calling f, if they are already recovered. Client calls and
// worker slots bound the number of deferred functions.
func (p *Partition) deferUntilRecovered(id string, f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recovery.isRecovered(id) {
		return false
	}
	if p.recovery.deferred == nil {
		p.recovery.deferred = make(map[string][]func())
	}
	p.recovery.deferred[id] = append(p.recovery.deferred[id], f)
	return true
}

func (p *Partition) runDeferred(id string) {
	p.mu.Lock()
	due := p.recovery.deferred[id]
	delete(p.recovery.deferred, id)
	p.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// recoverRest recovers what the journal has open beside operations: executions that have not
// begun, orphans, and chained starts. It only delivers messages, so it may run while others
// arrive. Its cost grows with the number of running children.
func (p *Partition) recoverRest() {
	for instance := range p.journal.Unbegun() {
		if p.context.Err() != nil {
			return
		}
		p.nudge(instance.Instance)
	}
	for orphan := range p.journal.Orphans() {
		if p.context.Err() != nil {
			return
		}
		p.closeOrphan(orphan)
	}
	for start := range p.journal.Chained() {
		if p.context.Err() != nil {
			return
		}
		if start.Child != nil {
			p.startChild(start.Ref, start.Child)
		} else {
			p.startChained(start.Ref, start.Chained)
		}
	}
}

// recoverOperations recovers the open operations of all instances, until the partition is closed.
func (p *Partition) recoverOperations() {
	defer p.endRecovery()
	start, operations := time.Now(), 0
	current, done := "", false
	var ops []*journalpb.Operation // of the current instance
	for open := range p.journal.OpenOperations() {
		if p.context.Err() != nil {
			return
		}
		operations++
		if open.Ref.Instance != current {
			p.recoverInstance(ops)
			ops = ops[:0]
			current = open.Ref.Instance
			done = p.advanceRecovery(current)
		}
		if !done {
			ops = append(ops, open)
		}
	}
	p.recoverInstance(ops)
	p.logger.Info("open operations recovered", "operations", operations, "took", time.Since(start))
}

// advanceRecovery moves the cursor to next and recovers instances that have messages. It reports
// whether next is recovered.
func (p *Partition) advanceRecovery(next string) (done bool) {
	p.mu.Lock()
	o := p.recovery
	last := o.cursor
	o.cursor = next
	waiting := o.waiting
	o.waiting = nil
	p.mu.Unlock()
	p.runDeferred(last) // endRecovery runs those of instances without open operations
	for _, in := range waiting {
		if in.id >= next {
			p.recoverInstance(slices.Collect(p.journal.InstanceOperations(in.id)))
		}
		p.mu.Lock()
		if in.id >= next {
			o.recoveredEarly[in.id] = true
		}
		p.send(in, wakeUp{})
		p.mu.Unlock()
		p.runDeferred(in.id)
	}
	return o.recoveredEarly[next] // only this goroutine writes it
}

// endRecovery ends the recovery, and calls the functions still deferred. It wakes the waiting
// instances unless the partition was closed first.
func (p *Partition) endRecovery() {
	p.mu.Lock()
	o := p.recovery
	if p.context.Err() == nil {
		for _, in := range o.waiting {
			p.send(in, wakeUp{})
		}
	}
	p.recovery = nil
	p.mu.Unlock()
	for _, due := range o.deferred {
		for _, f := range due {
			f()
		}
	}
}

// recoverInstance recovers the open operations of one instance. Timers that came due without a
// leader fire in the order of their due times.
func (p *Partition) recoverInstance(ops []*journalpb.Operation) {
	slices.SortStableFunc(ops, func(a, b *journalpb.Operation) int { return cmp.Compare(a.FireAt, b.FireAt) })
	for _, open := range ops {
		p.recoverOperation(open)
	}
}

func (p *Partition) recoverOperation(open *journalpb.Operation) {
	switch int(open.Kind) {
	case journalpb.TypeTimerCreated:
		p.scheduleTimer(open.Ref, open.FireAt)
	case journalpb.TypeActivityScheduled, journalpb.TypeSubOrchestrationScheduled:
		event, err := p.journal.Event(open.Ref.Instance, open.Ref.Execution, open.Ref.EventId)
		if err != nil {
			p.logger.Error("cannot recover operation", "instance", open.Ref.Instance, "execution", open.Ref.Execution, "event_id", open.Ref.EventId, "error", err)
			return
		}
		if event.GetActivityScheduled() != nil {
			p.activities.Recover(open.Ref, event, open.Attempt)
		} else {
			p.recoverChild(open.Ref, event.GetSubOrchestrationScheduled())
		}
	}
}
