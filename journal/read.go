package journal

import (
	"context"
	"crypto/sha256"
	"iter"

	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Reads return the state of this replica. Call Barrier first for a linearizable read; without it a
// read may be stale.

// reads reads the state of this replica.
type reads struct {
	machine *state.Machine
	fsm     *fsm
	raft    *raftnode.Node
}

// Epoch returns the epoch in force, 0 before the first.
func (r *reads) Epoch() uint64 { return r.machine.Epoch() }

// Instance returns the index entry of an instance.
func (r *reads) Instance(id string) (*journalpb.Instance, bool) { return r.machine.Instance(id) }

// Instances yields every instance in order of IDs; see state.Machine.
func (r *reads) Instances() iter.Seq[*journalpb.Instance] { return r.machine.Instances() }

// Unbegun yields the running instances whose latest execution has not run any code; see
// state.Machine.
func (r *reads) Unbegun() iter.Seq[*journalpb.Instance] { return r.machine.Unbegun() }

// Orphans yields the running children whose parents no longer wait for them; see state.Machine.
func (r *reads) Orphans() iter.Seq[*journalpb.Instance] { return r.machine.Orphans() }

// Chained yields the chained starts, and those of abandoned children, whose instances do not exist
// yet; see state.Machine.
func (r *reads) Chained() iter.Seq[*journalpb.ChainedStart] { return r.machine.Chained() }

// HasChainedStart reports whether a chained start of an instance is pending; see state.Machine.
func (r *reads) HasChainedStart(target string) bool { return r.machine.HasChainedStart(target) }

// Events yields the history of an execution from an event_id on; execution 0 means the latest. See
// state.Machine.
func (r *reads) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	return r.machine.Events(instance, execution, from)
}

// EncodedEvents yields the encoded events of an execution in order, from one on; see state.Machine.
func (r *reads) EncodedEvents(instance string, execution, from uint64) iter.Seq2[[]byte, error] {
	return r.machine.EncodedEvents(instance, execution, from)
}

// Event returns one event; the error wraps state.ErrNotFound if it does not exist. Execution 0
// means the latest.
func (r *reads) Event(instance string, execution, id uint64) (*journalpb.Event, error) {
	return r.machine.Event(instance, execution, id)
}

// OpenOperations yields all open operations in order of instance and event_id; see state.Machine.
func (r *reads) OpenOperations() iter.Seq[*journalpb.Operation] { return r.machine.OpenOperations() }

// InstanceOperations yields the open operations of one instance in order of event_id.
func (r *reads) InstanceOperations(instance string) iter.Seq[*journalpb.Operation] {
	return r.machine.InstanceOperations(instance)
}

// BufferedEvents returns how many external events of an instance wait for a subscription; see
// state.Machine.
func (r *reads) BufferedEvents(instance string) map[string]int {
	return r.machine.BufferedEvents(instance)
}

// Values returns the values of a key-value map of an instance, in order of their keys; see
// state.Machine.
func (r *reads) Values(instance, kv string) ([]*journalpb.ValueSet, error) {
	return r.machine.Values(instance, kv)
}

// TimersDue yields the open timers that are due before a time in Unix nanoseconds, earliest first;
// see state.Machine.
func (r *reads) TimersDue(before int64) iter.Seq[*journalpb.Operation] {
	return r.machine.TimersDue(before)
}

// Watch returns a channel that holds a token after the instance has changed on this node. Call
// Watch before reading. See state.Machine.
func (r *reads) Watch(instance string) (changed <-chan struct{}, cancel func()) {
	return r.machine.Watch(instance)
}

// WatchEnd is Watch for callers that wait for the end of an instance: the token is there after a
// change that has left the instance ended or unknown on this node.
func (r *reads) WatchEnd(instance string) (changed <-chan struct{}, cancel func()) {
	return r.machine.WatchEnd(instance)
}

// Hash returns the SHA-256 of all histories of an instance, for comparing replicas; see
// state.Machine.
func (r *reads) Hash(instance string) ([sha256.Size]byte, error) { return r.machine.Hash(instance) }

// Digest returns a SHA-256 of the whole state, for comparing replicas at the same AppliedIndex; see
// state.Machine. It reads the whole index.
func (r *reads) Digest() [sha256.Size]byte { return r.machine.Digest() }

// AppliedIndex returns the index of the last Raft entry that reads show, 0 if there is none. After
// a start it is that of the restored state.
func (r *reads) AppliedIndex() uint64 { return r.fsm.appliedIndex() }

// LastIndex returns the index of the last entry in this node's log, committed or not.
func (r *reads) LastIndex() uint64 { return r.raft.LastIndex() }

// CommitIndex returns the index of the last entry that this node knows to be committed.
func (r *reads) CommitIndex() uint64 { return r.raft.CommitIndex() }

// Term returns the Raft term of this node.
func (r *reads) Term() uint64 { return r.raft.CurrentTerm() }

// WithCondition yields the running instances that have a condition; see state.Machine.
func (r *reads) WithCondition() iter.Seq[*journalpb.Instance] { return r.machine.WithCondition() }

// Query returns up to limit instances that a query selects, in its order, from the beginning or
// after a place. A page may be shorter than limit, or empty, and have more after it; see
// state.Machine.
func (r *reads) Query(ctx context.Context, q *index.Query, after *index.Cursor, limit int) (*state.QueryPage, error) {
	return r.machine.Query(ctx, q, after, limit)
}

// IsIndexed reports whether the cost of a page of a query depends on the page; see state.Machine.
func (r *reads) IsIndexed() bool { return r.machine.IsIndexed() }

// CountBy counts the instances that a query selects, grouped by some dimensions; see state.Machine.
func (r *reads) CountBy(ctx context.Context, q *index.Query, by ...index.Grouping) ([]index.Group, error) {
	return r.machine.CountBy(ctx, q, by...)
}
