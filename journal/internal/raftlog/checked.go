package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
)

// Checked is a log store that verifies every entry, because the store below does not. It stores
// each entry with two checksums: that of the previous entry, and one of both the entry and the
// first checksum. Reading a damaged entry returns an error.
//
// The checksums are appended to Extensions when an entry is stored and removed when it is read, so
// other nodes never see them.
type Checked struct {
	store    *Raw
	path     string
	stable   *StableFile // holds the saved tail; nil in memory
	failStop FailStop
	disk     *Disk
	// snapshotDue holds a token when the log has grown by snapshotBytes since the newest snapshot.
	snapshotDue   chan struct{}
	snapshotBytes uint64
	// configurations are the indexes of the configuration entries in the log when it was opened.
	configurations []uint64

	// writeMu is held during changes of the log, also while the disk is stalled; mu only during
	// access to the fields below.
	writeMu      sync.Mutex
	failedWrites failedWrites // under writeMu
	// diverged is set, and reopenDue holds a token, when Raft assumes entries that were
	// deleted. The log then rejects writes until reread.
	diverged  atomic.Bool
	reopenDue chan struct{}
	hasStored atomic.Bool // an entry was stored since the log was opened
	diskFull  atomic.Bool // the last write failed because the disk is full

	mu                 sync.Mutex
	tail               logTail  // the last entry; index 0 if the log is empty
	sizes              []uint32 // of all entries, in order
	snapshotIndex      uint64   // the index of the newest snapshot
	bytesSinceSnapshot uint64   // bytes of the entries after it
	writtenBytes       uint64   // bytes written since Open
	retention          retention
}

// checksumsSize is the size of the two checksums at the end of Extensions.
const checksumsSize = 8

// openChecked reads the whole log, verifies it, and verifies that it reaches the saved tail. Errors
// are a *diskfile.DamagedError or those of the store.
func openChecked(l *Checked) (*Checked, error) {
	if err := l.Reread(); err != nil {
		return nil, err
	}
	return l, nil
}

