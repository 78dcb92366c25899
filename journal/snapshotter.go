package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// The Raft library takes a snapshot after a number of entries. Entries differ in size by a factor
// of thousands. So the journal also takes a snapshot by bytes, and sets how many entries are
// retained after it.

// snapshotRetryInterval is the pause after a snapshot that could not be taken.
const snapshotRetryInterval = 5 * time.Second

// snapshotByBytes takes a snapshot whenever the log has grown by SnapshotBytes since the last one,
// until ctx ends.
func (j *Journal) snapshotByBytes(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.failStop.failed:
			return
		case <-j.logs.Checked.SnapshotDue():
		}
		err := j.snapshot()
		if err == nil {
			continue
		}
		j.stats.snapshotFailures.Add(1)
		j.config.Logger.Warn("cannot take snapshot, trying again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(snapshotRetryInterval):
			j.logs.Checked.RequestSnapshot()
		}
	}
}

// snapshot takes one snapshot and truncates the log before it.
func (j *Journal) snapshot() error {
	started := time.Now()
	if err := j.setTrailingLogs(); err != nil {
		return err
	}
	err := j.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	j.stats.snapshotTime.observe(uint64(time.Since(started)))
	return nil
}

// setTrailingLogs sets how many entries Raft retains after the next snapshot: at most TrailingLogs,
// and at most half of SnapshotBytes.
func (j *Journal) setTrailingLogs() error {
	entries := min(j.config.TrailingLogs, j.logs.Checked.CountWithin(j.config.SnapshotBytes/2))
	if j.raft.ReloadableConfig().TrailingLogs == entries {
		return nil
	}
	return j.reloadRaftConfig(func(c *raft.ReloadableConfig) { c.TrailingLogs = entries })
}
