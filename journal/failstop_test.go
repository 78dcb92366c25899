package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/tenuto-dev/tenuto/journal/internal/entry"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/journal/state"
)

func TestNodeFailure_OnCorruptEntry(t *testing.T) {
	valid := entry.Pack(entry.EncodeAppend(newStartAppend(1, "x")), entry.EncodeAppend(newStartAppend(1, "y")))
	for name, damage := range map[string]func([]byte) []byte{
		"bit flipped in the last record": func(b []byte) []byte { b[len(b)-20] ^= 1; return b },
		"unknown format":                 func(b []byte) []byte { b[1] = 2; return b },
		"no format":                      func(b []byte) []byte { return b[2:] },
		"truncated":                      func(b []byte) []byte { return b[:len(b)-1] },
		"unknown field":                  func(b []byte) []byte { return append(b, 0x1a, 0x00) },
		"unknown command": func([]byte) []byte {
			return entry.Pack(entry.EncodeRecord(9, 0, func(b []byte) []byte { return b }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := openJournal(t, Config{Dir: t.TempDir()})
			epoch := awaitLeadership(t, j)
			mustAppend(t, j, newStartAppend(epoch, "a"))
			future := j.raft.Apply(damage(slices.Clone(valid)), 0)
			if err := future.Error(); err != nil {
				t.Fatal(err)
			}
			var nodeFailed *NodeFailedError
			var format *FormatError
			err, _ := future.Response().(error)
			if !errors.As(err, &nodeFailed) || !errors.Is(err, state.ErrCorrupt) && !errors.As(err, &format) {
				t.Errorf("response %v", future.Response())
			}
			if other := name == "unknown format"; other != (format != nil) || other && (format.Have != "2" || format.Want != "1") {
				t.Errorf("format %+v", format)
			}
			wantNodeFailed(t, j)
			if _, ok := j.Instance("x"); ok {
				t.Error("a part of the entry was applied")
			}
			if last := lastEvent(t, j, "a"); last != 2 {
				t.Errorf("%d events readable", last)
			}
		})
	}
}

// wantNodeFailed checks that a journal has failed and that every call reports it.
func wantNodeFailed(t *testing.T, j *Journal) {
	t.Helper()
	<-j.Failed()
	var nodeFailed *NodeFailedError
	if !errors.As(j.Err(), &nodeFailed) {
		t.Errorf("Err: %v", j.Err())
	}
	if err := proposeAppend(t, j, newStartAppend(1, "late")); !errors.As(err, &nodeFailed) || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("append: %v", err)
	}
	if err := j.Barrier(t.Context()); !errors.As(err, &nodeFailed) {
		t.Errorf("barrier: %v", err)
	}
	waittest.Eventually(t, "the leadership ends", func() bool { return !j.IsLeader() })
}

func TestNodeFailure_LeaderIsReplaced(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		first := g.leader(t)
		old := g.nodes[first]
		epoch := old.Epoch()
		mustAppend(t, old, newStartAppend(epoch, "a"))
		old.failStop.Fail(errors.New("a test says so"))
		wantNodeFailed(t, old)
		waittest.Eventually(t, "another leader", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() {
					mustAppend(t, j, newStepAppend(j.Epoch(), "a", 3))
					return true
				}
			}
			return false
		})
		if last := lastEvent(t, old, "a"); last != 2 {
			t.Errorf("the failed node continued: %d events", last)
		}
	})
}

// failingStore is a store in memory that fails on request.
type failingStore struct {
	*raft.InmemStore
	failReads, failTerms atomic.Bool
	appendErr            atomic.Pointer[error]
}

// setAppendErr makes writes of entries fail, or succeed again after nil.
func (f *failingStore) setAppendErr(err error) {
	if err == nil {
		f.appendErr.Store(nil)
		return
	}
	f.appendErr.Store(&err)
}

var errDisk = errors.New("input/output error")

func (f *failingStore) GetLog(index uint64, log *raft.Log) error {
	if f.failReads.Load() {
		return errDisk
	}
	return f.InmemStore.GetLog(index, log)
}

func (f *failingStore) SetUint64(key []byte, value uint64) error {
	if f.failTerms.Load() {
		return errDisk
	}
	return f.InmemStore.SetUint64(key, value)
}

func (f *failingStore) StoreLogs(logs []*raft.Log) error {
	if err := f.appendErr.Load(); err != nil {
		return *err
	}
	return f.InmemStore.StoreLogs(logs)
}

func (f *failingStore) StoreLog(log *raft.Log) error { return f.StoreLogs([]*raft.Log{log}) }

