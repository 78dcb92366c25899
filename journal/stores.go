package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

const (
	logFile         = "raft.db"
	snapshotsKept   = 2
	logCacheEntries = 128 // of up to PackBytesMax each
)

// stores are where Raft keeps its log, its votes and its snapshots.
type stores struct {
	logs      raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	close     func() error
}

// openStores opens the stores in dir, or in memory if dir is empty.
func openStores(dir string, logger hclog.Logger) (*stores, error) {
	if dir == "" {
		memory := raft.NewInmemStore()
		return &stores{memory, memory, raft.NewInmemSnapshotStore(), func() error { return nil }}, nil
	}
	path := filepath.Join(dir, logFile)
	if err := checkBolt(path); err != nil {
		return nil, err
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		// Without these a single write after a large truncation takes ten
		// times as long.
		BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	cache, err := raft.NewLogCache(logCacheEntries, bolt)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open log cache: %w", err), bolt.Close())
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open snapshots: %w", err), bolt.Close())
	}
	return &stores{cache, bolt, snapshots, bolt.Close}, nil
}

// fenced returns the stores behind a fence.
func (s *stores) fenced(f *fence) (*fencedLogs, *fencedStable) {
	return &fencedLogs{LogStore: s.logs, fence: f}, &fencedStable{s.stable, f}
}

// fencedLogs is a log store whose unreadable entries fence the node. The Raft
// library panics when it cannot read an entry that it has to apply.
type fencedLogs struct {
	raft.LogStore
	fence *fence
	// serving is set when Raft has started. Before, it asks only for entries
	// that must be there.
	serving atomic.Bool
}

// GetLog implements raft.LogStore. Behind the fence every entry is a no-op:
// nothing is applied and nothing leaves the node, so it deceives nobody.
func (l *fencedLogs) GetLog(index uint64, log *raft.Log) error {
	err := l.LogStore.GetLog(index, log)
	if errors.Is(err, raft.ErrLogNotFound) {
		if !l.missing(index) {
			return err // compacted away, or not there yet
		}
		err = l.LogStore.GetLog(index, log) // it may have come meanwhile
	}
	if err != nil {
		l.fence.draw(fmt.Errorf("read entry %d: %w", index, err))
		*log = raft.Log{Index: index, Type: raft.LogNoop}
	}
	return nil
}

// missing reports whether an entry ought to be there. One that was compacted
// away is missing when Raft starts: then the snapshot that replaced it could not
// be read, and an older one was taken instead.
func (l *fencedLogs) missing(index uint64) bool {
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

// StoreLog implements raft.LogStore.
func (l *fencedLogs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. An error of the store does not fence: a
// leader steps down, a follower does not acknowledge, and a disk that was full
// may have room again.
func (l *fencedLogs) StoreLogs(logs []*raft.Log) error {
	if err := l.fence.err(); err != nil {
		return err
	}
	return l.LogStore.StoreLogs(logs)
}

// fencedStable is a stable store whose failed writes fence the node. The Raft
// library panics when it cannot save its term.
type fencedStable struct {
	raft.StableStore
	fence *fence
}

// Set implements raft.StableStore.
func (s *fencedStable) Set(key, value []byte) error {
	return s.save(func() error { return s.StableStore.Set(key, value) })
}

// SetUint64 implements raft.StableStore.
func (s *fencedStable) SetUint64(key []byte, value uint64) error {
	return s.save(func() error { return s.StableStore.SetUint64(key, value) })
}

// save writes, or fences the node and pretends. The network is cut before Raft
// learns that it "succeeded", so no vote or answer that rests on it gets out.
func (s *fencedStable) save(write func() error) error {
	if s.fence.err() != nil {
		return nil
	}
	if err := write(); err != nil {
		s.fence.draw(fmt.Errorf("save term or vote: %w", err))
	}
	return nil
}
