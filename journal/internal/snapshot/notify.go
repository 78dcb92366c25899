package snapshot

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Notifying is a snapshot store that reports when a snapshot, taken or received, is on disk.
type Notifying struct {
	raft.SnapshotStore
	count atomic.Uint64
	// onSnapshot is called with the index of the snapshot.
	onSnapshot func(index uint64)

	mu     sync.Mutex
	latest Info
}

// Info describes a snapshot of this node.
type Info struct {
	Index uint64
	Time  time.Time // when it was completed here; zero if unknown
	Bytes int64     // 0 if unknown
}

// timed is a store that knows when a snapshot was completed.
type timed interface{ completedAt(id string) time.Time }

// sized is a sink that knows the size of its snapshot.
type sized interface{ Size() int64 }

// NewNotifying wraps store. It calls done with the index of the newest existing snapshot, and later
// with that of each new one.
func NewNotifying(store raft.SnapshotStore, done func(uint64)) (*Notifying, error) {
	all, err := store.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	n := &Notifying{SnapshotStore: store, onSnapshot: done}
	if len(all) > 0 {
		n.latest = Info{Index: all[0].Index, Bytes: all[0].Size}
		if files, ok := store.(timed); ok {
			n.latest.Time = files.completedAt(all[0].ID)
		}
		done(all[0].Index)
	}
	return n, nil
}

// Latest returns the newest snapshot, the zero value if there is none. It reads no disk.
func (n *Notifying) Latest() Info {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.latest
}

func (n *Notifying) setLatest(info Info) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if info.Index >= n.latest.Index {
		n.latest = info
	}
}

// Count returns how many snapshots were written since the store was opened.
func (n *Notifying) Count() uint64 { return n.count.Load() }

// Create implements raft.SnapshotStore.
func (n *Notifying) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, transport raft.Transport) (raft.SnapshotSink, error) {
	sink, err := n.SnapshotStore.Create(version, index, term, members, membersIndex, transport)
	if err != nil {
		return nil, err
	}
	return &notifyingSink{SnapshotSink: sink, store: n, index: index}, nil
}

type notifyingSink struct {
	raft.SnapshotSink
	store    *Notifying
	index    uint64
	canceled bool
}

// Close implements raft.SnapshotSink.
func (s *notifyingSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil || s.canceled {
		return err
	}
	info := Info{Index: s.index, Time: time.Now()}
	if sink, ok := s.SnapshotSink.(sized); ok {
		info.Bytes = sink.Size()
	}
	s.store.setLatest(info)
	s.store.count.Add(1)
	s.store.onSnapshot(s.index)
	return nil
}

// Cancel implements raft.SnapshotSink.
func (s *notifyingSink) Cancel() error {
	s.canceled = true
	return s.SnapshotSink.Cancel()
}
