package journal

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// blockedHandler is a slog.Handler that blocks after block is called, as one does whose file is on
// a disk that hangs.
type blockedHandler struct {
	slog.Handler
	blocked chan struct{} // closed by block
	release chan struct{}
	waiting atomic.Int32 // calls that are blocked
}

// newBlockedHandler returns a handler that is released at the end of the test.
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

// The leader's disk hangs, with the log file of its logger on it.
func TestHungDisk_LeaderWithBlockedLoggerReplaced(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		disks, handlers := make([]*hangingLogs, 3), make([]*blockedHandler, 3)
		var releases []func()
		g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
			var release func()
			handlers[i], release = newBlockedHandler(t)
			releases = append(releases, release)
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrapStores = func(s *stores) { disks[i] = wrapHangingLogs(s) }
			c.Logger = slog.New(handlers[i])
		})
		first := g.leader(t)
		old := g.nodes[first]
		handlers[first].block()
		release := disks[first].hang()
		defer release()
		result := make(chan error, 1)
		old.Append(newStartAppend(old.Epoch(), "a"), func(err error) { result <- err })
		if err := waittest.Receive(t, "an answer while the disk hangs", result); !errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("append: %v", err)
		}
		waittest.Eventually(t, "its leadership ends", func() bool { return !old.IsLeader() })
		waittest.Eventually(t, "the handler is called", func() bool { return handlers[first].waiting.Load() > 0 })
		if s := old.Stats(); s.LogStalls == 0 || s.LogStalled == 0 {
			t.Errorf("stats: %d stalls, %v now", s.LogStalls, s.LogStalled)
		}
		waittest.Eventually(t, "another leads and commits", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() {
					return tryBegin(t, j, newStartAppend(j.Epoch(), "b"))
				}
			}
			return false
		})
		release()
		waittest.Eventually(t, "it has caught up", func() bool { _, ok := old.Instance("b"); return ok })
		g.stop(t, first) // while its handler is still blocked
		for _, release := range releases {
			release()
		}
	})
}

func TestNodeFailure_IsVisibleWhileLoggerBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		f := newFailStop(func(*NodeFailedError) {}, func(*NodeFailedError) { <-release })
		go f.Fail(errDisk)
		synctest.Wait() // it is in report
		if err := f.Fail(errors.New("another")); !errors.Is(err, errDisk) {
			t.Error(err)
		}
		if f.Err() == nil {
			t.Error("the node has not failed")
		}
		select {
		case <-f.reported:
			t.Error("the failure counts as reported before the report returns")
		default:
		}
		close(release)
		<-f.reported
	})
}
