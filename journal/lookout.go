package journal

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// A follower notices that its leader is silent when a timer of its own fires: at some
// time between one HeartbeatTimeout after the last message and three. Until then it
// refuses pre-votes, because it has a leader, and whoever was refused waits for an
// election timeout. So the follower that notices last would decide how long the group
// is without a leader.
//
// But to be asked for a pre-vote is news: somebody else hears nothing. So a follower
// that is asked looks whether it has heard from the leader, as soon as something is
// overdue. If it has not, one of the two is elected at once:
//
//   - the one that was asked, after it has refused, because the one that has asked waits
//     and gives it his vote;
//   - if that has more in his log, and so would refuse, he is: the request is held back
//     until there is no leader that would be a reason to refuse it.

// lookoutShare is the part of HeartbeatTimeout by which followers that were asked by
// the same node look one after the other, which is enough for an election: they do not
// compete.
const lookoutShare = 8

// lookOut looks for the leader when somebody was refused a pre-vote, until ctx ends.
func (j *Journal) lookOut(ctx context.Context) {
	asked := make(chan raft.Observation, 1) // one look is enough for all who ask meanwhile
	observer := raft.NewObserver(asked, false, func(o *raft.Observation) bool {
		_, asks := o.Data.(raft.RequestPreVoteRequest)
		return asks
	})
	j.raft.RegisterObserver(observer)
	defer j.raft.DeregisterObserver(observer)
	for {
		select {
		case o := <-asked:
			request := o.Data.(raft.RequestPreVoteRequest)
			j.doubt(&request, ctx.Done())
		case <-ctx.Done():
			return
		}
	}
}

// holdBack returns when Raft is to see a request for a pre-vote, or closing is closed.
func (j *Journal) holdBack(request *raft.RequestPreVoteRequest, closing <-chan struct{}) {
	if request.LastLogIndex <= j.raft.LastIndex() {
		return
	}
	changes := make(chan raft.Observation, 1)
	observer := raft.NewObserver(changes, false, func(o *raft.Observation) bool {
		_, changed := o.Data.(raft.LeaderObservation)
		return changed
	})
	j.raft.RegisterObserver(observer)
	defer j.raft.DeregisterObserver(observer)
	if !j.doubt(request, closing) {
		return
	}
	limit := time.NewTimer(j.config.HeartbeatTimeout / lookoutShare) // it may have heard of the leader
	defer limit.Stop()
	select {
	case <-changes:
	case <-limit.C:
	case <-closing:
	}
}

// doubt has a follower look for its leader because another node has asked for a
// pre-vote, at the time that is this follower's, and tells whether it has.
func (j *Journal) doubt(request *raft.RequestPreVoteRequest, closing <-chan struct{}) bool {
	leader, _ := j.Leader()
	candidate := string(request.ID)
	if j.raft.State() != raft.Follower || leader == "" || leader == candidate {
		return false // Raft does not refuse for the sake of a leader
	}
	overdue := time.Until(j.raft.LastContact().Add(j.config.HeartbeatTimeout))
	turn := j.config.HeartbeatTimeout / lookoutShare * time.Duration(j.roster().before(j.config.Node, leader, candidate))
	timer := time.NewTimer(max(overdue, 0) + turn)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-closing:
		return false
	}
	if err := j.look(); err != nil {
		j.config.Logger.Error("look for the leader", "error", err)
		return false
	}
	return true
}

// electAlone has the only node of a group ask for votes now, of which its own is enough:
// there is nobody whose heartbeat could be late.
func (j *Journal) electAlone() {
	servers := j.raft.GetConfiguration().Configuration().Servers
	if len(servers) != 1 || string(servers[0].ID) != j.config.Node {
		return
	}
	if err := j.look(); err != nil {
		j.config.Logger.Error("ask for votes at once", "error", err)
	}
}

// look has Raft look now whether it has heard from the leader within HeartbeatTimeout.
// It does so when its timeouts have become shorter.
func (j *Journal) look() error {
	return j.reload(
		func(c *raft.ReloadableConfig) { c.HeartbeatTimeout++; c.ElectionTimeout++ },
		func(c *raft.ReloadableConfig) { c.HeartbeatTimeout--; c.ElectionTimeout-- },
	)
}

// reload changes what can be changed of Raft's configuration while it runs, in steps.
func (j *Journal) reload(steps ...func(*raft.ReloadableConfig)) error {
	j.reloading.Lock()
	defer j.reloading.Unlock()
	c := j.raft.ReloadableConfig()
	for _, change := range steps {
		change(&c)
		if err := j.raft.ReloadConfig(c); err != nil {
			return fmt.Errorf("change the configuration of raft: %w", err)
		}
	}
	return nil
}
