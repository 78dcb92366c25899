package journal

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// How many committed entries a node may lack and is yet as good as one that has all:
	// the leader knows what a heartbeat told, and while there is much to do some are on
	// their way; to send so many takes no longer than to hand leadership over.
	successorLag = 512
	// The longest wait for nodes that lack more.
	successorWait = 5 * time.Second
)

// AwaitSuccessors returns when the group can go on at once without this node, on the
// leader: when as many others as decide without it have nearly all that is committed. One
// that was started a moment ago may have to apply entries first, a second for every hundred
// thousand, and if it is needed nothing is committed until it has. Nodes that do not answer
// are not waited for, the others 5 s at most, or until ctx ends. Appends go on meanwhile.
func (j *Journal) AwaitSuccessors(ctx context.Context) {
	patience := 2 * j.config.HeartbeatTimeout
	for begun := time.Now(); ; {
		near, there, needed := j.successors(patience)
		waited := time.Since(begun)
		if near >= needed || there < needed && waited >= patience || waited >= successorWait {
			return
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return
		case <-j.closing:
			return
		}
	}
}

// successors returns how many others with a vote have nearly all that is committed, how
// many have answered of late, and how many it takes; none on a node that does not lead, or
// if there are not enough.
func (j *Journal) successors(late time.Duration) (near, there, needed int) {
	r := j.reign.Load()
	if r == nil {
		return 0, 0, 0
	}
	committed, voters := j.raft.CommitIndex(), 0
	for _, server := range j.roster().servers {
		if server.Suffrage != raft.Voter {
			continue
		}
		voters++
		got := j.acks.of(server.ID)
		if string(server.ID) == j.config.Node || got.term != r.term {
			continue
		}
		if got.last+successorLag >= committed {
			near++
		}
		if time.Since(got.at) < late {
			there++
		}
	}
	if needed = voters/2 + 1; needed == voters {
		return 0, 0, 0
	}
	return near, there, needed
}
