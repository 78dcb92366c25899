package journal

import (
	"crypto/sha256"
	"iter"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// The reads are of this replica as it is. Call Barrier first for a linearizable
// one; without it a read may be behind by what this node has not heard of yet.

// Epoch returns the epoch in force, 0 before the first.
func (j *Journal) Epoch() uint64 { return j.machine.Epoch() }

// Instance returns what the index knows of an instance.
func (j *Journal) Instance(id string) (*journalpb.Instance, bool) { return j.machine.Instance(id) }

// Instances yields every instance in order of their IDs; see state.Machine.
func (j *Journal) Instances() iter.Seq[*journalpb.Instance] { return j.machine.Instances() }

// Unbegun yields the running instances of which no code has run in their latest
// execution; see state.Machine.
func (j *Journal) Unbegun() iter.Seq[*journalpb.Instance] { return j.machine.Unbegun() }

// Orphans yields the running children whose parents no longer wait for them; see
// state.Machine.
func (j *Journal) Orphans() iter.Seq[*journalpb.Instance] { return j.machine.Orphans() }

// Chained yields the chained starts, and those of children to be abandoned, whose
// instances do not exist yet; see state.Machine.
func (j *Journal) Chained() iter.Seq[*journalpb.ChainedStart] { return j.machine.Chained() }

// WaitsToStart tells whether a chained start of an instance waits to be made; see
// state.Machine.
func (j *Journal) WaitsToStart(target string) bool { return j.machine.WaitsToStart(target) }

// Events yields the history of an execution from an event_id on; an execution
// of 0 means the latest. See state.Machine.
func (j *Journal) Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error] {
	return j.machine.Events(instance, execution, from)
}

// Event returns one event; the error wraps state.ErrNotFound if there is none.
// An execution of 0 means the latest.
func (j *Journal) Event(instance string, execution, id uint64) (*journalpb.Event, error) {
	return j.machine.Event(instance, execution, id)
}

// Open yields all open operations in order of instance and event_id; see
// state.Machine.
func (j *Journal) Open() iter.Seq[*journalpb.Operation] { return j.machine.Open() }

// OpenOf yields the open operations of one instance in order of event_id.
func (j *Journal) OpenOf(instance string) iter.Seq[*journalpb.Operation] {
	return j.machine.OpenOf(instance)
}

// TimersDue yields the open timers that are due before a time, Unix nanoseconds,
// the earliest first; see state.Machine.
func (j *Journal) TimersDue(before int64) iter.Seq[*journalpb.Operation] {
	return j.machine.TimersDue(before)
}

// Watch returns a channel that holds a token after the instance has changed
// here. Watch first, read then. See state.Machine.
func (j *Journal) Watch(instance string) (changed <-chan struct{}, cancel func()) {
	return j.machine.Watch(instance)
}

// WatchEnd is Watch for those who wait for the end of a run: the token is there
// after a change that has left the instance ended or unknown here.
func (j *Journal) WatchEnd(instance string) (changed <-chan struct{}, cancel func()) {
	return j.machine.WatchEnd(instance)
}

// Hash returns the SHA-256 of all histories of an instance, for comparing
// replicas; see state.Machine.
func (j *Journal) Hash(instance string) ([sha256.Size]byte, error) { return j.machine.Hash(instance) }

// Digest returns a SHA-256 that stands for the whole state, for comparing
// replicas at the same AppliedIndex; see state.Machine. It reads the whole index.
func (j *Journal) Digest() [sha256.Size]byte { return j.machine.Digest() }

// AppliedIndex returns the index of the last Raft entry whose appends the reads
// show; 0 after a start until the first entry beyond the snapshot is applied.
func (j *Journal) AppliedIndex() uint64 { return j.fsm.appliedIndex() }

// LastIndex returns the index of the last entry in this node's log, committed or not.
func (j *Journal) LastIndex() uint64 { return j.raft.LastIndex() }

// CommitIndex returns the index of the last entry that this node knows to be
// committed.
func (j *Journal) CommitIndex() uint64 { return j.raft.CommitIndex() }

// Term returns the Raft term that this node is in.
func (j *Journal) Term() uint64 { return j.raft.CurrentTerm() }
