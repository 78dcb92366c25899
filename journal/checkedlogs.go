package journal

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
)

// checkedLogs is a log store that believes nothing. Every entry is stored with
// the sum of its predecessor and its own, which covers both; no store that is
// below has sums that it checks when it reads. An entry that does not check is
// an error, never an entry.
//
// The sums are put at the end of Extensions when an entry is stored and taken
// off when it is read, so that they stay on this node.
type checkedLogs struct {
	store  *rawLogs
	path   string
	stable *stableFile // with the mark; nil in memory
	fence  *fence
	disk   *disk
	// grown holds a token when the log has grown by bytesMax since the snapshot.
	grown    chan struct{}
	bytesMax uint64
	// configurations are the indexes of the entries with members, as the log was opened.
	configurations []uint64

	// writing is held by whoever changes the log, also while the disk hangs; mu
	// only while the fields below are looked at.
	writing sync.Mutex
	doubt   logDoubt // under writing
	// diverged is set, and stale holds a token, when Raft believes in entries that were
	// deleted. The log takes no writes then, until reread.
	diverged atomic.Bool
	stale    chan struct{}
	stored   atomic.Bool // an entry was stored since the log was opened
	full     atomic.Bool // the last write failed because the disk is full

	mu         sync.Mutex
	tail       logMark  // the last entry; index 0 if the log is empty
	sizes      []uint32 // of the entries, up to the last
	snapshot   uint64   // the index of the newest snapshot
	replayable uint64   // bytes of the entries behind it
	written    uint64   // bytes since Open
}

// sumsSize is the size of the two sums at the end of Extensions.
const sumsSize = 8

// openCheckedLogs reads the whole log and checks it, and that nothing is missing
// up to the mark. Errors are a *DamagedError or those of the store.
func openCheckedLogs(l *checkedLogs) (*checkedLogs, error) {
	if err := l.reread(); err != nil {
		return nil, err
	}
	return l, nil
}

