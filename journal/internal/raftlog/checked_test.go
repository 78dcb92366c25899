package raftlog

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/diskfile"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
)

// alteredLogs is a log store that returns one entry changed.
type alteredLogs struct {
	raft.LogStore
	index uint64
	alter func(*raft.Log)
}

func (a *alteredLogs) GetLog(index uint64, log *raft.Log) error {
	err := a.LogStore.GetLog(index, log)
	if err == nil && index == a.index {
		log.Data, log.Extensions = slices.Clone(log.Data), slices.Clone(log.Extensions)
		a.alter(log)
	}
	return err
}

func TestCheckedLogs_CorruptEntryNeverReturned(t *testing.T) {
	for name, change := range map[string]func(*raft.Log){
		"data":          func(l *raft.Log) { l.Data[0] ^= 1 },
		"data cut":      func(l *raft.Log) { l.Data = l.Data[:len(l.Data)-1] },
		"term":          func(l *raft.Log) { l.Term++ },
		"type":          func(l *raft.Log) { l.Type = raft.LogNoop },
		"index":         func(l *raft.Log) { l.Index++ },
		"time":          func(l *raft.Log) { l.AppendedAt = l.AppendedAt.Add(1) },
		"extensions":    func(l *raft.Log) { l.Extensions[0] ^= 1 },
		"sums":          func(l *raft.Log) { l.Extensions[len(l.Extensions)-1] ^= 1 },
		"sum of before": func(l *raft.Log) { l.Extensions[len(l.Extensions)-checksumsSize] ^= 1 },
		"no sums":       func(l *raft.Log) { l.Extensions = nil },
		"another entry": func(l *raft.Log) { *l = *raftlogtest.Entry(6) },
	} {
		t.Run(name, func(t *testing.T) {
			l := mustOpenLogs(t, t.TempDir())
			defer l.mustClose(t)
			l.mustStore(t, 1, 10)
			l.store.LogStore = &alteredLogs{l.store.LogStore, 5, change}
			var log raft.Log
			var damaged *diskfile.DamagedError
			if err := l.GetLog(5, &log); !errors.As(err, &damaged) || damaged.Index != 5 || damaged.Path != l.path {
				t.Errorf("error %v", err)
			}
			if err := l.GetLog(6, &log); err != nil {
				t.Error(err)
			}
			reopened := &Checked{store: l.store, path: l.path, stable: l.stable}
			if _, err := openChecked(reopened); !errors.As(err, &damaged) || damaged.Index != 5 {
				t.Errorf("opened: %v", err)
			}
		})
	}
}

// An entry with a valid checksum that belongs to another log breaks the chain.
func TestCheckedLogs_RejectsEntryOfOtherLog(t *testing.T) {
	one := mustOpenLogs(t, t.TempDir())
	defer one.mustClose(t)
	other := mustOpenLogs(t, t.TempDir())
	defer other.mustClose(t)
	one.mustStore(t, 1, 10)
	different := raftlogtest.Entry(1)
	different.Term = 99
	if err := other.StoreLog(different); err != nil {
		t.Fatal(err)
	}
	other.mustStore(t, 2, 10)
	one.store.LogStore = &alteredLogs{one.store.LogStore, 5, func(l *raft.Log) {
		if err := other.store.GetLog(5, l); err != nil {
			t.Error(err)
		}
	}}
	var damaged *diskfile.DamagedError
	if _, err := openChecked(&Checked{store: one.store, path: one.path, stable: one.stable}); !errors.As(err, &damaged) {
		t.Errorf("opened: %v", err)
	}
}

func TestCheckBolt_RejectsInvalidPages(t *testing.T) {
	l := mustOpenLogs(t, t.TempDir())
	l.mustStore(t, 1, 200)
	l.mustClose(t)
	whole, err := os.ReadFile(l.path)
	if err != nil {
		t.Fatal(err)
	}
	branches := 0
	for at := 8192; at < boltUsedBytes(whole); at += 4096 {
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
			path := filepath.Join(t.TempDir(), FileName)
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			// The page may be an old one that is not referenced.
			if err := checkBolt(path); err == nil {
				store, err := newBolt(path, false)
				if err != nil {
					t.Fatalf("page %d, %s: %v", at/4096, name, err)
				}
				same := (&testLogs{Checked: reopenCheckedLogs(store, l.path)}).compareEntries(1, 200)
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

// reopenCheckedLogs returns a checked log on a store that is open.
func reopenCheckedLogs(store raft.LogStore, path string) *Checked {
	raw := NewRaw(store, path, nil)
	l, err := openChecked(&Checked{store: raw, path: path})
	if err != nil {
		return &Checked{store: raw, path: path}
	}
	return l
}

func TestNodeFailure_OnEntryReadError(t *testing.T) {
	dir := t.TempDir()
	l := mustOpenLogs(t, dir)
	l.mustStore(t, 1, 10)
	l.mustClose(t)
	for index := uint64(1); index <= 10; index++ {
		l := mustOpenLogs(t, dir)
		l.store.LogStore = &unreadableLogs{l.store.LogStore, index}
		_, err := openChecked(&Checked{store: l.store, path: l.path, stable: l.stable})
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("entry %d: %v", index, err)
		}
		l.mustClose(t)
	}
}

// unreadableLogs is a log store that cannot read one entry.
type unreadableLogs struct {
	raft.LogStore
	index uint64
}

func (u *unreadableLogs) GetLog(index uint64, log *raft.Log) error {
	if index == u.index {
		return &os.PathError{Op: "read", Path: "log", Err: syscall.EIO}
	}
	return u.LogStore.GetLog(index, log)
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
	l.failStop = &testFailStop{}
	logs, err := NewFailStopLog(l.Checked, 1, l.failStop)
	if err != nil {
		t.Fatal(err)
	}
	logs.SetServing()
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
	if err := l.failStop.Err(); err != nil {
		t.Errorf("fenced: %v", err)
	}
}
