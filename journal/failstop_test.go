package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/tenuto-dev/tenuto/journal/state"
)

func TestNodeFailure_OnCorruptEntry(t *testing.T) {
	valid := packEntry(encodeAppend(newStartAppend(1, "x")), encodeAppend(newStartAppend(1, "y")))
	for name, damage := range map[string]func([]byte) []byte{
		"bit flipped in the last record": func(b []byte) []byte { b[len(b)-20] ^= 1; return b },
		"unknown format":                 func(b []byte) []byte { b[1] = 2; return b },
		"no format":                      func(b []byte) []byte { return b[2:] },
		"truncated":                      func(b []byte) []byte { return b[:len(b)-1] },
		"unknown field":                  func(b []byte) []byte { return append(b, 0x1a, 0x00) },
		"unknown command": func([]byte) []byte {
			return packEntry(encodeRecord(9, 0, func(b []byte) []byte { return b }))
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
	eventually(t, "the leadership ends", func() bool { return !j.IsLeader() })
}

func TestNodeFailure_LeaderIsReplaced(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		g := newTestCluster(t, nil)
		first := g.leader(t)
		old := g.nodes[first]
		epoch := old.Epoch()
		mustAppend(t, old, newStartAppend(epoch, "a"))
		old.failStop.fail(errors.New("a test says so"))
		wantNodeFailed(t, old)
		eventually(t, "another leader", func() bool {
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
	eventually(t, "it steps down", func() bool { return !j.IsLeader() })
	store.setAppendErr(nil)
	eventually(t, "it leads once more", func() bool { return j.IsLeader() && j.Epoch() > epoch })
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
	cache, err := raft.NewLogCache(1, j.logs.checked)
	if err != nil {
		t.Fatal(err)
	}
	uncached := &failStopLogs{LogCache: cache, checked: j.logs.checked, failStop: j.failStop}
	var log raft.Log
	if err := uncached.GetLog(1, &log); err != nil || log.Type != raft.LogNoop {
		t.Errorf("entry %v, error %v", log, err)
	}
	wantNodeFailed(t, j)
}

// slowDeleteLogs is a log store that signals that entries are gone before the deletion returns.
type slowDeleteLogs struct {
	raft.LogStore
	deleted, release chan struct{}
}

func (s *slowDeleteLogs) DeleteRange(first, last uint64) error {
	err := s.LogStore.DeleteRange(first, last)
	close(s.deleted)
	<-s.release
	return err
}

// A leader reads old entries for a node that is behind, while they are compacted.
func TestCheckedLogs_EntryBeingCompactedIsNotMissing(t *testing.T) {
	l := mustOpenLogs(t, t.TempDir())
	defer l.mustClose(t)
	l.mustStore(t, 1, 10)
	slow := &slowDeleteLogs{l.store.LogStore, make(chan struct{}), make(chan struct{})}
	l.store.LogStore = slow
	l.failStop = newFailStop(func(*NodeFailedError) {}, func(*NodeFailedError) {})
	cache, err := raft.NewLogCache(1, l.checkedLogs)
	if err != nil {
		t.Fatal(err)
	}
	logs := &failStopLogs{LogCache: cache, checked: l.checkedLogs, failStop: l.failStop}
	logs.serving.Store(true)
	deleted, read := make(chan error, 1), make(chan error, 1)
	go func() { deleted <- logs.DeleteRange(1, 5) }()
	<-slow.deleted
	go func() { read <- logs.GetLog(3, new(raft.Log)) }()
	select {
	case err := <-read:
		read <- err
	case <-time.After(50 * time.Millisecond): // a wrong answer would have come by now
	}
	close(slow.release)
	if err := <-read; !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("error %v; want that it is not there", err)
	}
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if err := l.failStop.err(); err != nil {
		t.Errorf("fenced: %v", err)
	}
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
			damage(t, filepath.Join(dir, logFile))
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
	whole := readDirImage(t, dir)
	names := whole.names("snapshots")
	if len(names) == 0 {
		t.Fatal("there is no snapshot")
	}
	for _, name := range names {
		if len(whole[name]) == 0 {
			continue
		}
		b := bit{name: name, at: len(whole[name]) / 2, mask: 1}
		whole.flip(b)
		whole.write(t, dir)
		whole.flip(b)
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
