package journal

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// wrapFaulty puts the faults between a node and its stores.
func wrapFaulty(w *raftlogtest.FaultyWrites) func(s *stores) {
	return func(s *stores) {
		s.logs.LogStore = &raftlogtest.FaultyLogs{LogStore: s.logs.LogStore, Writes: w}
		if stable, ok := s.stable.(*raftlog.StableFile); ok {
			stable.Intercept(w.DoStable)
		}
	}
}

// faultyCluster is three nodes whose writes can fail, on a network that can be cut.
type faultyCluster struct {
	*testCluster
	network *networktest.Flaky
	writes  []*raftlogtest.FaultyWrites
}

func newFaultyCluster(t *testing.T) *faultyCluster {
	t.Helper()
	noLeaks(t)
	network := networktest.NewFlaky()
	g := &faultyCluster{network: network, writes: []*raftlogtest.FaultyWrites{{}, {}, {}}}
	g.testCluster = &testCluster{listen: network.Listen, nodes: make([]*Journal, 3), configure: func(node int, c *Config) {
		c.tests.wrapStores = wrapFaulty(g.writes[node])
	}}
	g.startAll(t, nil)
	return g
}

// isolateLeader cuts the leader off when it has entries that nobody else has. It returns the
// indexes of that leader and of the next one, which has other entries at their positions.
func (f *faultyCluster) isolateLeader(t *testing.T, uncommitted int) (old, next int) {
	t.Helper()
	old = f.leader(t)
	j := f.nodes[old]
	mustAppend(t, j, newStartAppend(j.Epoch(), "before"))
	f.awaitEqualStates(t)
	f.network.Isolate(f.peers[old].Address)
	tail := j.raft.LastIndex() + uint64(uncommitted)
	var lost []raft.ApplyFuture
	for i := range uncommitted {
		lost = append(lost, j.raft.Apply(entry.Pack(entry.EncodeAppend(newStartAppend(j.Epoch(), fmt.Sprintf("lost-%d", i)))), 0))
	}
	waittest.Eventually(t, "entries that nobody else has", func() bool { return lastLogged(j) >= tail })
	waittest.Eventually(t, "another leader", func() bool {
		for i, other := range f.nodes {
			if i != old && other.IsLeader() {
				next = i
				return true
			}
		}
		return false
	})
	leader := f.nodes[next]
	mustAppend(t, leader, newStartAppend(leader.Epoch(), "after"))
	for _, future := range lost {
		if err := future.Error(); err == nil {
			t.Error("an entry was committed by a leader that was cut off")
		}
	}
	return old, next
}

// lastLogged returns the index of the last entry in a node's log.
func lastLogged(j *Journal) uint64 {
	last, _ := j.logs.Checked.LastIndex()
	return last
}

// A node whose uncommitted tail is truncated meets an error at each write of the truncation in
// turn. It continues without a restart when the disk has room again, or it fails and reports so.
// With -race, half of the kinds of faults suffice: all run the same code.
func TestTruncation_FailedWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: starts three nodes for each write of a truncation")
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		for _, stays := range []bool{false, true} {
			for _, done := range []bool{false, true} {
				if shorttest.Race && done != stays {
					continue
				}
				for at, hit := 1, true; hit; at++ {
					fault := raftlogtest.WriteFault{Errno: errno, At: at, Persists: stays, TakesEffect: done}
					t.Run(fault.String(), func(t *testing.T) {
						waittest.InSynctest(t, func(t *testing.T) { hit = truncateWithFault(t, fault) })
					})
					if at > 100 {
						t.Fatal("the writes of the truncation do not end")
					}
				}
			}
		}
	}
}

// truncateWithFault reports whether the fault was met.
func truncateWithFault(t *testing.T, fault raftlogtest.WriteFault) bool {
	g := newFaultyCluster(t)
	old, next := g.isolateLeader(t, 5)
	victim, leader := g.nodes[old], g.nodes[next]
	writes := g.writes[old]
	writes.Inject(fault)
	g.network.Reconnect(g.peers[old].Address)
	enough := 1
	if fault.Persists {
		enough = 3 // the leader has tried again, and met the same error
	}
	waittest.Eventually(t, "the fault, or all entries on the node", func() bool {
		return writes.Failures() >= enough || victim.Err() != nil || victim.AppliedIndex() >= leader.AppliedIndex()
	})
	hit := writes.Failures() > 0
	writes.Heal()
	if fault.Errno != syscall.ENOSPC && hit {
		waittest.Eventually(t, "the node fails", func() bool { return victim.Err() != nil })
	}
	if victim.Err() != nil {
		wantNodeFailed(t, victim)
		if !errors.Is(victim.Err(), fault.Errno) {
			t.Errorf("the node has failed because of %v", victim.Err())
		}
		g.stop(t, old)
		g.start(t, old, nil, nil)
	}
	g.wantMajority(t, old, next)
	return hit
}

// wantMajority checks that a node has everything committed, and that it and the leader can commit
// more, also after both were restarted.
func (f *faultyCluster) wantMajority(t *testing.T, node, leader int) {
	t.Helper()
	f.awaitEqualStates(t)
	f.stop(t, 3-node-leader)
	for i := range 5 {
		f.mustBegin(t, fmt.Sprintf("with-two-%d", i))
	}
	for _, i := range []int{node, leader} {
		f.stop(t, i)
	}
	for i := range f.nodes {
		f.start(t, i, nil, nil)
	}
	f.mustBegin(t, "started-again")
	f.awaitEqualStates(t)
	for _, id := range []string{"before", "after", "with-two-0", "with-two-4", "started-again"} {
		if last := lastEvent(t, f.nodes[node], id); last != 2 {
			t.Errorf("%s has %d events", id, last)
		}
	}
}

// mustBegin begins an instance at whichever node leads.
func (f *faultyCluster) mustBegin(t *testing.T, id string) {
	t.Helper()
	waittest.Eventually(t, id+" is begun", func() bool {
		j := f.nodes[f.leader(t)]
		return tryBegin(t, j, newStartAppend(j.Epoch(), id))
	})
}

// A leader's snapshot that ends before the uncommitted tail of a follower replaces the follower's
// whole log. The Raft library continues with the last index of the tail.
func TestTruncation_SnapshotBeforeUncommittedTail(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newFaultyCluster(t)
		old, next := g.isolateLeader(t, 60)
		leader := g.nodes[next]
		snapshotAndTruncate(t, leader)
		if last := leader.raft.LastIndex(); last >= g.nodes[old].raft.LastIndex() {
			t.Fatalf("the leader is at %d: the tail is too short", last)
		}
		g.network.Reconnect(g.peers[old].Address)
		g.wantMajority(t, old, next)
	})
}

const enospc = syscall.ENOSPC
