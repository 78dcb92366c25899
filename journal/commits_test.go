package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// Without notices the followers would learn of the last commit up to two minutes later.
func TestCommitNotice_ReachesFollowersAtOnce(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newConfiguredTestCluster(t, nil, func(_ int, c *Config) { c.CommitTimeout = time.Minute })
		leader := g.nodes[g.leader(t)]
		for i := range 2 {
			mustAppend(t, leader, newStartAppend(leader.Epoch(), fmt.Sprint("first-", i)))
			g.awaitEqualStates(t) // so that both get entries in a row
		}
		for i := range 10 {
			mustAppend(t, leader, newStartAppend(leader.Epoch(), fmt.Sprint("i-", i)))
			acknowledged := time.Now()
			for _, node := range g.nodes {
				if err := node.fsm.await(t.Context(), leader.AppliedIndex()); err != nil {
					t.Fatal(err)
				}
				if late := time.Since(acknowledged); late > transport.NoticeDelay {
					t.Errorf("%s has applied what the leader had %v ago", node.config.Node, late)
				}
			}
		}
	})
}

// Without resending, this takes until the next time is committed, up to a second.
func TestCommitNotice_AfterPipelineEnds(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		network := networktest.NewFlaky()
		g := &testCluster{listen: network.Listen, nodes: make([]*Journal, 3), configure: func(_ int, c *Config) { c.CommitTimeout = time.Minute }}
		g.startAll(t, nil)
		leader := g.leader(t)
		j, gone, left := g.nodes[leader], (leader+1)%3, g.peers[(leader+2)%3].Address
		mustAppend(t, j, newStartAppend(j.Epoch(), "before"))
		g.awaitEqualStates(t)
		g.stop(t, gone) // so the other one must have what is committed
		for i := range 10 {
			network.Isolate(left)
			network.Reconnect(left)
			started := time.Now()
			mustAppend(t, j, newStartAppend(j.Epoch(), fmt.Sprint("i-", i)))
			if elapsed := time.Since(started); elapsed > 100*time.Millisecond {
				t.Errorf("append %d took %v", i, elapsed)
			}
		}
	})
}

// Heartbeats are every 50 to 100 ms here, and each is read in two parts at both ends.
func TestIdlePartition_SendsLittleButHeartbeats(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		g.leader(t)
		g.awaitEqualStates(t)
		const heartbeats, others = 2 * 4 * 20, 2 * 4 * 5 // reads in a second, at most
		if reads := network.CountReads(time.Minute); reads > 60*(heartbeats+others) {
			t.Errorf("%d reads in a minute; want at most %d", reads, 60*(heartbeats+others))
		}
	})
}
