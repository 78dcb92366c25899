package raftlog

// A retention keeps entries that Raft no longer needs.
type retention struct {
	after    []uint64 // ascending
	bytesMax uint64
}

// Retain makes [Checked.DeleteRange] keep the entries after the first of these indexes, ascending,
// for which all of them have at most bytesMax bytes. It replaces what an earlier call has set. Raft
// deletes entries that it no longer needs, and tries again with each later snapshot.
func (c *Checked) Retain(after []uint64, bytesMax uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retention = retention{after, bytesMax}
}

// removable returns the index up to which entries may be removed, of those up to last.
func (c *Checked) removable(last uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, after := range c.retention.after {
		first := c.firstIndex()
		if after+1 < first { // they are gone
			continue
		}
		bytes := uint64(0)
		for i := after + 1; i <= c.tail.index; i++ {
			bytes += uint64(c.sizes[i-first])
		}
		if bytes <= c.retention.bytesMax {
			return min(last, after)
		}
	}
	return last
}
