package journal

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

// writeFault says how the writes of one node fail once the fault is armed.
type writeFault struct {
	errno       syscall.Errno
	at          int  // the first write that fails, counted from 1
	persists    bool // later writes fail too, until heal
	takesEffect bool // the failed write is in effect nevertheless
	logOnly     bool // only writes of the log fail: the stable file is written in place
}

func (f writeFault) String() string {
	return fmt.Sprintf("%s at write %d, stays %t, done %t", errName(f.errno), f.at, f.persists, f.takesEffect)
}

func errName(errno syscall.Errno) string {
	if errno == syscall.ENOSPC {
		return "ENOSPC"
	}
	return errno.Error()
}

// faultyWrites counts the writes of a node's log and stable file, and fails those that its fault
// selects.
type faultyWrites struct {
	mu     sync.Mutex
	fault  *writeFault // nil: no write fails
	writes int         // since the fault was armed
	failed int
}

func (w *faultyWrites) inject(fault writeFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault, w.writes, w.failed = &fault, 0, 0
}

// heal lets all writes succeed again.
func (w *faultyWrites) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = nil
}

func (w *faultyWrites) failures() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// do makes one write, or fails it.
func (w *faultyWrites) do(ofLog bool, write func() error) error {
	w.mu.Lock()
	fault := w.fault
	if fault != nil && fault.logOnly && !ofLog {
		fault = nil
	}
	fails := false
	if fault != nil {
		w.writes++
		fails = w.writes == fault.at || fault.persists && w.writes > fault.at
	}
	if fails {
		w.failed++
	}
	w.mu.Unlock()
	if !fails {
		return write()
	}
	if fault.takesEffect {
		if err := write(); err != nil {
			return err
		}
	}
	return &os.PathError{Op: "write", Path: "a test", Err: fault.errno}
}

// wrap puts the faults between a node and its stores.
func (w *faultyWrites) wrap(s *stores) {
	s.logs.LogStore = &faultyLogs{s.logs.LogStore, w}
	stable, ok := s.stable.(*stableFile)
	if !ok {
		return
	}
	write, sync := stable.write, stable.sync
	stable.write = func(b []byte, at int64) (n int, err error) {
		err = w.do(false, func() error { n, err = write(b, at); return err })
		return n, err
	}
	stable.sync = func(f *os.File) error { return w.do(false, func() error { return sync(f) }) }
}

// faultyLogs is a log store whose writes may fail.
type faultyLogs struct {
	raft.LogStore
	writes *faultyWrites
}

