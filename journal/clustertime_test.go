package journal

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/clock"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// steppedClock is a wall clock that the test sets.
type steppedClock struct{ step atomic.Int64 }

func (c *steppedClock) now() time.Time { return time.Now().Add(time.Duration(c.step.Load())) }

func (c *steppedClock) set(step time.Duration) { c.step.Store(int64(step)) }

// timeOf returns the cluster time that a machine's correct clock shows.
func timeOf(t time.Time) clustertime.Time { return clustertime.FromUnixNano(t.UnixNano()) }

// isNear allows the difference that a loaded machine can cause in a test.
func isNear(a, b clustertime.Time) bool { return a.Sub(b).Abs() < 2*waittest.Timeout }

func clockSteps() []time.Duration {
	return []time.Duration{time.Hour, 26 * time.Hour, -time.Hour, -26 * time.Hour}
}

func TestClusterTime_IgnoresWallClockSteps(t *testing.T) {
	wall := new(steppedClock)
	j := openJournal(t, Config{WallClock: wall.now})
	awaitLeadership(t, j)
	for _, step := range clockSteps() {
		before := j.Now()
		wall.set(step)
		if now := j.Now(); now.Before(before) || !isNear(now, timeOf(time.Now())) {
			t.Errorf("after a step of %v: %v, and it was %v", step, now, before)
		}
	}
}

func TestClusterTime_LeaderWithWrongWallClock(t *testing.T) {
	for _, step := range clockSteps() {
		t.Run(step.String(), func(t *testing.T) {
			waittest.InSynctest(t, func(t *testing.T) {
				wallClocks := make([]steppedClock, 3)
				g := newConfiguredTestCluster(t, nil, func(node int, c *Config) { c.WallClock = wallClocks[node].now })
				first := g.leader(t)
				for i := range wallClocks {
					wallClocks[i].set(step)
				}
				before := g.nodes[first].Now()
				next := (first + 1) % 3
				transferLeadershipTo(t, g, next)
				if now := g.nodes[next].Now(); now.Before(before.Add(-clock.Interval)) || !isNear(now, timeOf(time.Now())) {
					t.Errorf("transferred at %v, new leader at %v", before, now)
				}
				before = g.nodes[next].Now()
				g.stop(t, next) // leadership is not transferred together with a record of the time
				last := awaitOtherLeader(t, g, next)
				if now := last.Now(); now.Before(before.Add(-clock.Interval)) || !isNear(now, timeOf(time.Now())) {
					t.Errorf("lost at %v, new leader at %v", before, now)
				}
			})
		})
	}
}

// A node that was down learns the time from the leader before it leads itself.
func TestClusterTime_RestartedNodeLearnsTime(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		wallClocks := make([]steppedClock, 3)
		g := newConfiguredTestCluster(t, nil, func(node int, c *Config) { c.WallClock = wallClocks[node].now })
		leader := g.leader(t)
		returning := (leader + 1) % 3
		g.stop(t, returning)
		wallClocks[returning].set(26 * time.Hour)
		g.start(t, returning, nil, nil)
		waittest.Eventually(t, "it receives the time", func() bool { return g.nodes[returning].clock.IsCurrent() })
		transferLeadershipTo(t, g, returning)
		if now := g.nodes[returning].Now(); !isNear(now, timeOf(time.Now())) {
			t.Errorf("it leads at %v", now)
		}
	})
}

func TestClusterTime_MonotonicOverRestart(t *testing.T) {
	wall, dir := new(steppedClock), t.TempDir()
	wall.set(time.Hour)
	reopened := func() *Journal {
		j := openJournal(t, Config{WallClock: wall.now, Dir: dir})
		epoch := awaitLeadership(t, j)
		waittest.Eventually(t, "the clock sample is written", func() bool { return clock.ReadSample(dir).Epoch == epoch })
		return j
	}
	j := reopened()
	before := j.machine.Clock() // recorded with the epoch at least
	closeJournal(t, j)
	wall.set(-time.Hour)
	j = reopened()
	if now := j.Now(); now.Before(before) || !isNear(now, before) {
		t.Errorf("%v after %v", now, before)
	}
	closeJournal(t, j)
	// No node has kept the time meanwhile. Only the wall clock shows what has passed, and it may be
	// wrong.
	wall.set(8 * time.Hour)
	j = reopened()
	if now := j.Now(); !isNear(now, before.Add(9*time.Hour)) {
		t.Errorf("%v after %v and nine hours", now, before)
	}
}

// After all nodes were down, one clock is wrong, and all are ahead of the cluster time.
func TestClusterTime_OneClockDoesNotMoveItAfterOutage(t *testing.T) {
	const outage, ahead = 3 * time.Hour, 30 * time.Second
	for _, step := range append(clockSteps(), 0) {
		for victim := range 3 {
			t.Run(fmt.Sprintf("%v/%d", step, victim), func(t *testing.T) {
				waittest.InSynctest(t, func(t *testing.T) {
					wallClocks := make([]steppedClock, 3)
					g := newConfiguredTestCluster(t, nil, func(node int, c *Config) { c.WallClock = wallClocks[node].now })
					leader := g.leader(t)
					for i := range wallClocks {
						wallClocks[i].set(ahead)
					}
					epoch := g.nodes[leader].Epoch()
					time.Sleep(3 * clock.Interval)
					for i, dir := range g.dirs {
						waittest.Eventually(t, "the clock sample is written", func() bool { return clock.ReadSample(dir).Epoch == epoch })
						if saved := clock.ReadSample(dir); saved.Wall-saved.Time.UnixNano() < int64(ahead-time.Second) {
							t.Fatalf("node %d is %v ahead", i, time.Duration(saved.Wall-saved.Time.UnixNano()))
						}
					}
					set, at := g.nodes[leader].Now(), time.Now()
					for i := range g.nodes {
						g.stop(t, i)
					}
					wallClocks[victim].set(ahead + step)
					time.Sleep(outage)
					for i := range g.nodes {
						g.start(t, i, nil, nil)
					}
					now := g.nodes[g.leader(t)].Now()
					passed := time.Since(at)
					if gone := now.Sub(set); gone > passed+passed/clock.CatchUpDivisor || gone < outage {
						t.Errorf("in %v, %v were gone", passed, gone)
					}
				})
			})
		}
	}
}

// A leader whose cluster time is behind its wall clock catches up, no faster than it reports.
func TestClusterTime_LeaderCatchesUpSlowly(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		wall := new(steppedClock)
		j := openJournal(t, Config{WallClock: wall.now})
		awaitLeadership(t, j)
		wall.set(time.Second)
		for range 100 {
			set, at := j.Now(), time.Now()
			time.Sleep(30 * time.Second)
			passed := time.Since(at)
			if gone := j.Now().Sub(set); gone < passed || gone > passed+passed/clock.CatchUpDivisor {
				t.Fatalf("in %v, %v were gone", passed, gone)
			}
		}
		if behind := timeOf(wall.now()).Sub(j.Now()); behind.Abs() > time.Millisecond {
			t.Errorf("after 50 minutes it is %v behind", behind)
		}
	})
}
