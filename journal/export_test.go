package journal

import "github.com/hashicorp/raft"

// WithFault returns a Config whose log store fails at the n-th write, and from
// then on. Of a torn write a part is on disk all the same.
func WithFault(c Config, call int, torn bool) Config {
	c.tests.segmentBytes = segmentBytes
	c.tests.wrap = func(s *stores) {
		s.logs.LogStore = &faulty{LogStore: s.logs.LogStore, failAt: call, torn: torn}
	}
	return c
}

// faulty is a log store that fails at the n-th write, and from then on.
type faulty struct {
	raft.LogStore
	calls, failAt int
	torn          bool
}

func (f *faulty) StoreLog(log *raft.Log) error { return f.StoreLogs([]*raft.Log{log}) }

func (f *faulty) StoreLogs(logs []*raft.Log) error {
	if f.calls++; f.calls < f.failAt {
		return f.LogStore.StoreLogs(logs)
	}
	if f.torn && f.calls == f.failAt {
		if err := f.LogStore.StoreLogs(logs[:(len(logs)+1)/2]); err != nil {
			return err
		}
	}
	return errDisk
}