// openWithFailingStore opens a partition of one node on a failingStore.
func openWithFailingStore(t *testing.T) (*Journal, *failingStore) {
	t.Helper()
	store := &failingStore{InmemStore: raft.NewInmemStore()}
	return openJournal(t, Config{tests: testHooks{wrapStores: func(s *stores) {
		s.logs.LogStore, s.stable = store, store
	}}}), store
}

func TestFullDisk_AppendOutcomeUnknown(t *testing.T) {
	j, store := openWithFailingStore(t)
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(epoch, "a"))
	store.setAppendErr(&os.PathError{Op: "write", Path: "log", Err: syscall.ENOSPC})
	if err := proposeAppend(t, j, newStepAppend(epoch, "a", 3)); !errors.Is(err, ErrUnknownOutcome) {
		t.Error(err)
	}
	waittest.Eventually(t, "it steps down", func() bool { return !j.IsLeader() })
	store.setAppendErr(nil)
	waittest.Eventually(t, "it leads once more", func() bool { return j.IsLeader() && j.Epoch() > epoch })
	mustAppend(t, j, newStepAppend(j.Epoch(), "a", 3))
}

func TestNodeFailure_OnEntryWriteError(t *testing.T) {
	j, store := openWithFailingStore(t)
	epoch := awaitLeadership(t, j)
	mustAppend(t, j, newStartAppend(epoch, "a"))
	store.setAppendErr(errDisk)
	var nodeFailed *NodeFailedError
	if err := proposeAppend(t, j, newStepAppend(epoch, "a", 3)); !errors.Is(err, ErrUnknownOutcome) || !errors.As(err, &nodeFailed) {
		t.Error(err)
	}
	wantNodeFailed(t, j)
	if !errors.Is(j.Err(), errDisk) {
		t.Error(j.Err())
	}
}

func TestNodeFailure_OnTermWriteError(t *testing.T) {
	j, store := openWithFailingStore(t)
	epoch := awaitLeadership(t, j)
	store.failTerms.Store(true)
	store.setAppendErr(syscall.ENOSPC)
	// The failed append makes it step down and campaign in a new term.
	if err := proposeAppend(t, j, newStartAppend(epoch, "a")); err == nil {
		t.Error("appended")
	}
	wantNodeFailed(t, j)
	if !errors.Is(j.Err(), errDisk) {
		t.Error(j.Err())
	}
}

func TestNodeFailure_OnUnreadableEntry(t *testing.T) {
	j, store := openWithFailingStore(t)
	awaitLeadership(t, j)
	store.failReads.Store(true)
	uncached, err := raftlog.NewFailStopLog(j.logs.Checked, 1, j.failStop)
	if err != nil {
		t.Fatal(err)
	}
	var log raft.Log
	if err := uncached.GetLog(1, &log); err != nil || log.Type != raft.LogNoop {
		t.Errorf("entry %v, error %v", log, err)
	}
	wantNodeFailed(t, j)
}

func TestOpen_RejectsDamagedLog(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"truncated": func(t *testing.T, path string) {
			if err := os.Truncate(path, 8192); err != nil {
				t.Fatal(err)
			}
		},
		"meta pages overwritten": func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(bytes.Repeat([]byte{0xee}, 8192)); err != nil {
				t.Fatal(err)
			}
		},
		"an entry that does not decode": func(t *testing.T, path string) {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			err = db.Update(func(tx *bbolt.Tx) error {
				return tx.Bucket([]byte("logs")).Put([]byte{0, 0, 0, 0, 0, 0, 0, 2}, []byte{0xc1})
			})
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := openJournal(t, Config{Dir: dir})
			epoch := awaitLeadership(t, j)
			for i := range 40 {
				mustAppend(t, j, newStartAppend(epoch, string(rune('a'+i))))
			}
			closeJournal(t, j)
			damage(t, filepath.Join(dir, raftlog.FileName))
			again, err := Open(t.Context(), testConfig(Config{Dir: dir}))
			if err == nil {
				closeJournal(t, again)
				t.Fatal("opened")
			}
			var damaged *DamagedError
			var nodeFailed *NodeFailedError
			if !errors.As(err, &damaged) && !errors.As(err, &nodeFailed) {
				t.Error(err)
			}
		})
	}
}

