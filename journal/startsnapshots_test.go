package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// readCountingLogs is a log store that counts how often each entry is read.
type readCountingLogs struct {
	raft.LogStore
	mu    sync.Mutex
	reads map[uint64]int
}

func (r *readCountingLogs) GetLog(index uint64, log *raft.Log) error {
	r.mu.Lock()
	r.reads[index]++
	r.mu.Unlock()
	return r.LogStore.GetLog(index, log)
}

// countRepeated returns how many entries up to last were read more than once.
func (r *readCountingLogs) countRepeated(last uint64) (entries int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for index, reads := range r.reads {
		if index <= last && reads > 1 {
			entries++
		}
	}
	return entries
}

func TestRestart_ReadsLogOnce(t *testing.T) {
	c := Config{Dir: t.TempDir()}
	const count = 500
	j := openJournal(t, c)
	epoch := awaitLeadership(t, j)
	for i := range count {
		mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%d", i)))
	}
	end, _ := j.machine.Applied()
	closeJournal(t, j)

	counts := &readCountingLogs{reads: map[uint64]int{}}
	c.tests.wrapStores = func(s *stores) { counts.LogStore, s.logs.LogStore = s.logs.LogStore, counts }
	j = openJournal(t, c)
	for i := range count {
		if id := fmt.Sprintf("i-%d", i); lastEvent(t, j, id) == 0 {
			t.Errorf("%s is missing after the restart", id)
		}
	}
	awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(j.Epoch(), "after"))
	// Those with the members, and the last one, to compare its term.
	if n := counts.countRepeated(end); n > 3 {
		t.Errorf("%d of %d entries were read again", n, end)
	}
}

// The newest snapshot has the earlier members, and Raft does not see the entry that changes them.
func TestStartSnapshots_MembersComeFromLog(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		leader := g.nodes[g.leader(t)]
		mustAppend(t, leader, newStartAppend(leader.Epoch(), "i"))
		g.awaitEqualStates(t)
		for _, j := range g.nodes {
			if err := j.snapshot(); err != nil {
				t.Fatal(err)
			}
		}
		if err := changeMembers(t, func(ctx context.Context) error {
			return leader.AddMember(ctx, Peer{Node: "n9", Address: "127.0.0.1:1"})
		}); err != nil {
			t.Fatal(err)
		}
		mustAppend(t, leader, newStepAppend(leader.Epoch(), "i", 3))
		g.awaitEqualStates(t)
		for i := range g.nodes {
			g.stop(t, i)
		}
		for i := range g.nodes {
			g.start(t, i, nil, nil)
			j := g.nodes[i]
			snapshots, err := j.snapshots.List()
			if err != nil {
				t.Fatal(err)
			}
			if from := j.raft.Stats()["last_snapshot_index"]; from == strconv.FormatUint(snapshots[0].Index, 10) {
				t.Errorf("the log of %s begins after its snapshot of entry %s", j.config.Node, from)
			}
			if !j.IsMember("n9") {
				t.Errorf("%s does not know of the new member", j.config.Node)
			}
		}
		again := g.nodes[g.leader(t)]
		mustAppend(t, again, newStepAppend(again.Epoch(), "i", 5))
		if err := again.snapshot(); err != nil {
			t.Fatal(err)
		}
		snapshots, err := again.snapshots.List()
		if err != nil {
			t.Fatal(err)
		}
		if got := len(snapshots[0].Configuration.Servers); got != 4 {
			t.Errorf("%d members in a snapshot that was taken afterwards", got)
		}
	})
}

// The log of a node begins after its newest snapshot when a leader has sent that snapshot. The node
// may then lead a follower whose last entry is the last one of the snapshot.
func TestFollower_AtSnapshotBeforeLeaderLogCatchesUp(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		const behind = 2
		var snapshot uint64
		g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
			c.tests.wrapStores = func(s *stores) {
				if i == behind || snapshot == 0 {
					return
				}
				first, err := s.logs.FirstIndex()
				if err == nil {
					err = s.logs.DeleteRange(first, snapshot)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		leader := g.nodes[g.leader(t)]
		mustAppend(t, leader, newStartAppend(leader.Epoch(), "i"))
		g.awaitEqualStates(t)
		for i := range g.nodes {
			if err := g.nodes[i].snapshot(); err != nil {
				t.Fatal(err)
			}
		}
		snapshots, err := leader.snapshots.List()
		if err != nil {
			t.Fatal(err)
		}
		last := snapshots[0].Index
		g.stop(t, behind)

		leader = g.nodes[g.leader(t)]
		mustAppend(t, leader, newStepAppend(leader.Epoch(), "i", 3))
		mustAppend(t, leader, newStepAppend(leader.Epoch(), "i", 5))
		g.awaitEqualStates(t)
		for i := range behind {
			g.stop(t, i)
		}
		snapshot = last
		for i := range g.nodes {
			g.start(t, i, nil, nil)
		}
		g.awaitEqualStates(t)
	})
}

// A node that has got its state from another one has no log before that. The requests of a leader
// that saw the node last with less do not begin at an entry that it lacks.
func TestAppliedEntries_TrimmedBeforeLog(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		const behind, kept = 2, 3
		isLost := false
		g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
			c.tests.wrapStores = func(s *stores) {
				if i != behind || !isLost {
					return
				}
				first, firstErr := s.logs.FirstIndex()
				last, lastErr := s.logs.LastIndex()
				if err := errors.Join(firstErr, lastErr, s.logs.DeleteRange(first, last-kept)); err != nil {
					t.Error(err)
				}
			}
		})
		leader := g.nodes[g.leader(t)]
		mustAppend(t, leader, newStartAppend(leader.Epoch(), "i"))
		for n := range uint64(10) {
			mustAppend(t, leader, newStepAppend(leader.Epoch(), "i", 3+2*n))
		}
		g.awaitEqualStates(t)
		if err := g.nodes[behind].snapshot(); err != nil {
			t.Fatal(err)
		}
		g.stop(t, behind)
		isLost = true
		g.start(t, behind, nil, nil)
		node := g.nodes[behind]
		g.awaitEqualStates(t)
		synctest.Wait() // nothing more is applied before time passes
		first, err := node.logs.FirstIndex()
		if err != nil {
			t.Fatal(err)
		}
		applied := node.raft.AppliedIndex()
		if first < 6 {
			t.Fatalf("the log begins with entry %d, %d are applied", first, applied)
		}
		for prev := first - 5; prev <= first; prev++ {
			request := &raft.AppendEntriesRequest{PrevLogEntry: prev, PrevLogTerm: 1}
			for index := prev + 1; index <= applied+5; index++ {
				request.Entries = append(request.Entries, &raft.Log{Index: index, Term: 7})
			}
			appliedEntries{node}.Trim(request)
			wantPrev, wantFirst := prev, prev+1
			if prev < first {
				wantPrev, wantFirst = 0, applied+1
			}
			if request.PrevLogEntry != wantPrev || request.Entries[0].Index != wantFirst {
				t.Errorf("entries after %d of a log from %d, %d applied: after %d, the first one is %d", prev, first, applied, request.PrevLogEntry, request.Entries[0].Index)
			}
		}
	})
}
