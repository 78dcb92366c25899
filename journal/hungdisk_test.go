package journal

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// hangingLogs is a log store whose writes hang on request.
type hangingLogs struct {
	raft.LogStore
	mu      sync.Mutex
	release chan struct{} // nil while writes succeed
}

func wrapHangingLogs(s *stores) *hangingLogs {
	h := &hangingLogs{LogStore: s.logs.LogStore}
	s.logs.LogStore = h
	return h
}

// hang makes writes hang until the returned function is called.
func (h *hangingLogs) hang() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := make(chan struct{})
	h.release = ch
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.release = nil
		close(ch)
	})
}

func (h *hangingLogs) StoreLogs(logs []*raft.Log) error {
	h.mu.Lock()
	release := h.release
	h.mu.Unlock()
	if release != nil {
		<-release
	}
	return h.LogStore.StoreLogs(logs)
}

func TestHungDisk_LeaderReplacedThenFollows(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		disks := make([]*hangingLogs, 3)
		g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrapStores = func(s *stores) { disks[i] = wrapHangingLogs(s) }
		})
		first := g.leader(t)
		old := g.nodes[first]
		epoch := awaitLeadership(t, old)
		mustAppend(t, old, newStartAppend(epoch, "a"))

		release := disks[first].hang()
		defer release()
		results := make(chan error, 100)
		for range cap(results) {
			old.Append(newStepAppend(epoch, "a", 3), func(err error) { results <- err })
		}
		unknown := 0
		for range cap(results) { // every one
			switch err := waittest.Receive(t, "an answer while the disk hangs", results); {
			case errors.Is(err, ErrUnknownOutcome):
				unknown++
			case !errors.Is(err, ErrNotLeader):
				t.Errorf("append: %v", err)
			}
		}
		if unknown == 0 {
			t.Error("nothing was proposed")
		}
		waittest.Eventually(t, "its leadership ends", func() bool { return !old.IsLeader() })
		if err := proposeAppend(t, old, newStartAppend(epoch, "b")); !errors.Is(err, ErrNotLeader) {
			t.Errorf("append: %v", err)
		}
		if s := old.Stats(); s.LogStalls == 0 || s.LogStalled == 0 {
			t.Errorf("stats: %d stalls, %v now", s.LogStalls, s.LogStalled)
		}
		waittest.Eventually(t, "another leads and commits", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() {
					return tryBegin(t, j, newStartAppend(j.Epoch(), "c"))
				}
			}
			return false
		})

		release()
		waittest.Eventually(t, "it has caught up", func() bool { _, ok := old.Instance("c"); return ok })
		g.awaitEqualStates(t)
		if err := old.Err(); err != nil {
			t.Error(err)
		}
		if s := old.Stats(); s.LogStalled != 0 {
			t.Errorf("still stalled for %v", s.LogStalled)
		}
	})
}

// With default timeouts, another node leads within two election timeouts until the stall is
// detected, and one to three until the leader is missed.
func TestHungDisk_LeaderReplacedWithinTimeouts(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		disks := make([]*hangingLogs, 3)
		var timeout time.Duration
		g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
			c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease, c.StallLimit = 0, 0, 0, 0
			defaults := c.withDefaults()
			timeout, c.StallLimit = defaults.HeartbeatTimeout, defaults.StallLimit
			c.tests.wrapStores = func(s *stores) { disks[i] = wrapHangingLogs(s) }
		})
		first := g.leader(t)
		old := g.nodes[first]
		release := disks[first].hang()
		defer release()
		started := time.Now()
		old.Append(newStartAppend(old.Epoch(), "a"), func(error) {})
		waittest.Eventually(t, "it has stepped down", func() bool { return !old.IsLeader() })
		if elapsed := time.Since(started); elapsed > 2*timeout+timeout/10 {
			t.Errorf("it led for %v", elapsed)
		}
		waittest.Eventually(t, "another leads", func() bool { return g.nodes[(first+1)%3].IsLeader() || g.nodes[(first+2)%3].IsLeader() })
		if elapsed := time.Since(started); elapsed > 6*timeout {
			t.Errorf("another leads after %v", elapsed)
		}
		release()
		g.awaitEqualStates(t)
	})
}

