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

func TestCorruptEntryFencesWithoutPanic(t *testing.T) {
	good := packEntry(encodeAppend(begin(1, "x")), encodeAppend(begin(1, "y")))
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
			j := opened(t, Config{Dir: t.TempDir()})
			epoch := leading(t, j)
			mustAppend(t, j, begin(epoch, "a"))
			future := j.raft.Apply(damage(slices.Clone(good)), 0)
			if err := future.Error(); err != nil {
				t.Fatal(err)
			}
			var fenced *FencedError
			var format *FormatError
			err, _ := future.Response().(error)
			if !errors.As(err, &fenced) || !errors.Is(err, state.ErrCorrupt) && !errors.As(err, &format) {
				t.Errorf("response %v", future.Response())
			}
			if other := name == "unknown format"; other != (format != nil) || other && (format.Have != "2" || format.Want != "1") {
				t.Errorf("format %+v", format)
			}
			wantFenced(t, j)
			if _, ok := j.Instance("x"); ok {
				t.Error("a part of the entry was applied")
			}
			if last := lastEvent(t, j, "a"); last != 2 {
				t.Errorf("%d events readable", last)
			}
		})
	}
}

// wantFenced checks that a journal has fenced itself and says so everywhere.
func wantFenced(t *testing.T, j *Journal) {
	t.Helper()
	<-j.Failed()
	var fenced *FencedError
	if !errors.As(j.Err(), &fenced) {
		t.Errorf("Err: %v", j.Err())
	}
	if err := appended(t, j, begin(1, "late")); !errors.As(err, &fenced) || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("append: %v", err)
	}
	if err := j.Barrier(t.Context()); !errors.As(err, &fenced) {
		t.Errorf("barrier: %v", err)
	}
	eventually(t, "the reign ends", func() bool { return !j.IsLeader() })
}

func TestFencedLeaderIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := newGroup(t, nil)
		first := g.leader(t)
		old := g.nodes[first]
		epoch := old.Epoch()
		mustAppend(t, old, begin(epoch, "a"))
		old.fence.draw(errors.New("a test says so"))
		wantFenced(t, old)
		eventually(t, "another leader", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() {
					mustAppend(t, j, step(j.Epoch(), "a", 3))
					return true
				}
			}
			return false
		})
		if last := lastEvent(t, old, "a"); last != 2 {
			t.Errorf("the fenced node went on: %d events", last)
		}
	})
}

// failing is a store in memory that fails when it is told to.
type failing struct {
	*raft.InmemStore
	reads, terms atomic.Bool
	appends      atomic.Pointer[error]
}

// appendsFail makes writes of entries fail, or succeed again after nil.
func (f *failing) appendsFail(err error) {
	if err == nil {
		f.appends.Store(nil)
		return
	}
	f.appends.Store(&err)
}

var errDisk = errors.New("input/output error")

func (f *failing) GetLog(index uint64, log *raft.Log) error {
	if f.reads.Load() {
		return errDisk
	}
	return f.InmemStore.GetLog(index, log)
}

func (f *failing) SetUint64(key []byte, value uint64) error {
	if f.terms.Load() {
		return errDisk
	}
	return f.InmemStore.SetUint64(key, value)
}

func (f *failing) StoreLogs(logs []*raft.Log) error {
	if err := f.appends.Load(); err != nil {
		return *err
	}
	return f.InmemStore.StoreLogs(logs)
}

func (f *failing) StoreLog(log *raft.Log) error { return f.StoreLogs([]*raft.Log{log}) }

// openFailing opens a group of one on a store that can be made to fail.
func openFailing(t *testing.T) (*Journal, *failing) {
	t.Helper()
	store := &failing{InmemStore: raft.NewInmemStore()}
	return opened(t, Config{tests: testHooks{wrap: func(s *stores) {
		s.logs.LogStore, s.stable = store, store
	}}}), store
}

func TestFullDiskIsAnUnknownOutcomeAndMayHaveRoomAgain(t *testing.T) {
	j, store := openFailing(t)
	epoch := leading(t, j)
	mustAppend(t, j, begin(epoch, "a"))
	store.appendsFail(&os.PathError{Op: "write", Path: "log", Err: syscall.ENOSPC})
	if err := appended(t, j, step(epoch, "a", 3)); !errors.Is(err, ErrUnknownOutcome) {
		t.Error(err)
	}
	eventually(t, "it steps down", func() bool { return !j.IsLeader() })
	store.appendsFail(nil)
	eventually(t, "it leads once more", func() bool { return j.IsLeader() && j.Epoch() > epoch })
	mustAppend(t, j, step(j.Epoch(), "a", 3))
}

