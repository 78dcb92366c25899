package journal

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// steppedClock is a wall clock that the test sets.
type steppedClock struct{ step atomic.Int64 }

func (c *steppedClock) now() time.Time { return time.Now().Add(time.Duration(c.step.Load())) }

func (c *steppedClock) set(step time.Duration) { c.step.Store(int64(step)) }

// hasHeardTime reports whether the clock knows the current time.
func (c *clusterClock) hasHeardTime() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// clusterTimeOf returns the cluster time that a machine's correct clock shows.
func clusterTimeOf(t time.Time) clustertime.Time { return clustertime.FromUnixNano(t.UnixNano()) }

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
		if now := j.Now(); now.Before(before) || !isNear(now, clusterTimeOf(time.Now())) {
			t.Errorf("after a step of %v: %v, and it was %v", step, now, before)
		}
	}
}

func TestClusterTime_LeaderWithWrongWallClock(t *testing.T) {
	for _, step := range clockSteps() {
		t.Run(step.String(), func(t *testing.T) {
			inSynctest(t, func(t *testing.T) {
				wallClocks := make([]steppedClock, 3)
				g := newConfiguredTestCluster(t, nil, func(node int, c *Config) { c.WallClock = wallClocks[node].now })
				first := g.leader(t)
				for i := range wallClocks {
					wallClocks[i].set(step)
				}
				before := g.nodes[first].Now()
				next := (first + 1) % 3
				transferLeadershipTo(t, g, next)
				if now := g.nodes[next].Now(); now.Before(before.Add(-clockInterval)) || !isNear(now, clusterTimeOf(time.Now())) {
					t.Errorf("transferred at %v, new leader at %v", before, now)
				}
				before = g.nodes[next].Now()
				g.stop(t, next) // leadership is not transferred together with a record of the time
				last := awaitOtherLeader(t, g, next)
				if now := last.Now(); now.Before(before.Add(-clockInterval)) || !isNear(now, clusterTimeOf(time.Now())) {
					t.Errorf("lost at %v, new leader at %v", before, now)
				}
			})
		})
	}
}