func TestHungDisk_FollowerCatchesUp(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		disks := make([]*hangingLogs, 3)
		g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrapStores = func(s *stores) { disks[i] = wrapHangingLogs(s) }
		})
		leader := g.leader(t)
		j, slow := g.nodes[leader], (leader+1)%3
		epoch := awaitLeadership(t, j)
		release := disks[slow].hang()
		defer release()
		for i := range 20 {
			mustAppend(t, j, newStartAppend(epoch, fmt.Sprintf("i-%d", i)))
		}
		waittest.Eventually(t, "the stall is seen", func() bool { return g.nodes[slow].Stats().LogStalls > 0 })
		mustAppend(t, j, newStartAppend(epoch, "late"))
		if now := j.Epoch(); now != epoch {
			t.Errorf("epoch %d, was %d", now, epoch)
		}
		release()
		g.awaitEqualStates(t)
	})
}

// A leader that needs a follower would lose its leadership if the follower fell silent.
func TestHungDisk_FollowerKeepsResponding(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		disks := make([]*hangingLogs, 3)
		g := newConfiguredTestCluster(t, nil, func(i int, c *Config) {
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrapStores = func(s *stores) { disks[i] = wrapHangingLogs(s) }
		})
		leader := g.leader(t)
		j, follower := g.nodes[leader], g.nodes[(leader+1)%3]
		release := disks[(leader+1)%3].hang()
		defer release()
		mustAppend(t, j, newStartAppend(j.Epoch(), "a"))
		waittest.Eventually(t, "the follower's disk hangs", follower.disk.IsStalled)
		if follower.isMuted() {
			t.Error("the follower is silent")
		}
		releaseLeader := disks[leader].hang()
		defer releaseLeader()
		j.Append(newStartAppend(j.Epoch(), "b"), func(error) {})
		waittest.Eventually(t, "the leader's disk hangs", j.disk.IsStalled)
		if !j.isMuted() {
			t.Error("the leader is not silent")
		}
	})
}

func TestHungDisk_SingleNodeRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk *hangingLogs
		j, err := Open(t.Context(), testConfig(Config{StallLimit: time.Second, tests: testHooks{wrapStores: func(s *stores) { disk = wrapHangingLogs(s) }}}))
		if err != nil {
			t.Fatal(err)
		}
		epoch := awaitLeadership(t, j)
		release := disk.hang()
		if err := proposeAppend(t, j, newStartAppend(epoch, "a")); !errors.Is(err, ErrUnknownOutcome) {
			t.Error(err)
		}
		if err := proposeAppend(t, j, newStartAppend(epoch, "b")); !errors.Is(err, ErrNotLeader) {
			t.Error(err)
		}
		release()
		waittest.Eventually(t, "it leads again", func() bool { return j.IsLeader() && j.Epoch() > epoch })
		if last := lastEvent(t, j, "a"); last != 2 {
			t.Errorf("%d events", last) // the write succeeded after all
		}
		mustAppend(t, j, newStartAppend(j.Epoch(), "b"))
		closeJournal(t, j)
	})
}

func TestClose_DoesNotWaitForHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk *hangingLogs
		j, err := Open(t.Context(), testConfig(Config{StallLimit: time.Second, tests: testHooks{wrapStores: func(s *stores) { disk = wrapHangingLogs(s) }}}))
		if err != nil {
			t.Fatal(err)
		}
		epoch := awaitLeadership(t, j)
		release := disk.hang()
		answers := make(chan error, 1)
		j.Append(newStartAppend(epoch, "a"), func(err error) { answers <- err })
		synctest.Wait() // it has reached the disk
		started := time.Now()
		var stalled *StalledError
		if err := j.Close(); !errors.As(err, &stalled) || stalled.Duration < closeStallMax || time.Since(started) > 2*closeStallMax {
			t.Errorf("close: %v after %v", err, time.Since(started))
		}
		if err := <-answers; !errors.Is(err, ErrUnknownOutcome) {
			t.Error(err)
		}
		release()
		closeJournal(t, j) // now everything ends
		closeJournal(t, j)
	})
}