func TestFailedWriteOfEntriesFences(t *testing.T) {
	j, store := openFailing(t)
	epoch := leading(t, j)
	mustAppend(t, j, begin(epoch, "a"))
	store.appendsFail(errDisk)
	var fenced *FencedError
	if err := appended(t, j, step(epoch, "a", 3)); !errors.Is(err, ErrUnknownOutcome) || !errors.As(err, &fenced) {
		t.Error(err)
	}
	wantFenced(t, j)
	if !errors.Is(j.Err(), errDisk) {
		t.Error(j.Err())
	}
}

func TestFailedWriteOfTheTermFences(t *testing.T) {
	j, store := openFailing(t)
	epoch := leading(t, j)
	store.terms.Store(true)
	store.appendsFail(syscall.ENOSPC)
	// The failed append makes it step down, and stand for a new term.
	if err := appended(t, j, begin(epoch, "a")); err == nil {
		t.Error("appended")
	}
	wantFenced(t, j)
	if !errors.Is(j.Err(), errDisk) {
		t.Error(j.Err())
	}
}

func TestUnreadableEntryFencesBeforeItIsServed(t *testing.T) {
	j, store := openFailing(t)
	leading(t, j)
	store.reads.Store(true)
	cache, err := raft.NewLogCache(1, j.logs.checked)
	if err != nil {
		t.Fatal(err)
	}
	uncached := &fencedLogs{LogCache: cache, checked: j.logs.checked, fence: j.fence}
	var log raft.Log
	if err := uncached.GetLog(1, &log); err != nil || log.Type != raft.LogNoop {
		t.Errorf("entry %v, error %v", log, err)
	}
	wantFenced(t, j)
}

// slowToForget is a log store that tells when entries are gone before the deletion
// returns.
type slowToForget struct {
	raft.LogStore
	gone, back chan struct{}
}

func (s *slowToForget) DeleteRange(first, last uint64) error {
	err := s.LogStore.DeleteRange(first, last)
	close(s.gone)
	<-s.back
	return err
}

// A leader reads old entries for a node that is behind, while they are compacted.
func TestEntryThatIsJustBeingRemovedIsNotMissing(t *testing.T) {
	l := mustOpenLogs(t, t.TempDir())
	defer l.mustClose(t)
	l.mustStore(t, 1, 10)
	slow := &slowToForget{l.store.LogStore, make(chan struct{}), make(chan struct{})}
	l.store.LogStore = slow
	l.fence = newFence(func(*FencedError) {}, func(*FencedError) {})
	cache, err := raft.NewLogCache(1, l.checkedLogs)
	if err != nil {
		t.Fatal(err)
	}
	logs := &fencedLogs{LogCache: cache, checked: l.checkedLogs, fence: l.fence}
	logs.serving.Store(true)
	deleted, read := make(chan error, 1), make(chan error, 1)
	go func() { deleted <- logs.DeleteRange(1, 5) }()
	<-slow.gone
	go func() { read <- logs.GetLog(3, new(raft.Log)) }()
	select {
	case err := <-read:
		read <- err
	case <-time.After(50 * time.Millisecond): // a wrong answer would have come
	}
	close(slow.back)
	if err := <-read; !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("error %v; want that it is not there", err)
	}
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if err := l.fence.err(); err != nil {
		t.Errorf("fenced: %v", err)
	}
}

func TestDamagedLogIsRefusedWhenOpening(t *testing.T) {
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
			j := opened(t, Config{Dir: dir})
			epoch := leading(t, j)
			for i := range 40 {
				mustAppend(t, j, begin(epoch, string(rune('a'+i))))
			}
			closed(t, j)
			damage(t, filepath.Join(dir, logFile))
			again, err := Open(t.Context(), quiet(Config{Dir: dir}))
			if err == nil {
				closed(t, again)
				t.Fatal("opened")
			}
			var damaged *DamagedError
			var fenced *FencedError
			if !errors.As(err, &damaged) && !errors.As(err, &fenced) {
				t.Error(err)
			}
		})
	}
}

func TestDamagedSnapshotIsRefusedOrNotNeededWhenOpening(t *testing.T) {
	dir := t.TempDir()
	c := Config{Dir: dir, TrailingLogs: 1}
	j := opened(t, c)
	epoch := leading(t, j)
	const instances = 40
	for i := range instances {
		mustAppend(t, j, begin(epoch, fmt.Sprintf("i-%03d", i)))
		if i%20 == 10 {
			if err := j.raft.Snapshot().Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	closed(t, j)
	whole := imageOf(t, dir)
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
		again, err := Open(t.Context(), quiet(c))
		if err != nil {
			wantDefinite(t, b, err)
			continue
		}
		leading(t, again)
		wantAll(t, again, instances)
		closed(t, again)
	}
}
