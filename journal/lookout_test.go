package journal

import (
	"errors"
	"fmt"
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
// there is another, not the last; also if only one of them can be elected.
func TestWhoeverIsAskedForAPreVoteLooksForTheLeader(t *testing.T) {
	for name, behind := range map[string]bool{"with equal logs": false, "with one that is behind": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				disks := make([]*hanging, 3)
				g := newTweakedGroup(t, nil, func(i int, c *Config) {
					c.LeaderLease = c.HeartbeatTimeout / 2
					c.tests.wrap = func(s *stores) { disks[i] = hang(s) }
				})
				for round := range 5 {
					loseLeader(t, g, disks, behind, fmt.Sprintf("round-%d", round))
				}
			})
		})
	}
}

// loseLeader has a group elect another leader, and looks how long that takes from when
// the first follower asks for votes.
func loseLeader(t *testing.T, g *group, disks []*hanging, behind bool, id string) {
	t.Helper()
	first := g.leader(t)
	j, followers := g.nodes[first], [2]int{(first + 1) % 3, (first + 2) % 3}
	asked := []<-chan raft.Observation{preVotes(t, g.nodes[followers[0]]), preVotes(t, g.nodes[followers[1]])}
	release := func() {}
	if behind {
		release = disks[followers[0]].hang()
	}
	for i := range 20 {
		mustAppend(t, j, begin(j.Epoch(), fmt.Sprintf("%s-%d", id, i)))
	}
	j.fence.draw(errors.New("the leader is to be gone at once"))
	release()
	select {
	case <-asked[0]:
	case <-asked[1]:
	case <-time.After(patience):
		t.Fatal("nobody asks for votes")
	}
	began := time.Now()
	g.leader(t)
	// Heartbeats, which go to each node at times of its own, are up to a fifth of the
	// timeout apart.
	if took := time.Since(began); took > g.nodes[followers[0]].config.HeartbeatTimeout/4 {
		t.Errorf("%s: elected %v after the first had noticed", id, took)
	}
	g.stop(t, first)
	g.start(t, first, nil, nil)
	g.agree(t)
}

// While the leader is heard of, looking for it changes nothing.
func TestWhoeverHearsOfTheLeaderIsNotMovedByDoubts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.leader(t)
		epoch := g.nodes[leader].Epoch()
		follower, other := g.nodes[(leader+1)%3], g.nodes[(leader+2)%3]
		for range 20 {
			request := &raft.RequestPreVoteRequest{RPCHeader: raft.RPCHeader{ID: []byte(other.config.Node)}, LastLogIndex: 1 << 40}
			follower.doubt(request, t.Context().Done())
			follower.holdBack(request, t.Context().Done())
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

func TestTheOnlyNodeElectsItselfAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir, began := t.TempDir(), time.Now()
		for range 2 { // when it is founded, and when it is started again
			j := opened(t, Config{Node: "n1", Dir: dir, HeartbeatTimeout: time.Hour})
			leading(t, j)
			closed(t, j)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