func (l *faultyLogs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

func (l *faultyLogs) StoreLogs(logs []*raft.Log) error {
	return l.writes.do(true, func() error { return l.LogStore.StoreLogs(logs) })
}

func (l *faultyLogs) DeleteRange(first, last uint64) error {
	return l.writes.do(true, func() error { return l.LogStore.DeleteRange(first, last) })
}

// faultyCluster is three nodes whose writes can fail, on a network that can be cut.
type faultyCluster struct {
	*testCluster
	network *flakyNetwork
	writes  []*faultyWrites
}

func newFaultyCluster(t *testing.T) *faultyCluster {
	t.Helper()
	noLeaks(t)
	network := newFlakyNetwork()
	g := &faultyCluster{network: network, writes: []*faultyWrites{{}, {}, {}}}
	g.testCluster = &testCluster{listen: network.listen, nodes: make([]*Journal, 3), configure: func(node int, c *Config) {
		c.tests.wrapStores = g.writes[node].wrap
	}}
	g.startAll(t, nil)
	return g
}

// isolateLeader cuts the leader off when it has entries that nobody else has. It returns the
// indexes of that leader and of the next one, which has other entries at their positions.
func (g *faultyCluster) isolateLeader(t *testing.T, uncommitted int) (old, next int) {
	t.Helper()
	old = g.leader(t)
	j := g.nodes[old]
	mustAppend(t, j, newStartAppend(j.Epoch(), "before"))
	g.awaitEqualStates(t)
	g.network.isolate(g.peers[old].Address)
	tail := j.raft.LastIndex() + uint64(uncommitted)
	var lost []raft.ApplyFuture
	for i := range uncommitted {
		lost = append(lost, j.raft.Apply(packEntry(encodeAppend(newStartAppend(j.Epoch(), fmt.Sprintf("lost-%d", i)))), 0))
	}
	eventually(t, "entries that nobody else has", func() bool { return j.logs.checked.tailIndex() >= tail })
	eventually(t, "another leader", func() bool {
		for i, other := range g.nodes {
			if i != old && other.IsLeader() {
				next = i
				return true
			}
		}
		return false
	})
	leader := g.nodes[next]
	mustAppend(t, leader, newStartAppend(leader.Epoch(), "after"))
	for _, future := range lost {
		if err := future.Error(); err == nil {
			t.Error("an entry was committed by a leader that was cut off")
		}
	}
	return old, next
}

func (l *checkedLogs) tailIndex() uint64 {
	last, _ := l.LastIndex()
	return last
}

// A node whose uncommitted tail is truncated meets an error at each write of the truncation in
// turn. It continues without a restart when the disk has room again, or it fails and reports so.
func TestTruncation_FailedWrites(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO} {
		for _, stays := range []bool{false, true} {
			for _, done := range []bool{false, true} {
				for at, hit := 1, true; hit; at++ {
					fault := writeFault{errno: errno, at: at, persists: stays, takesEffect: done}
					t.Run(fault.String(), func(t *testing.T) {
						inSynctest(t, func(t *testing.T) { hit = truncateWithFault(t, fault) })
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
func truncateWithFault(t *testing.T, fault writeFault) bool {
	g := newFaultyCluster(t)
	old, next := g.isolateLeader(t, 5)
	victim, leader := g.nodes[old], g.nodes[next]
	writes := g.writes[old]
	writes.inject(fault)
	g.network.reconnect(g.peers[old].Address)
	enough := 1
	if fault.persists {
		enough = 3 // the leader has tried again, and met the same error
	}
	eventually(t, "the fault, or all entries on the node", func() bool {
		return writes.failures() >= enough || victim.Err() != nil || victim.AppliedIndex() >= leader.AppliedIndex()
	})
	hit := writes.failures() > 0
	writes.heal()
	if fault.errno != syscall.ENOSPC && hit {
		eventually(t, "the node fails", func() bool { return victim.Err() != nil })
	}
	if victim.Err() != nil {
		wantNodeFailed(t, victim)
		if !errors.Is(victim.Err(), fault.errno) {
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
func (g *faultyCluster) wantMajority(t *testing.T, node, leader int) {
	t.Helper()
	g.awaitEqualStates(t)
	g.stop(t, 3-node-leader)
	for i := range 5 {
		g.mustBegin(t, fmt.Sprintf("with-two-%d", i))
	}
	for _, i := range []int{node, leader} {
		g.stop(t, i)
	}
	for i := range g.nodes {
		g.start(t, i, nil, nil)
	}
	g.mustBegin(t, "started-again")
	g.awaitEqualStates(t)
	for _, id := range []string{"before", "after", "with-two-0", "with-two-4", "started-again"} {
		if last := lastEvent(t, g.nodes[node], id); last != 2 {
			t.Errorf("%s has %d events", id, last)
		}
	}
}

// mustBegin begins an instance at whichever node leads.
func (g *faultyCluster) mustBegin(t *testing.T, id string) {
	t.Helper()
	eventually(t, id+" is begun", func() bool {
		j := g.nodes[g.leader(t)]
		return tryBegin(t, j, newStartAppend(j.Epoch(), id))
	})
}

// A leader's snapshot that ends before the uncommitted tail of a follower replaces the follower's
// whole log. The Raft library continues with the last index of the tail.
func TestTruncation_SnapshotBeforeUncommittedTail(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g := newFaultyCluster(t)
		old, next := g.isolateLeader(t, 60)
		leader := g.nodes[next]
		snapshotAndTruncate(t, leader)
		if last := leader.raft.LastIndex(); last >= g.nodes[old].raft.LastIndex() {
			t.Fatalf("the leader is at %d: the tail is too short", last)
		}
		g.network.reconnect(g.peers[old].Address)
		g.wantMajority(t, old, next)
	})
}

// An append that failed but was in effect leaves entries that Raft does not know. The next append
// may be shorter.
func TestTruncation_FailedAppendLeavesNoTail(t *testing.T) {
	dir := t.TempDir()
	writes := &faultyWrites{}
	c := Config{Dir: dir, tests: testHooks{wrapStores: writes.wrap}}
	l, err := openLogsWith(c)
	if err != nil {
		t.Fatal(err)
	}
	l.mustStore(t, 1, 9)
	for at := 1; ; at++ {
		for _, done := range []bool{false, true} {
			writes.inject(writeFault{errno: syscall.ENOSPC, at: at, takesEffect: done})
			last := l.tailIndex()
			if err := l.StoreLogs(testEntries(last+1, last+5)); err == nil {
				writes.heal()
				l.wantEntries(t, 1, last+5)
				if writes.failures() > 0 {
					t.Error("a failed write was not reported")
				}
				l.mustClose(t)
				return
			}
			writes.heal()
			l.mustStore(t, last+1, last+1)
			l.mustClose(t)
			if l, err = openLogsWith(c); err != nil {
				t.Fatalf("write %d, done %t: %v", at, done, err)
			}
			l.wantEntries(t, 1, last+1)
		}
	}
}

const enospc = syscall.ENOSPC
