package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/journal/state"
)

func TestReplication_ThreeNodesHoldSameState(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		epoch := leader.Epoch()
		for i := range 50 {
			mustAppend(t, leader, newStartAppend(epoch, fmt.Sprintf("i-%d", i)))
		}
		g.awaitEqualStates(t)
		for i, j := range g.nodes {
			hash, err := j.Hash("i-17")
			want, _ := leader.Hash("i-17")
			if err != nil || hash != want {
				t.Errorf("node %d: hash differs (%v)", i, err)
			}
			if n := len(openOperations(j)); n != 50 {
				t.Errorf("node %d: %d open operations", i, n)
			}
			if node, _ := j.Leader(); node != leader.config.Node {
				t.Errorf("node %d considers %s the leader", i, node)
			}
		}
	})
}

func TestFollower_ReturnsErrNotLeader(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.leader(t)
		for i, j := range g.nodes {
			if i == leader {
				continue
			}
			if err := proposeAppend(t, j, newStartAppend(1, "a")); !errors.Is(err, ErrNotLeader) {
				t.Errorf("append: %v", err)
			}
			if err := j.Barrier(t.Context()); !errors.Is(err, ErrNotLeader) {
				t.Errorf("barrier: %v", err)
			}
			if err := j.TransferLeadership(t.Context()); !errors.Is(err, ErrNotLeader) {
				t.Errorf("transfer: %v", err)
			}
		}
	})
}

func TestNextLeader_RejectsOldEpoch(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		first := g.leader(t)
		old := g.nodes[first].Epoch()
		mustAppend(t, g.nodes[first], newStartAppend(old, "a"))
		g.stop(t, first)

		second := g.nodes[g.leader(t)]
		epoch := second.Epoch()
		if epoch <= old {
			t.Errorf("epoch %d after %d", epoch, old)
		}
		if last := lastEvent(t, second, "a"); last != 2 {
			t.Errorf("%d events on the next leader", last)
		}
		var stale *state.StaleEpochError
		if err := proposeAppend(t, second, newStepAppend(old, "a", 3)); !errors.As(err, &stale) {
			t.Error(err)
		}
		mustAppend(t, second, newStepAppend(epoch, "a", 3))

		g.start(t, first, nil, nil)
		g.awaitEqualStates(t)
		if last := lastEvent(t, g.nodes[first], "a"); last != 4 {
			t.Errorf("%d events on the restarted node", last)
		}
	})
}

func TestFollower_FarBehindGetsSnapshot(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.leader(t)
		behind := (leader + 1) % 3
		g.stop(t, behind)
		j := g.nodes[leader]
		for i := range 200 {
			mustAppend(t, j, newStartAppend(j.Epoch(), fmt.Sprintf("i-%d", i)))
		}
		snapshotAndTruncate(t, j)
		g.start(t, behind, nil, nil)
		g.awaitEqualStates(t)
		if n := len(openOperations(g.nodes[behind])); n != 200 {
			t.Errorf("%d open operations", n)
		}
	})
}

// A snapshot sent to a stopped node may reach the next node at its address, from a leader that
// still leads. Or the snapshot was installed without the leader learning it, and the leader must
// continue when it does.
func TestInstallSnapshot_RejectsOldSnapshot(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.leader(t)
		j, follower := g.nodes[leader], (leader+1)%3
		mustAppend(t, j, newStartAppend(j.Epoch(), "before"))
		if err := j.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			mustAppend(t, j, newStartAppend(j.Epoch(), fmt.Sprintf("since-%d", i)))
		}
		g.awaitEqualStates(t)
		reached := g.nodes[follower].lastLocalIndex()
		snapshots, err := g.nodes[follower].snapshots.List()
		if err != nil {
			t.Fatal(err)
		}
		if err := g.sendSnapshot(t, leader, follower); err != nil {
			t.Errorf("the leader would send it repeatedly: %v", err)
		}
		if now, err := g.nodes[follower].snapshots.List(); err != nil || len(now) != len(snapshots) {
			t.Errorf("%d snapshots, and then %d: %v", len(snapshots), len(now), err)
		}
		if err := g.writeSnapshot(t, leader, follower); err == nil {
			t.Error("Raft would install it")
		}
		if got := g.nodes[follower].lastLocalIndex(); got < reached {
			t.Errorf("the node was at entry %d and is at %d", reached, got)
		}
		mustAppend(t, j, newStartAppend(j.Epoch(), "after"))
		g.awaitEqualStates(t)
		if err := g.nodes[follower].Err(); err != nil {
			t.Error(err)
		}
	})
}

