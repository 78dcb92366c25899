package journal

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// observePreVotes records when a node is asked for its next pre-vote.
func observePreVotes(t *testing.T, j *Journal) (asked <-chan raft.Observation) {
	seen := make(chan raft.Observation, 1)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, preVote := o.Data.(raft.RequestPreVoteRequest)
		return preVote
	})
	j.raft.RegisterObserver(observer)
	t.Cleanup(func() { j.raft.DeregisterObserver(observer) })
	return seen
}

// Of two remaining followers, the first to miss the leader decides when there is a new one, also if
// only one of them can be elected.
func TestLeaderCheck_ElectsSoonAfterLeaderLoss(t *testing.T) {
	for name, behind := range map[string]bool{"with equal logs": false, "with one that is behind": true} {
		t.Run(name, func(t *testing.T) {
			waittest.InSynctest(t, func(t *testing.T) {
				disks := make([]*hangingLogs, 3)
				g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
					c.LeaderLease = c.HeartbeatTimeout / 2
					c.tests.wrapStores = func(s *stores) { disks[i] = wrapHangingLogs(s) }
				})
				for round := range 5 {
					replaceLeader(t, g, disks, behind, fmt.Sprintf("round-%d", round))
				}
			})
		})
	}
}

// replaceLeader makes a partition elect another leader, and measures the time from when the first
// follower asks for votes.
func replaceLeader(t *testing.T, g *testCluster, disks []*hangingLogs, behind bool, id string) {
	t.Helper()
	first := g.leader(t)
	j, followers := g.nodes[first], [2]int{(first + 1) % 3, (first + 2) % 3}
	asked := []<-chan raft.Observation{observePreVotes(t, g.nodes[followers[0]]), observePreVotes(t, g.nodes[followers[1]])}
	release := func() {}
	if behind {
		release = disks[followers[0]].hang()
	}
	for i := range 20 {
		mustAppend(t, j, newStartAppend(j.Epoch(), fmt.Sprintf("%s-%d", id, i)))
	}
	j.failStop.Fail(errors.New("the leader is to be gone at once"))
	release()
	select {
	case <-asked[0]:
	case <-asked[1]:
	case <-time.After(waittest.Timeout):
		t.Fatal("no node asks for votes")
	}
	started := time.Now()
	g.leader(t)
	// Heartbeats to the two nodes are independent, up to a fifth of the timeout apart.
	if elapsed := time.Since(started); elapsed > g.nodes[followers[0]].config.HeartbeatTimeout/4 {
		t.Errorf("%s: elected %v after the first node noticed", id, elapsed)
	}
	g.stop(t, first)
	g.start(t, first, nil, nil)
	g.awaitEqualStates(t)
}

// While the leader is heard from, checking for it changes nothing.
func TestLeaderCheck_NoElectionWhileLeaderIsHeard(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.leader(t)
		epoch := g.nodes[leader].Epoch()
		follower, other := g.nodes[(leader+1)%3], g.nodes[(leader+2)%3]
		for range 20 {
			request := &raft.RequestPreVoteRequest{RPCHeader: raft.RPCHeader{ID: []byte(other.config.Node)}, LastLogIndex: 1 << 40}
			follower.checkLeader(request, t.Context().Done())
			follower.delayPreVote(request, t.Context().Done())
			if err := g.nodes[leader].triggerHeartbeatCheck(); err != nil { // nor does the check on the leader
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

func TestLeaderCheck_FollowersProbeInIDOrder(t *testing.T) {
	voter := func(id string) raft.Server { return raft.Server{ID: raft.ServerID(id), Suffrage: raft.Voter} }
	r := &membership{servers: []raft.Server{
		voter("e"), voter("c"), {ID: "a", Suffrage: raft.Nonvoter}, voter("b"), voter("f"), voter("d"),
	}}
	for node, want := range map[string]int{"b": 0, "d": 1, "f": 2} {
		if got := r.votersBefore(node, "c", "e"); got != want {
			t.Errorf("%d before %s, want %d", got, node, want)
		}
	}
}

func TestElection_SingleNodeIsImmediate(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		dir, started := t.TempDir(), time.Now()
		for range 2 { // at the foundation, and at a restart
			j := openJournal(t, Config{Node: "n1", Dir: dir, HeartbeatTimeout: time.Hour})
			awaitLeadership(t, j)
			closeJournal(t, j)
		}
		if elapsed := time.Since(started); elapsed > time.Second {
			t.Errorf("it took %v", elapsed)
		}
	})
}
