package replaytest

import (
	"sync"
	"testing"
)

// A log writes to the test's output until the test ends.
type log struct {
	mu     sync.Mutex
	to     testing.TB
	closed bool
}

func (l *log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return len(line), nil
	}
	return l.to.Output().Write(line)
}

func (l *log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}
