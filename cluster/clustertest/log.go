package clustertest

import (
	"bytes"
	"sync"
	"testing"
)

// A testLog writes to the log of a test until the test has ended. A leftover activity that logs
// later must not crash the following tests.
type testLog struct {
	mu sync.Mutex
	t  testing.TB // nil when the test has ended
}

// Write implements io.Writer. Each call is one record.
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
