package journal

import (
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// headStart is the snapshot store with which Raft is started. The state on disk has
// more than the newest snapshot, all that there was if the journal was closed, and Raft
// would read every entry behind that snapshot, twice, and take none from its leader
// meanwhile. So the first List, which is NewRaft's, has the state itself as the newest
// snapshot. It is never opened: NewRaft opens none (see raftConfig), and what is listed
// later is to be sent, and has to be on disk.
type headStart struct {
	*countedSnapshots
	point atomic.Pointer[raft.SnapshotMeta] // nil if it is no further, or was listed
}

// newHeadStart lets Raft start after what was applied, the last of it an entry of term,
// if the log has that very entry. An entry of another term is left over from before a
// snapshot that a leader has sent.
//
// The log must have the last entry of the newest snapshot, too. Raft as a leader knows the
// terms of the entries in its log and of the snapshot that it started with. A follower
// whose last entry is the snapshot's needs the term of that entry, or it is sent the same
// snapshot again and again.
func newHeadStart(snapshots *countedSnapshots, logs *checkedLogs, applied, term uint64) (*headStart, error) {
	h := &headStart{countedSnapshots: snapshots}
	all, err := snapshots.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	point := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: applied, Term: term}
	if len(all) > 0 {
		point.Configuration, point.ConfigurationIndex = all[0].Configuration, all[0].ConfigurationIndex
		if applied <= all[0].Index || !logs.has(all[0].Index) {
			return h, nil
		}
	}
	if !logs.has(applied) {
		return h, nil
	}
	var last raft.Log
	if err := logs.GetLog(applied, &last); err != nil || last.Term != term {
		return h, err
	}
	if err := logs.membersAt(point); err != nil || len(point.Configuration.Servers) == 0 {
		return h, err
	}
	h.point.Store(point)
	return h, nil
}

// has tells whether an entry is in the log.
func (l *checkedLogs) has(index uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return index > 0 && l.first() <= index && index <= l.tail.index
}

// membersAt brings the members of a snapshot up to its index, by what was in the log
// when it was opened. They are committed, as all that is applied.
func (l *checkedLogs) membersAt(point *raft.SnapshotMeta) error {
	for _, index := range l.configurations {
		if index <= point.ConfigurationIndex || index > point.Index {
			continue
		}
		var log raft.Log
		if err := l.GetLog(index, &log); err != nil {
			return err
		}
		point.Configuration, point.ConfigurationIndex = raft.DecodeConfiguration(log.Data), index
	}
	return nil
}

// List implements raft.SnapshotStore.
func (h *headStart) List() ([]*raft.SnapshotMeta, error) {
	all, err := h.countedSnapshots.List()
	if point := h.point.Swap(nil); point != nil && err == nil {
		all = append([]*raft.SnapshotMeta{point}, all...)
	}
	return all, err
}
