package raftlog

import "time"

// Retained are entries to keep that Raft no longer needs: those after an index, until a time.
type Retained struct {
	After uint64
	Until time.Time
}

// A retention keeps entries that Raft no longer needs.
type retention struct {
	kept     []Retained // in ascending order of After
	bytesMax uint64
	unneeded uint64 // the index up to which Raft needs no entries, as far as it has said so
}

const (
	// removeMax bounds the entries that are deleted at once, while no entry can be appended: the
	// store needs about 20 ms for 1000.
	removeMax = 1024
	// removalsMax bounds the deletions of one call. A snapshot follows 8192 entries, by default: so
	// what is no longer kept is gone after some snapshots.
	removalsMax = 32
)

// Retain makes [Checked.DeleteRange] keep the entries after the first of these indexes, ascending,
// for which all of them have at most bytesMax bytes. It replaces what an earlier call has set. Raft
// deletes entries that it no longer needs, and tries again with each later snapshot. A full disk
// ends it.
func (c *Checked) Retain(kept []Retained, bytesMax uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retention.kept, c.retention.bytesMax = kept, bytesMax
}

// isProperPrefix reports whether a range has the first entry and not the last one.
func isProperPrefix(c *Checked, first, last uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return first <= c.firstIndex() && last < c.tail.index
}

// deleteUnneeded deletes the entries up to last, which Raft no longer needs, except those to keep.
// Entries are appended meanwhile. A later call deletes what is left.
func deleteUnneeded(c *Checked, last uint64) error {
	c.mu.Lock()
	c.retention.unneeded = max(c.retention.unneeded, last)
	c.mu.Unlock()
	for range removalsMax {
		if more, err := deleteSomeUnneeded(c, last); err != nil || !more {
			return err
		}
	}
	return nil
}

// deleteSomeUnneeded deletes some of the entries up to last, and reports whether there may be more.
func deleteSomeUnneeded(c *Checked, last uint64) (more bool, err error) {
	if err := c.checkWritable(); err != nil {
		return false, err
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	first, end := c.removable(last)
	err = c.deleteSurplus()
	if err == nil && first <= end {
		err = c.deleteEntries(first, min(end, first+removeMax-1))
	}
	if err != nil {
		return false, c.handleWriteError("truncate log", err)
	}
	return end > first+removeMax-1, nil
}

// releaseRetained keeps nothing any more, and deletes some of what was kept: its room is needed.
func releaseRetained(c *Checked) {
	c.Retain(nil, 0)
	c.mu.Lock()
	unneeded := c.retention.unneeded
	c.mu.Unlock()
	_ = deleteUnneeded(c, unneeded) // the caller returns the error of the write
}

// removable returns the range that may be removed of the entries up to last; it is empty if end is
// below first.
func (c *Checked) removable(last uint64) (first, end uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.firstIndex()
	if last >= c.tail.index { // it was truncated meanwhile
		return first, 0
	}
	now := time.Now()
	for _, r := range c.retention.kept {
		if r.After+1 < first || !now.Before(r.Until) { // they are gone, or old
			continue
		}
		bytes := uint64(0)
		for i := r.After + 1; i <= c.tail.index; i++ {
			bytes += uint64(c.sizes[i-first])
		}
		if bytes <= c.retention.bytesMax {
			return first, min(last, r.After)
		}
	}
	return first, last
}
