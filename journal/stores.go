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
	snapshotsKept   = 2
	logCacheEntries = 128 // of up to PackBytesMax each
)

// stores are where Raft keeps its log, its votes and its snapshots, as they come
// from their libraries.
type stores struct {
	logs      *rawLogs
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	// The same, on disk; nil in memory.
	checkpoints *checkpoints
	close       func() error
}

// openStores opens the stores in c.Dir, which is d, or in memory if that is empty.
func openStores(c *Config, d *directory, logger hclog.Logger) (*stores, error) {
	s, err := openUnwrapped(c, d, logger)
	if err == nil && c.tests.wrap != nil {
		c.tests.wrap(s)
	}
	return s, err
}

func openUnwrapped(c *Config, d *directory, logger hclog.Logger) (*stores, error) {
	if c.Dir == "" {
		memory := raft.NewInmemStore()
		nothing := func() error { return nil }
		return &stores{newRawLogs(memory, "memory", nothing), memory, raft.NewInmemSnapshotStore(), nil, nothing}, nil
	}
	logs, stable, err := d.openLogStore(c)
	if err != nil {
		return nil, err
	}
	closeLogs := func() error {
		return errors.Join(logs.close(), stable.close())
	}
	snapshots, err := openCheckpoints(pebblestore.OwnerOnly, c.Dir, c.Node, c.Cluster, c.Logger)
	if err != nil {
		return nil, errors.Join(err, closeLogs())
	}
	snapshots.group = c.Group
	return &stores{logs, stable, snapshots, snapshots, closeLogs}, nil
}

// checked returns the stores as Raft may use them: the log checked and cached,
// and both behind the fence.
func (s *stores) checked(f *fence, d *disk, snapshotBytes uint64) (*fencedLogs, *fencedStable, error) {
	l := &checkedLogs{
		store: s.logs, path: s.logs.path, fence: f, disk: d,
		grown: make(chan struct{}, 1), bytesMax: snapshotBytes, stale: make(chan struct{}, 1),
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
	return &fencedLogs{LogCache: cache, checked: checked, fence: f}, &fencedStable{s.stable, f, d}, nil
}

// fencedLogs is a log store whose unreadable entries fence the node. The Raft
// library panics when it cannot read an entry that it has to apply.
type fencedLogs struct {
	*raft.LogCache
	checked *checkedLogs
	fence   *fence
	// serving is set when Raft has started. Before, it asks only for entries
	// that must be there.
	serving atomic.Bool
}

// GetLog implements raft.LogStore. Behind the fence every entry is a no-op:
// nothing is applied and nothing leaves the node, so it deceives nobody.
func (l *fencedLogs) GetLog(index uint64, log *raft.Log) error {
	err := l.LogCache.GetLog(index, log)
	if errors.Is(err, raft.ErrLogNotFound) && l.missing(index) {
		// It may have come meanwhile, or be about to go: a leader reads old entries
		// for one that is behind while a snapshot removes them.
		l.checked.writing.Lock()
		err = l.LogCache.GetLog(index, log)
		l.checked.writing.Unlock()
	}
	if errors.Is(err, raft.ErrLogNotFound) && l.checked.diverged.Load() {
		*log = raft.Log{Index: index, Type: raft.LogNoop} // it would panic; nothing leaves the node
		return nil
	}
	if errors.Is(err, raft.ErrLogNotFound) && !l.missing(index) {
		return err // compacted away, or not there yet
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

// fencedStable is a stable store whose failed writes fence the node. The Raft
// library panics when it cannot save its term.
type fencedStable struct {
	raft.StableStore
	fence *fence
	disk  *disk
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
	if err := s.disk.write(write); err != nil {
		s.fence.draw(fmt.Errorf("save term or vote: %w", err))
	}
	return nil
}
