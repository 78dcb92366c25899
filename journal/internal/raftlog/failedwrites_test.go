package raftlog

import (
	"syscall"
	"testing"

	"github.com/tenuto-dev/tenuto/journal/internal/raftlog/raftlogtest"
)

// An append that failed but was in effect leaves entries that Raft does not know. The next append
// may be shorter.
func TestTruncation_FailedAppendLeavesNoTail(t *testing.T) {
	dir := t.TempDir()
	writes := &raftlogtest.FaultyWrites{}
	wrap := func(raw *Raw, stable *StableFile) {
		raw.LogStore = &raftlogtest.FaultyLogs{LogStore: raw.LogStore, Writes: writes}
		stable.Intercept(writes.DoStable)
	}
	l, err := openLogsWith(dir, wrap)
	if err != nil {
		t.Fatal(err)
	}
	l.mustStore(t, 1, 9)
	for at := 1; ; at++ {
		for _, done := range []bool{false, true} {
			writes.Inject(raftlogtest.WriteFault{Errno: syscall.ENOSPC, At: at, TakesEffect: done})
			last := l.tailIndex()
			if err := l.StoreLogs(raftlogtest.Entries(last+1, last+5)); err == nil {
				writes.Heal()
				l.wantEntries(t, 1, last+5)
				if writes.Failures() > 0 {
					t.Error("a failed write was not reported")
				}
				l.mustClose(t)
				return
			}
			writes.Heal()
			l.mustStore(t, last+1, last+1)
			l.mustClose(t)
			if l, err = openLogsWith(dir, wrap); err != nil {
				t.Fatalf("write %d, done %t: %v", at, done, err)
			}
			l.wantEntries(t, 1, last+1)
		}
	}
}

func (c *Checked) tailIndex() uint64 {
	last, _ := c.LastIndex()
	return last
}