// Reread reads and verifies the whole log and resets the fields accordingly. There must be no
// concurrent writes.
func (c *Checked) Reread() error {
	found, err := c.scan()
	if err != nil {
		return err
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.failedWrites = failedWrites{}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail, c.sizes, c.configurations = found.tail, found.sizes, found.configurations
	c.recountBytesSinceSnapshot()
	c.diverged.Store(false)
	return nil
}

// logContent summarizes a log.
type logContent struct {
	tail           logTail
	sizes          []uint32
	configurations []uint64
}

// scan reads and verifies the whole log.
func (c *Checked) scan() (found logContent, err error) {
	first, last, err := c.bounds()
	if err != nil {
		return found, err
	}
	saved := logTail{}
	if c.stable != nil {
		saved = c.stable.savedTail()
	}
	for index := first; index <= last && index > 0; index++ {
		var log raft.Log
		before, sum, err := c.read(index, &log)
		if err != nil {
			return found, err
		}
		if index > first && before != found.tail.sum {
			return found, c.damagedError(index, "checksum of the previous entry does not match")
		}
		if index == saved.index && sum != saved.sum {
			return found, c.damagedError(index, "checksum differs from that of the entry that was written")
		}
		found.tail = logTail{index, sum}
		found.sizes = append(found.sizes, entrySize(&log))
		if log.Type == raft.LogConfiguration {
			found.configurations = append(found.configurations, index)
		}
	}
	if saved.index > found.tail.index {
		return found, c.damagedError(saved.index, fmt.Sprintf("it was written, but the log ends at %d", found.tail.index))
	}
	return found, nil
}

func (c *Checked) bounds() (first, last uint64, err error) {
	var has [2]uint64
	err = c.store.call(func() (err error) {
		if has[0], err = c.store.FirstIndex(); err == nil {
			has[1], err = c.store.LastIndex()
		}
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read log: %w", err)
	}
	return has[0], has[1], nil
}

func (c *Checked) damagedError(index uint64, reason string) error {
	return &diskfile.DamagedError{Path: c.path, Index: index, Reason: reason}
}

// read reads and verifies one entry. It returns the checksum of the entry before and that of this
// one. The error is raft.ErrLogNotFound, a *diskfile.DamagedError or one of the store.
func (c *Checked) read(index uint64, log *raft.Log) (before, sum uint32, err error) {
	stored := &raft.Log{}
	err = c.store.call(func() error { return c.store.GetLog(index, stored) })
	if err == nil {
		*log = *stored
	}
	var damaged *diskfile.DamagedError
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return 0, 0, err
	case errors.As(err, &damaged):
		return 0, 0, c.damagedError(index, damaged.Reason)
	case err != nil && !isSystemError(err):
		return 0, 0, c.damagedError(index, err.Error())
	case err != nil:
		return 0, 0, fmt.Errorf("read entry %d of %s: %w", index, c.path, err)
	case log.Index != index:
		return 0, 0, c.damagedError(index, fmt.Sprintf("its own index is %d", log.Index))
	case len(log.Extensions) < checksumsSize:
		return 0, 0, c.damagedError(index, "no checksums")
	}
	sums := log.Extensions[len(log.Extensions)-checksumsSize:]
	log.Extensions = slices.Clip(log.Extensions[:len(log.Extensions)-checksumsSize])
	before, sum = binary.BigEndian.Uint32(sums), binary.BigEndian.Uint32(sums[4:])
	if checksumEntry(before, log) != sum {
		return 0, 0, c.damagedError(index, "checksum mismatch")
	}
	return before, sum, nil
}

// isSystemError reports whether an error came from the operating system, not from a decoder.
func isSystemError(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// checksumEntry returns the checksum of an entry together with before, the checksum of the entry
// before it.
func checksumEntry(before uint32, log *raft.Log) uint32 {
	var head [37]byte
	binary.BigEndian.PutUint32(head[0:], before)
	binary.BigEndian.PutUint64(head[4:], log.Index)
	binary.BigEndian.PutUint64(head[12:], log.Term)
	head[20] = byte(log.Type)
	binary.BigEndian.PutUint64(head[21:], uint64(log.AppendedAt.UnixNano()))
	binary.BigEndian.PutUint64(head[29:], uint64(len(log.Data)))
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, log.Data)
	return crc32.Update(sum, castagnoli, log.Extensions)
}

// entrySize returns the approximate size of an entry in the store, in bytes.
func entrySize(log *raft.Log) uint32 { return uint32(len(log.Data) + len(log.Extensions) + 64) }

// GetLog implements raft.LogStore.
func (c *Checked) GetLog(index uint64, log *raft.Log) error {
	_, _, err := c.read(index, log)
	return err
}

// FirstIndex implements raft.LogStore.
func (c *Checked) FirstIndex() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.firstIndex(), nil
}

func (c *Checked) firstIndex() uint64 {
	if c.tail.index == 0 {
		return 0
	}
	return c.tail.index + 1 - uint64(len(c.sizes))
}

// LastIndex implements raft.LogStore.
func (c *Checked) LastIndex() (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tail.index, nil
}

// IsMonotonic implements raft.MonotonicLogStore: the log has no gaps, so Raft deletes the log after
// it has installed a snapshot from the leader.
func (*Checked) IsMonotonic() bool { return true }

// StoreLog implements raft.LogStore.
func (c *Checked) StoreLog(log *raft.Log) error { return c.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. A full disk does not fail the node, because it may have room
// again. A leader then steps down, and a follower does not acknowledge. Raft is reopened if it
// assumes entries that are gone (see failedwrites.go). After any other error the content of the
// disk is unknown, and the node fails.
func (c *Checked) StoreLogs(logs []*raft.Log) error {
	if err := c.checkWritable(); err != nil || len(logs) == 0 {
		return err
	}
	if err := c.disk.write(func() error { return c.append(logs) }); err != nil {
		err = c.handleWriteError("write log", err)
		if c.diskFull.Load() {
			releaseRetained(c)
		}
		return err
	}
	c.hasStored.Store(true)
	c.diskFull.Store(false)
	return nil
}

// checkWritable returns an error if the log rejects writes.
func (c *Checked) checkWritable() error {
	if err := c.failStop.Err(); err != nil {
		return err
	}
	if c.diverged.Load() {
		return ErrReopening
	}
	return nil
}

// append stores entries and saves the new tail.
func (c *Checked) append(logs []*raft.Log) error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if err := c.deleteSurplus(); err != nil {
		return err
	}
	if err := c.prepareAppend(logs[0].Index); err != nil {
		return err
	}
	sealed, tail := addChecksums(c.tail.sum, logs)
	if err := c.write(sealed, tail); err != nil {
		return c.handleAppendError(err)
	}
	c.failedWrites.truncated = false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail = tail
	for _, log := range logs {
		size := entrySize(log)
		c.sizes = append(c.sizes, size)
		c.bytesSinceSnapshot += uint64(size)
		c.writtenBytes += uint64(size)
	}
	if c.bytesSinceSnapshot >= c.snapshotBytes {
		c.RequestSnapshot()
	}
	return nil
}

