package snapshot

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Notifying is a snapshot store that reports when a snapshot, taken or received, is on disk.
type Notifying struct {
	raft.SnapshotStore
	count atomic.Uint64
	// onSnapshot is called with the index of the snapshot.
	onSnapshot func(index uint64)
}

// NewNotifying wraps store. It calls done with the index of the newest existing snapshot, and later
// with that of each new one.
func NewNotifying(store raft.SnapshotStore, done func(uint64)) (*Notifying, error) {
	all, err := store.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	if len(all) > 0 {
		done(all[0].Index)
	}
	return &Notifying{SnapshotStore: store, onSnapshot: done}, nil
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
	s.store.count.Add(1)
	s.store.onSnapshot(s.index)
	return nil
}

// Cancel implements raft.SnapshotSink.
func (s *notifyingSink) Cancel() error {
	s.canceled = true
	return s.SnapshotSink.Cancel()
}