// snapshotAndTruncate makes a node take a snapshot and truncate most of its log.
func snapshotAndTruncate(t *testing.T, j *Journal) {
	t.Helper()
	if err := j.reloadRaftConfig(func(c *raft.ReloadableConfig) { c.TrailingLogs = 1 }); err != nil {
		t.Fatal(err)
	}
	if err := j.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
}

// newestSnapshot opens the newest snapshot of a node.
func newestSnapshot(t *testing.T, j *Journal) (*raft.SnapshotMeta, io.ReadCloser) {
	t.Helper()
	all, err := j.snapshots.List()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d snapshots: %v", len(all), err)
	}
	meta, content, err := j.snapshots.Open(all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	return meta, content
}

// writeSnapshot makes a node write the newest snapshot of another, as Raft does with one that it
// receives.
func (tc *testCluster) writeSnapshot(t *testing.T, from, to int) error {
	t.Helper()
	meta, content := newestSnapshot(t, tc.nodes[from])
	defer content.Close()
	sink, err := tc.nodes[to].snapshots.Create(meta.Version, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(sink, content); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// sendSnapshot sends a node the newest snapshot of another, as if that led.
func (tc *testCluster) sendSnapshot(t *testing.T, from, to int) error {
	t.Helper()
	meta, content := newestSnapshot(t, tc.nodes[from])
	defer content.Close()
	listener := transport.NewStreams(tc.listen("at-nobody"), "at-nobody", func() bool { return false })
	transport := transport.NewVerified(listener, func(string) bool { return true }, new(transport.Rejections), hclog.NewNullLogger())
	defer transport.Close()
	listener.Handshake, listener.RequiresHandshake = tc.nodes[from].performHandshake, func() bool { return true }
	request := &raft.InstallSnapshotRequest{
		RPCHeader:       raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(tc.peers[from].Node), Addr: []byte(tc.peers[from].Address)},
		SnapshotVersion: meta.Version, Term: tc.nodes[from].raft.CurrentTerm(),
		LastLogIndex: meta.Index, LastLogTerm: meta.Term,
		Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex, Size: meta.Size,
	}
	var response raft.InstallSnapshotResponse
	err := transport.InstallSnapshot(raft.ServerID(tc.peers[to].Node), raft.ServerAddress(tc.peers[to].Address), request, &response, content)
	if err == nil && !response.Success {
		err = errors.New("rejected")
	}
	return err
}

func TestTransferLeadership(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		var leaderships atomic.Int32
		g := newTestCluster(t, func(int) func(context.Context, uint64) {
			return func(ctx context.Context, _ uint64) {
				leaderships.Add(1)
				<-ctx.Done()
				leaderships.Add(-1)
			}
		})
		first := g.leader(t)
		epoch := g.nodes[first].Epoch()
		if err := g.nodes[first].TransferLeadership(t.Context()); err != nil {
			t.Fatal(err)
		}
		if g.nodes[first].IsLeader() {
			t.Error("it still leads after the transfer")
		}
		waittest.Eventually(t, "another leader", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() && j.Epoch() > epoch {
					return true
				}
			}
			return false
		})
		waittest.Eventually(t, "one leadership", func() bool { return leaderships.Load() == 1 })
	})
}

func TestLead_LeadershipsDoNotOverlap(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		var mu sync.Mutex
		var epochs []uint64
		running := make([]int, 3)
		g := newTestCluster(t, func(node int) func(context.Context, uint64) {
			return func(ctx context.Context, epoch uint64) {
				mu.Lock()
				epochs = append(epochs, epoch)
				if running[node]++; running[node] > 1 {
					t.Errorf("node %d: two leaderships at once", node)
				}
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				running[node]--
				mu.Unlock()
			}
		})
		for range 6 {
			j := g.nodes[g.leader(t)]
			epoch := j.Epoch()
			// it may have lost leadership meanwhile, and then there is a new epoch too
			_ = j.TransferLeadership(t.Context())
			waittest.Eventually(t, "the next epoch", func() bool { return g.nodes[g.leader(t)].Epoch() > epoch })
		}
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(epochs)
		if len(slices.Compact(slices.Clone(epochs))) != len(epochs) {
			t.Errorf("two leaders in one epoch: %v", epochs)
		}
	})
}

