package journal

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// blockedHandler is a slog.Handler that blocks from block on, as one does whose file is on
// a disk that hangs.
type blockedHandler struct {
	slog.Handler
	blocked chan struct{} // closed by block
	release chan struct{}
	waiting atomic.Int32 // calls that are blocked
}

// newBlockedHandler returns a handler that goes on at the end of the test.
func newBlockedHandler(t *testing.T) (h *blockedHandler, release func()) {
	t.Helper()
	h = &blockedHandler{Handler: slog.DiscardHandler, blocked: make(chan struct{}), release: make(chan struct{})}
	release = sync.OnceFunc(func() { close(h.release) })
	t.Cleanup(release)
	return h, release
}

func (h *blockedHandler) block() { close(h.blocked) }

func (*blockedHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *blockedHandler) Handle(context.Context, slog.Record) error {
	select {
	case <-h.blocked:
		h.waiting.Add(1)
		<-h.release
	default:
	}
	return nil
}

func (h *blockedHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *blockedHandler) WithGroup(string) slog.Handler      { return h }

// The log of a leader is on the disk that hangs, with the file that its logger writes.
func TestLeaderWhoseDiskHangsAndWhoseLoggerBlocksIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		disks, handlers := make([]*hanging, 3), make([]*blockedHandler, 3)
		var releases []func()
		g := newTweakedGroup(t, nil, func(i int, c *Config) {
			var release func()
			handlers[i], release = newBlockedHandler(t)
			releases = append(releases, release)
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrap = func(s *stores) { disks[i] = hang(s) }
			c.Logger = slog.New(handlers[i])
		})
		first := g.leader(t)
		old := g.nodes[first]
		handlers[first].block()
		release := disks[first].hang()
		defer release()
		result := make(chan error, 1)
		old.Append(begin(old.Epoch(), "a"), func(err error) { result <- err })
		if err := within(t, "an answer while the disk hangs", result); !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("append: %v", err)
		}
		eventually(t, "its reign ends", func() bool { return !old.IsLeader() })
		eventually(t, "the handler is called", func() bool { return handlers[first].waiting.Load() > 0 })
		if s := old.Stats(); s.LogStalls == 0 || s.LogStalled == 0 {
			t.Errorf("stats: %d stalls, %v now", s.LogStalls, s.LogStalled)
		}
		eventually(t, "another leads and commits", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() {
					return begun(t, j, begin(j.Epoch(), "b"))
				}
			}
			return false
		})
		release()
		eventually(t, "it has caught up", func() bool { _, ok := old.Instance("b"); return ok })
		g.stop(t, first) // while its handler is still blocked
		for _, release := range releases {
			release()
		}
	})
}

func TestFenceIsDrawnForAllWhileTheLoggerBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := newFence(func(*FencedError) {}, func(*FencedError) { <-release })
		go f.draw(errDisk)
		synctest.Wait() // it is in told
		if err := f.draw(errors.New("another")); !errors.Is(err, errDisk) {
			t.Error(err)
		}
		if f.err() == nil {
			t.Error("the fence is not drawn")
		}
		close(release)
	})
}

func TestStallIsToldUnderNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, written := make(chan struct{}), make(chan struct{})
		block := func(time.Duration) { <-release }
		d := newDisk(time.Second, block, block)
		go func() { _ = d.write(func() error { <-written; return nil }) }()
		time.Sleep(2 * time.Second)
		synctest.Wait() // it is in onStall
		if !d.hangs() || d.age() != 2*time.Second {
			t.Errorf("hangs %t, for %v", d.hangs(), d.age())
		}
		<-d.stalls()
		close(written)
		synctest.Wait() // it is in onRecover
		if d.hangs() || d.age() != 0 {
			t.Errorf("hangs %t, for %v", d.hangs(), d.age())
		}
		close(release)
	})
}
