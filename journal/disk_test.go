package journal

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// hanging is a log store whose writes hang while it is told to.
type hanging struct {
	raft.LogStore
	mu      sync.Mutex
	release chan struct{} // nil while writes go through
}

func hang(s *stores) *hanging {
	h := &hanging{LogStore: s.logs.LogStore}
	s.logs.LogStore = h
	return h
}

// hang makes writes hang until the function that it returns is called.
func (h *hanging) hang() (release func()) {
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

func (h *hanging) StoreLogs(logs []*raft.Log) error {
	h.mu.Lock()
	release := h.release
	h.mu.Unlock()
	if release != nil {
		<-release
	}
	return h.LogStore.StoreLogs(logs)
}

func TestLeaderWhoseDiskHangsIsReplacedAndFollowsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		disks := make([]*hanging, 3)
		g := newTweakedGroup(t, nil, func(i int, c *Config) {
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrap = func(s *stores) { disks[i] = hang(s) }
		})
		first := g.leader(t)
		old := g.nodes[first]
		epoch := leading(t, old)
		mustAppend(t, old, begin(epoch, "a"))

		release := disks[first].hang()
		defer release()
		results := make(chan error, 100)
		for range cap(results) {
			old.Append(step(epoch, "a", 3), func(err error) { results <- err })
		}
		unknown := 0
		for range cap(results) { // every one
			switch err := within(t, "an answer while the disk hangs", results); {
			case errors.Is(err, ErrUnknownOutcome):
				unknown++
			case !errors.Is(err, ErrNotLeader):
				t.Errorf("append: %v", err)
			}
		}
		if unknown == 0 {
			t.Error("none was proposed")
		}
		eventually(t, "its reign ends", func() bool { return !old.IsLeader() })
		if err := appended(t, old, begin(epoch, "b")); !errors.Is(err, ErrNotLeader) {
			t.Errorf("append: %v", err)
		}
		if s := old.Stats(); s.LogStalls == 0 || s.LogStalled == 0 {
			t.Errorf("stats: %d stalls, %v now", s.LogStalls, s.LogStalled)
		}
		eventually(t, "another leads and commits", func() bool {
			for i, j := range g.nodes {
				if i != first && j.IsLeader() {
					return begun(t, j, begin(j.Epoch(), "c"))
				}
			}
			return false
		})

		release()
		eventually(t, "it has caught up", func() bool { _, ok := old.Instance("c"); return ok })
		g.agree(t)
		if err := old.Err(); err != nil {
			t.Error(err)
		}
		if s := old.Stats(); s.LogStalled != 0 {
			t.Errorf("still stalled for %v", s.LogStalled)
		}
	})
}

// By the timeouts that a node has unless it is told otherwise, another leads within two
// of them for the disk to be given up, and one to three until it is missed.
func TestLeaderWhoseDiskHangsIsReplacedSoon(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		disks := make([]*hanging, 3)
		var timeout time.Duration
		g := newTweakedGroup(t, nil, func(i int, c *Config) {
			c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease, c.StallLimit = 0, 0, 0, 0
			defaults := c.withDefaults()
			timeout, c.StallLimit = defaults.HeartbeatTimeout, defaults.StallLimit
			c.tests.wrap = func(s *stores) { disks[i] = hang(s) }
		})
		first := g.leader(t)
		old := g.nodes[first]
		release := disks[first].hang()
		defer release()
		began := time.Now()
		old.Append(begin(old.Epoch(), "a"), func(error) {})
		eventually(t, "it has given up", func() bool { return !old.IsLeader() })
		if took := time.Since(began); took > 2*timeout+timeout/10 {
			t.Errorf("it has led for %v", took)
		}
		eventually(t, "another leads", func() bool { return g.nodes[(first+1)%3].IsLeader() || g.nodes[(first+2)%3].IsLeader() })
		if took := time.Since(began); took > 6*timeout {
			t.Errorf("another leads after %v", took)
		}
		release()
		g.agree(t)
	})
}

