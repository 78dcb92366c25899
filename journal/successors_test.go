package journal

import (
	"testing"
	"time"
)

// fallsBehind has a follower lack more than a successor may.
func (g *group) fallsBehind(t *testing.T, network *flakyNetwork, follower, leader int) {
	t.Helper()
	network.cut(g.peers[follower].Address)
	for range successorLag + 100 {
		if err := appendNext(t, g.nodes[leader], "a"); err != nil {
			t.Fatal(err)
		}
	}
}

// successorsTake returns how long a leader waits for its successors.
func (g *group) successorsTake(t *testing.T, leader int) time.Duration {
	t.Helper()
	begun := time.Now()
	g.nodes[leader].AwaitSuccessors(t.Context())
	return time.Since(begun)
}

func TestALeaderThatLeavesWaitsForANodeThatIsNeededThen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		follower := (leader + 1) % 3
		if took := g.successorsTake(t, leader); took > 2*lookEvery {
			t.Errorf("with all that is needed it waited for %v", took)
		}
		g.fallsBehind(t, network, follower, leader)
		committed := g.nodes[leader].reach()
		network.join(g.peers[follower].Address)
		if took := g.successorsTake(t, leader); took >= successorWait {
			t.Errorf("it gave up after %v", took)
		}
		if last := g.nodes[follower].raft.LastIndex(); last+successorLag < committed {
			t.Errorf("it leaves a node behind that has %d entries, of %d", last, committed)
		}
	})
}

func TestALeaderThatLeavesWaitsForNoNodeThatIsAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		g.fallsBehind(t, network, (leader+1)%3, leader)
		time.Sleep(time.Second)
		if took, patience := g.successorsTake(t, leader), 2*g.nodes[leader].config.HeartbeatTimeout; took > patience+2*lookEvery {
			t.Errorf("it waited for %v", took)
		}
	})
}

func TestAFollowerThatLeavesWaitsForNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g, network := newFlakyGroup(t)
		leader := g.leader(t)
		g.fallsBehind(t, network, (leader+1)%3, leader)
		if took := g.successorsTake(t, (leader+2)%3); took > 0 {
			t.Errorf("it waited for %v", took)
		}
	})
}