// A node that was down learns the time from the leader before it leads itself.
func TestClusterTime_RestartedNodeLearnsTime(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		wallClocks := make([]steppedClock, 3)
		g := newConfiguredTestCluster(t, nil, func(node int, c *Config) { c.WallClock = wallClocks[node].now })
		leader := g.leader(t)
		returning := (leader + 1) % 3
		g.stop(t, returning)
		wallClocks[returning].set(26 * time.Hour)
		g.start(t, returning, nil, nil)
		waittest.Eventually(t, "it receives the time", func() bool { return g.nodes[returning].clock.hasHeardTime() })
		transferLeadershipTo(t, g, returning)
		if now := g.nodes[returning].Now(); !isNear(now, clusterTimeOf(time.Now())) {
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
		waittest.Eventually(t, "the clock sample is written", func() bool { return readClockSample(dir).epoch == epoch })
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

func TestClusterClock(t *testing.T) {
	date := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	at := func(hour int) clustertime.Time { return clusterTimeOf(date(hour)) }
	wall := func(hour int) int64 { return date(hour).UnixNano() }
	noon := func() time.Time { return date(12) }
	noReadings := func() []clockReading { return nil }
	const term, past = 7, 6
	for name, test := range map[string]struct {
		hear  func(c *clusterClock)
		query func() []clockReading
		saved clockSample
		want  clustertime.Time
	}{
		"has heard nothing":       {want: at(12)},
		"has heard of the past":   {hear: func(c *clusterClock) { c.observe(at(9), 2, past) }, want: at(12)},
		"has heard of the leader": {hear: func(c *clusterClock) { c.observe(at(9), 2, term) }, want: at(9)},
		"has heard of one that is behind": {hear: func(c *clusterClock) {
			c.observe(at(9), 2, past)
			c.base = at(11) // by its monotonic clock
			c.observe(at(10), 3, term)
		}, want: at(10)},
		"has heard late of the same one": {hear: func(c *clusterClock) {
			c.observe(at(9), 2, term)
			c.base = at(11)
			c.observe(at(10), 2, term)
		}, want: at(11)},
		"recorded is later": {hear: func(c *clusterClock) { c.observe(at(15), 2, past) }, want: at(15)},
		"led before": {hear: func(c *clusterClock) {
			c.wall = func() time.Time { return date(7) }
			c.startLeading(noReadings)
			c.stopLeading()
			c.wall = noon
		}, want: at(8)},
		"has a mark":                         {saved: clockSample{1, at(8), wall(10)}, want: at(10)},
		"has a mark of a wall clock behind":  {saved: clockSample{1, at(9), wall(8)}, want: at(13)},
		"has a mark and was set back":        {saved: clockSample{1, at(9), wall(20)}, want: at(9)},
		"was founded by one without a date":  {saved: clockSample{1, at(9).Add(-3 * 24 * time.Hour), wall(11)}, want: at(12)},
		"is told of a time that was kept":    {query: func() []clockReading { return []clockReading{{at(9), 1, true}} }, want: at(9)},
		"is told of less by one without any": {query: func() []clockReading { return []clockReading{{Time: at(11)}} }, want: at(11)},
		"is told of more by one without any": {query: func() []clockReading { return []clockReading{{Time: at(13)}} }, want: at(12)},
	} {
		c := newClusterClock(noon, func() uint64 { return term }, at(8), 1, test.saved)
		if test.hear != nil {
			test.hear(c)
		}
		query := test.query
		if query == nil {
			query = noReadings
		}
		if got := c.startLeading(query).Sub(test.want); got < 0 || got > waittest.Timeout {
			t.Errorf("one that %s begins %v off", name, got)
		}
	}
}

func TestClusterTime_MedianOfReadings(t *testing.T) {
	const current = true
	at := clustertime.FromUnixNano
	for name, test := range map[string]struct {
		known []clockReading
		want  int64
	}{
		"one":                                    {[]clockReading{{at(5), 1, !current}}, 5},
		"two: the earlier":                       {[]clockReading{{at(5), 1, !current}, {at(9), 1, !current}}, 5},
		"three: the middle":                      {[]clockReading{{at(5), 1, !current}, {at(9), 1, !current}, {at(7), 1, !current}}, 7},
		"four: the earlier one of the middle":    {[]clockReading{{at(5), 1, !current}, {at(9), 1, !current}, {at(7), 1, !current}, {at(8), 1, !current}}, 7},
		"what was kept counts alone":             {[]clockReading{{at(5), 1, !current}, {at(9), 1, current}, {at(7), 1, !current}}, 9},
		"not later than who knows the leader":    {[]clockReading{{at(5), 2, !current}, {at(9), 1, !current}, {at(7), 1, !current}}, 5},
		"who knows the leader may be wrong, too": {[]clockReading{{at(50), 2, !current}, {at(9), 1, !current}, {at(7), 1, !current}}, 9},
	} {
		if got := combineClockReadings(test.known); got != at(test.want) {
			t.Errorf("%s: %d, want %d", name, got.UnixNano(), test.want)
		}
	}
}

func TestClockSample_RejectsDamagedFile(t *testing.T) {
	dir, want := t.TempDir(), clockSample{epoch: 7, time: clustertime.FromUnixNano(-1), wall: 1 << 60}
	if got := readClockSample(dir); got != (clockSample{}) {
		t.Errorf("in an empty directory: %+v", got)
	}
	for _, sync := range []bool{true, false} {
		if err := want.write(dir, sync); err != nil {
			t.Fatal(err)
		}
		if got := readClockSample(dir); got != want {
			t.Errorf("written %+v, read %+v", want, got)
		}
	}
	for i := range want.encode() {
		b := want.encode()
		b[i] ^= 1
		if got := decodeClockSample(b); got != (clockSample{}) {
			t.Errorf("with byte %d changed: %+v", i, got)
		}
		if got := decodeClockSample(want.encode()[:i]); got != (clockSample{}) {
			t.Errorf("of %d bytes: %+v", i, got)
		}
	}
}

// After all nodes were down, one clock is wrong, and all are ahead of the cluster time.
func TestClusterTime_OneClockDoesNotMoveItAfterOutage(t *testing.T) {
	const outage, ahead = 3 * time.Hour, 30 * time.Second
	for _, step := range append(clockSteps(), 0) {
		for victim := range 3 {
			t.Run(fmt.Sprintf("%v/%d", step, victim), func(t *testing.T) {
				inSynctest(t, func(t *testing.T) {
					wallClocks := make([]steppedClock, 3)
					g := newConfiguredTestCluster(t, nil, func(node int, c *Config) { c.WallClock = wallClocks[node].now })
					leader := g.leader(t)
					for i := range wallClocks {
						wallClocks[i].set(ahead)
					}
					epoch := g.nodes[leader].Epoch()
					time.Sleep(3 * clockInterval)
					for i, dir := range g.dirs {
						waittest.Eventually(t, "the clock sample is written", func() bool { return readClockSample(dir).epoch == epoch })
						if saved := readClockSample(dir); saved.wall-saved.time.UnixNano() < int64(ahead-time.Second) {
							t.Fatalf("node %d is %v ahead", i, time.Duration(saved.wall-saved.time.UnixNano()))
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
					if gone := now.Sub(set); gone > passed+passed/catchUpDivisor || gone < outage {
						t.Errorf("in %v, %v were gone", passed, gone)
					}
				})
			})
		}
	}
}

// A leader whose cluster time is behind its wall clock catches up, no faster than it reports.
func TestClusterTime_LeaderCatchesUpSlowly(t *testing.T) {
	inSynctest(t, func(t *testing.T) {
		wall := new(steppedClock)
		j := openJournal(t, Config{WallClock: wall.now})
		awaitLeadership(t, j)
		wall.set(time.Second)
		for range 100 {
			set, at := j.Now(), time.Now()
			time.Sleep(30 * time.Second)
			passed := time.Since(at)
			if gone := j.Now().Sub(set); gone < passed || gone > passed+passed/catchUpDivisor {
				t.Fatalf("in %v, %v were gone", passed, gone)
			}
		}
		if behind := clusterTimeOf(wall.now()).Sub(j.Now()); behind.Abs() > time.Millisecond {
			t.Errorf("after 50 minutes it is %v behind", behind)
		}
	})
}

// A node that received a record early is ahead of one that received it late. If the latter has led
// meanwhile, timers were set by its time.
func TestClusterTime_NewLeaderNotAheadOfOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clocks [3]*clusterClock
		for i := range clocks {
			clocks[i] = newClusterClock(time.Now, func() uint64 { return 1 }, clustertime.Time{}, 0, clockSample{})
		}
		first, soon, late := clocks[0], clocks[1], clocks[2]
		noReadings := func() []clockReading { return nil }
		recorded := first.startLeading(noReadings)
		soon.observe(recorded, 1, 1)
		time.Sleep(300 * time.Millisecond)
		late.observe(recorded, 1, 1)
		first.stopLeading()
		time.Sleep(time.Millisecond)
		started := late.startLeading(noReadings)
		late.observe(started, 2, 1)
		late.setLeaderEpoch(2)
		soon.observe(started, 2, 1)
		time.Sleep(time.Second)
		before := late.now()
		late.stopLeading()
		if started := soon.startLeading(noReadings); started.After(before) {
			t.Errorf("a leader begins %v ahead of the previous one", started.Sub(before))
		}
		if now := soon.now(); now.Before(recorded.Add(time.Second)) {
			t.Errorf("a second has passed, but the time is %v after its record", now.Sub(recorded))
		}
		// It leads: records of its own past do not set it back.
		now := soon.now()
		time.Sleep(time.Second)
		soon.observe(now, 3, 1)
		if got := soon.now(); got != now.Add(time.Second) {
			t.Errorf("its own record has set it back by %v", now.Add(time.Second).Sub(got))
		}
	})
}
