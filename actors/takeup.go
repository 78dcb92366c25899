package actors

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// opening is what is known while the journal's open operations are taken up,
// beside the messages that come in meanwhile. An instance takes no turn before
// its own operations are: it could give up what is still to be taken up, or begin
// what would then be taken up a second time. One that has messages is taken up
// before its turn comes. The partition's lock guards it.
type opening struct {
	cursor  string          // instances before it are taken up, in the order of IDs
	early   map[string]bool // and these
	waiting []*instance     // have messages, and are not
	// What is to be done when an instance is taken up.
	postponed map[string][]func()
}

// knows tells whether what is open of an instance is taken up. Without an opening
// everything is.
func (o *opening) knows(id string) bool { return o == nil || id < o.cursor || o.early[id] }

// postpone has something done when what is open of an instance is taken up, or the
// partition is closed, unless it is taken up already. There is no more of that than
// there are calls of clients, and places of workers.
func (p *Partition) postpone(id string, f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.opening.knows(id) {
		return false
	}
	if p.opening.postponed == nil {
		p.opening.postponed = make(map[string][]func())
	}
	p.opening.postponed[id] = append(p.opening.postponed[id], f)
	return true
}

// carryOut does what was postponed until an instance is taken up.
func (p *Partition) carryOut(id string) {
	p.mu.Lock()
	due := p.opening.postponed[id]
	delete(p.opening.postponed, id)
	p.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// takeUpRest lets out the effects of what the journal has open beside operations:
// what the node before had begun, or had not come to. It only leaves messages, and so
// may be done while others come; looking for orphans costs as much as there are
// children that run.
func (p *Partition) takeUpRest() {
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

// takeUp takes up the open operations of all instances, until the partition is
// closed.
func (p *Partition) takeUp() {
	defer p.open()
	began, operations := time.Now(), 0
	current, done := "", false
	var ops []*journalpb.Operation // of the current instance
	for open := range p.journal.Open() {
		if p.context.Err() != nil {
			return
		}
		operations++
		if open.Ref.Instance != current {
			p.takeUpOperations(ops)
			ops = ops[:0]
			current = open.Ref.Instance
			done = p.advance(current)
		}
		if !done {
			ops = append(ops, open)
		}
	}
	p.takeUpOperations(ops)
	p.logger.Info("open operations taken up", "operations", operations, "took", time.Since(began))
}

// advance notes that every instance before the next is taken up, takes up those
// that have messages, and tells whether the next is among them.
func (p *Partition) advance(next string) (done bool) {
	p.mu.Lock()
	o := p.opening
	last := o.cursor
	o.cursor = next
	waiting := o.waiting
	o.waiting = nil
	p.mu.Unlock()
	p.carryOut(last) // those without anything open are left to the end
	for _, in := range waiting {
		if in.id >= next {
			p.takeUpOperations(slices.Collect(p.journal.OpenOf(in.id)))
		}
		p.mu.Lock()
		if in.id >= next {
			o.early[in.id] = true
		}
		p.tell(in, wakeUp{})
		p.mu.Unlock()
		p.carryOut(in.id)
	}
	return o.early[next] // only this goroutine writes it
}

// open ends the opening, also when the partition is closed first: then nobody is
// woken.
func (p *Partition) open() {
	p.mu.Lock()
	o := p.opening
	if p.context.Err() == nil {
		for _, in := range o.waiting {
			p.tell(in, wakeUp{})
		}
	}
	p.opening = nil
	p.mu.Unlock()
	for _, due := range o.postponed {
		for _, f := range due {
			f()
		}
	}
}

// takeUpOperations takes up what one instance has open. Of timers that came due
// while nobody led, the one that was due first fires first.
func (p *Partition) takeUpOperations(ops []*journalpb.Operation) {
	slices.SortStableFunc(ops, func(a, b *journalpb.Operation) int { return cmp.Compare(a.FireAt, b.FireAt) })
	for _, open := range ops {
		p.takeUpOperation(open)
	}
}

func (p *Partition) takeUpOperation(open *journalpb.Operation) {
	switch int(open.Kind) {
	case journalpb.ArmTimerCreated:
		p.armTimer(open.Ref, open.FireAt)
	case journalpb.ArmActivityScheduled, journalpb.ArmSubOrchestrationScheduled:
		event, err := p.journal.Event(open.Ref.Instance, open.Ref.Execution, open.Ref.EventId)
		if err != nil {
			p.logger.Error("take up operation", "instance", open.Ref.Instance, "execution", open.Ref.Execution, "event_id", open.Ref.EventId, "error", err)
			return
		}
		if event.GetActivityScheduled() != nil {
			t := p.newTask(open.Ref.Instance, open.Ref.Incarnation, open.Ref.Execution, event)
			t.earlier = true
			p.system.activities.submit(t, open.Attempt)
		} else {
			p.takeUpChild(open.Ref, event.GetSubOrchestrationScheduled())
		}
	}
}