func TestOpen_RejectsDamagedSnapshotIfNeeded(t *testing.T) {
	dir := t.TempDir()
	c := Config{Dir: dir, TrailingLogs: 1}
	j := openJournal(t, c)
	epoch := awaitLeadership(t, j)
	const instances = 40
	for i := range instances {
		mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%03d", i)))
		if i%20 == 10 {
			if err := j.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeJournal(t, j)
	whole := raftlogtest.ReadDirImage(t, dir)
	names := whole.Names("snapshots")
	if len(names) == 0 {
		t.Fatal("there is no snapshot")
	}
	for _, name := range names {
		if len(whole[name]) == 0 {
			continue
		}
		b := raftlogtest.Bit{Name: name, At: len(whole[name]) / 2, Mask: 1}
		whole.Flip(b)
		whole.Write(t, dir)
		whole.Flip(b)
		again, err := Open(t.Context(), testConfig(c))
		if err != nil {
			wantOpenError(t, b, err)
			continue
		}
		awaitLeadership(t, again)
		wantInstances(t, again, instances)
		closeJournal(t, again)
	}
}

// faultyStableStore fails or tears the writes of term and vote from a call on.
type faultyStableStore struct {
	raft.StableStore
	calls, failAt int
}

func (s *faultyStableStore) failsNext() bool { s.calls++; return s.calls >= s.failAt }

func (s *faultyStableStore) Set(key, value []byte) error {
	if s.failsNext() {
		return errDisk
	}
	return s.StableStore.Set(key, value)
}

func (s *faultyStableStore) SetUint64(key []byte, value uint64) error {
	if s.failsNext() {
		return errDisk
	}
	return s.StableStore.SetUint64(key, value)
}

func TestNodeFailure_OnTermOrVoteWriteError(t *testing.T) {
	for failAt := 1; failAt <= 5; failAt++ {
		t.Run(fmt.Sprint(failAt), func(t *testing.T) {
			store := &faultyStableStore{failAt: failAt}
			c := Config{tests: testHooks{wrapStores: func(s *stores) {
				store.StableStore, s.stable = s.stable, store
			}}}
			j, err := Open(context.Background(), testConfig(c))
			if err == nil {
				waittest.Eventually(t, "it fails or leads", func() bool { return j.Err() != nil || j.IsLeader() })
				if j.Err() == nil && store.calls >= failAt {
					t.Error("it leads without its vote")
				}
				if j.Err() != nil {
					wantNodeFailed(t, j)
				}
				closeJournal(t, j)
				return
			}
			if !errors.Is(err, errDisk) {
				t.Error(err)
			}
		})
	}
}

// wantOpenError checks that an error is one of those that Open documents.
func wantOpenError(t testing.TB, what any, err error) {
	t.Helper()
	var (
		damaged    *DamagedError
		nodeFailed *NodeFailedError
		format     *FormatError
	)
	if !errors.As(err, &damaged) && !errors.As(err, &nodeFailed) && !errors.As(err, &format) {
		t.Errorf("%v: not a definite error: %v", what, err)
	}
}

// wantInstances checks that a node has the instances that were begun.
func wantInstances(t testing.TB, j *Journal, instances int) {
	t.Helper()
	for i := range instances {
		if last := lastEvent(t, j, fmt.Sprintf("i-%03d", i)); last != 2 {
			t.Errorf("i-%03d has %d events", i, last)
		}
	}
}

// The same below Raft: the node fails, answers every call, closes, and does not start again with
// that log.
func TestNodeFailure_OnTruncatedLogFile(t *testing.T) {
	for name, rot := range map[string]func(path string) error{
		"cut to nothing": func(path string) error { return os.Truncate(path, 0) },
		"zeroed": func(path string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, make([]byte, info.Size()), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Config{Dir: t.TempDir()}
			j := openJournal(t, c)
			epoch := awaitLeadership(t, j)
			for i := range 100 {
				mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%d", i)))
			}
			if err := rot(filepath.Join(c.Dir, raftlog.FileName)); err != nil {
				t.Fatal(err)
			}
			rejected := false
			for i := 0; i < 1000 && !rejected; i++ {
				rejected = proposeAppend(t, j, newStartAppend(epoch, fmt.Sprintf("late-%d", i))) != nil
			}
			if !rejected {
				t.Fatal("it continues")
			}
			waittest.Receive(t, "the node fails", j.Failed())
			if last := lastEvent(t, j, "i-99"); last != 2 {
				t.Errorf("%d events readable", last)
			}
			closeJournal(t, j)
			again, err := Open(t.Context(), testConfig(c))
			if err == nil {
				closeJournal(t, again)
				t.Fatal("it starts again")
			}
			wantOpenError(t, name, err)
		})
	}
}