func TestLeader_StepsDownWithoutMajority(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.leader(t)
		j := g.nodes[leader]
		epoch := j.Epoch()
		mustAppend(t, j, newStartAppend(epoch, "a"))
		g.stop(t, (leader+1)%3)
		g.stop(t, (leader+2)%3)
		err := proposeAppend(t, j, newStepAppend(epoch, "a", 3))
		if !errors.Is(err, ErrUnknownOutcome) && !errors.Is(err, ErrNotLeader) {
			t.Errorf("append without a majority: %v", err)
		}
		waittest.Eventually(t, "it steps down", func() bool { return !j.IsLeader() })
		if err := proposeAppend(t, j, newStepAppend(epoch, "a", 3)); !errors.Is(err, ErrNotLeader) {
			t.Error(err)
		}
		if err := j.Barrier(t.Context()); !errors.Is(err, ErrNotLeader) {
			t.Error(err)
		}
	})
}

func TestAppend_AcknowledgedSurvivesLeaderChanges(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		acknowledged := map[string]uint64{}
		for round := range 4 {
			leader := g.leader(t)
			j := g.nodes[leader]
			for i := range 30 {
				id := fmt.Sprintf("i-%d", i%10)
				if err := appendNext(t, j, id); err == nil {
					acknowledged[id] = lastEvent(t, j, id)
				}
			}
			g.stop(t, leader)
			next := g.nodes[g.leader(t)]
			for id, want := range acknowledged {
				if got := lastEvent(t, next, id); got < want {
					t.Fatalf("round %d: %s has %d events, %d were acknowledged", round, id, got, want)
				}
			}
			g.start(t, leader, nil, nil)
		}
		g.awaitEqualStates(t)
	})
}

// appendNext appends the next events of an instance.
func appendNext(t testing.TB, j *Journal, id string) error {
	if last := lastEvent(t, j, id); last > 0 {
		return proposeAppend(t, j, newStepAppend(j.Epoch(), id, last+1))
	}
	return proposeAppend(t, j, newStartAppend(j.Epoch(), id))
}

func TestBarrier_SharedAndSeesAcknowledgedAppends(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		j := g.nodes[g.leader(t)]
		mustAppend(t, j, newStartAppend(j.Epoch(), "a"))
		var callers sync.WaitGroup
		for range 64 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), waittest.Timeout)
				defer cancel()
				if err := j.Barrier(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if last := lastEvent(t, j, "a"); last != 2 {
			t.Errorf("%d events after the barrier", last)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		<-ctx.Done()
		if err := j.Barrier(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// A node that is elected again before it has ended its previous leadership serves nobody. It must
// not keep the others from leading.
func TestLead_StepsDownIfPreviousLeadHangs(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		release := make(chan struct{})
		var stuck atomic.Int32 // the node whose Lead does not return
		stuck.Store(-1)
		g := newTestCluster(t, func(node int) func(context.Context, uint64) {
			return func(ctx context.Context, _ uint64) {
				<-ctx.Done()
				if stuck.CompareAndSwap(-1, int32(node)) {
					<-release
				}
			}
		})
		t.Cleanup(func() { close(release) })
		// A transfer may fail, or another node may be elected instead.
		for stuck.Load() < 0 {
			_ = g.nodes[g.leader(t)].TransferLeadership(t.Context())
		}
		first := int(stuck.Load())
		waittest.Eventually(t, "the stuck node is elected", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() {
					_ = j.TransferLeadershipTo(t.Context(), g.peers[first].Node)
				}
			}
			return g.nodes[first].raft.State() == raft.Leader
		})
		if g.nodes[first].IsLeader() {
			t.Fatal("it serves before its Lead has returned")
		}
		waittest.Eventually(t, "another serves", func() bool {
			return g.nodes[(first+1)%3].IsLeader() || g.nodes[(first+2)%3].IsLeader()
		})
	})
}