// write stores entries with checksums and saves the last of them as the tail.
func (c *Checked) write(sealed []*raft.Log, tail logTail) error {
	if err := c.store.call(func() error { return c.store.StoreLogs(sealed) }); err != nil || c.stable == nil {
		return err
	}
	return c.stable.setTail(tail, false)
}

// handleWriteError fails the node unless the error may be temporary.
func (c *Checked) handleWriteError(what string, err error) error {
	err = fmt.Errorf("%s %s: %w", what, c.path, err)
	if diskfile.IsFull(err) {
		c.diskFull.Store(true)
		return err
	}
	return c.failStop.Fail(err)
}

// addChecksums returns copies of entries with their checksums, and the new tail.
func addChecksums(before uint32, logs []*raft.Log) ([]*raft.Log, logTail) {
	copies := make([]raft.Log, len(logs))
	sealed := make([]*raft.Log, len(logs))
	sums := make([]byte, 0, len(logs)*checksumsSize)
	for i, log := range logs {
		sum := checksumEntry(before, log)
		copies[i] = *log
		if len(log.Extensions) > 0 {
			copies[i].Extensions = binary.BigEndian.AppendUint32(slices.Clip(log.Extensions), before)
			copies[i].Extensions = binary.BigEndian.AppendUint32(copies[i].Extensions, sum)
		} else {
			sums = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(sums, before), sum)
			copies[i].Extensions = sums[len(sums)-checksumsSize:]
		}
		sealed[i] = &copies[i]
		before = sum
	}
	return sealed, logTail{logs[len(logs)-1].Index, before}
}

// prepareAppend prepares the log for an entry with this index. An index beyond the next one occurs
// only after a snapshot has replaced the whole log and Raft could not delete the log. prepareAppend
// then deletes it. It returns an error if the index exists.
func (c *Checked) prepareAppend(index uint64) error {
	switch {
	case c.tail.index == 0 || index == c.tail.index+1:
		return nil
	case index <= c.tail.index:
		return fmt.Errorf("entry %d already exists", index)
	}
	return c.deleteEntries(c.firstIndex(), c.tail.index)
}

