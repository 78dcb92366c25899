package journal

import (
	"context"
	"fmt"
)

// reopenRaft reopens Raft on its stores whenever its log has diverged from what Raft assumes (see
// failedwrites.go), until ctx ends. If that is not possible, the node fails.
func (j *Journal) reopenRaft(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.failStop.failed:
			return
		case <-j.logs.Checked.ReopenDue():
		}
		last, _ := j.logs.Checked.LastIndex() // in memory, cannot fail
		j.config.Logger.Warn("log entries are gone that raft assumes, reopening raft",
			"partition", j.config.Partition, "last", j.raft.LastIndex(), "log_ends_at", last)
		if err := j.raft.Reopen(j.logs.Checked.Reread); err != nil {
			_ = j.failStop.Fail(fmt.Errorf("reopen raft: %w", err))
			return
		}
		j.config.Logger.Info("raft reopened", "partition", j.config.Partition, "last", j.raft.LastIndex())
	}
}
