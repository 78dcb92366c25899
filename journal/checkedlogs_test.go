package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
)

// changed is a log store that hands out one entry otherwise than it was stored.
type changed struct {
	raft.LogStore
	index  uint64
	change func(*raft.Log)
}

func (c *changed) GetLog(index uint64, log *raft.Log) error {
	err := c.LogStore.GetLog(index, log)
	if err == nil && index == c.index {
		log.Data, log.Extensions = slices.Clone(log.Data), slices.Clone(log.Extensions)
		c.change(log)
	}
	return err
}

func TestEntryThatDoesNotCheckIsNeverHandedOut(t *testing.T) {
	for name, change := range map[string]func(*raft.Log){
		"data":          func(l *raft.Log) { l.Data[0] ^= 1 },
		"data cut":      func(l *raft.Log) { l.Data = l.Data[:len(l.Data)-1] },
		"term":          func(l *raft.Log) { l.Term++ },
		"type":          func(l *raft.Log) { l.Type = raft.LogNoop },
		"index":         func(l *raft.Log) { l.Index++ },
		"time":          func(l *raft.Log) { l.AppendedAt = l.AppendedAt.Add(1) },
		"extensions":    func(l *raft.Log) { l.Extensions[0] ^= 1 },
		"sums":          func(l *raft.Log) { l.Extensions[len(l.Extensions)-1] ^= 1 },
		"sum of before": func(l *raft.Log) { l.Extensions[len(l.Extensions)-sumsSize] ^= 1 },
		"no sums":       func(l *raft.Log) { l.Extensions = nil },
		"another entry": func(l *raft.Log) { *l = *entry(6) },
	} {
		t.Run(name, func(t *testing.T) {
			l := mustOpenLogs(t, t.TempDir())
			defer l.mustClose(t)
			l.mustStore(t, 1, 10)
			l.store.LogStore = &changed{l.store.LogStore, 5, change}
			var log raft.Log
			var damaged *DamagedError
			if err := l.GetLog(5, &log); !errors.As(err, &damaged) || damaged.Index != 5 || damaged.Path != l.path {
				t.Errorf("error %v", err)
			}
			if err := l.GetLog(6, &log); err != nil {
				t.Error(err)
			}
			reopened := &checkedLogs{store: l.store, path: l.path, stable: l.stable}
			if _, err := openCheckedLogs(reopened); !errors.As(err, &damaged) || damaged.Index != 5 {
				t.Errorf("opened: %v", err)
			}
		})
	}
}

// An entry that checks by itself but belongs to another log breaks the chain.
func TestEntryOfAnotherLogIsRefused(t *testing.T) {
	one := mustOpenLogs(t, t.TempDir())
	defer one.mustClose(t)
	other := mustOpenLogs(t, t.TempDir())
	defer other.mustClose(t)
	one.mustStore(t, 1, 10)
	different := entry(1)
	different.Term = 99
	if err := other.StoreLog(different); err != nil {
		t.Fatal(err)
	}
	other.mustStore(t, 2, 10)
	one.store.LogStore = &changed{one.store.LogStore, 5, func(l *raft.Log) {
		if err := other.store.GetLog(5, l); err != nil {
			t.Error(err)
		}
	}}
	var damaged *DamagedError
	if _, err := openCheckedLogs(&checkedLogs{store: one.store, path: one.path, stable: one.stable}); !errors.As(err, &damaged) {
		t.Errorf("opened: %v", err)
	}
}

