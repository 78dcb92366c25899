package comparison

import (
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
)

// lockProbe is the output of a logger, which reports whether a lock is free while it is written to.
type lockProbe struct {
	mu            *sync.Mutex
	written, free bool
}

func (p *lockProbe) Write(text []byte) (int, error) {
	p.written = true
	if p.free = p.mu.TryLock(); p.free {
		p.mu.Unlock()
	}
	return len(text), nil
}

func TestBeginBatch_OpensFileWithoutLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	l := &Leader{signed: signedRounds{dir: dir}, requested: true}
	probe := &lockProbe{mu: &l.mu}
	l.config.Logger = slog.New(slog.NewTextHandler(probe, nil))
	if from, requested := l.beginBatch(); from != "" || !requested {
		t.Errorf("it begins at %q, requested: %t", from, requested)
	}
	if !probe.written || !probe.free {
		t.Errorf("the failure to open was logged %t, the lock was free %t", probe.written, probe.free)
	}
	l.cursor, probe.written = "m", false
	if from, _ := l.beginBatch(); from != "m" || probe.written {
		t.Errorf("in the middle of a round it begins at %q, and opens a file %t", from, probe.written)
	}
}