// reread reads the whole log, checks it, and goes on from what is there. Nobody may write
// meanwhile.
func (l *checkedLogs) reread() error {
	found, err := l.scan()
	if err != nil {
		return err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.doubt = logDoubt{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail, l.sizes, l.configurations = found.tail, found.sizes, found.configurations
	l.recount()
	l.diverged.Store(false)
	return nil
}

// logContent is what is to be known of a log.
type logContent struct {
	tail           logMark
	sizes          []uint32
	configurations []uint64
}

// scan reads the whole log.
func (l *checkedLogs) scan() (found logContent, err error) {
	first, last, err := l.bounds()
	if err != nil {
		return found, err
	}
	mark := logMark{}
	if l.stable != nil {
		mark = l.stable.marked()
	}
	for index := first; index <= last && index > 0; index++ {
		var log raft.Log
		before, sum, err := l.read(index, &log)
		if err != nil {
			return found, err
		}
		if index > first && before != found.tail.sum {
			return found, l.damaged(index, "it does not follow the entry before it")
		}
		if index == mark.index && sum != mark.sum {
			return found, l.damaged(index, "it is not the entry that was written")
		}
		found.tail = logMark{index, sum}
		found.sizes = append(found.sizes, entrySize(&log))
		if log.Type == raft.LogConfiguration {
			found.configurations = append(found.configurations, index)
		}
	}
	if mark.index > found.tail.index {
		return found, l.damaged(mark.index, fmt.Sprintf("it was written and the log ends at %d", found.tail.index))
	}
	return found, nil
}

func (l *checkedLogs) bounds() (first, last uint64, err error) {
	var has [2]uint64
	err = l.store.guarded(func() (err error) {
		if has[0], err = l.store.FirstIndex(); err == nil {
			has[1], err = l.store.LastIndex()
		}
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read log: %w", err)
	}
	return has[0], has[1], nil
}

func (l *checkedLogs) damaged(index uint64, reason string) error {
	return &DamagedError{Path: l.path, Index: index, Reason: reason}
}

// read reads and checks one entry and returns the two sums that it came with.
// The error is raft.ErrLogNotFound, a *DamagedError or one of the store.
func (l *checkedLogs) read(index uint64, log *raft.Log) (before, sum uint32, err error) {
	stored := &raft.Log{}
	err = l.store.guarded(func() error { return l.store.GetLog(index, stored) })
	if err == nil {
		*log = *stored
	}
	var damaged *DamagedError
	switch {
	case errors.Is(err, raft.ErrLogNotFound):
		return 0, 0, err
	case errors.As(err, &damaged):
		return 0, 0, l.damaged(index, damaged.Reason)
	case err != nil && !isSystemError(err):
		return 0, 0, l.damaged(index, err.Error())
	case err != nil:
		return 0, 0, fmt.Errorf("read entry %d of %s: %w", index, l.path, err)
	case log.Index != index:
		return 0, 0, l.damaged(index, fmt.Sprintf("it says that it is entry %d", log.Index))
	case len(log.Extensions) < sumsSize:
		return 0, 0, l.damaged(index, "it has no sums")
	}
	sums := log.Extensions[len(log.Extensions)-sumsSize:]
	log.Extensions = slices.Clip(log.Extensions[:len(log.Extensions)-sumsSize])
	before, sum = binary.BigEndian.Uint32(sums), binary.BigEndian.Uint32(sums[4:])
	if sumEntry(before, log) != sum {
		return 0, 0, l.damaged(index, "it does not check")
	}
	return before, sum, nil
}

// isSystemError tells an error of the system from one of a decoder.
func isSystemError(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// sumEntry returns the sum of an entry and of what came before it.
func sumEntry(before uint32, log *raft.Log) uint32 {
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

// entrySize is about what an entry takes in the store.
func entrySize(log *raft.Log) uint32 { return uint32(len(log.Data) + len(log.Extensions) + 64) }

// GetLog implements raft.LogStore.
func (l *checkedLogs) GetLog(index uint64, log *raft.Log) error {
	_, _, err := l.read(index, log)
	return err
}

// FirstIndex implements raft.LogStore.
func (l *checkedLogs) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first(), nil
}

func (l *checkedLogs) first() uint64 {
	if l.tail.index == 0 {
		return 0
	}
	return l.tail.index + 1 - uint64(len(l.sizes))
}

// LastIndex implements raft.LogStore.
func (l *checkedLogs) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tail.index, nil
}

// IsMonotonic implements raft.MonotonicLogStore: there are no gaps, so that Raft
// removes what a snapshot from the leader replaces.
func (*checkedLogs) IsMonotonic() bool { return true }

// StoreLog implements raft.LogStore.
func (l *checkedLogs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. A disk that is full may have room again:
// then a leader steps down, a follower does not acknowledge, and Raft is reopened if it
// believes in entries that are gone (see logdoubt.go). After any other error nobody knows
// what is on disk, and the node fails.
func (l *checkedLogs) StoreLogs(logs []*raft.Log) error {
	if err := l.refusal(); err != nil || len(logs) == 0 {
		return err
	}
	if err := l.disk.write(func() error { return l.append(logs) }); err != nil {
		return l.failed("write log", err)
	}
	l.stored.Store(true)
	l.full.Store(false)
	return nil
}

// refusal says why the log takes no writes, if it takes none.
func (l *checkedLogs) refusal() error {
	if err := l.fence.err(); err != nil {
		return err
	}
	if l.diverged.Load() {
		return errReopening
	}
	return nil
}

// append stores entries, moves the mark, and counts them.
func (l *checkedLogs) append(logs []*raft.Log) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.removeSurplus(); err != nil {
		return err
	}
	if err := l.makeRoom(logs[0].Index); err != nil {
		return err
	}
	sealed, tail := sealEntries(l.tail.sum, logs)
	if err := l.write(sealed, tail); err != nil {
		return l.appendFailed(err)
	}
	l.doubt.truncated = false
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = tail
	for _, log := range logs {
		size := entrySize(log)
		l.sizes = append(l.sizes, size)
		l.replayable += uint64(size)
		l.written += uint64(size)
	}
	if l.replayable >= l.bytesMax {
		notify(l.grown)
	}
	return nil
}

// write stores sealed entries, and moves the mark to the last of them.
func (l *checkedLogs) write(sealed []*raft.Log, tail logMark) error {
	if err := l.store.guarded(func() error { return l.store.StoreLogs(sealed) }); err != nil || l.stable == nil {
		return err
	}
	return l.stable.setMark(tail, false)
}

// failed fences the node unless the error is one that may pass.
func (l *checkedLogs) failed(what string, err error) error {
	err = fmt.Errorf("%s %s: %w", what, l.path, err)
	if mayPass(err) {
		l.full.Store(true)
		return err
	}
	return l.fence.draw(err)
}

// IsDiskFull reports whether an error of Open, or of a journal, is that of a full disk.
func IsDiskFull(err error) bool { return mayPass(err) }

// mayPass reports whether an error is that of a full disk, which may have room again.
func mayPass(err error) bool {
	return slices.ContainsFunc(fullDisk(), func(full error) bool { return errors.Is(err, full) })
}

// sealEntries returns copies of entries with their sums, and the last sum.
func sealEntries(before uint32, logs []*raft.Log) ([]*raft.Log, logMark) {
	copies := make([]raft.Log, len(logs))
	sealed := make([]*raft.Log, len(logs))
	sums := make([]byte, 0, len(logs)*sumsSize)
	for i, log := range logs {
		sum := sumEntry(before, log)
		copies[i] = *log
		if len(log.Extensions) > 0 {
			copies[i].Extensions = binary.BigEndian.AppendUint32(slices.Clip(log.Extensions), before)
			copies[i].Extensions = binary.BigEndian.AppendUint32(copies[i].Extensions, sum)
		} else {
			sums = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(sums, before), sum)
			copies[i].Extensions = sums[len(sums)-sumsSize:]
		}
		sealed[i] = &copies[i]
		before = sum
	}
	return sealed, logMark{logs[len(logs)-1].Index, before}
}

// makeRoom prepares for an entry with this index. One further on comes only
// after a snapshot that replaces the whole log, which Raft was kept from
// removing; one that is there already never comes.
func (l *checkedLogs) makeRoom(index uint64) error {
	switch {
	case l.tail.index == 0 || index == l.tail.index+1:
		return nil
	case index <= l.tail.index:
		return fmt.Errorf("entry %d is there already", index)
	}
	return l.delete(l.first(), l.tail.index)
}

// DeleteRange implements raft.LogStore, for ranges that reach to either end.
func (l *checkedLogs) DeleteRange(first, last uint64) error {
	if err := l.refusal(); err != nil {
		return err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	before := l.tail.index
	err := l.removeSurplus()
	if err == nil {
		err = l.delete(first, last)
	}
	if err != nil {
		return l.failed("truncate log", err)
	}
	l.noteTruncation(first, before)
	return nil
}

func (l *checkedLogs) delete(first, last uint64) error {
	first, last = max(first, l.first()), min(last, l.tail.index)
	if l.tail.index == 0 || first > last {
		return nil
	}
	tail := l.tail
	if last == l.tail.index {
		var err error
		if tail, err = l.truncated(first); err != nil {
			return err
		}
	} else if first != l.first() {
		return fmt.Errorf("entries %d to %d are in the middle of the log", first, last)
	}
	if err := l.store.guarded(func() error { return l.store.DeleteRange(first, last) }); err != nil {
		return l.deleteFailed(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at, n := int(first-l.first()), int(last-first)+1
	l.sizes = slices.Delete(l.sizes, at, at+n)
	l.tail = tail
	l.recount()
	return nil
}

// truncated moves the mark back before the entries from first on are deleted,
// and returns what the last entry will be.
func (l *checkedLogs) truncated(first uint64) (logMark, error) {
	tail := logMark{}
	if first > l.first() {
		var log raft.Log
		_, sum, err := l.read(first-1, &log)
		if err != nil {
			return tail, err
		}
		tail = logMark{first - 1, sum}
	}
	if l.stable == nil {
		return tail, nil
	}
	return tail, l.stable.setMark(tail, true)
}

// snapshotTaken notes that everything up to index is in a snapshot on disk.
func (l *checkedLogs) snapshotTaken(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snapshot = max(l.snapshot, index)
	l.recount()
}

func (l *checkedLogs) recount() {
	l.replayable = 0
	first := l.first()
	for i, size := range l.sizes {
		if first+uint64(i) > l.snapshot {
			l.replayable += uint64(size)
		}
	}
	if l.replayable >= l.bytesMax {
		notify(l.grown)
	}
}

// within returns how many of the last entries take up to bytesMax bytes.
func (l *checkedLogs) within(bytesMax uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, uint64(0)
	for ; n < len(l.sizes); n++ {
		if bytes += uint64(l.sizes[len(l.sizes)-1-n]); bytes > bytesMax {
			break
		}
	}
	return uint64(n)
}

func (l *checkedLogs) stats(s *Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.LogBytes, s.LogEntries, s.LogSinceSnapshot = l.written, len(l.sizes), l.replayable
}
