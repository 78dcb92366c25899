package raftlogtest

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"
)

// WriteFault says how the writes of one node fail once the fault is armed.
type WriteFault struct {
	Errno       syscall.Errno
	At          int  // the first write that fails, counted from 1
	Persists    bool // later writes fail too, until Heal
	TakesEffect bool // the failed write is in effect nevertheless
	LogOnly     bool // only writes of the log fail: the stable file is written in place
}

// String describes the fault.
func (f WriteFault) String() string {
	return fmt.Sprintf("%s at write %d, stays %t, done %t", errName(f.Errno), f.At, f.Persists, f.TakesEffect)
}

func errName(errno syscall.Errno) string {
	if errno == syscall.ENOSPC {
		return "ENOSPC"
	}
	return errno.Error()
}

// FaultyWrites counts the writes of a node's log and stable file, and fails those that its fault
// selects.
type FaultyWrites struct {
	mu     sync.Mutex
	fault  *WriteFault // nil: no write fails
	writes int         // since the fault was armed
	failed int
}

// Inject arms a fault.
func (w *FaultyWrites) Inject(fault WriteFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault, w.writes, w.failed = &fault, 0, 0
}

// Heal lets all writes succeed again.
func (w *FaultyWrites) Heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = nil
}

// Failures returns how many writes have failed since the fault was armed.
func (w *FaultyWrites) Failures() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// do makes one write, or fails it.
func (w *FaultyWrites) do(ofLog bool, write func() error) error {
	w.mu.Lock()
	fault := w.fault
	if fault != nil && fault.LogOnly && !ofLog {
		fault = nil
	}
	fails := false
	if fault != nil {
		w.writes++
		fails = w.writes == fault.At || fault.Persists && w.writes > fault.At
	}
	if fails {
		w.failed++
	}
	w.mu.Unlock()
	if !fails {
		return write()
	}
	if fault.TakesEffect {
		if err := write(); err != nil {
			return err
		}
	}
	return &os.PathError{Op: "write", Path: "a test", Err: fault.Errno}
}

// DoStable makes one write of the stable file, or fails it.
func (w *FaultyWrites) DoStable(write func() error) error { return w.do(false, write) }

// FaultyLogs is a log store whose writes may fail.
type FaultyLogs struct {
	raft.LogStore
	Writes *FaultyWrites
}

// StoreLog implements raft.LogStore.
func (l *FaultyLogs) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (l *FaultyLogs) StoreLogs(logs []*raft.Log) error {
	return l.Writes.do(true, func() error { return l.LogStore.StoreLogs(logs) })
}

// DeleteRange implements raft.LogStore.
func (l *FaultyLogs) DeleteRange(first, last uint64) error {
	return l.Writes.do(true, func() error { return l.LogStore.DeleteRange(first, last) })
}
