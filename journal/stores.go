package journal

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
)

const (
	snapshotsMax    = 2
	logCacheEntries = 128 // of up to PackBytesMax each
)

// stores hold Raft's log, votes and snapshots, without verification and failStop.
type stores struct {
	logs      *rawLogs
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	// snapshotsOnDisk is the same store as snapshots; nil if everything is in memory.
	snapshotsOnDisk *snapshotStore
	close           func() error
}

// openStores opens the stores in c.Dir, which is d, or in memory if that is empty.
func openStores(c *Config, d *directory, logger hclog.Logger) (*stores, error) {
	s, err := openRawStores(c, d, logger)
	if err == nil && c.tests.wrapStores != nil {
		c.tests.wrapStores(s)
	}
	return s, err
}

func openRawStores(c *Config, d *directory, logger hclog.Logger) (*stores, error) {
	if c.Dir == "" {
		memory := raft.NewInmemStore()
		noClose := func() error { return nil }
		return &stores{newRawLogs(memory, "memory", noClose), memory, raft.NewInmemSnapshotStore(), nil, noClose}, nil
	}
	logs, stable, err := d.openLogStore(c)
	if err != nil {
		return nil, err
	}
	closeLogs := func() error {
		return errors.Join(logs.close(), stable.close())
	}
	snapshots, err := openSnapshotStore(pebblestore.OwnerOnly, c.Dir, c.Node, c.Cluster, c.Logger)
	if err != nil {
		return nil, errors.Join(err, closeLogs())
	}
	snapshots.partition = c.Partition
	return &stores{logs, stable, snapshots, snapshots, closeLogs}, nil
}

// openChecked returns the stores for Raft: the log is verified and cached, and both fail the node
// on errors.
func (s *stores) openChecked(f *failStop, d *disk, snapshotBytes uint64) (*failStopLogs, *failStopStable, error) {
	l := &checkedLogs{
		store: s.logs, path: s.logs.path, failStop: f, disk: d,
		snapshotDue: make(chan struct{}, 1), snapshotBytes: snapshotBytes, reopenDue: make(chan struct{}, 1),
	}
	l.stable, _ = s.stable.(*stableFile)
	checked, err := openCheckedLogs(l)
	if err != nil {
		return nil, nil, err
	}
	cache, err := raft.NewLogCache(logCacheEntries, checked)
	if err != nil {
		return nil, nil, fmt.Errorf("open log cache: %w", err)
	}
	return &failStopLogs{LogCache: cache, checked: checked, failStop: f}, &failStopStable{s.stable, f, d}, nil
}

// failStopLogs is a log store that fails the node on unreadable entries. The Raft library panics
// when it cannot read an entry that it has to apply.
type failStopLogs struct {
	*raft.LogCache
	checked  *checkedLogs
	failStop *failStop
	// serving is set when Raft has started. Before, Raft reads only entries that must exist.
	serving atomic.Bool
}

// GetLog implements raft.LogStore. After a failure every entry is a no-op, which is safe: nothing
// is applied and nothing leaves the node.
func (l *failStopLogs) GetLog(index uint64, log *raft.Log) error {
	err := l.LogCache.GetLog(index, log)
	if errors.Is(err, raft.ErrLogNotFound) && l.isMissing(index) {
		// It may have been added meanwhile, or be about to be removed: a leader reads old entries
		// for a follower that lags while a snapshot removes them.
		l.checked.writeMu.Lock()
		err = l.LogCache.GetLog(index, log)
		l.checked.writeMu.Unlock()
	}
	if errors.Is(err, raft.ErrLogNotFound) && l.checked.diverged.Load() {
		// Raft would panic otherwise. Nothing leaves the node.
		*log = raft.Log{Index: index, Type: raft.LogNoop}
		return nil
	}
	if errors.Is(err, raft.ErrLogNotFound) && !l.isMissing(index) {
		return err // compacted away, or not there yet
	}
	if err != nil {
		l.failStop.fail(fmt.Errorf("read entry %d: %w", index, err))
		*log = raft.Log{Index: index, Type: raft.LogNoop}
	}
	return nil
}

// isMissing reports whether an entry should exist. A compacted entry is missing while Raft starts:
// then the snapshot that replaced it could not be read, and an older one was used.
func (l *failStopLogs) isMissing(index uint64) bool {
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

// failStopStable is a stable store that fails the node on failed writes. The Raft library panics
// when it cannot save its term.
type failStopStable struct {
	raft.StableStore
	failStop *failStop
	disk     *disk
}

// Set implements raft.StableStore.
func (s *failStopStable) Set(key, value []byte) error {
	return s.save(func() error { return s.StableStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore.
func (s *failStopStable) SetUint64(key []byte, value uint64) error {
	return s.save(func() error { return s.StableStore.SetUint64(key, value) })
}

// save writes, or fails the node and returns nil. The network is cut before Raft sees the apparent
// success, so no vote or answer that relies on it leaves the node.
func (s *failStopStable) save(write func() error) error {
	if s.failStop.err() != nil {
		return nil
	}
	if err := s.disk.write(write); err != nil {
		s.failStop.fail(fmt.Errorf("save term or vote: %w", err))
	}
	return nil
}
