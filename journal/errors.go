package journal

import (
	"errors"
	"fmt"

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

// IdentityError: the directory belongs to another node or has another format.
type IdentityError struct {
	Dir  string
	Want string // what this node would have stamped
	Have string // what the stamp says
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("%s belongs to %q, not to %q", e.Dir, e.Have, e.Want)
}

// DamagedError: a file of the journal is not as the journal left it.
type DamagedError struct {
	Path   string
	Reason string
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.Path, e.Reason) }

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
