package journal

import (
	"fmt"
	"testing"
	"time"
)

// readyLag is the lag that cluster.Health allows a node that is ready.
const readyLag = 3 * time.Second

// ready reports whether a node stores, applies and is close to its leader, as cluster.Health
// puts it.
func ready(s Standing) bool {
	return s.Member && !s.DiskFull && (s.Leading || s.Leader != "" && 0 <= s.Lag && s.Lag <= readyLag)
}

// follower returns a node that does not lead.
func (g *faultyGroup) follower(t *testing.T) int {
	t.Helper()
	return (g.leader(t) + 1) % 3
}

func TestFollowerWhoseDiskIsFullIsBehindItsLeader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFaultyGroup(t)
		victim := g.follower(t)
		j := g.nodes[victim]
		eventually(t, "it is ready", func() bool { return ready(j.Standing()) })
		g.writes[victim].arm(writeFault{errno: enospc, at: 1, stays: true, log: true})
		// Nobody appends: the leader's time alone is committed, once a second.
		eventually(t, "its disk is full", func() bool { return j.Standing().DiskFull })
		eventually(t, "its lag is too long", func() bool { return j.Standing().Lag > readyLag })
		if s := j.Standing(); s.Behind == 0 {
			t.Errorf("it knows only what it has itself: %+v", s)
		}
		for i, other := range g.nodes {
			if s := other.Standing(); i != victim && !ready(s) {
				t.Errorf("node %d is not ready: %+v", i, s)
			}
		}
		g.writes[victim].disarm()
		eventually(t, "it is ready again", func() bool { return ready(j.Standing()) })
		g.agree(t)
	})
}

// A node that was cut off hears heartbeats before it gets entries.
func TestFollowerThatWasCutOffIsReadyWhenItHasWhatWasCommittedMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFaultyGroup(t)
		victim := g.follower(t)
		j, leader := g.nodes[victim], g.nodes[g.leader(t)]
		eventually(t, "it is ready", func() bool { return ready(j.Standing()) })
		g.network.cut(g.peers[victim].Address)
		for i := range 200 {
			mustAppend(t, leader, begin(leader.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		time.Sleep(readyLag + time.Second)
		if s := j.Standing(); ready(s) {
			t.Errorf("it is ready while it is cut off: %+v", s)
		}
		committed := leader.AppliedIndex()
		g.network.join(g.peers[victim].Address)
		eventually(t, "it is ready again", func() bool { return ready(j.Standing()) })
		if applied := j.AppliedIndex(); applied < committed {
			t.Errorf("it is ready with %d of %d entries", applied, committed)
		}
	})
}

func TestNodeThatStartsIsReadyWhenItHasWhatWasCommittedBefore(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFaultyGroup(t)
		victim := g.follower(t)
		g.stop(t, victim)
		leader := g.nodes[g.leader(t)]
		for i := range 200 {
			mustAppend(t, leader, begin(leader.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		committed := leader.AppliedIndex()
		g.start(t, victim, nil, nil)
		j := g.nodes[victim]
		if s := j.Standing(); s.Lag >= 0 && j.AppliedIndex() < committed {
			t.Errorf("it has heard of nobody: %+v", s)
		}
		eventually(t, "it is ready", func() bool { return ready(j.Standing()) })
		if applied := j.AppliedIndex(); applied < committed {
			t.Errorf("it is ready with %d of %d entries", applied, committed)
		}
	})
}

// The disk of each node is full for a while after its restart. Whoever waits until it is
// ready before the next one is stopped always has two nodes that store.
func TestRollingRestartKeepsAMajorityThatStores(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newFaultyGroup(t)
		for _, j := range g.nodes {
			eventually(t, "every node is ready", func() bool { return ready(j.Standing()) })
		}
		for node := range g.nodes {
			g.stop(t, node)
			g.wantCommits(t, fmt.Sprintf("without-%d", node))
			g.start(t, node, nil, nil)
			g.writes[node].arm(writeFault{errno: enospc, at: 1, stays: true, log: true})
			full := time.AfterFunc(20*time.Second, g.writes[node].disarm)
			eventually(t, "the node is ready", func() bool { return ready(g.nodes[node].Standing()) })
			full.Stop()
			if failed := g.writes[node].failures(); failed == 0 {
				t.Error("the disk was not full")
			}
			g.writes[node].disarm()
		}
		g.wantCommits(t, "in-the-end")
		g.agree(t)
	})
}

// wantCommits checks that the nodes that run commit, after an election at most.
func (g *faultyGroup) wantCommits(t *testing.T, id string) {
	t.Helper()
	began := time.Now()
	g.mustBegin(t, id)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%s was begun after %v", id, took)
	}
}
