package journal

import (
	"context"
	"fmt"
	"sync"
)

// failStop is triggered once, when the node finds something that it cannot trust or cannot write.
// From then on nothing leaves the node: Fail cuts the network before it returns, the log store
// takes no entry and the state machine applies none. The Raft library panics when it cannot save
// its term or read an entry. After a failure the stores may report success to it instead, because
// nothing based on that can leave the node.
type failStop struct {
	// failed is closed when the node has failed.
	failed chan struct{}
	// reported is closed when report has returned. A program that waits for the failure may exit at
	// once; what the log says must not be lost.
	reported chan struct{}
	// disconnect is called before failed is closed, report afterwards.
	disconnect, report func(*NodeFailedError)

	once  sync.Once
	cause *NodeFailedError
}

func newFailStop(cut, logged func(*NodeFailedError)) *failStop {
	return &failStop{failed: make(chan struct{}), reported: make(chan struct{}), disconnect: cut, report: logged}
}

// Fail fails the node for the first cause that it is given, and returns a *NodeFailedError.
func (f *failStop) Fail(cause error) error {
	first := false
	f.once.Do(func() {
		f.cause = &NodeFailedError{Cause: withFileErrors(cause)}
		f.disconnect(f.cause)
		close(f.failed)
		first = true
	})
	if first {
		defer close(f.reported)
		f.report(f.cause) // outside Do: concurrent callers of Do would wait for it
	}
	return f.cause
}

// Err returns a *NodeFailedError once the node has failed, nil before.
func (f *failStop) Err() error {
	select {
	case <-f.failed:
		return f.cause
	default:
		return nil
	}
}

// reopenRaft reopens Raft on its stores whenever its log has diverged from what Raft assumes (see
// internal/raftlog/failedwrites.go), until ctx ends. If that is not possible, the node fails.
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
