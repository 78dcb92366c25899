package state

import (
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// ErrNotFound says that an instance, execution or event is not in the state.
var ErrNotFound = errors.New("not found")

// ErrCorrupt says that bytes are not what a proposer of this version writes: a
// checksum that does not match, a record that does not decode, a command that
// is not known. Nothing was changed. The replica must go no further, since
// another one may have understood what this one does not.
var ErrCorrupt = store.ErrCorrupt

// StaleEpochError refuses a record of a leader that is no longer, or not yet,
// the leader. Nothing was changed, and repeating the record is of no use.
type StaleEpochError struct {
	Instance string // empty for a purge
	Epoch    uint64 // of the record
	Current  uint64 // in force when the record was applied
}

func (e *StaleEpochError) Error() string {
	if e.Instance == "" {
		return fmt.Sprintf("epoch %d is not the current one, %d", e.Epoch, e.Current)
	}
	return fmt.Sprintf("instance %q: epoch %d is not the current one, %d", e.Instance, e.Epoch, e.Current)
}

// ConflictError refuses an append that does not continue its execution: another
// owner was there first, or the instance has been purged. Nothing was changed.
// Whoever sees it has an outdated picture of the instance and must throw it
// away.
type ConflictError struct {
	Instance  string
	Execution uint64
	First     uint64 // first event_id of the segment
	Last      uint64 // event_id of the last event of the execution, 0 if there is none
}

func (e *ConflictError) Error() string {
	if e.First == e.Last+1 {
		return fmt.Sprintf("instance %q: execution %d does not follow, the instance does not exist", e.Instance, e.Execution)
	}
	return fmt.Sprintf("instance %q, execution %d: events from %d do not follow %d",
		e.Instance, e.Execution, e.First, e.Last)
}

// InvalidAppendError refuses an append, or an attempt, that stands at the right
// place and breaks a rule all the same. Nothing was changed. It is a mistake of
// the proposer, not a race.
type InvalidAppendError struct {
	Instance  string
	Execution uint64
	EventID   uint64 // where the rule is broken; of an attempt, its operation
	Reason    string
}

func (e *InvalidAppendError) Error() string {
	return fmt.Sprintf("instance %q, execution %d, event %d: %s", e.Instance, e.Execution, e.EventID, e.Reason)
}

// ClosedError refuses an attempt of an operation that is not open: it has been
// completed or given up, its execution has ended, or it never was. Nothing was
// changed. It is what becomes of an attempt that loses the race against the end
// of its activity.
type ClosedError struct {
	Instance  string
	Execution uint64
	EventID   uint64
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("instance %q, execution %d: operation %d is not open", e.Instance, e.Execution, e.EventID)
}

// StoreError: the store below a machine cannot be read or written, or has been
// closed. It wraps ErrCorrupt if what was read is not what was written: then the
// store is marked, and must be discarded before it is opened again. Behind the
// first error a store is not written any more.
type StoreError = store.Error

// FormatError: the store was written by another version of this software, which
// this one cannot read. Nothing was changed.
type FormatError struct {
	Format uint64 // that of the store
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("the state has format %d, this version reads %d", e.Format, storeFormat)
}
