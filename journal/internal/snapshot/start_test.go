package snapshot

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
)

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
				logs, _, err := raftlog.Open(raw, stable, noFailStop{}, d, 1<<30)
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
			snapshots, err := NewNotifying(there, func(uint64) {})
			if err != nil {
				t.Fatal(err)
			}
			h, err := NewStarting(snapshots, logs, test.applied, test.term)
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

// noFailStop is a FailStop that never fails.
type noFailStop struct{}

func (noFailStop) Fail(cause error) error { return cause }
func (noFailStop) Err() error             { return nil }
