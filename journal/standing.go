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
	// is how many entries are not applied yet that it knows to be committed, from its own
	// log or from what the leader told last.
	Applied uint64
	Behind  uint64
	// Lag is how long ago the leader had committed no more than what is applied here: 0
	// on the leader, and negative if that was never so since the start. It grows on a node
	// that stores nothing, and on one that the leader does not reach.
	Lag time.Duration
	// DiskFull tells that the last write of the log failed because the disk is full.
	DiskFull bool
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
	s.Silence, s.DiskFull = j.silence(), j.logs.checked.full.Load()
	select {
	case <-j.closing: // what is not applied can be looked up no more
	default:
		if last := j.lastCommand(j.raft.CommitIndex()); last > s.Applied {
			s.Behind = last - s.Applied
		}
		s.addLag(j)
	}
	return s
}

// addLag compares the node with what its leader has told, unless it leads itself.
func (s *Standing) addLag(j *Journal) {
	if j.raft.State() == raft.Leader {
		return
	}
	lag, last := j.told.lag()
	s.Lag = lag
	if applied := j.raft.AppliedIndex(); last > applied {
		s.Behind = max(s.Behind, last-applied)
	}
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
