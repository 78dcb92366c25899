package actors

import (
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Place is what a partition has around it. The zero value is that of the only
// one.
type Place struct {
	// Group numbers the partition among those of the cluster, from 0 on.
	Group int
	// Now is the cluster time of the partition. Defaults to Config.Now.
	Now func() clustertime.Time
	// Incarnations reports whether a run that begins gets an incarnation: every
	// replica has to keep it. nil: none does.
	Incarnations func() bool
	// Incarnation returns the incarnation of the run of an instance that begins with an
	// execution: not 0, and larger than those of its earlier runs. nil: it is made of the
	// epoch and a count of starts, whose order nobody controls.
	Incarnation func(instance string, execution uint64) uint64
	// Superseded reports whether an append was refused because this node leads no longer,
	// which the next leader makes up for. nil: none is.
	Superseded func(refusal error) bool
	// AppliedIndex returns the index of the journal up to which its reads show everything.
	// nil: it is not known, and repetitions of what was recorded long ago are not noticed.
	AppliedIndex func() uint64
	// Elsewhere are the other partitions; nil: there are none.
	Elsewhere Elsewhere
}

// Elsewhere is the other partitions as one of them needs them. Its methods may be
// called concurrently.
type Elsewhere interface {
	// Holds tells whether an instance belongs to another partition.
	Holds(instance string) bool
	// Replica returns what this node has of the partition of an instance. It may be
	// behind, but never shows what is not committed.
	Replica(instance string) Replica
	// Send brings a message to the partition of its instance, once. It does not
	// block. done is called once, from any goroutine; with an error it is not known
	// whether the message has arrived.
	Send(c *Crossing, done func(Answer))
	// Started has the journal of this partition forget a chained start, or that of a
	// child to be abandoned, because it was made. done is called once.
	Started(target string, done func(error))
}

// A Replica is the part of a [Journal] that is read of other partitions.
type Replica interface {
	Instance(id string) (*journalpb.Instance, bool)
	Event(instance string, execution, eventID uint64) (*journalpb.Event, error)
	OpenOf(instance string) iter.Seq[*journalpb.Operation]
}

// A Crossing is a message to an instance of another partition: the start of a
// child, a chained start, the end of a child, or what its close policy asks for.
// It is repeated until it is answered without an error, and its receiver takes it
// once.
type Crossing struct {
	Instance  string
	Execution uint64 // that it is meant for; 0: the latest
	// Of the run that it is meant for; with Execution 0, 0 is any run.
	Incarnation uint64
	Event       *journalpb.Event
	Attach      bool
	// It is meant for the child of that operation and for nobody else under its ID;
	// nil: for whoever has the ID.
	ChildOf *journalpb.OperationRef
}

// key tells crossings apart that are on their way into one instance.
func (c *Crossing) key() crossingKey {
	key := crossingKey{instance: c.Instance, incarnation: c.Incarnation, execution: c.Execution, source: c.Event.SourceEventId, arm: c.Event.Arm()}
	if started := c.Event.GetOrchestrationStarted(); started != nil {
		key.request = started.RequestId
		if started.Parent != nil {
			key.parent = keyOf(started.Parent)
		}
	}
	if c.ChildOf != nil {
		key.parent = keyOf(c.ChildOf)
	}
	return key
}

type crossingKey struct {
	instance    string
	incarnation uint64
	execution   uint64
	source      uint64
	arm         int
	request     string
	parent      alarmKey
}

// Receive takes a message from another partition. It does not block. done is
// called once, from any goroutine, unless the same message comes again before it is
// answered: then the answer goes to the latest. How many can wait is bounded by
// what the other partitions have open.
func (p *Partition) Receive(c *Crossing, done func(Answer)) {
	key := c.key()
	p.mu.Lock()
	_, waits := p.received[key]
	if !p.closed {
		p.received[key] = done
	}
	p.mu.Unlock()
	if waits {
		return
	}
	incarnation := c.Incarnation
	if c.ChildOf != nil {
		known, ok := p.journal.Instance(c.Instance)
		switch {
		case !ok:
			p.answerCrossing(key, done, Answer{Err: ErrNotFound}) // its start is on its way
			return
		case !proto.Equal(known.Parent, c.ChildOf):
			p.answerCrossing(key, done, Answer{Dropped: true}) // a stranger
			return
		}
		incarnation = known.Incarnation
	}
	p.Deliver(c.Instance, Message{
		// Of its own: it is numbered here, and the sender may send it again.
		Message: replay.Message{Execution: c.Execution, Incarnation: incarnation, Event: &journalpb.Event{
			SourceEventId: c.Event.SourceEventId, Body: c.Event.Body,
		}},
		Attach:   c.Attach,
		Internal: true,
		Done:     func(a Answer) { p.answerCrossing(key, done, p.withMet(c, a)) },
	})
}

// withMet adds whom a start has met, and how that has ended.
func (p *Partition) withMet(c *Crossing, a Answer) Answer {
	if a.Err != nil || !a.Dropped || c.Event.GetOrchestrationStarted() == nil {
		return a
	}
	known, ok := p.journal.Instance(c.Instance)
	if !ok {
		return Answer{Err: ErrNotFound} // it was purged in this moment: it is asked for again
	}
	a.Instance = known
	if known.Status != journalpb.Status_STATUS_RUNNING {
		var err error
		if a.End, err = p.journal.Event(known.Instance, known.Execution, known.LastEventId); err != nil {
			return Answer{Err: err}
		}
	}
	return a
}

// answerCrossing answers whoever waits for it now, or first if nobody else does.
func (p *Partition) answerCrossing(key crossingKey, first func(Answer), a Answer) {
	p.mu.Lock()
	done, ok := p.received[key]
	delete(p.received, key)
	p.mu.Unlock()
	if !ok {
		done = first
	}
	done(a)
}

// elsewhere tells whether an instance belongs to another partition.
func (p *Partition) elsewhere(instance string) bool {
	return p.place.Elsewhere != nil && p.place.Elsewhere.Holds(instance)
}

// replica returns what can be read of an instance here: of one of this partition
// everything.
func (p *Partition) replica(instance string) Replica {
	if p.elsewhere(instance) {
		return p.place.Elsewhere.Replica(instance)
	}
	return p.journal
}

// givenUp tells whether it is certain that a parent in another partition does not
// wait for a child any more. What the replica has not heard of yet is not.
func givenUp(r Replica, parent *journalpb.OperationRef) bool {
	known, ok := r.Instance(parent.Instance)
	switch {
	case !ok, known.Incarnation < parent.Incarnation:
		return false
	case known.Incarnation > parent.Incarnation:
		return true // later runs have larger ones
	case known.Execution != parent.Execution:
		return known.Execution > parent.Execution
	}
	for open := range r.OpenOf(parent.Instance) {
		if proto.Equal(open.Ref, parent) {
			return false
		}
	}
	return known.LastEventId >= parent.EventId
}

// cross sends a message to an instance of another partition, until it is taken.
func (p *Partition) cross(c *Crossing, done func(Answer), pause time.Duration) {
	p.place.Elsewhere.Send(c, func(a Answer) {
		switch {
		case a.Err == nil && done != nil:
			done(a)
		case a.Err != nil && p.context.Err() == nil:
			p.clock.after(pause, func() { p.cross(c, done, growing(pause)) })
		}
	})
}

// reviewChild looks whether a child of another partition that was just begun was
// given up meanwhile: whoever gave it up may have been lost before it could say so.
func (p *Partition) reviewChild(instance string, parent *journalpb.OperationRef) {
	if parent == nil || !p.elsewhere(parent.Instance) {
		return
	}
	if known, ok := p.journal.Instance(instance); ok && proto.Equal(known.Parent, parent) {
		p.closeOrphan(known)
	}
}

// Review goes through what this partition shares with others, those for whose
// instances concerns returns true, when another node has begun to lead them: what
// the one before had to say, and did not come to, is in their journals. This node's
// replicas have to show the beginning of that reign, and so all before it. Here are
// running children whose parents have given them up, and parents that wait for
// children which have ended. Everything else is repeated by the partition that it
// concerns.
func (p *Partition) Review(concerns func(instance string) bool) {
	for child := range p.journal.Orphans() {
		if p.context.Err() != nil {
			return
		}
		if p.elsewhere(child.Parent.Instance) && concerns(child.Parent.Instance) {
			p.closeOrphan(child)
		}
	}
	for open := range p.journal.Open() {
		if p.context.Err() != nil {
			return
		}
		if int(open.Kind) == journalpb.ArmSubOrchestrationScheduled && p.elsewhere(open.Child) && concerns(open.Child) {
			p.reviewOpen(open)
		}
	}
}

// reviewOpen looks whether a child of another partition has ended.
func (p *Partition) reviewOpen(open *journalpb.Operation) {
	known, ok := p.replica(open.Child).Instance(open.Child)
	if ok && known.Status != journalpb.Status_STATUS_RUNNING && proto.Equal(known.Parent, open.Ref) {
		p.meetChild(open.Ref, nil, known, nil)
	}
}
