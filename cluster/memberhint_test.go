package cluster

import (
	"errors"
	"testing"
)

// While a node is down, another one joins and leads. The returning node does not know it, and would
// reject its connections forever.
func TestMemberHint_ReturningNodeFollowsNewMember(t *testing.T) {
	t.Parallel()
	trusted := newAuthority(t)
	nodes, _ := startWithTLS(t, trusted, nil)
	ctx := testContext(t)
	first := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != first {
			others = append(others, node)
		}
	}
	away, survivor := others[0], others[1]
	callThrough(ctx, t, first, "before")
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	config := Config{
		NodeID: "n4", Listen: loopbackAddress(t), Dir: t.TempDir(), Definitions: definitions(), Logger: testLogger(),
		TLS: trusted.keys(trusted.Node("n4")), Partitions: testPartitionsDefault, Join: []string{survivor.config.Listen},
		CallTimeout: testTimeout,
	}
	joined := startNode(t, config)
	for _, g := range joined.partitions {
		eventually(t, "it has a vote", func() bool {
			self := g.self()
			return self != nil && self.Voter
		})
	}
	eventually(t, "the first leader is removed", func() bool {
		err := survivor.RemoveNode(ctx, first.ID())
		if err != nil && !errors.Is(err, ErrMembershipChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "the one that has joined leads", func() bool {
		if survivor.IsLeader() {
			_ = survivor.partitions[0].journal.TransferLeadership(ctx) // or it has already lost leadership
		}
		return joined.IsLeader()
	})
	callThrough(ctx, t, survivor, "meanwhile")
	back := startNode(t, away.config)
	expectSameHistories(t, []*Node{joined, survivor, back})
	callThrough(ctx, t, back, "after")
}

// The node's own log overrides a member hint once it has reached the hint's index: a node removed
// since is not a member.
func TestMemberHint_LogOverridesHint(t *testing.T) {
	nodes, _ := startWithTLS(t, newAuthority(t), nil)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != leader {
			others = append(others, node)
		}
	}
	received, removed := others[0], others[1]
	eventually(t, "it has a member hint", func() bool {
		received.announcer.fetchMemberHint(ctx, leader.config.Listen) // it may have lost leadership and know no leader
		hint := received.directory.LastHint()
		return hint != nil && hint.Nodes[removed.config.Listen] == removed.ID() && hint.Index > 0
	})
	eventually(t, "it is removed", func() bool {
		err := received.RemoveNode(ctx, removed.ID())
		if err != nil && !errors.Is(err, ErrMembershipChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "that is known", func() bool {
		for _, g := range received.partitions {
			if g.journal.IsMember(removed.ID()) {
				return false
			}
		}
		return received.partitions[0].journal.CommitIndex() >= received.directory.LastHint().Index
	})
	if received.directory.IsMember(removed.ID()) || received.directory.NodeAt(removed.config.Listen) != "" {
		t.Errorf("the hint still counts, at %q", received.directory.NodeAt(removed.config.Listen))
	}
}
