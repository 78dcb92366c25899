package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// Sentinels of Append, Attempt, Purge, Barrier and TransferLeadership. The refusals of the state
// machine are those of package state.
var (
	// ErrNotLeader: this node is not the leader, or ceased to be before it
	// proposed anything. Nothing happened. Retry at the leader.
	ErrNotLeader = errors.New("not the leader")

	// ErrUnknownOutcome: the record was proposed and leadership, or the store,
	// was lost before the answer. It may be committed or not, now or soon. Read
	// the instance at the next leader; the same append may be repeated there
	// under its new epoch, since a second one in the same place is refused; an
	// attempt or a purge may be repeated because a second one changes nothing.
	ErrUnknownOutcome = errors.New("outcome unknown")

	// ErrBusy: the queue is full. Nothing happened. Retry after a pause.
	ErrBusy = errors.New("the journal's queue is full")

	// ErrClosed: Close was called. Nothing happened. Not worth a retry here.
	ErrClosed = errors.New("the journal is closed")

	// ErrAlone: there is no other voter to hand leadership to. Nothing
	// happened.
	ErrAlone = errors.New("no other voter")
)

// ErrProtocol is what every VersionError is.
var ErrProtocol = errors.New("the nodes speak different protocols")

// VersionError: a node, or a client, does not speak the protocol that the cluster
// has come to, or that the other side speaks. Nothing happened. It has to be run by
// another version of this software. errors.Is finds ErrProtocol.
type VersionError struct {
	Node           string // that cannot take part
	Oldest, Newest uint32 // of the protocols that it speaks
	Wanted         uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%v: %s speaks %d to %d, and %d is wanted", ErrProtocol, e.Node, e.Oldest, e.Newest, e.Wanted)
}

// Is tells whether target is ErrProtocol.
func (*VersionError) Is(target error) bool { return target == ErrProtocol }

// FencedError: this node has met something that it cannot trust or cannot
// write, and takes no further part. What it applied before stays readable.
// When the error wraps ErrUnknownOutcome as well, what was proposed may be
// committed; otherwise nothing happened. Not worth a retry on this node.
type FencedError struct {
	Cause error
}

func (e *FencedError) Error() string { return fmt.Sprintf("the node is fenced: %v", e.Cause) }
func (e *FencedError) Unwrap() error { return e.Cause }

// LockedError: another process has the directory open.
type LockedError struct {
	Dir string
}

func (e *LockedError) Error() string { return fmt.Sprintf("%s is in use by another process", e.Dir) }

// FormatError: a file, or what another node has sent, is of a format that this
// version does not read. Nothing was changed. A directory is opened by the version
// that wrote it, or a later one; where there is none any more, the node is replaced
// by one of another name with an empty directory, or the group adopts an empty one.
type FormatError struct {
	Path string
	Want string // what this version reads
	Have string // what is there
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has the format %q, and this version reads %q: run the version that wrote it, or a later one",
		e.Path, e.Have, e.Want)
}

// IdentityError: the directory belongs to another node or cluster.
type IdentityError struct {
	Dir  string
	Want string // what this node would have stamped
	Have string // what the stamp says
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("%s belongs to %q, not to %q", e.Dir, e.Have, e.Want)
}

// GroupsError: the directory is of a cluster with another number of groups. That
// number is chosen when a cluster is founded, and stays.
type GroupsError struct {
	Dir  string
	Want int // Config.Groups
	Have int // what the stamp says
}

func (e *GroupsError) Error() string {
	return fmt.Sprintf("%s is of a cluster with %d groups, not with %d: the number cannot be changed", e.Dir, e.Have, e.Want)
}

// DamagedError: a file of the journal is gone or not as the journal left it, and it is one
// that nobody else can replace: the log, or the term and the vote. What this node
// has promised to the others is in them, so that it does not come back, lest it
// votes or leads with less: it has to be replaced by one that the others bring up to
// date, under another name, or with an empty directory that they adopt (AdoptMember).
// Inside a *RepairError the others may still help.
type DamagedError struct {
	Path   string
	Index  uint64 // of the entry of the log that is damaged or missing; 0 if it is no entry
	Reason string
}

func (e *DamagedError) Error() string {
	if e.Index > 0 {
		return fmt.Sprintf("%s is damaged: entry %d: %s", e.Path, e.Index, e.Reason)
	}
	return fmt.Sprintf("%s is damaged: %s", e.Path, e.Reason)
}

// RepairError: the state and the snapshots of this node are damaged, so that only a
// snapshot of another node can help, and none has given one within
// Config.RepairTimeout. Nothing was changed; the log and the vote are whole. Open
// again when the others can be reached. A node that has no others has to be
// restored from a copy.
type RepairError struct {
	Damage *DamagedError // what is missing here
	Err    error         // what became of the asking
}

func (e *RepairError) Error() string {
	return fmt.Sprintf("%v; and no other node has helped: %v", e.Damage, e.Err)
}

func (e *RepairError) Unwrap() []error { return []error{e.Damage, e.Err} }

// StalledError: Close has given up waiting for a disk that hangs. Everything is
// answered, and nothing leaves the node any more, but its goroutines end, and
// its directory is unlocked, only when the disk answers. Close may be called
// again to wait for that.
type StalledError struct {
	For time.Duration // how long the write has been on its way
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("the disk has not answered for %v", e.For)
}

// TooLargeError: the record is larger than Config.AppendBytesMax. Nothing
// happened, and it will never fit.
type TooLargeError struct {
	Bytes int
	Max   int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a record of %d bytes is over the limit of %d", e.Bytes, e.Max)
}

// outcome says what an error of a Raft future means for what was proposed.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader),
		errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	default:
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
}
