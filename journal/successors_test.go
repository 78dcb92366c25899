package journal

import (
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// makeFollowerLag makes a follower lag by more than a successor may.
func (tc *testCluster) makeFollowerLag(t *testing.T, network *networktest.Flaky, follower, leader int) {
	t.Helper()
	network.Isolate(tc.peers[follower].Address)
	for range successorLag + 100 {
		if err := appendNext(t, tc.nodes[leader], "a"); err != nil {
			t.Fatal(err)
		}
	}
}

// measureSuccessorWait returns how long a leader waits for its successors.
func (tc *testCluster) measureSuccessorWait(t *testing.T, leader int) time.Duration {
	t.Helper()
	started := time.Now()
	tc.nodes[leader].AwaitSuccessors(t.Context())
	return time.Since(started)
}

func TestAwaitSuccessors_WaitsForNeededNode(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		if elapsed := g.measureSuccessorWait(t, leader); elapsed > 2*pollInterval {
			t.Errorf("with all that is needed it waited for %v", elapsed)
		}
		g.makeFollowerLag(t, network, follower, leader)
		committed := g.nodes[leader].lastLocalIndex()
		network.Reconnect(g.peers[follower].Address)
		if elapsed := g.measureSuccessorWait(t, leader); elapsed >= successorWait {
			t.Errorf("it stepped down after %v", elapsed)
		}
		if last := g.nodes[follower].raft.LastIndex(); last+successorLag < committed {
			t.Errorf("it leaves a node with %d of %d entries behind", last, committed)
		}
	})
}

func TestAwaitSuccessors_SkipsUnreachableNode(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		g.makeFollowerLag(t, network, (leader+1)%3, leader)
		time.Sleep(time.Second)
		if elapsed, timeout := g.measureSuccessorWait(t, leader), 2*g.nodes[leader].config.HeartbeatTimeout; elapsed > timeout+2*pollInterval {
			t.Errorf("it waited for %v", elapsed)
		}
	})
}

func TestAwaitSuccessors_FollowerReturnsAtOnce(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g, network := newFlakyCluster(t)
		leader := g.leader(t)
		g.makeFollowerLag(t, network, (leader+1)%3, leader)
		if elapsed := g.measureSuccessorWait(t, (leader+2)%3); elapsed > 0 {
			t.Errorf("it waited for %v", elapsed)
		}
	})
}
