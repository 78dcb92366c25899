package journal

import (
	"time"

	"github.com/hashicorp/raft"
)

// Status is the role and the progress of a node, from its own log and its leader's messages.
type Status struct {
	// Leader is the leader; empty if none is known.
	Leader string
	// IsLeader reports whether this node leads and its epoch is committed.
	IsLeader bool
	// Candidate reports whether it requests votes.
	Candidate bool
	// Member reports whether it is a member by its own log, Voter whether it has a vote there.
	Member bool
	Voter  bool
	Term   uint64
	// Applied is the index of the last entry that reads show. Behind is the number of committed
	// entries not applied yet, according to its own log or the leader's latest message.
	Applied uint64
	Behind  uint64
	// Lag is the age of the leader's latest report of a commit index that is applied here: 0 on the
	// leader, negative if there was none since the start. It grows on a node that stores nothing
	// and on one that the leader does not reach.
	Lag time.Duration
	// DiskFull reports whether the last write of the log failed because the disk is full.
	DiskFull bool
	// SinceContact is the time since the last message of the leader: 0 on the leader itself,
	// negative if there was none since the start.
	SinceContact time.Duration
}

// Status returns the node's status. It costs microseconds and sends nothing.
func (j *Journal) Status() Status {
	leader, _ := j.Leader()
	s := Status{
		Leader: leader, IsLeader: j.IsLeader(), Candidate: j.raft.State() == raft.Candidate,
		Term: j.Term(), Applied: j.AppliedIndex(),
	}
	for _, server := range j.raft.GetConfiguration().Configuration().Servers {
		if string(server.ID) == j.config.Node {
			s.Member, s.Voter = true, server.Suffrage == raft.Voter
		}
	}
	s.SinceContact, s.DiskFull = j.sinceLeaderContact(), j.logs.Checked.IsDiskFull()
	select {
	case <-j.closing: // the log cannot be read any more
	default:
		if last := j.lastCommandIndex(j.raft.CommitIndex()); last > s.Applied {
			s.Behind = last - s.Applied
		}
		s.addLag(j)
	}
	return s
}

// addLag compares the node with what its leader has reported, unless it leads itself.
func (s *Status) addLag(j *Journal) {
	if j.raft.State() == raft.Leader {
		return
	}
	lag, last := j.leaderCommit.Lag()
	s.Lag = lag
	if applied := j.raft.AppliedIndex(); last > applied {
		s.Behind = max(s.Behind, last-applied)
	}
}

func (j *Journal) sinceLeaderContact() time.Duration {
	if j.raft.State() == raft.Leader {
		return 0
	}
	lastContact := j.raft.LastContact()
	if lastContact.IsZero() {
		return -1
	}
	return time.Since(lastContact)
}

// hasApplied reports whether everything up to an index is committed and applied here. A node that
// has stored nothing since its start may lack nothing and have a full disk. So hasApplied returns
// false until the node has stored an entry. The leader commits one at least once a second, the
// cluster time.
func (j *Journal) hasApplied(index uint64) bool {
	return j.logs.Checked.HasStored() && j.raft.AppliedIndex() >= index && j.AppliedIndex() >= j.lastCommandIndex(index)
}
