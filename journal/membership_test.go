package journal

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// newcomer opens a node that waits to be added.
func newcomer(t *testing.T, g *group, name string) (*Journal, Peer) {
	t.Helper()
	p := Peer{Node: name, Address: "at-" + name}
	j, err := Open(t.Context(), quiet(Config{
		Node: name, Address: p.Address, Join: true, Dir: filepath.Join(t.TempDir(), name), Network: g.listen(p.Address),
		HeartbeatTimeout: 500 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond, LeaderLease: 500 * time.Millisecond,
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, j) })
	return j, p
}

// membersChanged repeats a change of the members until no other is under way.
func membersChanged(t *testing.T, change func(ctx context.Context) error) error {
	t.Helper()
	var err error
	eventually(t, "a change of the members", func() bool {
		err = change(t.Context())
		return !errors.Is(err, ErrChanging)
	})
	return err
}

func votersOf(j *Journal) (voters []string) {
	for _, m := range j.Members() {
		if m.Voter {
			voters = append(voters, m.Node)
		}
	}
	return voters
}

func TestANewMemberGetsAVoteWhenItHasCaughtUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.nodes[g.leader(t)]
		for i := range 50 {
			mustAppend(t, leader, begin(leader.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		j, p := newcomer(t, g, "n4")
		for range 2 { // a repetition is no error, and neither is one once it has a vote
			if err := membersChanged(t, func(ctx context.Context) error { return leader.AddMember(ctx, p) }); err != nil && !errors.Is(err, ErrMember) {
				t.Fatal(err)
			}
		}
		eventually(t, "four votes", func() bool { return len(votersOf(leader)) == 4 && len(votersOf(j)) == 4 })
		g.nodes = append(g.nodes, j)
		g.agree(t)
		g.nodes = g.nodes[:3]
		if n := len(opens(j)); n != 50 {
			t.Errorf("it has %d open operations", n)
		}
		for _, m := range leader.Members() {
			if !m.BehindKnown {
				t.Errorf("how far %s is behind is not known", m.Node)
			}
		}
		if err := membersChanged(t, func(ctx context.Context) error { return leader.AddMember(ctx, p) }); !errors.Is(err, ErrMember) {
			t.Errorf("added again: %v", err)
		}
		if err := membersChanged(t, func(ctx context.Context) error { return leader.AddMember(ctx, Peer{Node: "n5", Address: p.Address}) }); !errors.Is(err, ErrAddressTaken) {
			t.Errorf("another of the same address: %v", err)
		}
	})
}

func TestANewMemberGetsAVoteAlsoWhenNobodyWaitsForIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.nodes[g.leader(t)]
		j, p := newcomer(t, g, "n4")
		gone, leave := context.WithCancel(t.Context())
		leave()
		err := membersChanged(t, func(context.Context) error { return leader.AddMember(gone, p) })
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		eventually(t, "four votes", func() bool { return len(votersOf(leader)) == 4 && len(votersOf(j)) == 4 })
	})
}

func TestARemovedMemberIsNeverAddedAgainAlsoAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.leader(t)
		gone := (leader + 1) % 3
		name := g.peers[gone].Node
		remove := func(ctx context.Context) error { return g.nodes[leader].RemoveMember(ctx, name) }
		if err := membersChanged(t, remove); err != nil {
			t.Fatal(err)
		}
		if voters := votersOf(g.nodes[leader]); len(voters) != 2 || slices.Contains(voters, name) {
			t.Errorf("the voters are %v", voters)
		}
		if err := membersChanged(t, remove); err != nil {
			t.Errorf("removed again: %v", err)
		}
		// What is known is in snapshots too.
		mustAppend(t, g.nodes[leader], begin(g.nodes[leader].Epoch(), "behind"))
		if err := g.nodes[leader].raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		g.stop(t, gone)
		for i := range g.nodes {
			g.stop(t, i)
		}
		for i := range g.nodes {
			if i != gone {
				g.start(t, i, nil, nil)
			}
		}
		leader = g.leader(t)
		add := func(ctx context.Context) error { return g.nodes[leader].AddMember(ctx, g.peers[gone]) }
		if err := membersChanged(t, add); !errors.Is(err, ErrRemoved) {
			t.Errorf("added after it was removed: %v", err)
		}
	})
}

func TestALeaderThatIsRemovedHandsOverFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		first := g.leader(t)
		name := g.peers[first].Node
		if err := g.nodes[first].RemoveMember(t.Context(), name); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("removing itself: %v; want that the next leader is to be asked", err)
		}
		next := awaitOther(t, g, first)
		if err := membersChanged(t, func(ctx context.Context) error { return next.RemoveMember(ctx, name) }); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, next, begin(next.Epoch(), "a"))
		if slices.Contains(votersOf(next), name) {
			t.Error("it has a vote still")
		}
		if err := g.nodes[first].AddMember(t.Context(), Peer{Node: "n9", Address: "127.0.0.1:1"}); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a change on a node that does not lead: %v", err)
		}
	})
}

// The leader is lost between the two halves of a removal.
func TestTheNextLeaderFinishesARemoval(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.nodes[g.leader(t)]
		gone := (g.leader(t) + 1) % 3
		if err := leader.changeGroup(t.Context(), &journalpb.GroupChange{Removed: g.peers[gone].Node}); err != nil {
			t.Fatal(err)
		}
		if err := leader.TransferLeadership(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "two votes", func() bool {
			for i, j := range g.nodes {
				if i != gone && j.IsLeader() {
					return !slices.Contains(votersOf(j), g.peers[gone].Node)
				}
			}
			return false
		})
	})
}

func TestMembersChangeOneAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		leader := g.nodes[g.leader(t)]
		leader.changing <- struct{}{}
		if err := leader.AddMember(t.Context(), Peer{Node: "n9", Address: "127.0.0.1:1"}); !errors.Is(err, ErrChanging) {
			t.Errorf("added during another change: %v", err)
		}
		<-leader.changing
		err := leader.changeMembers(t.Context(), func(g *roster) (change, error) {
			return func() raft.IndexFuture {
				return leader.raft.AddNonvoter("n9", "127.0.0.1:1", g.index-1, enqueueTimeout)
			}, nil
		})
		if err == nil {
			t.Error("a plan for members of the past was carried out")
		}
	})
}
