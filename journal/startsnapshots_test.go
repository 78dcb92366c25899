package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
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
}

// fakeSnapshotList is a snapshot store that only lists.
type fakeSnapshotList []*raft.SnapshotMeta

func (l fakeSnapshotList) List() ([]*raft.SnapshotMeta, error) { return l, nil }

func (fakeSnapshotList) Create(raft.SnapshotVersion, uint64, uint64, raft.Configuration, uint64, raft.Transport) (raft.SnapshotSink, error) {
	return nil, errors.ErrUnsupported
}

func (fakeSnapshotList) Open(string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	return nil, nil, errors.ErrUnsupported
}

func TestStartSnapshots(t *testing.T) {
	oldMembers := raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "n1"}}}
	newMembers := raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "n1"}, {ID: "n2", Address: "n2"}}}
	for name, test := range map[string]struct {
		snapshot, applied, term uint64
		members                 int // 0: there is no start snapshot
		membersIndex            uint64
	}{
		"behind a snapshot":                      {snapshot: 5, applied: 15, term: 2, members: 1, membersIndex: 1},
		"behind other members":                   {snapshot: 5, applied: 21, term: 3, members: 2, membersIndex: 20},
		"at other members":                       {snapshot: 5, applied: 20, term: 3, members: 2, membersIndex: 20},
		"without a snapshot":                     {applied: 25, term: 3, members: 2, membersIndex: 20},
		"without anybody's members":              {applied: 15, term: 2},
		"no further than the snapshot":           {snapshot: 5, applied: 5, term: 1},
		"the log has another entry there":        {snapshot: 5, applied: 15, term: 3},
		"the log ends before":                    {snapshot: 5, applied: 31, term: 4},
		"the log begins behind":                  {snapshot: 2, applied: 3, term: 1},
		"the log begins after the snapshot":      {snapshot: 3, applied: 15, term: 2},
		"nothing is applied, nothing in the log": {},
	} {
		t.Run(name, func(t *testing.T) {
			raw, stable, err := raftlog.OpenFiles(t.TempDir(), false, false)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := errors.Join(raw.Close(), stable.Close()); err != nil {
					t.Error(err)
				}
			}()
			open := func() *raftlog.Checked {
				d := raftlog.NewDisk(time.Hour, func(uint64) {}, func(time.Duration) {}, func(time.Duration) {})
				logs, _, err := raftlog.Open(raw, stable, newFailStop(func(*NodeFailedError) {}, func(*NodeFailedError) {}), d, 1<<30)
				if err != nil {
					t.Fatal(err)
				}
				return logs.Checked
			}
			l := open()
			if err := l.StoreLogs(raftlogtest.Entries(1, 19)); err != nil {
				t.Fatal(err)
			}
			changed := &raft.Log{Index: 20, Term: 3, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(newMembers)}
			if err := l.StoreLog(changed); err != nil {
				t.Fatal(err)
			}
			if err := l.StoreLogs(raftlogtest.Entries(21, 30)); err != nil {
				t.Fatal(err)
			}
			if err := l.DeleteRange(1, 3); err != nil {
				t.Fatal(err)
			}
			logs := open()
			var there fakeSnapshotList
			if test.snapshot > 0 {
				there = fakeSnapshotList{{Index: test.snapshot, Term: 1, Configuration: oldMembers, ConfigurationIndex: 1}}
			}
			snapshots, err := newNotifyingSnapshots(there, func(uint64) {})
			if err != nil {
				t.Fatal(err)
			}
			h, err := newStartSnapshots(snapshots, logs, test.applied, test.term)
			if err != nil {
				t.Fatal(err)
			}
			first, err := h.List()
			if err != nil {
				t.Fatal(err)
			}
			if got := len(first) > len(there); got != (test.members > 0) {
				t.Fatalf("a start snapshot: %v", got)
			}
			if test.members > 0 {
				p := first[0]
				if p.Index != test.applied || p.Term != test.term || len(p.Configuration.Servers) != test.members || p.ConfigurationIndex != test.membersIndex {
					t.Errorf("it starts with %+v", p)
				}
			}
			if again, err := h.List(); err != nil || len(again) != len(there) {
				t.Errorf("then %d snapshots are listed, %v", len(again), err)
			}
		})
	}
}

// The log of a node begins after its newest snapshot when a leader has sent that snapshot. The node
// may then lead a follower whose last entry is the last one of the snapshot.
func TestFollower_AtSnapshotBeforeLeaderLogCatchesUp(t *testing.T) {
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
}
