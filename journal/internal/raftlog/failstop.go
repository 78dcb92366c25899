package raftlog

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Open returns the stores for Raft: the log is verified and cached, and both fail the node
// on errors. The log asks for a snapshot after snapshotBytes.
func Open(raw *Raw, stable raft.StableStore, f FailStop, d *Disk, snapshotBytes uint64) (*FailStopLog, *FailStopStable, error) {
	l := &Checked{
		store: raw, path: raw.path, failStop: f, disk: d,
		snapshotDue: make(chan struct{}, 1), snapshotBytes: snapshotBytes, reopenDue: make(chan struct{}, 1),
	}
	l.stable, _ = stable.(*StableFile)
	checked, err := openChecked(l)
	if err != nil {
		return nil, nil, err
	}
	logs, err := NewFailStopLog(checked, logCacheEntries, f)
	if err != nil {
		return nil, nil, err
	}
	return logs, &FailStopStable{stable, f, d}, nil
}

// FailStop fails the node when its log or its votes cannot be trusted or cannot be written.
type FailStop interface {
	// Fail fails the node for the first cause that it is given, and returns the failure. Afterwards
	// nothing leaves the node.
	Fail(cause error) error
	// Err returns the failure, nil before.
	Err() error
}

const logCacheEntries = 128 // of up to Config.PackBytesMax each

// FailStopLog is a log store that fails the node on unreadable entries. The Raft library panics
// when it cannot read an entry that it has to apply.
type FailStopLog struct {
	*raft.LogCache
	Checked  *Checked
	failStop FailStop
	// serving is set when Raft has started. Before, Raft reads only entries that must exist.
	serving atomic.Bool
}

// NewFailStopLog returns a log that keeps the latest entries in memory.
func NewFailStopLog(checked *Checked, cacheEntries int, f FailStop) (*FailStopLog, error) {
	cache, err := raft.NewLogCache(cacheEntries, checked)
	if err != nil {
		return nil, fmt.Errorf("open log cache: %w", err)
	}
	return &FailStopLog{LogCache: cache, Checked: checked, failStop: f}, nil
}

// SetServing records that Raft has started.
func (l *FailStopLog) SetServing() { l.serving.Store(true) }

// GetLog implements raft.LogStore. After a failure every entry is a no-op, which is safe: nothing
// is applied and nothing leaves the node.
func (l *FailStopLog) GetLog(index uint64, log *raft.Log) error {
	err := l.LogCache.GetLog(index, log)
	if errors.Is(err, raft.ErrLogNotFound) && l.isMissing(index) {
		// It may have been added meanwhile, or be about to be removed: a leader reads old entries
		// for a follower that lags while a snapshot removes them.
		l.Checked.writeMu.Lock()
		err = l.LogCache.GetLog(index, log)
		l.Checked.writeMu.Unlock()
	}
	if errors.Is(err, raft.ErrLogNotFound) && l.Checked.diverged.Load() {
		// Raft would panic otherwise. Nothing leaves the node.
		*log = raft.Log{Index: index, Type: raft.LogNoop}
		return nil
	}
	if errors.Is(err, raft.ErrLogNotFound) && !l.isMissing(index) {
		return err // compacted away, or not there yet
	}
	if err != nil {
		_ = l.failStop.Fail(fmt.Errorf("read entry %d: %w", index, err))
		*log = raft.Log{Index: index, Type: raft.LogNoop}
	}
	return nil
}

// isMissing reports whether an entry that was not found must exist. A compacted entry counts as
// missing while Raft starts: then the snapshot that replaced it could not be read, and an older one
// was used.
func (l *FailStopLog) isMissing(index uint64) bool {
	first, err := l.FirstIndex()
	if err != nil {
		return true
	}
	last, err := l.LastIndex()
	if err != nil {
		return true
	}
	return index <= last && (first <= index || !l.serving.Load())
}

// FailStopStable is a stable store that fails the node on failed writes. The Raft library panics
// when it cannot save its term.
type FailStopStable struct {
	raft.StableStore
	failStop FailStop
	disk     *Disk
}

// Set implements raft.StableStore.
func (s *FailStopStable) Set(key, value []byte) error {
	return s.save(func() error { return s.StableStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore.
func (s *FailStopStable) SetUint64(key []byte, value uint64) error {
	return s.save(func() error { return s.StableStore.SetUint64(key, value) })
}

// save writes, or fails the node and returns nil. The network is cut before Raft sees the apparent
// success, so no vote or answer that relies on it leaves the node.
func (s *FailStopStable) save(write func() error) error {
	if s.failStop.Err() != nil {
		return nil
	}
	if err := s.disk.write(write); err != nil {
		_ = s.failStop.Fail(fmt.Errorf("save term or vote: %w", err))
	}
	return nil
}
