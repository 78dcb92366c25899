package raftlog

import (
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// A write that fails because the disk is full leaves two questions.
//
// What is in the store? A store may report a failed write that has taken effect, because only the
// sync had no room. So after each failed write the log compares the store with its own bookkeeping.
// Entries that were appended nevertheless are deleted before the next write. Otherwise a shorter
// append would leave some of them after it, and the checksums would not match when the log is
// opened again.
//
// What does Raft assume? A follower that deletes a conflicting suffix and cannot append the
// replacement keeps the deleted entry as its last one (hashicorp/raft v1.8.0, raft.go:1564). It
// rejects every later message of its leader or, worse, reports an entry that is gone. The same
// happens if a snapshot of the leader ends before the uncommitted tail of the follower: Raft
// deletes the log and keeps its last index. The log has then diverged. From then on it rejects
// writes, nothing leaves the node, and the journal reopens Raft on its stores (see package
// raftnode).

// failedWrites is the log's record of failed writes.
type failedWrites struct {
	// truncated is set between the truncation of a suffix and the next append.
	truncated bool
	// surplus is the index of the last entry in the store after the tail; 0: none.
	surplus uint64
}

// ErrReopening is returned by a diverged log until Raft has been reopened.
var ErrReopening = errors.New("raft is being reopened on its log")

// recordTruncation records that the entries from first to before, the previous last one, were
// deleted. If Raft has deleted conflicting entries, which lie after all snapshots, it appends
// others next. If it has deleted the log because of an installed snapshot, it appends none. The log
// has then diverged if it had entries after the snapshot.
func (c *Checked) recordTruncation(first, before uint64) {
	if before == 0 || c.tail.index == before {
		return // nothing, or a prefix
	}
	c.mu.Lock()
	conflict, replaced := first > c.snapshotIndex, before <= c.snapshotIndex
	c.mu.Unlock()
	switch {
	case conflict:
		c.failedWrites.truncated = true
	case !replaced:
		c.markDiverged()
	}
}

// handleAppendError determines the effect of a failed append, and returns its error.
func (c *Checked) handleAppendError(err error) error {
	if !diskfile.IsFull(err) {
		return err
	}
	_, last, boundsErr := c.bounds()
	if boundsErr != nil {
		return fmt.Errorf("%w, after: %v", boundsErr, err)
	}
	if last > c.tail.index {
		c.failedWrites.surplus = last
	}
	if c.failedWrites.truncated {
		c.markDiverged()
	}
	return err
}

// handleDeleteError determines the effect of a failed deletion, and returns its error.
func (c *Checked) handleDeleteError(err error) error {
	if !diskfile.IsFull(err) {
		return err
	}
	first, last, boundsErr := c.bounds()
	switch {
	case boundsErr != nil:
		return fmt.Errorf("%w, after: %v", boundsErr, err)
	case first != c.firstIndex() || last != c.tail.index:
		c.markDiverged() // the deletion took effect
	case c.stable != nil:
		if tailErr := c.stable.setTail(c.tail, false); tailErr != nil { // undo prepareTruncation
			return fmt.Errorf("%w, after: %v", tailErr, err)
		}
	}
	return err
}

// deleteSurplus deletes what a failed append has left after the tail.
func (c *Checked) deleteSurplus() error {
	if c.failedWrites.surplus == 0 {
		return nil
	}
	if c.stable != nil {
		if err := c.stable.setTail(c.tail, true); err != nil { // the saved tail may be ahead
			return err
		}
	}
	first, last := c.tail.index+1, c.failedWrites.surplus
	if err := c.store.call(func() error { return c.store.DeleteRange(first, last) }); err != nil {
		return err
	}
	c.failedWrites.surplus = 0
	return nil
}

// markDiverged blocks the log until Raft has been reopened on it.
func (c *Checked) markDiverged() {
	if c.diverged.CompareAndSwap(false, true) {
		putToken(c.reopenDue)
	}
}
