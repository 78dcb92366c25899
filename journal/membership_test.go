package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// openJoiningNode opens a node that waits to be added.
func openJoiningNode(t *testing.T, g *testCluster, name string) (*Journal, Peer) {
	t.Helper()
	p := Peer{Node: name, Address: "at-" + name}
	j, err := Open(t.Context(), testConfig(Config{
		Node: name, Address: p.Address, Join: true, Dir: filepath.Join(t.TempDir(), name), Network: g.listen(p.Address),
		HeartbeatTimeout: 500 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond, LeaderLease: 500 * time.Millisecond,
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeJournal(t, j) })
	return j, p
}

// changeMembers repeats a change of the members until no other is in progress.
func changeMembers(t *testing.T, change func(ctx context.Context) error) error {
	t.Helper()
	var err error
	waittest.Eventually(t, "a change of the members", func() bool {
		err = change(t.Context())
		return !errors.Is(err, ErrMembershipChanging)
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

// A node may not hear that it was added, and get its vote before it asks again. That is no error,
// but another node with its name is rejected.
func TestAddMember_AgainAfterVote(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		j, p := openJoiningNode(t, g, "n4")
		p.Identity = j.Identity()
		add := func(p Peer) error {
			return changeMembers(t, func(ctx context.Context) error { return leader.AddMember(ctx, p) })
		}
		if err := add(p); err != nil {
			t.Fatal(err)
		}
		waittest.Eventually(t, "four votes", func() bool { return len(votersOf(leader)) == 4 })
		if err := add(p); err != nil {
			t.Errorf("again: %v", err)
		}
		moved, other := p, p
		moved.Address = "at-another"
		other.Identity = ""
		if err := add(moved); !errors.Is(err, ErrMember) {
			t.Errorf("another address: %v", err)
		}
		if _, ok := errors.AsType[*DirectoryError](add(other)); !ok {
			t.Error("another directory was accepted")
		}
		if len(votersOf(leader)) != 4 {
			t.Errorf("voters %v", votersOf(leader))
		}
	})
}

func TestAddMember_VotesOnceCaughtUp(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		for i := range 50 {
			mustAppend(t, leader, newStartAppend(leader.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		j, p := openJoiningNode(t, g, "n4")
		for range 2 { // a repetition is no error, nor is one after it has a vote
			if err := changeMembers(t, func(ctx context.Context) error { return leader.AddMember(ctx, p) }); err != nil && !errors.Is(err, ErrMember) {
				t.Fatal(err)
			}
		}
		waittest.Eventually(t, "four votes", func() bool { return len(votersOf(leader)) == 4 && len(votersOf(j)) == 4 })
		g.nodes = append(g.nodes, j)
		g.awaitEqualStates(t)
		g.nodes = g.nodes[:3]
		if n := len(openOperations(j)); n != 50 {
			t.Errorf("it has %d open operations", n)
		}
		for _, m := range leader.Members() {
			if !m.BehindKnown {
				t.Errorf("the lag of %s is not known", m.Node)
			}
		}
		if err := changeMembers(t, func(ctx context.Context) error { return leader.AddMember(ctx, p) }); !errors.Is(err, ErrMember) {
			t.Errorf("added again: %v", err)
		}
		if err := changeMembers(t, func(ctx context.Context) error { return leader.AddMember(ctx, Peer{Node: "n5", Address: p.Address}) }); !errors.Is(err, ErrAddressTaken) {
			t.Errorf("another of the same address: %v", err)
		}
	})
}

func TestAddMember_VotesWithoutWaiter(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		j, p := openJoiningNode(t, g, "n4")
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		err := changeMembers(t, func(context.Context) error { return leader.AddMember(gone, p) })
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		waittest.Eventually(t, "four votes", func() bool { return len(votersOf(leader)) == 4 && len(votersOf(j)) == 4 })
	})
}

func TestRemoveMember_NeverAddedAgain(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.leader(t)
		gone := (leader + 1) % 3
		name := g.peers[gone].Node
		remove := func(ctx context.Context) error { return g.nodes[leader].RemoveMember(ctx, name) }
		if err := changeMembers(t, remove); err != nil {
			t.Fatal(err)
		}
		if voters := votersOf(g.nodes[leader]); len(voters) != 2 || slices.Contains(voters, name) {
			t.Errorf("the voters are %v", voters)
		}
		if err := changeMembers(t, remove); err != nil {
			t.Errorf("removed again: %v", err)
		}
		// Snapshots contain the metadata too.
		mustAppend(t, g.nodes[leader], newStartAppend(g.nodes[leader].Epoch(), "behind"))
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
		if err := changeMembers(t, add); !errors.Is(err, ErrRemoved) {
			t.Errorf("added after it was removed: %v", err)
		}
	})
}

func TestRemoveMember_LeaderTransfersFirst(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		first := g.leader(t)
		name := g.peers[first].Node
		if err := g.nodes[first].RemoveMember(t.Context(), name); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("removing itself: %v; want a redirect to the next leader", err)
		}
		next := awaitOtherLeader(t, g, first)
		if err := changeMembers(t, func(ctx context.Context) error { return next.RemoveMember(ctx, name) }); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, next, newStartAppend(next.Epoch(), "a"))
		if slices.Contains(votersOf(next), name) {
			t.Error("it still has a vote")
		}
		if err := g.nodes[first].AddMember(t.Context(), Peer{Node: "n9", Address: "127.0.0.1:1"}); !errors.Is(err, ErrNotLeader) {
			t.Errorf("a change on a node that does not lead: %v", err)
		}
	})
}

