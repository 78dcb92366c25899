package actors

import (
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A PartitionConfig configures one of several partitions. The zero value is for a single partition.
type PartitionConfig struct {
	// Partition is the number of the partition, counted from 0.
	Partition int
	// Now returns the cluster time of the partition. Defaults to Config.Now.
	Now func() clustertime.Time
	// HasIncarnations reports whether new runs get an incarnation. It must be false unless every
	// replica keeps incarnations. nil means false.
	HasIncarnations func() bool
	// NewIncarnation returns the incarnation of a run that begins with that execution: not 0, and
	// larger than those of the instance's earlier runs. By default it is made of the epoch and the
	// number of runs started in it; then nothing checks the order.
	NewIncarnation func(instance string, execution uint64) uint64
	// IsSuperseded reports whether an append was refused because this node no longer leads; the
	// next leader then does the work. nil means that no append is refused for that reason.
	IsSuperseded func(refusal error) bool
	// AppliedIndex returns the journal index up to which reads show everything. nil means that it
	// is unknown, and that repetitions of long-recorded messages are not detected.
	AppliedIndex func() uint64
	// OtherPartitions gives access to the other partitions; nil means that there are none.
	OtherPartitions OtherPartitions
}

// OtherPartitions is one partition's access to all others. Its methods may be called concurrently.
type OtherPartitions interface {
	// Owns reports whether an instance belongs to another partition.
	Owns(instance string) bool
	// Replica returns this node's replica of an instance's partition. It may lag, but it shows
	// only committed data.
	Replica(instance string) Replica
	// Send sends a message once to the partition of its instance. It does not block. done is
	// called once, from any goroutine. After an error it is unknown whether the message arrived.
	Send(c *CrossMessage, done func(Answer))
	// ForgetChainedStart removes a start from this partition's journal after the start was made:
	// a chained start, or the start of a child to be abandoned. done is called once.
	ForgetChainedStart(target string, done func(error))
}

// A Replica is the part of a [Journal] that other partitions read.
type Replica interface {
	Instance(id string) (*journalpb.Instance, bool)
	Event(instance string, execution, eventID uint64) (*journalpb.Event, error)
	InstanceOperations(instance string) iter.Seq[*journalpb.Operation]
}

// A CrossMessage is a message to an instance of another partition: the start of a child, a chained
// start, the end of a child, or what its close policy asks for. It is repeated until it is
// answered without an error, and recorded once.
type CrossMessage struct {
	Instance  string
	Execution uint64 // the execution that it is meant for; 0: the latest
	// Incarnation is the run that it is meant for; with Execution 0, 0 means any run.
	Incarnation uint64
	Event       *journalpb.Event
	Attach      bool
	// ChildOf restricts the message to the child of that operation; nil means any instance with
	// the ID.
	ChildOf *journalpb.OperationRef
}

// key identifies a message among those in flight to one instance.
func (c *CrossMessage) key() crossMessageKey {
	key := crossMessageKey{instance: c.Instance, incarnation: c.Incarnation, execution: c.Execution, sourceEventID: c.Event.SourceEventId, eventType: c.Event.TypeNumber()}
	if started := c.Event.GetOrchestrationStarted(); started != nil {
		key.requestID = started.RequestId
		if started.Parent != nil {
			key.parent = operation.KeyOf(started.Parent)
		}
	}
	if c.ChildOf != nil {
		key.parent = operation.KeyOf(c.ChildOf)
	}
	return key
}

type crossMessageKey struct {
	instance      string
	incarnation   uint64
	execution     uint64
	sourceEventID uint64
	eventType     int
	requestID     string
	parent        operation.Key
}

// Receive takes a message from another partition. It does not block. done is called once, from any
// goroutine. If the same message arrives again before the answer, the answer goes to the latest
// done only. The open operations of the other partitions bound how many messages wait.
func (p *Partition) Receive(c *CrossMessage, done func(Answer)) {
	key := c.key()
	p.mu.Lock()
	_, waits := p.pendingReceives[key]
	if !p.closed {
		p.pendingReceives[key] = done
	}
	p.mu.Unlock()
	if waits {
		return
	}
	incarnation := c.Incarnation
	if c.ChildOf != nil {
		meta, ok := p.journal.Instance(c.Instance)
		switch {
		case !ok:
			p.resolveCrossMessage(key, done, Answer{Err: ErrNotFound}) // its start is in flight
			return
		case !proto.Equal(meta.Parent, c.ChildOf):
			p.resolveCrossMessage(key, done, Answer{Dropped: true}) // an unrelated instance
			return
		}
		incarnation = meta.Incarnation
	}
	p.Deliver(c.Instance, Message{
		// A copy: the event is numbered here, and the sender may send the original again.
		Message: replay.Message{Execution: c.Execution, Incarnation: incarnation, Event: &journalpb.Event{
			SourceEventId: c.Event.SourceEventId, Body: c.Event.Body,
		}},
		Attach:   c.Attach,
		Internal: true,
		Done:     func(a Answer) { p.resolveCrossMessage(key, done, p.withExistingInstance(c, a)) },
	})
}

// withExistingInstance adds the existing instance, and its last event if it has ended, to the
// answer to a start.
func (p *Partition) withExistingInstance(c *CrossMessage, a Answer) Answer {
	if a.Err != nil || !a.Dropped || c.Event.GetOrchestrationStarted() == nil {
		return a
	}
	meta, ok := p.journal.Instance(c.Instance)
	if !ok {
		return Answer{Err: ErrNotFound} // it was just purged; the sender repeats the start
	}
	a.Instance = meta
	if meta.Status != journalpb.Status_STATUS_RUNNING {
		var err error
		if a.LastEvent, err = p.journal.Event(meta.Instance, meta.Execution, meta.LastEventId); err != nil {
			return Answer{Err: err}
		}
	}
	return a
}

// resolveCrossMessage passes an answer to the latest callback for its message, or to first if
// there is none.
func (p *Partition) resolveCrossMessage(key crossMessageKey, first func(Answer), a Answer) {
	p.mu.Lock()
	done, ok := p.pendingReceives[key]
	delete(p.pendingReceives, key)
	p.mu.Unlock()
	if !ok {
		done = first
	}
	done(a)
}

// isInOtherPartition reports whether an instance belongs to another partition.
func (p *Partition) isInOtherPartition(instance string) bool {
	return p.config.OtherPartitions != nil && p.config.OtherPartitions.Owns(instance)
}

// replica returns what this node can read of an instance. For this partition it is the journal.
func (p *Partition) replica(instance string) Replica {
	if p.isInOtherPartition(instance) {
		return p.config.OtherPartitions.Replica(instance)
	}
	return p.journal
}

// isChildAbandoned reports whether it is certain that a parent in another partition no longer
// waits for a child. The replica may lag behind the parent.
func isChildAbandoned(r Replica, parent *journalpb.OperationRef) bool {
	meta, ok := r.Instance(parent.Instance)
	switch {
	case !ok, meta.Incarnation < parent.Incarnation:
		return false
	case meta.Incarnation > parent.Incarnation:
		return true // later runs have larger incarnations
	case meta.Execution != parent.Execution:
		return meta.Execution > parent.Execution
	}
	for open := range r.InstanceOperations(parent.Instance) {
		if proto.Equal(open.Ref, parent) {
			return false
		}
	}
	return meta.LastEventId >= parent.EventId
}

// sendReliably sends a message to an instance of another partition until it is answered without an
// error.
func (p *Partition) sendReliably(c *CrossMessage, done func(Answer), delay time.Duration) {
	p.config.OtherPartitions.Send(c, func(a Answer) {
		switch {
		case a.Err == nil && done != nil:
			done(a)
		case a.Err != nil && p.context.Err() == nil:
			p.timers.ScheduleAfter(delay, func() { p.sendReliably(c, done, sched.NextBackoff(delay)) })
		}
	})
}

// closeIfOrphaned applies the close policy of a new child if its parent is in another partition and has
// canceled it meanwhile. The parent's leader may have failed before it sent the cancellation.
func (p *Partition) closeIfOrphaned(instance string, parent *journalpb.OperationRef) {
	if parent == nil || !p.isInOtherPartition(parent.Instance) {
		return
	}
	if meta, ok := p.journal.Instance(instance); ok && proto.Equal(meta.Parent, parent) {
		p.closeOrphan(meta)
	}
}

// ResendAfterFailover is called when another node has become leader of other partitions. concerns reports
// whether an instance belongs to one of them. Review sends what the previous leader may not have
// sent: cancellations to running children whose parents no longer wait, and ends of children to
// waiting parents. This node's replicas must already show the beginning of the new leadership. The
// senders of all other messages repeat them.
func (p *Partition) ResendAfterFailover(isAffected func(instance string) bool) {
	for child := range p.journal.Orphans() {
		if p.context.Err() != nil {
			return
		}
		if p.isInOtherPartition(child.Parent.Instance) && isAffected(child.Parent.Instance) {
			p.closeOrphan(child)
		}
	}
	for open := range p.journal.OpenOperations() {
		if p.context.Err() != nil {
			return
		}
		if int(open.Kind) == journalpb.TypeSubOrchestrationScheduled && p.isInOtherPartition(open.Child) && isAffected(open.Child) {
			p.reportEndedChild(open)
		}
	}
}

// reportEndedChild reports the end of a child of another partition if it has ended.
func (p *Partition) reportEndedChild(open *journalpb.Operation) {
	meta, ok := p.replica(open.Child).Instance(open.Child)
	if ok && meta.Status != journalpb.Status_STATUS_RUNNING && proto.Equal(meta.Parent, open.Ref) {
		p.handleExistingChild(open.Ref, nil, meta, nil)
	}
}
