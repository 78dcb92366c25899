package state

import (
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// ErrNotFound reports that an instance, execution or event is not in the state.
var ErrNotFound = errors.New("not found")

// ErrCorrupt reports bytes that no proposer of this version writes: a checksum mismatch, a record
// that does not decode, or an unknown command. Nothing was changed. The replica must stop, since
// another replica may have understood the record.
var ErrCorrupt = store.ErrCorrupt

// StaleEpochError rejects a record whose epoch is not the current one. Nothing was changed.
// Retrying the same record cannot succeed.
type StaleEpochError struct {
	Instance string // empty for a purge or a metadata change
	Epoch    uint64 // of the record
	Current  uint64 // the epoch when the record was applied
}

func (e *StaleEpochError) Error() string {
	if e.Instance == "" {
		return fmt.Sprintf("epoch %d is not the current epoch %d", e.Epoch, e.Current)
	}
	return fmt.Sprintf("instance %q: epoch %d is not the current epoch %d", e.Instance, e.Epoch, e.Current)
}

// ConflictError rejects an append that does not continue its execution: another append was applied
// first, or the instance was purged. It also rejects a condition that was computed from another
// history. Nothing was changed. The caller's view of the instance is outdated and must be
// discarded.
type ConflictError struct {
	Instance  string
	Execution uint64
	First     uint64 // first event_id of the segment
	Last      uint64 // event_id of the last event of the execution, 0 if there is none
}

func (e *ConflictError) Error() string {
	if e.First == e.Last+1 {
		return fmt.Sprintf("instance %q: cannot append execution %d: the instance does not exist", e.Instance, e.Execution)
	}
	return fmt.Sprintf("instance %q, execution %d: event %d does not follow event %d",
		e.Instance, e.Execution, e.First, e.Last)
}

// InvalidAppendError rejects an append or an attempt that is in sequence but breaks a rule. Nothing
// was changed. It is a bug of the proposer, not a race.
type InvalidAppendError struct {
	Instance  string
	Execution uint64
	EventID   uint64 // the event that breaks the rule; of an attempt, its operation
	Reason    string
	// Err is ErrProtocol for an event that the cluster does not permit yet, ErrStopped for an
	// instance whose replicas disagree, and nil otherwise.
	Err error
}

func (e *InvalidAppendError) Error() string {
	return fmt.Sprintf("instance %q, execution %d, event %d: %s", e.Instance, e.Execution, e.EventID, e.Reason)
}

func (e *InvalidAppendError) Unwrap() error { return e.Err }

// ErrProtocol means that not all members speak the protocol that a change requires.
var ErrProtocol = errors.New("protocol mismatch")

// ClosedError rejects an attempt of an operation that is not open: it was completed or canceled,
// its execution has ended, or it never existed. Nothing was changed. An attempt that loses the race
// against the end of its activity gets this error.
type ClosedError struct {
	Instance  string
	Execution uint64
	EventID   uint64
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("instance %q, execution %d: operation %d is not open", e.Instance, e.Execution, e.EventID)
}

// StoreError reports that the store cannot be read or written, or is closed. It wraps ErrCorrupt if
// the data read is not the data written; the store is then marked as damaged and must be discarded
// before it is opened again. A store accepts no writes after its first error.
type StoreError = store.Error

// FormatError reports that another version of this software wrote the store or the snapshot, in a
// format that this version cannot read. Nothing was changed.
type FormatError struct {
	Kind   string // "state" or "snapshot"
	Format uint64 // what was found
	Want   uint64 // the newest format that this version reads
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s format %d is not supported, this version reads format %d", e.Kind, e.Format, e.Want)
}

// A CopyReason says why a history is not copied.
type CopyReason string

// The reasons.
const (
	CopyNoSource      CopyReason = "the source has no such execution"
	CopyBeyondEnd     CopyReason = "the execution has no such event"
	CopyEnded         CopyReason = "the event ends the execution: name an event before it"
	CopyOpenChild     CopyReason = "a child is running at the event, and its end would go to the old run: name an event before its start or after its end"
	CopyOpenMessage   CopyReason = "a message to another instance is on its way at the event: name an event before it or after its delivery"
	CopyHasParent     CopyReason = "a parent waits for the run or its end: act on the parent, or fork"
	CopyTooLarge      CopyReason = "the copy would be larger than 64 MiB"
	CopyKeptTooLarge  CopyReason = "the later external events to keep are more than 10,000, larger than 1 MiB, or among more than 128 MiB of events: drop them (operate.DropEvents)"
	CopyTargetExists  CopyReason = "the new instance exists"
	CopySourceChanged CopyReason = "another run has begun under the ID since the request was checked"
	CopyOldRun        CopyReason = "the run began before protocol 3: only its first event can be copied"
	CopyOtherInput    CopyReason = "the code has used the input before the event: another input needs a copy of the first event only"

	// Of the leader, before anything is proposed.
	CopyNoCall         CopyReason = "the execution has no such call"
	CopyReserved       CopyReason = "the engine's own orchestrations are not copied: start another"
	CopyOtherPartition CopyReason = "the new instance is in another partition: choose another ID, or none"
)

// CopyError rejects a CopyHistory. Nothing was changed.
type CopyError struct {
	Instance  string // the source; for CopyHasParent and CopyTargetExists the target
	Execution uint64
	EventID   uint64 // the last event to copy
	Reason    CopyReason
	Operation uint64 // the open child or message, 0 for other reasons
}

// RefusesCopy marks the error for packages that do not import this one.
func (e *CopyError) RefusesCopy() {}

func (e *CopyError) Error() string {
	operation := ""
	if e.Operation != 0 {
		operation = fmt.Sprintf(" (operation %d)", e.Operation)
	}
	return fmt.Sprintf("instance %q, execution %d: cannot copy up to event %d: %s%s", e.Instance, e.Execution, e.EventID, e.Reason, operation)
}
