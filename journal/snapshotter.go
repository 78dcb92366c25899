package journal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// The Raft library takes a snapshot after a number of entries. Entries differ in
// size by a factor of thousands here, so that the journal takes one by bytes as
// well, and says how many entries stay behind it.

// countedSnapshots is a snapshot store that says when a snapshot is on disk, be
// it this node's own or one that the leader has sent.
type countedSnapshots struct {
	raft.SnapshotStore
	taken atomic.Uint64
	// done is called with the index of the snapshot.
	done func(index uint64)
}

// newCountedSnapshots calls done for the newest snapshot that is there.
func newCountedSnapshots(store raft.SnapshotStore, done func(uint64)) (*countedSnapshots, error) {
	all, err := store.List()
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	if len(all) > 0 {
		done(all[0].Index)
	}
	return &countedSnapshots{SnapshotStore: store, done: done}, nil
}

// Create implements raft.SnapshotStore.
func (s *countedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, transport raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, members, membersIndex, transport)
	if err != nil {
		return nil, err
	}
	return &countedSink{SnapshotSink: sink, of: s, index: index}, nil
}

type countedSink struct {
	raft.SnapshotSink
	of        *countedSnapshots
	index     uint64
	cancelled bool
}

// Close implements raft.SnapshotSink.
func (s *countedSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil || s.cancelled {
		return err
	}
	s.of.taken.Add(1)
	s.of.done(s.index)
	return nil
}

// Cancel implements raft.SnapshotSink.
func (s *countedSink) Cancel() error {
	s.cancelled = true
	return s.SnapshotSink.Cancel()
}

// snapshotAgain is the pause after a snapshot that could not be taken.
const snapshotAgain = 5 * time.Second

// snapshotByBytes takes a snapshot whenever the log has grown by SnapshotBytes
// since the last one, until ctx ends.
func (j *Journal) snapshotByBytes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.fence.drawn:
			return
		case <-j.logs.checked.grown:
		}
		err := j.snapshot()
		if err == nil {
			continue
		}
		j.stats.snapshotFailures.Add(1)
		j.config.Logger.Warn("snapshot not taken", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(snapshotAgain):
			notify(j.logs.checked.grown)
		}
	}
}

// snapshot takes one snapshot and truncates the log behind it.
func (j *Journal) snapshot() error {
	began := time.Now()
	if err := j.trail(); err != nil {
		return err
	}
	err := j.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	j.stats.snapshotTime.observe(uint64(time.Since(began)))
	return nil
}

// trail tells Raft how many entries to keep behind the next snapshot: at most
// TrailingLogs, and at most half of SnapshotBytes.
func (j *Journal) trail() error {
	entries := min(j.config.TrailingLogs, j.logs.checked.within(j.config.SnapshotBytes/2))
	if j.raft.ReloadableConfig().TrailingLogs == entries {
		return nil
	}
	return j.reload(func(c *raft.ReloadableConfig) { c.TrailingLogs = entries })
}
