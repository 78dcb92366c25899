package journal

import (
	"time"

	"github.com/hashicorp/raft"
)

// A Standing is where a node stands in its group, as far as it knows itself.
type Standing struct {
	// Leader is the node that leads; empty if none is known.
	Leader string
	// Leading tells whether this node does, and its epoch is committed.
	Leading bool
	// Candidate tells whether it asks for votes.
	Candidate bool
	// Member tells whether it is in the group by its own log, Voter whether it has
	// a vote there.
	Member bool
	Voter  bool
	Term   uint64
	// Applied is the index of the last entry whose appends the reads show. Behind
	// is how many entries it knows to be committed that are not applied yet.
	Applied uint64
	Behind  uint64
	// Silence is how long the leader has not been heard of; 0 on the leader itself,
	// and negative if none was heard of since the start.
	Silence time.Duration
}

// Standing tells where the node stands. It costs microseconds and asks nobody.
func (j *Journal) Standing() Standing {
	leader, _ := j.Leader()
	s := Standing{
		Leader: leader, Leading: j.IsLeader(), Candidate: j.raft.State() == raft.Candidate,
		Term: j.Term(), Applied: j.AppliedIndex(),
	}
	for _, server := range j.raft.GetConfiguration().Configuration().Servers {
		if string(server.ID) == j.config.Node {
			s.Member, s.Voter = true, server.Suffrage == raft.Voter
		}
	}
	s.Silence = j.silence()
	select {
	case <-j.closing: // what is not applied can be looked up no more
	default:
		if last := j.lastCommand(j.raft.CommitIndex()); last > s.Applied {
			s.Behind = last - s.Applied
		}
	}
	return s
}

func (j *Journal) silence() time.Duration {
	if j.raft.State() == raft.Leader {
		return 0
	}
	heard := j.raft.LastContact()
	if heard.IsZero() {
		return -1
	}
	return time.Since(heard)
}
