package clustertest

import (
	"bytes"
	"sync"
	"testing"
)

// A testLog writes into the log of a test, as long as that has not ended: an
// activity that outlives it may still have something to say, and must not crash
// the tests that come after.
type testLog struct {
	mu sync.Mutex
	t  testing.TB // nil when the test has ended
}

// Write implements io.Writer. What comes is one record.
func (l *testLog) Write(record []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Helper()
		l.t.Log(string(bytes.TrimSuffix(record, []byte("\n"))))
	}
	return len(record), nil
}

func (l *testLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t = nil
}
