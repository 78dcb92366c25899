package journal

import (
	"os"
	"syscall"

	"github.com/hashicorp/raft"
)

// WithFault returns a Config whose log store fails at the n-th write, and from
// then on, unless the disk is full: then it has room again for the next. Of a torn
// write a part is on disk all the same.
func WithFault(c Config, call int, torn, full bool) Config {
	c.tests.wrap = func(s *stores) {
		s.logs.LogStore = &faulty{LogStore: s.logs.LogStore, failAt: call, torn: torn, full: full}
	}
	return c
}

// faulty is a log store that fails at the n-th write.
type faulty struct {
	raft.LogStore
	calls, failAt int
	torn, full    bool
}

func (f *faulty) StoreLog(log *raft.Log) error { return f.StoreLogs([]*raft.Log{log}) }

func (f *faulty) StoreLogs(logs []*raft.Log) error {
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