// The leader is lost between the two halves of a removal.
func TestRemoveMember_NextLeaderFinishes(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		gone := (g.leader(t) + 1) % 3
		if err := leader.changeMetadata(t.Context(), &journalpb.MetadataChange{Removed: g.peers[gone].Node}); err != nil {
			t.Fatal(err)
		}
		if err := leader.TransferLeadership(t.Context()); err != nil {
			t.Fatal(err)
		}
		waittest.Eventually(t, "two votes", func() bool {
			for i, j := range g.nodes {
				if i != gone && j.IsLeader() {
					return !slices.Contains(votersOf(j), g.peers[gone].Node)
				}
			}
			return false
		})
	})
}

// A removal cannot be undone once it is recorded, so it waits for the change that is in progress.
func TestRemoveMember_WaitsForOtherChange(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader, gone := g.nodes[g.leader(t)], g.peers[(g.leader(t)+1)%3].Node
		leader.changeSlot <- struct{}{}
		removed := make(chan error, 1)
		go func() { removed <- leader.RemoveMember(t.Context(), gone) }()
		waittest.Eventually(t, "the removal is recorded", func() bool { return slices.Contains(leader.RemovedNodes(), gone) })
		select {
		case err := <-removed:
			t.Errorf("it did not wait: %v", err)
		case <-time.After(time.Second): // virtual
		}
		<-leader.changeSlot
		if err := waittest.Receive(t, "the end of the removal", removed); err != nil || slices.Contains(votersOf(leader), gone) {
			t.Errorf("voters %v, error %v", votersOf(leader), err)
		}
	})
}

func TestMembership_OneChangeAtATime(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		leader.changeSlot <- struct{}{}
		if err := leader.AddMember(t.Context(), Peer{Node: "n9", Address: "127.0.0.1:1"}); !errors.Is(err, ErrMembershipChanging) {
			t.Errorf("added during another change: %v", err)
		}
		<-leader.changeSlot
		err := leader.changeMembers(t.Context(), func(g *membership) (change, error) {
			return func() raft.IndexFuture {
				return leader.raft.AddNonvoter("n9", "127.0.0.1:1", g.index-1, enqueueTimeout)
			}, nil
		})
		if err == nil {
			t.Error("a plan for former members was executed")
		}
	})
}

// A change that has returned is not in progress: the next one may begin at once.
func TestMembership_NextChangeBeginsAtOnce(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		if err := changeMembers(t, func(ctx context.Context) error {
			return leader.AddMember(ctx, Peer{Node: "n9", Address: "127.0.0.1:1"})
		}); err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			if err := leader.MoveMember(t.Context(), Peer{Node: "n9", Address: fmt.Sprintf("127.0.0.1:%d", i+2)}); err != nil {
				t.Fatalf("change %d: %v", i, err)
			}
		}
	})
}

// attemptsMax is far more than the attempts in the time that Raft waits for the target of a
// transfer.
const attemptsMax = 200

// An attemptCounter counts the log records about members that are to lose their votes.
type attemptCounter struct {
	slog.Handler
	attempts *atomic.Int64
}

func (c attemptCounter) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c attemptCounter) Enabled(context.Context, slog.Level) bool { return true }

func (c attemptCounter) Handle(_ context.Context, record slog.Record) error {
	if record.Message == "demoting voter to standby" && c.attempts.Add(1) > attemptsMax {
		panic("the leader tries again and again without a pause") // the test's time would stand still
	}
	return nil
}

// Raft changes no members while it transfers leadership. The leader must not try all the time to
// take a vote meanwhile.
func TestReconcileVotes_PausesDuringTransfer(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		var attempts atomic.Int64
		var wanted atomic.Pointer[[]string]
		g := newConfiguredTestCluster(t, nil, func(_ int, c *Config) {
			c.Logger = slog.New(attemptCounter{slog.DiscardHandler, &attempts})
			c.Voters = func(members []string) ([]string, bool) {
				if voters := wanted.Load(); voters != nil {
					return *voters, true
				}
				return members, true
			}
		})
		leader := g.leader(t)
		j, gone := g.nodes[leader], (leader+1)%3
		g.stop(t, gone)
		transferred := make(chan error)
		go func() { transferred <- j.TransferLeadershipTo(t.Context(), g.peers[gone].Node) }()
		waittest.Eventually(t, "leadership is being transferred", func() bool { return j.transfers.Load() > 0 })
		wanted.Store(&[]string{g.peers[leader].Node, g.peers[(leader+2)%3].Node})
		j.ReconcileVotes()
		if err := <-transferred; err == nil {
			t.Error("it leads")
		}
		waittest.Eventually(t, "two votes", func() bool { return len(votersOf(j)) == 2 })
		if attempts.Load() < 2 {
			t.Errorf("%d attempts: none during the transfer", attempts.Load())
		}
	})
}