// A disk that is slow and answers must not cost leadership again and again.
func TestABusyDiskIsGivenMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stalls atomic.Int32
		d := newDisk(400*time.Millisecond, func(time.Duration) { stalls.Add(1) }, func(time.Duration) {})
		for i, step := range []struct {
			rest, write time.Duration
			stalls      int32 // so far
		}{
			{0, 300 * time.Millisecond, 0},
			{0, 3 * time.Second, 1}, // it did hang
			{0, 500 * time.Millisecond, 2},
			{0, 900 * time.Millisecond, 2}, // known to be busy
			{50 * time.Second, 900 * time.Millisecond, 2},
			{50 * time.Second, 900 * time.Millisecond, 2}, // still
			{0, 1100 * time.Millisecond, 3},
			{busyFor, 500 * time.Millisecond, 4},
		} {
			time.Sleep(step.rest)
			if err := d.write(func() error { time.Sleep(step.write); return nil }); err != nil {
				t.Error(err)
			}
			if got := stalls.Load(); got != step.stalls {
				t.Errorf("write %d: %d stalls, want %d", i, got, step.stalls)
			}
		}
	})
}

func TestFollowerWhoseDiskHangsStopsNobodyAndCatchesUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		disks := make([]*hanging, 3)
		g := newTweakedGroup(t, nil, func(i int, c *Config) {
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrap = func(s *stores) { disks[i] = hang(s) }
		})
		leader := g.leader(t)
		j, slow := g.nodes[leader], (leader+1)%3
		epoch := leading(t, j)
		release := disks[slow].hang()
		defer release()
		for i := range 20 {
			mustAppend(t, j, begin(epoch, fmt.Sprintf("i-%d", i)))
		}
		eventually(t, "the stall is seen", func() bool { return g.nodes[slow].Stats().LogStalls > 0 })
		mustAppend(t, j, begin(epoch, "late"))
		if now := j.Epoch(); now != epoch {
			t.Errorf("epoch %d, was %d", now, epoch)
		}
		release()
		g.agree(t)
	})
}

// A leader that needs a follower would lose its leadership if that fell silent.
func TestOnlyALeaderFallsSilentWhenItsDiskHangs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		disks := make([]*hanging, 3)
		g := newTweakedGroup(t, nil, func(i int, c *Config) {
			c.StallLimit = 2 * c.HeartbeatTimeout
			c.tests.wrap = func(s *stores) { disks[i] = hang(s) }
		})
		leader := g.leader(t)
		j, follower := g.nodes[leader], g.nodes[(leader+1)%3]
		release := disks[(leader+1)%3].hang()
		defer release()
		mustAppend(t, j, begin(j.Epoch(), "a"))
		eventually(t, "the follower's disk hangs", follower.disk.hangs)
		if follower.silent() {
			t.Error("the follower is silent")
		}
		releaseLeader := disks[leader].hang()
		defer releaseLeader()
		j.Append(begin(j.Epoch(), "b"), func(error) {})
		eventually(t, "the leader's disk hangs", j.disk.hangs)
		if !j.silent() {
			t.Error("the leader is not silent")
		}
	})
}

func TestGroupOfOneGoesOnWhenItsDiskAnswersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk *hanging
		j, err := Open(t.Context(), quiet(Config{StallLimit: time.Second, tests: testHooks{wrap: func(s *stores) { disk = hang(s) }}}))
		if err != nil {
			t.Fatal(err)
		}
		epoch := leading(t, j)
		release := disk.hang()
		if err := appended(t, j, begin(epoch, "a")); !errors.Is(err, ErrUnknownOutcome) {
			t.Error(err)
		}
		if err := appended(t, j, begin(epoch, "b")); !errors.Is(err, ErrNotLeader) {
			t.Error(err)
		}
		release()
		eventually(t, "it leads again", func() bool { return j.IsLeader() && j.Epoch() > epoch })
		if last := lastEvent(t, j, "a"); last != 2 {
			t.Errorf("%d events", last) // the write went through after all
		}
		mustAppend(t, j, begin(j.Epoch(), "b"))
		closed(t, j)
	})
}

func TestCloseDoesNotWaitForADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var disk *hanging
		j, err := Open(t.Context(), quiet(Config{StallLimit: time.Second, tests: testHooks{wrap: func(s *stores) { disk = hang(s) }}}))
		if err != nil {
			t.Fatal(err)
		}
		epoch := leading(t, j)
		release := disk.hang()
		answers := make(chan error, 1)
		j.Append(begin(epoch, "a"), func(err error) { answers <- err })
		synctest.Wait() // it has reached the disk
		began := time.Now()
		var stalled *StalledError
		if err := j.Close(); !errors.As(err, &stalled) || stalled.For < closeStallMax || time.Since(began) > 2*closeStallMax {
			t.Errorf("close: %v after %v", err, time.Since(began))
		}
		if err := <-answers; !errors.Is(err, ErrUnknownOutcome) {
			t.Error(err)
		}
		release()
		closed(t, j) // now everything ends
		closed(t, j)
	})
}
