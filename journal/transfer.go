package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// ErrTransferFailed: no other node took over leadership in time. It still may.
var ErrTransferFailed = errors.New("transfer of leadership failed")

// TransferLeadership transfers leadership to the follower that is least behind. It returns when
// this node no longer leads. Appends are rejected with ErrNotLeader meanwhile. The Raft library
// aborts a transfer after the election timeout; a busy follower may need longer, so three are
// tried. If ctx ends first, the transfer in progress continues. It returns ErrTransferFailed if all
// fail, ErrNotLeader on a node that does not lead and ErrLastVoter on a single node.
func (l *leaderships) TransferLeadership(ctx context.Context) error {
	return l.transfer(ctx, func() raft.Future { return l.raft.LeadershipTransfer() })
}

// TransferLeadershipTo is TransferLeadership to a given node. It returns ErrNotMember if that node
// has no vote.
func (l *leaderships) TransferLeadershipTo(ctx context.Context, node string) error {
	to := l.members.membership().find(node)
	if to == nil || to.Suffrage != raft.Voter {
		return ErrNotMember
	}
	return l.transfer(ctx, func() raft.Future { return l.raft.LeadershipTransferToServer(to.ID, to.Address) })
}

const (
	// successorLag is the number of committed entries that a node may lack and still count as
	// caught up. The leader's knowledge is as old as the last heartbeat, and under load some
	// entries are in flight. Sending so many takes no longer than a transfer of leadership.
	successorLag = 512
	// successorWait is the longest wait for nodes that lack more.
	successorWait = 5 * time.Second
)

// AwaitSuccessors returns when the partition can continue at once without this node: when enough
// others for a majority have nearly everything that is committed. It must be called on the leader.
// A node that has just started may have to apply entries first, one second for every 100,000. If
// the majority needs that node, nothing is committed meanwhile. AwaitSuccessors does not wait for
// nodes that do not answer, and for the others at most 5 s or until ctx ends. Appends continue
// meanwhile.
func (l *leaderships) AwaitSuccessors(ctx context.Context) {
	timeout := 2 * l.config.HeartbeatTimeout
	for started := time.Now(); ; {
		caughtUp, there, needed := l.successors(timeout)
		waited := time.Since(started)
		if caughtUp >= needed || there < needed && waited >= timeout || waited >= successorWait {
			return
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return
		case <-l.closing:
			return
		}
	}
}

// successors returns how many other voters have nearly everything that is committed, how many have
// answered within late, and how many are needed. All are 0 on a node that does not lead, or if
// there are too few voters.
func (l *leaderships) successors(late time.Duration) (caughtUp, there, needed int) {
	r := l.leadership.Load()
	if r == nil {
		return 0, 0, 0
	}
	committed, voters := l.raft.CommitIndex(), 0
	for _, server := range l.members.membership().servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		got := l.acks.Get(server.ID)
		if string(server.ID) == l.config.Node || got.Term != r.term {
			continue
		}
		if got.LastIndex+successorLag >= committed {
			caughtUp++
		}
		if time.Since(got.ReceivedAt) < late {
			there++
		}
	}
	if needed = voters/2 + 1; needed == voters {
		return 0, 0, 0
	}
	return caughtUp, there, needed
}

// awaitTransferEnd returns when Raft has ended a transfer that has failed. That may be long after
// Raft reported the failure: it still waits for the target, and takes no appends meanwhile.
func (l *leaderships) awaitTransferEnd() {
	for errors.Is(l.raft.Barrier(enqueueTimeout).Error(), raft.ErrLeadershipTransferInProgress) {
		select {
		case <-time.After(pollInterval):
		case <-l.closing:
			return
		}
	}
}

// transferAttempts is how often a transfer is tried before its error is returned.
const transferAttempts = 3

func (l *leaderships) transfer(ctx context.Context, begin func() raft.Future) error {
	r := l.leadership.Load()
	if r == nil {
		return ErrNotLeader
	}
	if len(l.raft.GetConfiguration().Configuration().Servers) == 1 {
		return ErrLastVoter
	}
	select {
	case <-l.metadata.recordClock(): // so that the next leader has received it
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership: %w", ctx.Err())
	}
	result := make(chan error, 1)
	if !l.callers.start(func() {
		l.transfers.Add(1)
		defer l.transfers.Add(-1)
		err := begin().Error()
		for attempt := 1; err != nil && attempt < transferAttempts && ctx.Err() == nil && l.IsLeader(); attempt++ {
			l.awaitTransferEnd()
			err = begin().Error()
		}
		result <- err
		if err != nil {
			l.awaitTransferEnd()
		}
	}) {
		return ErrClosed
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership: %w", ctx.Err())
	case err := <-result:
		if err != nil && errors.Is(outcomeError(err), ErrNotLeader) {
			return ErrNotLeader
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrTransferFailed, err)
		}
	}
	select {
	case <-r.over: // which follows when Raft leads no longer
		return nil
	case <-ctx.Done():
		return fmt.Errorf("transfer leadership: %w", ctx.Err())
	}
}
