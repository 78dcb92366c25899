package journal

import (
	"crypto/sha256"
	"iter"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Reads return the state of this replica. Call Barrier first for a linearizable read; without it a
// read may be stale.

// Epoch returns the epoch in force, 0 before the first.
func (j *Journal) Epoch() uint64 { return j.machine.Epoch() }

// Instance returns the index entry of an instance.
func (j *Journal) Instance(id string) (*journalpb.Instance, bool) { return j.machine.Instance(id) }

// Instances yields every instance in order of IDs; see state.Machine.
func (j *Journal) Instances() iter.Seq[*journalpb.Instance] { return j.machine.Instances() }

// Unbegun yields the running instances whose latest execution has not run any code; see
// state.Machine.
func (j *Journal) Unbegun() iter.Seq[*journalpb.Instance] { return j.machine.Unbegun() }

// Orphans yields the running children whose parents no longer wait for them; see state.Machine.
func (j *Journal) Orphans() iter.Seq[*journalpb.Instance] { return j.machine.Orphans() }

// Chained yields the chained starts, and those of abandoned children, whose instances do not exist
// yet; see state.Machine.
func (j *Journal) Chained() iter.Seq[*journalpb.ChainedStart] { return j.machine.Chained() }

// HasChainedStart reports whether a chained start of an instance is pending; see state.Machine.
func (j *Journal) HasChainedStart(target string) bool { return j.machine.HasChainedStart(target) }

// Events yields the history of an execution from an event_id on; execution 0 means the latest. See
// state.Machine.
func (j *Journal) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	return j.machine.Events(instance, execution, from)
}

// Event returns one event; the error wraps state.ErrNotFound if it does not exist. Execution 0
// means the latest.
func (j *Journal) Event(instance string, execution, id uint64) (*journalpb.Event, error) {
	return j.machine.Event(instance, execution, id)
}

// OpenOperations yields all open operations in order of instance and event_id; see state.Machine.
func (j *Journal) OpenOperations() iter.Seq[*journalpb.Operation] { return j.machine.OpenOperations() }

// InstanceOperations yields the open operations of one instance in order of event_id.
func (j *Journal) InstanceOperations(instance string) iter.Seq[*journalpb.Operation] {
	return j.machine.InstanceOperations(instance)
}

// TimersDue yields the open timers that are due before a time in Unix nanoseconds, earliest first;
// see state.Machine.
func (j *Journal) TimersDue(before int64) iter.Seq[*journalpb.Operation] {
	return j.machine.TimersDue(before)
}

// Watch returns a channel that holds a token after the instance has changed on this node. Call
// Watch before reading. See state.Machine.
func (j *Journal) Watch(instance string) (changed <-chan struct{}, cancel func()) {
	return j.machine.Watch(instance)
}

// WatchEnd is Watch for callers that wait for the end of an instance: the token is there after a
// change that has left the instance ended or unknown on this node.
func (j *Journal) WatchEnd(instance string) (changed <-chan struct{}, cancel func()) {
	return j.machine.WatchEnd(instance)
}

// Hash returns the SHA-256 of all histories of an instance, for comparing replicas; see
// state.Machine.
func (j *Journal) Hash(instance string) ([sha256.Size]byte, error) { return j.machine.Hash(instance) }

// Digest returns a SHA-256 of the whole state, for comparing replicas at the same AppliedIndex; see
// state.Machine. It reads the whole index.
func (j *Journal) Digest() [sha256.Size]byte { return j.machine.Digest() }

// AppliedIndex returns the index of the last Raft entry that reads show, 0 if there is none. After
// a start it is that of the restored state.
func (j *Journal) AppliedIndex() uint64 { return j.fsm.appliedIndex() }

// LastIndex returns the index of the last entry in this node's log, committed or not.
func (j *Journal) LastIndex() uint64 { return j.raft.LastIndex() }

// CommitIndex returns the index of the last entry that this node knows to be committed.
func (j *Journal) CommitIndex() uint64 { return j.raft.CommitIndex() }

// Term returns the Raft term of this node.
func (j *Journal) Term() uint64 { return j.raft.CurrentTerm() }
