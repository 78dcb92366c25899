package journal

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// preVotes notes when a node is asked for its first pre-vote from now on.
func preVotes(t *testing.T, j *Journal) (asked <-chan raft.Observation) {
	seen := make(chan raft.Observation, 1)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, asks := o.Data.(raft.RequestPreVoteRequest)
		return asks
	})
	j.raft.RegisterObserver(observer)
	t.Cleanup(func() { j.raft.DeregisterObserver(observer) })
	return seen
}

// Of two followers that are left the first one that misses the leader decides when
// there is another, not the last.
func TestWhoeverIsAskedForAPreVoteLooksForTheLeader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newTweakedGroup(t, nil, func(_ int, c *Config) { c.LeaderLease = c.HeartbeatTimeout / 2 })
		for range 5 {
			first := g.leader(t)
			asked := []<-chan raft.Observation{preVotes(t, g.nodes[(first+1)%3]), preVotes(t, g.nodes[(first+2)%3])}
			g.stop(t, first)
			select {
			case <-asked[0]:
			case <-asked[1]:
			case <-time.After(patience):
				t.Fatal("nobody asks for votes")
			}
			began := time.Now()
			g.leader(t)
			// Heartbeats, which go to each node at times of its own, are up to a fifth
			// of the timeout apart.
			timeout := g.nodes[(first+1)%3].config.HeartbeatTimeout
			if took := time.Since(began); took > timeout/4 {
				t.Errorf("elected %v after the first had noticed", took)
			}
			g.start(t, first, nil, nil)
			g.agree(t)
		}
	})
}

// While the leader is heard of, looking for it changes nothing.
func TestWhoeverHearsOfTheLeaderIsNotMovedByDoubts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.leader(t)
		epoch := g.nodes[leader].Epoch()
		follower, other := g.nodes[(leader+1)%3], g.nodes[(leader+2)%3]
		for range 20 {
			follower.doubt(t.Context(), other.config.Node)
			if err := g.nodes[leader].look(); err != nil { // nor does it matter where
				t.Error(err)
			}
		}
		time.Sleep(10 * follower.config.HeartbeatTimeout)
		if now := g.nodes[leader].Epoch(); now != epoch || !g.nodes[leader].IsLeader() {
			t.Errorf("epoch %d, was %d", now, epoch)
		}
		if c := follower.raft.ReloadableConfig(); c.HeartbeatTimeout != follower.config.HeartbeatTimeout || c.ElectionTimeout != follower.config.ElectionTimeout {
			t.Errorf("timeouts of %v and %v stay", c.HeartbeatTimeout, c.ElectionTimeout)
		}
	})
}

func TestFollowersLookInTheOrderOfTheirIDs(t *testing.T) {
	voter := func(id string) raft.Server { return raft.Server{ID: raft.ServerID(id), Suffrage: raft.Voter} }
	r := &roster{servers: []raft.Server{
		voter("e"), voter("c"), {ID: "a", Suffrage: raft.Nonvoter}, voter("b"), voter("f"), voter("d"),
	}}
	for node, want := range map[string]int{"b": 0, "d": 1, "f": 2} {
		if got := r.before(node, "c", "e"); got != want {
			t.Errorf("%d before %s, want %d", got, node, want)
		}
	}
}
