package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// readyLag is the lag that cluster.Health allows for a ready node.
const readyLag = 3 * time.Second

// isReady reports whether a node stores, applies and is close to its leader, like cluster.Health.
func isReady(s Status) bool {
	return s.Member && !s.DiskFull && (s.IsLeader || s.Leader != "" && 0 <= s.Lag && s.Lag <= readyLag)
}

// follower returns a node that does not lead.
func (f *faultyCluster) follower(t *testing.T) int {
	t.Helper()
	return (f.leader(t) + 1) % 3
}

func TestLag_FollowerWithFullDisk(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newFaultyCluster(t)
		victim := g.follower(t)
		j := g.nodes[victim]
		waittest.Eventually(t, "it is ready", func() bool { return isReady(j.Status()) })
		g.writes[victim].Inject(raftlogtest.WriteFault{Errno: enospc, At: 1, Persists: true, LogOnly: true})
		// Only the leader's time is committed, once a second.
		waittest.Eventually(t, "its disk is full", func() bool { return j.Status().DiskFull })
		waittest.Eventually(t, "its lag is too long", func() bool { return j.Status().Lag > readyLag })
		if s := j.Status(); s.Behind == 0 {
			t.Errorf("it knows only what it has itself: %+v", s)
		}
		for i, other := range g.nodes {
			if s := other.Status(); i != victim && !isReady(s) {
				t.Errorf("node %d is not ready: %+v", i, s)
			}
		}
		g.writes[victim].Heal()
		waittest.Eventually(t, "it is ready again", func() bool { return isReady(j.Status()) })
		g.awaitEqualStates(t)
	})
}

// A node that was cut off receives heartbeats before entries.
func TestLag_IsolatedFollowerReadyOnceCaughtUp(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newFaultyCluster(t)
		victim := g.follower(t)
		j, leader := g.nodes[victim], g.nodes[g.leader(t)]
		waittest.Eventually(t, "it is ready", func() bool { return isReady(j.Status()) })
		g.network.Isolate(g.peers[victim].Address)
		for i := range 200 {
			mustAppend(t, leader, newStartAppend(leader.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		time.Sleep(readyLag + time.Second)
		if s := j.Status(); isReady(s) {
			t.Errorf("it is ready while it is isolated: %+v", s)
		}
		committed := leader.AppliedIndex()
		g.network.Reconnect(g.peers[victim].Address)
		waittest.Eventually(t, "it is ready again", func() bool { return isReady(j.Status()) })
		if applied := j.AppliedIndex(); applied < committed {
			t.Errorf("it is ready with %d of %d entries", applied, committed)
		}
	})
}

func TestLag_StartedNodeReadyOnceCaughtUp(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newFaultyCluster(t)
		victim := g.follower(t)
		g.stop(t, victim)
		leader := g.nodes[g.leader(t)]
		for i := range 200 {
			mustAppend(t, leader, newStartAppend(leader.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		committed := leader.AppliedIndex()
		g.start(t, victim, nil, nil)
		j := g.nodes[victim]
		if s := j.Status(); s.Lag >= 0 && j.AppliedIndex() < committed {
			t.Errorf("it knows no other node: %+v", s)
		}
		waittest.Eventually(t, "it is ready", func() bool { return isReady(j.Status()) })
		if applied := j.AppliedIndex(); applied < committed {
			t.Errorf("it is ready with %d of %d entries", applied, committed)
		}
	})
}

// The disk of each node is full for a while after its restart. If the next node is stopped only
// after this one is ready, two nodes always store.
func TestRollingRestart_KeepsMajority(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newFaultyCluster(t)
		for _, j := range g.nodes {
			waittest.Eventually(t, "every node is ready", func() bool { return isReady(j.Status()) })
		}
		for node := range g.nodes {
			g.stop(t, node)
			g.wantCommits(t, fmt.Sprintf("without-%d", node))
			g.start(t, node, nil, nil)
			g.writes[node].Inject(raftlogtest.WriteFault{Errno: enospc, At: 1, Persists: true, LogOnly: true})
			full := time.AfterFunc(20*time.Second, g.writes[node].Heal)
			waittest.Eventually(t, "the node is ready", func() bool { return isReady(g.nodes[node].Status()) })
			full.Stop()
			if failed := g.writes[node].Failures(); failed == 0 {
				t.Error("the disk was not full")
			}
			g.writes[node].Heal()
		}
		g.wantCommits(t, "in-the-end")
		g.awaitEqualStates(t)
	})
}

// wantCommits checks that the running nodes commit, after an election at most.
func (f *faultyCluster) wantCommits(t *testing.T, id string) {
	t.Helper()
	started := time.Now()
	f.mustBegin(t, id)
	if elapsed := time.Since(started); elapsed > 10*time.Second {
		t.Errorf("%s was begun after %v", id, elapsed)
	}
}
