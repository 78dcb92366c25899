package journal

import (
	"os"
	"syscall"

	"github.com/hashicorp/raft"
)

// WithWriteFault returns a Config whose log store fails from the n-th write on. If the disk is
// full, only the n-th write fails. A torn write leaves a part on disk.
func WithWriteFault(c Config, call int, torn, full bool) Config {
	c.tests.wrapStores = func(s *stores) {
		s.logs.LogStore = &failNthLogs{LogStore: s.logs.LogStore, failAt: call, torn: torn, full: full}
	}
	return c
}

// failNthLogs is a log store that fails at the n-th write.
type failNthLogs struct {
	raft.LogStore
	calls, failAt int
	torn, full    bool
}

func (f *failNthLogs) StoreLog(log *raft.Log) error { return f.StoreLogs([]*raft.Log{log}) }

func (f *failNthLogs) StoreLogs(logs []*raft.Log) error {
	if f.calls++; f.calls < f.failAt || f.full && f.calls > f.failAt {
		return f.LogStore.StoreLogs(logs)
	}
	if f.torn && f.calls == f.failAt {
		if err := f.LogStore.StoreLogs(logs[:(len(logs)+1)/2]); err != nil {
			return err
		}
	}
	if f.full {
		return &os.PathError{Op: "write", Path: "log", Err: syscall.ENOSPC}
	}
	return errDisk
}
