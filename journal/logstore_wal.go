package journal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

const (
	walDir         = "wal"
	walSegmentFile = "segments"
)

// walLogs is a write-ahead log that is opened anew when its last segment is full
// and the next one could not be begun, because the disk was: the library would
// refuse entries for ever.
type walLogs struct {
	open func() (*wal.WAL, error)

	mu  sync.RWMutex // held for writing while wal is replaced
	wal *wal.WAL
}

// openWAL opens the write-ahead log in the directory at path. fresh says that
// none was ever used there; otherwise its list of segments must be there. synced
// is the last index that is known to be on disk.
func openWAL(path string, fresh bool, synced func() uint64, segmentBytes int, logger hclog.Logger) (*rawLogs, error) {
	if fresh {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("create log: %w", err)
		}
		if err := syncDirectory(filepath.Dir(path)); err != nil {
			return nil, fmt.Errorf("create log: %w", err)
		}
	}
	l := &walLogs{open: func() (*wal.WAL, error) {
		return wal.Open(path,
			wal.WithMetaStore(&segmentList{dir: path, fresh: fresh, synced: synced}),
			wal.WithSegmentSize(segmentBytes),
			wal.WithLogger(logger),
		)
	}}
	var err error
	l.wal, err = l.open()
	if errors.Is(err, wal.ErrCorrupt) || errors.Is(err, os.ErrNotExist) {
		return nil, &DamagedError{Path: path, Reason: err.Error()}
	}
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return newRawLogs(l, path, l.close), nil
}

func (l *walLogs) current() (*wal.WAL, func()) {
	l.mu.RLock()
	return l.wal, l.mu.RUnlock
}

func (l *walLogs) close() error {
	w, done := l.current()
	defer done()
	return w.Close()
}

// FirstIndex implements raft.LogStore.
func (l *walLogs) FirstIndex() (uint64, error) {
	w, done := l.current()
	defer done()
	return w.FirstIndex()
}

// LastIndex implements raft.LogStore.
func (l *walLogs) LastIndex() (uint64, error) {
	w, done := l.current()
	defer done()
	return w.LastIndex()
}

// GetLog implements raft.LogStore.
func (l *walLogs) GetLog(index uint64, log *raft.Log) error {
	w, done := l.current()
	defer done()
	return w.GetLog(index, log)
}

// DeleteRange implements raft.LogStore.
func (l *walLogs) DeleteRange(first, last uint64) error {
	w, done := l.current()
	defer done()
	return w.DeleteRange(first, last)
}

// StoreLog implements raft.LogStore.
func (l *walLogs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (l *walLogs) StoreLogs(logs []*raft.Log) error {
	err := l.storeOnce(logs)
	if !errors.Is(err, wal.ErrSealed) {
		return err
	}
	if err := l.reopen(); err != nil {
		return fmt.Errorf("begin the next segment: %w", err)
	}
	return l.storeOnce(logs)
}

func (l *walLogs) storeOnce(logs []*raft.Log) error {
	w, done := l.current()
	defer done()
	return w.StoreLogs(logs)
}

// reopen leaves the old one open, for reading, if there still is no room.
func (l *walLogs) reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, err := l.open()
	if err != nil {
		return err
	}
	old := l.wal
	l.wal = next
	return old.Close()
}

// segmentList is where the write-ahead log keeps the list of its segments: a
// file that is replaced as a whole, CRC-32C (4 bytes, big-endian) and JSON. The
// library's own is a second bolt file, which has no sums.
type segmentList struct {
	dir    string
	fresh  bool
	synced func() uint64
}

// Load implements types.MetaStore.
func (l *segmentList) Load(string) (types.PersistentState, error) {
	var s types.PersistentState
	path := filepath.Join(l.dir, walSegmentFile)
	content, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && l.fresh:
		return s, nil
	case errors.Is(err, os.ErrNotExist):
		return s, &DamagedError{Path: path, Reason: "it is gone"}
	case err != nil:
		return s, fmt.Errorf("read segments: %w", err)
	}
	if len(content) < crc32.Size || binary.BigEndian.Uint32(content) != crc32.Checksum(content[crc32.Size:], castagnoli) {
		return s, &DamagedError{Path: path, Reason: "it does not check"}
	}
	if err := json.Unmarshal(content[crc32.Size:], &s); err != nil {
		return s, &DamagedError{Path: path, Reason: err.Error()}
	}
	if err := l.rotate(&s); err != nil {
		return s, fmt.Errorf("begin the next segment: %w", err)
	}
	return s, nil
}

// rotate begins the next segment in the list if the last one is full. The library
// does so some time after the entry that filled it, and a log that was closed or
// killed in between would take no entry ever again.
func (l *segmentList) rotate(s *types.PersistentState) error {
	n := len(s.Segments)
	if n == 0 || !s.Segments[n-1].SealTime.IsZero() {
		return nil
	}
	tail := &s.Segments[n-1]
	file, err := os.OpenFile(filepath.Join(l.dir, segment.FileName(*tail)), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the library creates it
	}
	if err != nil {
		return err
	}
	seal, err := findSeal(file)
	if last := tail.BaseIndex + seal.entries - 1; err == nil && seal.torn && last < l.synced() {
		err = &DamagedError{Path: file.Name(), Index: last + 1, Reason: "it does not check"}
	}
	if err == nil && seal.torn {
		err = errors.Join(file.Truncate(seal.end), file.Sync())
	}
	if err = errors.Join(err, file.Close()); err != nil || seal.index == 0 || seal.torn {
		return err
	}
	tail.SealTime, tail.IndexStart = time.Now(), uint64(seal.index)
	tail.MaxIndex = tail.BaseIndex + seal.entries - 1
	next := *tail
	next.ID, next.BaseIndex, next.MinIndex = s.NextSegmentID, tail.MaxIndex+1, tail.MaxIndex+1
	next.MaxIndex, next.IndexStart, next.SealTime, next.CreateTime = 0, 0, time.Time{}, time.Now()
	s.Segments = append(s.Segments, next)
	s.NextSegmentID++
	return l.CommitState(*s)
}

// CommitState implements types.MetaStore.
func (l *segmentList) CommitState(s types.PersistentState) error {
	encoded, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode segments: %w", err)
	}
	content := binary.BigEndian.AppendUint32(nil, crc32.Checksum(encoded, castagnoli))
	return writeSynced(l.dir, walSegmentFile, append(content, encoded...))
}

// GetStable implements types.MetaStore: term and vote are in the stable file.
func (*segmentList) GetStable([]byte) ([]byte, error) { return nil, errors.ErrUnsupported }

// SetStable implements types.MetaStore.
func (*segmentList) SetStable(_, _ []byte) error { return errors.ErrUnsupported }

// Close implements types.MetaStore.
func (*segmentList) Close() error { return nil }
