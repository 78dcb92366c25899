package journal

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// A follower notices that its leader is silent when a timer of its own fires: at some
// time between one HeartbeatTimeout after the last message and three. Until then it
// refuses pre-votes, because it has a leader, so that of three nodes the one that
// notices last would decide how long the group is without one. But to be asked for a
// pre-vote is news: somebody else hears nothing. So a follower that was asked, and has
// refused, looks whether it has heard from the leader, as soon as something is overdue,
// and asks for votes itself if it has not. Whoever has asked before waits for his
// election timeout then, and does not come in its way.

// lookoutShare is the part of HeartbeatTimeout by which followers that were asked by
// the same node look one after the other, which is enough for an election: they do not
// compete.
const lookoutShare = 8

// lookOut looks for the leader when somebody has doubts, until ctx ends.
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
			j.doubt(ctx, string(request.ID))
		case <-ctx.Done():
			return
		}
	}
}

// doubt looks for the leader of a follower that a node has asked for a pre-vote, at the
// time that is this follower's.
func (j *Journal) doubt(ctx context.Context, candidate string) {
	leader, _ := j.Leader()
	if j.raft.State() != raft.Follower || leader == "" || leader == candidate {
		return // it has granted, or is to be left alone
	}
	overdue := time.Until(j.raft.LastContact().Add(j.config.HeartbeatTimeout))
	turn := j.config.HeartbeatTimeout / lookoutShare * time.Duration(j.roster().before(j.config.Node, leader, candidate))
	timer := time.NewTimer(max(overdue, 0) + turn)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	if err := j.look(); err != nil {
		j.config.Logger.Error("look for the leader", "error", err)
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
