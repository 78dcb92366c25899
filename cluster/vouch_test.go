package cluster

import (
	"errors"
	"testing"
)

// While a node is away, another joins, and leads. The one that was away does not
// know it, and would refuse its connections for ever.
func TestANodeThatWasAwayFollowsALeaderThatHasJoinedMeanwhile(t *testing.T) {
	noGoroutinesLeft(t)
	ours := newAuthority(t)
	nodes, _ := startSecured(t, ours, nil)
	ctx := testContext(t)
	first := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != first {
			others = append(others, node)
		}
	}
	away, stays := others[0], others[1]
	tell(ctx, t, first, "before")
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	config := Config{
		NodeID: "n4", Listen: loopbackAddress(t), Dir: t.TempDir(), Definitions: definitions(), Logger: quiet(),
		TLS: ours.keys(ours.node("n4")), Groups: testGroups, Join: []string{stays.config.Listen},
	}
	joined := startNode(t, config)
	for _, g := range joined.groups {
		eventually(t, "it has a vote", func() bool {
			self := g.self()
			return self != nil && self.Voter
		})
	}
	eventually(t, "the first leader is removed", func() bool {
		err := stays.RemoveNode(ctx, first.ID())
		if err != nil && !errors.Is(err, ErrChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "the one that has joined leads", func() bool {
		if stays.Leading() {
			_ = stays.groups[0].journal.TransferLeadership(ctx) // or it has lost the lead by itself
		}
		return joined.Leading()
	})
	tell(ctx, t, stays, "meanwhile")
	back := startNode(t, away.config)
	sameHistories(t, []*Node{joined, stays, back})
	tell(ctx, t, back, "after")
}

// A node that has asked for the members believes its own log again as soon as that
// has come as far: who was removed since is no member, whoever has said so before.
func TestANodeThatWasToldOfMembersHearsOfRemovals(t *testing.T) {
	nodes, _ := startSecured(t, newAuthority(t), nil)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != leader {
			others = append(others, node)
		}
	}
	told, removed := others[0], others[1]
	eventually(t, "it is told of the members", func() bool {
		told.hearOfMembers(ctx, leader.config.Listen) // which may have lost the lead, and know of none
		heard := told.vouched.Load()
		return heard != nil && heard.nodes[removed.config.Listen] == removed.ID() && heard.index > 0
	})
	eventually(t, "it is removed", func() bool {
		err := told.RemoveNode(ctx, removed.ID())
		if err != nil && !errors.Is(err, ErrChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "that is known", func() bool {
		for _, g := range told.groups {
			if g.journal.IsMember(removed.ID()) {
				return false
			}
		}
		return told.groups[0].journal.CommitIndex() >= told.vouched.Load().index
	})
	if told.isMember(removed.ID()) || told.nodeAt(removed.config.Listen) != "" {
		t.Errorf("it is believed still, at %q", told.nodeAt(removed.config.Listen))
	}
}
