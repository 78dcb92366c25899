package actors

import (
	"context"
	"iter"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
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
	// CheckRunOptions returns an error while a member does not know the run options (retry policy,
	// summary) that events of a parent record. A turn with such an event is then not recorded. nil
	// means that all members know them.
	CheckRunOptions func() error
	// NewIncarnation returns the incarnation of a run that begins with that execution: not 0, and
	// larger than those of the instance's earlier runs. By default it combines the epoch with the
	// number of runs started in it, and nothing checks that it grows.
	NewIncarnation func(instance string, execution uint64) uint64
	// IsSuperseded reports whether an append was not committed because this node no longer leads;
	// the next leader then does the work. nil means that no append is rejected for that reason.
	IsSuperseded func(rejection error) bool
	// AppliedIndex returns the journal index up to which reads show everything. nil means that it
	// is unknown, and that repetitions of long-recorded messages are not detected.
	AppliedIndex func() uint64
	// SendMessage sends a message to an instance of any partition and returns nil when the instance
	// has recorded it, now or before. [ErrNotFound], [ErrEnded], [ErrRequestIDReused], a
	// [*replay.PayloadError] and a [*replay.InvalidError] are final; after any other error it is
	// called again. It sets Retried if the message may have been recorded. It returns when ctx
	// ends. nil sends to instances of this partition only.
	SendMessage func(ctx context.Context, m *OutgoingMessage) error
	// AppliedIndexOf returns the journal index that this node has applied in the partition of an
	// instance. nil means that it is unknown, as for AppliedIndex.
	AppliedIndexOf func(instance string) uint64
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

// A Replica is the part of a [Journal] that other partitions read. It may lag. Instance may also
// show no instance that exists, for a while. What InstanceOperations has returned may be used only
// if Instance still shows the instance afterwards.
type Replica interface {
	Instance(id string) (*journalpb.Instance, bool)
	Event(instance string, execution, eventID uint64) (*journalpb.Event, error)
	InstanceOperations(instance string) iter.Seq[*journalpb.Operation]
}

// A CrossMessage is a message to an instance of another partition: the start of a child, a chained
// start, the end of a child, or a close policy's request to cancel or terminate a child. It is
// repeated until it is answered without an error, and recorded once.
type CrossMessage struct {
	Instance  string
	Execution uint64 // the execution that it is meant for; 0: the latest
	// Incarnation is the run that it is meant for. If Execution is 0 too, 0 means any run;
	// otherwise 0 means a run that began before protocol 3.
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
// goroutine. Exception: if the same message arrives again before the answer, only the latest done
// is called. The open operations of the other partitions bound how many messages wait.
func (p *Partition) Receive(c *CrossMessage, done func(Answer)) { p.receiver.receive(c, done) }

// ResendAfterFailover is called when another node has become leader of other partitions. isAffected
// reports whether an instance belongs to one of them. It sends what the previous leader may not
// have sent: cancellations to running children whose parents no longer wait, and ends of children
// to waiting parents. This node's replicas must already show the beginning of the new leadership.
// The senders of all other messages repeat them.
func (p *Partition) ResendAfterFailover(isAffected func(instance string) bool) {
	p.children.resendAfterFailover(isAffected)
}
