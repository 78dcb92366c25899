package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/state"
)

// Errors of Append, Attempt, Purge, Barrier and TransferLeadership. Those of the state machine are
// in package state.
var (
	// ErrNotLeader: this node is not the leader, or lost leadership before it proposed anything.
	// Nothing happened. Retry at the leader.
	ErrNotLeader = errors.New("not the leader")

	// ErrUnknownOutcome: the record was proposed. Before the answer, leadership was lost, the node
	// failed, or its disk stalled. The record may be committed, now or later, or never. Read the
	// instance at the next leader. The same append may be repeated there under the new epoch: a
	// second one in the same place is rejected. An attempt or a purge may be repeated: a second one
	// changes nothing.
	ErrUnknownOutcome = errors.New("outcome unknown")

	// ErrBusy: the queue is full. Nothing happened. Retry after a pause.
	ErrBusy = errors.New("the journal's queue is full")

	// ErrClosed: Close was called. Nothing happened. Do not retry on this node.
	ErrClosed = errors.New("the journal is closed")

	// ErrLastVoter: there is no other voter to take leadership. Nothing happened.
	ErrLastVoter = errors.New("no other voter")
)

// Rejections of tokens. Nothing was changed.
var (
	ErrTokenUnknown  = state.ErrTokenUnknown
	ErrTokenExpired  = state.ErrTokenExpired
	ErrTokenUsed     = state.ErrTokenUsed
	ErrTooManyTokens = state.ErrTooManyTokens
	// ErrRevokeProtocol: a member does not speak the protocol that introduced revoking tokens.
	ErrRevokeProtocol = errors.New("revoking a token requires protocol 3 on every member")
)

// Rejections of settings and roles. Nothing was changed.
var (
	ErrSettingsVersion = state.ErrSettingsVersion
	// ErrSettingsProtocol: a member does not speak the protocol that introduced recorded settings.
	ErrSettingsProtocol = errors.New("recording settings requires protocol 4 on every member")
	// ErrRolesVersion and ErrRolesProtocol are the same for the roles of members.
	ErrRolesVersion  = state.ErrRolesVersion
	ErrRolesProtocol = errors.New("recording roles of members requires protocol 4 on every member")
	// ErrCompletionKeyProtocol: a member does not speak the protocol that introduced the
	// completion key.
	ErrCompletionKeyProtocol = errors.New("recording the completion key requires protocol 4 on every member")
	// ErrComparisonProtocol: a member does not speak the protocol that introduced comparisons.
	ErrComparisonProtocol = errors.New("comparing replicas requires protocol 4 on every member")
	// ErrTooManyQuarantines: 256 replicas of instances are in quarantine.
	ErrTooManyQuarantines = state.ErrTooManyQuarantines
	// ErrCompletionKey: the completion key has another size.
	ErrCompletionKey = errors.New("the completion key must have 32 bytes")
)

// ErrProtocol matches every VersionError.
var ErrProtocol = state.ErrProtocol

// VersionError: a node or a client does not speak the protocol that the cluster, or its peer,
// requires. Nothing happened. Run another version of this software there. It matches ErrProtocol.
type VersionError struct {
	Node           string // the one that cannot take part
	Oldest, Newest uint32 // protocols that it speaks; 0 if it does not answer
	Required       uint32
}

func (e *VersionError) Error() string {
	if e.Newest == 0 {
		return fmt.Sprintf("%v: %s does not answer, and must speak protocol %d: start it, or remove it", ErrProtocol, e.Node, e.Required)
	}
	return fmt.Sprintf("%v: %s speaks protocols %d to %d, but %d is required", ErrProtocol, e.Node, e.Oldest, e.Newest, e.Required)
}

// Is reports whether target is ErrProtocol.
func (*VersionError) Is(target error) bool { return target == ErrProtocol }

// ErrOtherLineage matches every LineageError.
var ErrOtherLineage = errors.New("the cluster has continued as another lineage")

// LineageError: two nodes, or a node and a caller, are of different lineages of a cluster that was
// restored or recovered. Nothing happened. If the other lineage continues that of this node, this
// node has stopped for good. It matches ErrOtherLineage.
type LineageError struct {
	// Other is the node of the other lineage; "" if it is a caller.
	Other string
	// Own and Latest are the IDs of this node's lineage and of the other; "" before the first.
	Own, Latest string
	// Ended means that the other lineage continues this one. Path is the file that records it, ""
	// in memory.
	Ended bool
	Path  string
}

func (e *LineageError) Error() string {
	name := func(id string) string {
		if id == "" {
			return "the cluster as it was founded"
		}
		return "lineage " + id
	}
	other := "node " + e.Other
	if e.Other == "" {
		other = "the caller"
	}
	text := fmt.Sprintf("%v: this node belongs to %s, %s to %s", ErrOtherLineage, name(e.Own), other, name(e.Latest))
	if e.Ended {
		text += ", which was restored or recovered from it. This directory must not serve any more: delete it, and start the node " +
			"with an empty one and Config.Join"
	}
	if e.Path != "" {
		text += ". If the other cluster is only a copy for a test: stop it, delete " + e.Path + " on each node, and start this one again"
	}
	return text
}

// Is reports whether target is ErrOtherLineage.
func (*LineageError) Is(target error) bool { return target == ErrOtherLineage }

