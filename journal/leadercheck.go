package journal

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
)

// A follower of the Raft library notices a silent leader when a timer of its own fires: between one
// and three HeartbeatTimeouts after the last message. Until then it rejects pre-votes, because it
// has a leader, and the rejected node waits for an election timeout. So the follower that notices
// last would decide how long the partition has no leader.
//
// But a pre-vote request shows that another node hears nothing from the leader. So a follower that
// gets one checks its own leader as soon as a message is overdue. If there was none, one of the two
// is elected at once:
//
//   - the follower, after it has rejected: the requesting node waits and votes for it;
//   - the requesting node, if its log is longer: it would not vote for the follower. delayPreVote
//     then holds the request until the follower has no leader any more, and Raft grants it.

// Followers that got a request from the same node check their leader one after another, at
// intervals of HeartbeatTimeout / leaderCheckShare. An election takes less, so they do not compete.
const leaderCheckShare = 8

// elections makes followers check their leader early.
type elections struct {
	config      *Config
	raft        *raftnode.Node
	members     *members
	leaderships *leaderships

	reloadMu sync.Mutex // held while Raft's configuration is changed
}

// checkLeaderOnPreVote checks the leader after a rejected pre-vote request, until ctx ends.
func (e *elections) checkLeaderOnPreVote(ctx context.Context) {
	asked := make(chan raft.Observation, 1) // one check serves all requests that come meanwhile
	observer := raft.NewObserver(asked, false, func(o *raft.Observation) bool {
		_, preVote := o.Data.(raft.RequestPreVoteRequest)
		return preVote
	})
	e.raft.RegisterObserver(observer)
	defer e.raft.DeregisterObserver(observer)
	for {
		select {
		case o := <-asked:
			request := o.Data.(raft.RequestPreVoteRequest)
			e.checkLeader(&request, ctx.Done())
		case <-ctx.Done():
			return
		}
	}
}

// delayPreVote returns when Raft should see a request for a pre-vote, or closing is closed.
func (e *elections) delayPreVote(request *raft.RequestPreVoteRequest, closing <-chan struct{}) {
	if request.LastLogIndex <= e.raft.LastIndex() {
		return
	}
	changes := make(chan raft.Observation, 1)
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, changed := o.Data.(raft.LeaderObservation)
		return changed
	})
	e.raft.RegisterObserver(observer)
	defer e.raft.DeregisterObserver(observer)
	if !e.checkLeader(request, closing) {
		return
	}
	// Raft keeps the leader if it has heard from it meanwhile. So the wait is bounded.
	limit := time.NewTimer(e.config.HeartbeatTimeout / leaderCheckShare)
	defer limit.Stop()
	select {
	case <-changes:
	case <-limit.C:
	case <-closing:
	}
}

// checkLeader makes a follower check its leader because of another node's pre-vote request, when it
// is this follower's turn. It reports whether it did.
func (e *elections) checkLeader(request *raft.RequestPreVoteRequest, closing <-chan struct{}) bool {
	leader, _ := e.leaderships.Leader()
	candidate := string(request.ID)
	if e.raft.State() != raft.Follower || leader == "" || leader == candidate {
		return false // then Raft does not reject the pre-vote because of a leader
	}
	overdue := time.Until(e.raft.LastContact().Add(e.config.HeartbeatTimeout))
	delay := e.config.HeartbeatTimeout / leaderCheckShare * time.Duration(e.members.membership().votersBefore(e.config.Node, leader, candidate))
	timer := time.NewTimer(max(overdue, 0) + delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-closing:
		return false
	}
	if err := e.triggerHeartbeatCheck(); err != nil {
		e.config.Logger.Error("cannot check the leader now; an election may begin later", "error", err)
		return false
	}
	return true
}

// electSingleNode makes the only node of a partition start an election at once: it needs no other
// vote, and no heartbeat could be late.
func (e *elections) electSingleNode() {
	servers := e.raft.GetConfiguration().Configuration().Servers
	if len(servers) != 1 || string(servers[0].ID) != e.config.Node {
		return
	}
	if err := e.triggerHeartbeatCheck(); err != nil {
		e.config.Logger.Error("cannot start election at once", "error", err)
	}
}

// triggerHeartbeatCheck makes Raft check now whether it has heard from the leader within
// HeartbeatTimeout. Raft does so when its timeouts become shorter, so they are lengthened by 1 ns
// and shortened again.
func (e *elections) triggerHeartbeatCheck() error {
	return e.reloadRaftConfig(
		func(c *raft.ReloadableConfig) { c.HeartbeatTimeout++; c.ElectionTimeout++ },
		func(c *raft.ReloadableConfig) { c.HeartbeatTimeout--; c.ElectionTimeout-- },
	)
}

// reloadRaftConfig changes Raft's reloadable configuration in steps.
func (e *elections) reloadRaftConfig(steps ...func(*raft.ReloadableConfig)) error {
	e.reloadMu.Lock()
	defer e.reloadMu.Unlock()
	c := e.raft.ReloadableConfig()
	for _, change := range steps {
		change(&c)
		if err := e.raft.ReloadConfig(c); err != nil {
			return fmt.Errorf("reload raft configuration: %w", err)
		}
	}
	return nil
}