// DeleteRange implements raft.LogStore, for ranges that include the first or the last entry. Of a
// range without the last entry, which Raft no longer needs, it keeps what Retain says, and it
// leaves to a later call what would take long.
func (c *Checked) DeleteRange(first, last uint64) error {
	if err := c.checkWritable(); err != nil {
		return err
	}
	if isProperPrefix(c, first, last) {
		return deleteUnneeded(c, last)
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	before := c.tail.index
	err := c.deleteSurplus()
	if err == nil {
		err = c.deleteEntries(first, last)
	}
	if err != nil {
		return c.handleWriteError("truncate log", err)
	}
	c.recordTruncation(first, before)
	return nil
}

func (c *Checked) deleteEntries(first, last uint64) error {
	first, last = max(first, c.firstIndex()), min(last, c.tail.index)
	if c.tail.index == 0 || first > last {
		return nil
	}
	tail := c.tail
	if last == c.tail.index {
		var err error
		if tail, err = c.prepareTruncation(first); err != nil {
			return err
		}
	} else if first != c.firstIndex() {
		return fmt.Errorf("entries %d to %d are in the middle of the log and cannot be deleted", first, last)
	}
	if err := c.store.call(func() error { return c.store.DeleteRange(first, last) }); err != nil {
		return c.handleDeleteError(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at, n := int(first-c.firstIndex()), int(last-first)+1
	c.sizes = slices.Delete(c.sizes, at, at+n)
	c.tail = tail
	c.recountBytesSinceSnapshot()
	return nil
}

// prepareTruncation saves the new tail before the entries from first on are deleted, and returns
// it.
func (c *Checked) prepareTruncation(first uint64) (logTail, error) {
	tail := logTail{}
	if first > c.firstIndex() {
		var log raft.Log
		_, sum, err := c.read(first-1, &log)
		if err != nil {
			return tail, err
		}
		tail = logTail{first - 1, sum}
	}
	if c.stable == nil {
		return tail, nil
	}
	return tail, c.stable.setTail(tail, true)
}

// RecordSnapshot records that everything up to index is in a snapshot on disk.
func (c *Checked) RecordSnapshot(index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snapshotIndex = max(c.snapshotIndex, index)
	c.recountBytesSinceSnapshot()
}

func (c *Checked) recountBytesSinceSnapshot() {
	c.bytesSinceSnapshot = 0
	first := c.firstIndex()
	for i, size := range c.sizes {
		if first+uint64(i) > c.snapshotIndex {
			c.bytesSinceSnapshot += uint64(size)
		}
	}
	if c.bytesSinceSnapshot >= c.snapshotBytes {
		c.RequestSnapshot()
	}
}

// CountWithin returns how many of the last entries fit into bytesMax bytes.
func (c *Checked) CountWithin(bytesMax uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, bytes := 0, uint64(0)
	for ; n < len(c.sizes); n++ {
		if bytes += uint64(c.sizes[len(c.sizes)-1-n]); bytes > bytesMax {
			break
		}
	}
	return uint64(n)
}

// Stats are metrics of a log.
type Stats struct {
	WrittenBytes       uint64 // since it was opened
	Entries            int
	BytesSinceSnapshot uint64 // bytes of the entries newer than the newest snapshot
}

// Stats returns the metrics of the log.
func (c *Checked) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{c.writtenBytes, len(c.sizes), c.bytesSinceSnapshot}
}

// SnapshotDue returns a channel that holds a token when the log has grown by its snapshotBytes
// since the newest snapshot.
func (c *Checked) SnapshotDue() <-chan struct{} { return c.snapshotDue }

// RequestSnapshot puts a token into SnapshotDue.
func (c *Checked) RequestSnapshot() { putToken(c.snapshotDue) }

// ReopenDue returns a channel that holds a token when the log has diverged.
func (c *Checked) ReopenDue() <-chan struct{} { return c.reopenDue }

// HasDiverged reports whether Raft assumes entries that are gone. The log then rejects writes until
// Reread.
func (c *Checked) HasDiverged() bool { return c.diverged.Load() }

// HasStored reports whether an entry was stored since the log was opened.
func (c *Checked) HasStored() bool { return c.hasStored.Load() }

// IsDiskFull reports whether the last write failed because the disk is full.
func (c *Checked) IsDiskFull() bool { return c.diskFull.Load() }

// putToken puts a token into a channel of capacity one.
func putToken(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// HasEntry reports whether an entry is in the log.
func (c *Checked) HasEntry(index uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return index > 0 && c.firstIndex() <= index && index <= c.tail.index
}

// UpdateConfiguration sets the configuration of a snapshot to the latest one up to its index, from
// the log as it was opened. The snapshot holds only applied entries, so that configuration is
// committed.
func (c *Checked) UpdateConfiguration(point *raft.SnapshotMeta) error {
	for _, index := range c.configurations {
		if index <= point.ConfigurationIndex || index > point.Index {
			continue
		}
		var log raft.Log
		if err := c.GetLog(index, &log); err != nil {
			return err
		}
		point.Configuration, point.ConfigurationIndex = raft.DecodeConfiguration(log.Data), index
	}
	return nil
}

// Configurations returns the configurations in the log as it was opened, latest first, without
// those that cannot be read: a later reader of the log reports them. It reads no other entry.
func (c *Checked) Configurations() (all []raft.Configuration) {
	for _, index := range slices.Backward(c.configurations) {
		var log raft.Log
		if err := c.GetLog(index, &log); err == nil {
			all = append(all, raft.DecodeConfiguration(log.Data))
		}
	}
	return all
}