// NodeFailedError: this node has stopped itself because it cannot trust, or cannot write, its disk
// or its state. What it had applied stays readable. If the error wraps ErrUnknownOutcome as well,
// what was proposed may be committed; otherwise nothing happened. Do not retry on this node.
type NodeFailedError struct {
	Cause error
}

func (e *NodeFailedError) Error() string { return fmt.Sprintf("node failed: %v", e.Cause) }
func (e *NodeFailedError) Unwrap() error { return e.Cause }

// LockedError: another process has the directory open.
type LockedError struct {
	Dir string
}

func (e *LockedError) Error() string { return fmt.Sprintf("%s is in use by another process", e.Dir) }

// FormatError: a file, or data received from another node, has a format that this version does not
// read. Nothing was changed. Open the directory with the version that wrote it, or a later one. If
// there is none, replace the node by one with another name and an empty directory, or let the
// partition adopt an empty directory.
type FormatError struct {
	Path string
	Want string // what this version reads
	Have string // what was found
}

func (e *FormatError) Error() string { return (*diskfile.FormatError)(e).Error() }

// IdentityError: the directory belongs to another node or cluster.
type IdentityError struct {
	Dir  string
	Want string // of this node
	Have string // recorded in the directory; "" if the file that records it is missing
}

func (e *IdentityError) Error() string {
	if e.Have == "" {
		return fmt.Sprintf("%s holds a journal, but the file that names its node and cluster is missing", e.Dir)
	}
	return fmt.Sprintf("%s belongs to %q, not to %q", e.Dir, e.Have, e.Want)
}

// ErrPartitionCount: the node is configured for another number of partitions than the cluster has.
// A [PartitionCountError] is one.
var ErrPartitionCount = errors.New("tenuto: the node is configured for another number of partitions")

// PartitionCountError: the directory belongs to a cluster with another number of partitions. That
// number is fixed when a cluster is founded.
type PartitionCountError struct {
	Dir  string
	Want int // Config.Partitions
	Have int // recorded in the directory
}

func (e *PartitionCountError) Error() string {
	return fmt.Sprintf("%s belongs to a cluster with %d partitions, not %d: the number cannot be changed", e.Dir, e.Have, e.Want)
}

// Is makes the error an ErrPartitionCount.
func (e *PartitionCountError) Is(target error) bool { return target == ErrPartitionCount }

// DamagedError: a file of the journal is missing or damaged, and no other node can supply it: the
// log, or the term and the vote. They hold what this node has promised to the others. The node must
// not rejoin without them, because it could vote or lead with less than it has acknowledged.
// Replace it by a node with another name, or by an empty directory that the partition adopts
// (AdoptMember). If it is wrapped in a *RepairError, another node may still supply what is missing.
type DamagedError struct {
	Path   string
	Index  uint64 // of the damaged or missing log entry; 0 if it is not an entry
	Reason string
}

func (e *DamagedError) Error() string { return (*diskfile.DamagedError)(e).Error() }

// RepairError: the state and the snapshots of this node are damaged, and no other node supplied a
// snapshot within Config.RepairTimeout. Nothing was changed; the log and the vote are intact. Open
// again when other nodes can be reached. A single node must be restored from a backup.
type RepairError struct {
	Damage *DamagedError // what is missing here
	Err    error         // why fetching failed
}

func (e *RepairError) Error() string {
	return fmt.Sprintf("%v; no other node supplied a snapshot: %v", e.Damage, e.Err)
}

func (e *RepairError) Unwrap() []error { return []error{e.Damage, e.Err} }

// StalledError: Close stopped waiting for a disk that has stalled. Every call has been answered and
// nothing leaves the node any more. The journal's goroutines end, and its directory is unlocked,
// only when the write returns. Close may be called again to wait for that.
type StalledError struct {
	Duration time.Duration // age of the write
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("disk write stalled for %v", e.Duration)
}

// TooLargeError: the record is larger than Config.AppendBytesMax. Nothing happened. Do not retry.
type TooLargeError struct {
	Bytes int
	Max   int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("record of %d bytes exceeds the limit of %d", e.Bytes, e.Max)
}

// outcomeError wraps the error of a Raft future in ErrNotLeader if nothing happened, otherwise in
// ErrUnknownOutcome.
func outcomeError(err error) error {
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

// IsDiskFull reports whether an error of Open, or of a journal, was caused by a full disk.
func IsDiskFull(err error) bool { return diskfile.IsFull(err) }

// withFileErrors returns an error with the same text in which errors.As finds a *DamagedError or a
// *FormatError for those of package diskfile.
func withFileErrors(err error) error {
	if !errors.As(err, new(*diskfile.DamagedError)) && !errors.As(err, new(*diskfile.FormatError)) {
		return err
	}
	return &fileError{err}
}

// fileError is an error about a file, from a package below this one.
type fileError struct{ err error }

func (e *fileError) Error() string { return e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// As sets target to the error of this package with the same content.
func (e *fileError) As(target any) bool {
	switch target := target.(type) {
	case **DamagedError:
		var damaged *diskfile.DamagedError
		if errors.As(e.err, &damaged) {
			*target = (*DamagedError)(damaged)
			return true
		}
	case **FormatError:
		var format *diskfile.FormatError
		if errors.As(e.err, &format) {
			*target = (*FormatError)(format)
			return true
		}
	}
	return false
}