func TestBoltPagesThatLeadAstrayAreRefused(t *testing.T) {
	l := mustOpenLogs(t, t.TempDir())
	l.mustStore(t, 1, 200)
	l.mustClose(t)
	whole, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	branches := 0
	for at := 8192; at < boltUsed(whole); at += 4096 {
		if binary.NativeEndian.Uint16(whole[at+8:]) != boltFlagBranch {
			continue
		}
		branches++
		for name, damage := range map[string]func(page []byte){
			"child is itself":    func(p []byte) { binary.NativeEndian.PutUint64(p[24:], binary.NativeEndian.Uint64(p)) },
			"child is beyond":    func(p []byte) { binary.NativeEndian.PutUint64(p[24:], 1<<30) },
			"child is a meta":    func(p []byte) { binary.NativeEndian.PutUint64(p[24:], 1) },
			"two have one child": func(p []byte) { copy(p[24:32], p[40:48]) },
			"key is beyond":      func(p []byte) { binary.NativeEndian.PutUint32(p[16:], 1<<31) },
			"no elements":        func(p []byte) { binary.NativeEndian.PutUint16(p[10:], 0) },
			"too many elements":  func(p []byte) { binary.NativeEndian.PutUint16(p[10:], 60000) },
			"overflow":           func(p []byte) { binary.NativeEndian.PutUint32(p[12:], 1<<20) },
			"another type":       func(p []byte) { p[8] = boltFlagLeaf },
		} {
			damaged := slices.Clone(whole)
			damage(damaged[at : at+4096])
			path := filepath.Join(t.TempDir(), logFile)
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			// The page may be an old one that nothing leads to.
			if err := checkBolt(path); err == nil {
				store, err := newBolt(path, false)
				if err != nil {
					t.Fatalf("page %d, %s: %v", at/4096, name, err)
				}
				same := (&openedLogs{checkedLogs: reopenedOn(store, l.path)}).sameEntries(1, 200)
				if err := errors.Join(same, store.Close()); err != nil {
					t.Errorf("page %d, %s: %v", at/4096, name, err)
				}
			}
		}
	}
	if branches == 0 {
		t.Error("the log has no branches")
	}
}

// reopenedOn returns a checked log on a store that is open.
func reopenedOn(store raft.LogStore, path string) *checkedLogs {
	raw := newRawLogs(store, path, nil)
	l, err := openCheckedLogs(&checkedLogs{store: raw, path: path})
	if err != nil {
		return &checkedLogs{store: raw, path: path}
	}
	return l
}

// stableFaults fails or tears the writes of term and vote from a call on.
type stableFaults struct {
	raft.StableStore
	calls, failAt int
}

func (s *stableFaults) fails() bool { s.calls++; return s.calls >= s.failAt }

func (s *stableFaults) Set(key, value []byte) error {
	if s.fails() {
		return errDisk
	}
	return s.StableStore.Set(key, value)
}

func (s *stableFaults) SetUint64(key []byte, value uint64) error {
	if s.fails() {
		return errDisk
	}
	return s.StableStore.SetUint64(key, value)
}

func TestFailedWriteOfTermOrVoteAtEveryCallFencesAndTheNodeComesBack(t *testing.T) {
	for failAt := 1; failAt <= 5; failAt++ {
		t.Run(fmt.Sprint(failAt), func(t *testing.T) {
			store := &stableFaults{failAt: failAt}
			c := Config{tests: testHooks{wrap: func(s *stores) {
				store.StableStore, s.stable = s.stable, store
			}}}
			j, err := Open(context.Background(), quiet(c))
			if err == nil {
				eventually(t, "it is fenced or leads", func() bool { return j.Err() != nil || j.IsLeader() })
				if j.Err() == nil && store.calls >= failAt {
					t.Error("it leads without its vote")
				}
				if j.Err() != nil {
					wantFenced(t, j)
				}
				closed(t, j)
				return
			}
			if !errors.Is(err, errDisk) {
				t.Error(err)
			}
		})
	}
}

func TestReadErrorAtEveryEntryFencesOrRefuses(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	l.mustStore(t, 1, 10)
	l.mustClose(t)
	for index := uint64(1); index <= 10; index++ {
		l := mustOpenLogs(t, dir)
		l.store.LogStore = &unreadable{l.store.LogStore, index}
		_, err := openCheckedLogs(&checkedLogs{store: l.store, path: l.path, stable: l.stable})
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("entry %d: %v", index, err)
		}
		l.mustClose(t)
	}
}

// unreadable is a log store that cannot read one entry.
type unreadable struct {
	raft.LogStore
	index uint64
}

func (u *unreadable) GetLog(index uint64, log *raft.Log) error {
	if index == u.index {
		return &os.PathError{Op: "read", Path: "log", Err: syscall.EIO}
	}
	return u.LogStore.GetLog(index, log)
}
