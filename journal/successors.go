package journal

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

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
func (j *Journal) AwaitSuccessors(ctx context.Context) {
	timeout := 2 * j.config.HeartbeatTimeout
	for started := time.Now(); ; {
		caughtUp, there, needed := j.successors(timeout)
		waited := time.Since(started)
		if caughtUp >= needed || there < needed && waited >= timeout || waited >= successorWait {
			return
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return
		case <-j.closing:
			return
		}
	}
}

// successors returns how many other voters have nearly everything that is committed, how many have
// answered within late, and how many are needed. All are 0 on a node that does not lead, or if
// there are too few voters.
func (j *Journal) successors(late time.Duration) (caughtUp, there, needed int) {
	r := j.leadership.Load()
	if r == nil {
		return 0, 0, 0
	}
	committed, voters := j.raft.CommitIndex(), 0
	for _, server := range j.membership().servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		got := j.acks.Get(server.ID)
		if string(server.ID) == j.config.Node || got.Term != r.term {
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
