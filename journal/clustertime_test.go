package journal

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// steppedClock is a wall clock that somebody sets.
type steppedClock struct{ step atomic.Int64 }

func (c *steppedClock) now() time.Time { return time.Now().Add(time.Duration(c.step.Load())) }

func (c *steppedClock) set(step time.Duration) { c.step.Store(int64(step)) }

// told tells whether the clock has heard of the present.
func (c *clusterClock) told() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

// near is within what a loaded machine may take for anything in a test.
func near(a, b time.Time) bool { return a.Sub(b).Abs() < 2*patience }

func steps() []time.Duration {
	return []time.Duration{time.Hour, 26 * time.Hour, -time.Hour, -26 * time.Hour}
}

func TestNoStepOfAWallClockMovesTheClusterTime(t *testing.T) {
	wall := new(steppedClock)
	j := opened(t, Config{WallClock: wall.now})
	leading(t, j)
	for _, step := range steps() {
		before := j.Now()
		wall.set(step)
		if now := j.Now(); now.Before(before) || !near(now, time.Now()) {
			t.Errorf("after a step of %v: %v, and it was %v", step, now, before)
		}
	}
}

func TestALeaderWhoseWallClockIsWrongGoesOnWithTheTimeThatItHasHeardOf(t *testing.T) {
	for _, step := range steps() {
		t.Run(step.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				walls := make([]steppedClock, 3)
				g := newTweakedGroup(t, nil, func(node int, c *Config) { c.WallClock = walls[node].now })
				first := g.leader(t)
				for i := range walls {
					walls[i].set(step)
				}
				before := g.nodes[first].Now()
				next := (first + 1) % 3
				transferTo(t, g, next)
				if now := g.nodes[next].Now(); now.Before(before.Add(-clockEvery)) || !near(now, time.Now()) {
					t.Errorf("handed over at %v, taken over at %v", before, now)
				}
				before = g.nodes[next].Now()
				g.stop(t, next) // not handed over with a record of the time
				last := awaitOther(t, g, next)
				if now := last.Now(); now.Before(before.Add(-clockEvery)) || !near(now, time.Now()) {
					t.Errorf("lost at %v, taken over at %v", before, now)
				}
			})
		})
	}
}

// A node that was down learns the time from the leader before it leads itself.
func TestANodeThatComesBackWithAWrongWallClockLearnsTheTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		walls := make([]steppedClock, 3)
		g := newTweakedGroup(t, nil, func(node int, c *Config) { c.WallClock = walls[node].now })
		leader := g.leader(t)
		back := (leader + 1) % 3
		g.stop(t, back)
		walls[back].set(26 * time.Hour)
		g.start(t, back, nil, nil)
		eventually(t, "it hears of the time", func() bool { return g.nodes[back].clock.told() })
		transferTo(t, g, back)
		if now := g.nodes[back].Now(); !near(now, time.Now()) {
			t.Errorf("it leads at %v", now)
		}
	})
}

func TestTheClusterTimeDoesNotGoBackOverARestart(t *testing.T) {
	wall, dir := new(steppedClock), t.TempDir()
	wall.set(time.Hour)
	j := opened(t, Config{WallClock: wall.now, Dir: dir})
	leading(t, j)
	before := time.Unix(0, j.machine.Clock()) // recorded with the epoch at least
	closed(t, j)
	wall.set(-time.Hour)
	j = opened(t, Config{WallClock: wall.now, Dir: dir})
	leading(t, j)
	if now := j.Now(); now.Before(before) {
		t.Errorf("%v after %v", now, before)
	}
	closed(t, j)
	// Nobody has kept the time meanwhile, so what has passed is told by the wall
	// clock alone.
	wall.set(8 * time.Hour)
	j = opened(t, Config{WallClock: wall.now, Dir: dir})
	leading(t, j)
	if now := j.Now(); !near(now, wall.now()) {
		t.Errorf("%v after all were down until %v", now, wall.now())
	}
}

func TestAClusterClock(t *testing.T) {
	at := func(hour int) int64 { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC).UnixNano() }
	noon := func() time.Time { return time.Unix(0, at(12)) }
	const past = 100
	for name, test := range map[string]struct {
		hear func(c *clusterClock)
		want int64
	}{
		"has heard nothing":       {func(*clusterClock) {}, at(12)},
		"has heard of the past":   {func(c *clusterClock) { c.hear(at(9), past) }, at(12)},
		"has heard of the leader": {func(c *clusterClock) { c.hear(at(9), past+1) }, at(9)},
		"has heard of a fast one": {func(c *clusterClock) { c.hear(at(15), past+1); c.hear(at(14), past+2) }, at(15)},
		"recorded is later":       {func(c *clusterClock) { c.hear(at(15), past) }, at(15)},
		"led before": {func(c *clusterClock) {
			c.wall = func() time.Time { return time.Unix(0, at(7)) }
			c.begin()
			c.wall = noon
		}, at(8)},
	} {
		c := newClusterClock(noon, at(8), past)
		test.hear(c)
		if got := time.Duration(c.begin() - test.want); got < 0 || got > patience {
			t.Errorf("one that %s begins %v off", name, got)
		}
	}
}

// A node that learned of a record soon is ahead of one that learned of it late. When
// that one has led meanwhile, timers were set by its time.
func TestNoLeaderIsAheadOfTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clocks [3]*clusterClock
		for i := range clocks {
			clocks[i] = newClusterClock(time.Now, 0, 0)
		}
		first, soon, late := clocks[0], clocks[1], clocks[2]
		recorded := first.begin()
		soon.hear(recorded, 1)
		time.Sleep(300 * time.Millisecond)
		late.hear(recorded, 1)
		first.end()
		time.Sleep(time.Millisecond)
		begun := late.begin()
		late.hear(begun, 2)
		soon.hear(begun, 2)
		time.Sleep(time.Second)
		before := late.now()
		late.end()
		if begun := soon.begin(); begun > before {
			t.Errorf("a leader begins %v ahead of the one before", time.Duration(begun-before))
		}
		if now := soon.now(); now < recorded+int64(time.Second) {
			t.Errorf("a second has passed, and the time is %v after it was recorded", time.Duration(now-recorded))
		}
		// It leads: what is told of its own past does not take it back.
		now := soon.now()
		time.Sleep(time.Second)
		soon.hear(now, 3)
		if got := soon.now(); got != now+int64(time.Second) {
			t.Errorf("its own record has set it back by %v", time.Duration(now+int64(time.Second)-got))
		}
	})
}
