package snapshot

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// Starting is the snapshot store that Raft is started with. The state on disk has applied
// more than the newest snapshot: everything, if the journal was closed. Raft would read every entry
// after that snapshot twice, and accept none from its leader meanwhile. So the first List, called
// by NewRaft, returns the state itself as the newest snapshot. It is never opened: NewRaft opens
// none (see raftConfig), and later lists are for sending, and contain only snapshots on disk.
type Starting struct {
	*Notifying
	startMeta atomic.Pointer[raft.SnapshotMeta] // nil if not newer, or already listed
}

// Log is the log that Raft starts with.
type Log interface {
	HasEntry(index uint64) bool
	GetLog(index uint64, log *raft.Log) error
	// UpdateConfiguration sets the configuration of a snapshot to the latest one up to its index.
	UpdateConfiguration(of *raft.SnapshotMeta) error
}

// NewStarting lets Raft start after the last applied entry, of the given term, if the log has
// that very entry. An entry of another term is left over from before a snapshot that a leader has
// sent.
//
// The log must also have the last entry of the newest snapshot. As a leader, Raft has the terms
// of the entries in its log and of the snapshot that it started with. If a follower's last entry is
// that of the snapshot, Raft needs its term. Otherwise it would send the same snapshot again and
// again.
func NewStarting(snapshots *Notifying, logs Log, applied, term uint64) (*Starting, error) {
	h := &Starting{Notifying: snapshots}
	all, err := snapshots.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	point := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: applied, Term: term}
	if len(all) > 0 {
		point.Configuration, point.ConfigurationIndex = all[0].Configuration, all[0].ConfigurationIndex
		if applied <= all[0].Index || !logs.HasEntry(all[0].Index) {
			return h, nil
		}
	}
	if !logs.HasEntry(applied) {
		return h, nil
	}
	var last raft.Log
	if err := logs.GetLog(applied, &last); err != nil || last.Term != term {
		return h, err
	}
	if err := logs.UpdateConfiguration(point); err != nil || len(point.Configuration.Servers) == 0 {
		return h, err
	}
	h.startMeta.Store(point)
	return h, nil
}

// List implements raft.SnapshotStore.
func (s *Starting) List() ([]*raft.SnapshotMeta, error) {
	all, err := s.Notifying.List()
	if point := s.startMeta.Swap(nil); point != nil && err == nil {
		all = append([]*raft.SnapshotMeta{point}, all...)
	}
	return all, err
}
