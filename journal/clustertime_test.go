package journal

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
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

// ofMachine returns what a machine shows as the cluster time of one that is right.
func ofMachine(t time.Time) clustertime.Time { return clustertime.FromUnix(t.UnixNano()) }

// near is within what a loaded machine may take for anything in a test.
func near(a, b clustertime.Time) bool { return a.Sub(b).Abs() < 2*patience }

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
		if now := j.Now(); now.Before(before) || !near(now, ofMachine(time.Now())) {
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
				if now := g.nodes[next].Now(); now.Before(before.Add(-clockEvery)) || !near(now, ofMachine(time.Now())) {
					t.Errorf("handed over at %v, taken over at %v", before, now)
				}
				before = g.nodes[next].Now()
				g.stop(t, next) // not handed over with a record of the time
				last := awaitOther(t, g, next)
				if now := last.Now(); now.Before(before.Add(-clockEvery)) || !near(now, ofMachine(time.Now())) {
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
		if now := g.nodes[back].Now(); !near(now, ofMachine(time.Now())) {
			t.Errorf("it leads at %v", now)
		}
	})
}

func TestTheClusterTimeDoesNotGoBackOverARestart(t *testing.T) {
	wall, dir := new(steppedClock), t.TempDir()
	wall.set(time.Hour)
	reopened := func() *Journal {
		j := opened(t, Config{WallClock: wall.now, Dir: dir})
		epoch := leading(t, j)
		eventually(t, "the time is noted", func() bool { return readClockMark(dir).epoch == epoch })
		return j
	}
	j := reopened()
	before := j.machine.Clock() // recorded with the epoch at least
	closed(t, j)
	wall.set(-time.Hour)
	j = reopened()
	if now := j.Now(); now.Before(before) || !near(now, before) {
		t.Errorf("%v after %v", now, before)
	}
	closed(t, j)
	// Nobody has kept the time meanwhile, so what has passed is told by the wall
	// clock alone, which need not be right.
	wall.set(8 * time.Hour)
	j = reopened()
	if now := j.Now(); !near(now, before.Add(9*time.Hour)) {
		t.Errorf("%v after %v and nine hours", now, before)
	}
}

func TestAClusterClock(t *testing.T) {
	date := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	at := func(hour int) clustertime.Time { return ofMachine(date(hour)) }
	wall := func(hour int) int64 { return date(hour).UnixNano() }
	noon := func() time.Time { return date(12) }
	nobody := func() []clockReading { return nil }
	const term, past = 7, 6
	for name, test := range map[string]struct {
		hear func(c *clusterClock)
		ask  func() []clockReading
		mark clockMark
		want clustertime.Time
	}{
		"has heard nothing":       {want: at(12)},
		"has heard of the past":   {hear: func(c *clusterClock) { c.hear(at(9), 2, past) }, want: at(12)},
		"has heard of the leader": {hear: func(c *clusterClock) { c.hear(at(9), 2, term) }, want: at(9)},
		"has heard of one that is behind": {hear: func(c *clusterClock) {
			c.hear(at(9), 2, past)
			c.base = at(11) // by its monotonic clock
			c.hear(at(10), 3, term)
		}, want: at(10)},
		"has heard late of the same one": {hear: func(c *clusterClock) {
			c.hear(at(9), 2, term)
			c.base = at(11)
			c.hear(at(10), 2, term)
		}, want: at(11)},
		"recorded is later": {hear: func(c *clusterClock) { c.hear(at(15), 2, past) }, want: at(15)},
		"led before": {hear: func(c *clusterClock) {
			c.wall = func() time.Time { return date(7) }
			c.begin(nobody)
			c.end()
			c.wall = noon
		}, want: at(8)},
		"has a mark":                         {mark: clockMark{1, at(8), wall(10)}, want: at(10)},
		"has a mark of a wall clock behind":  {mark: clockMark{1, at(9), wall(8)}, want: at(13)},
		"has a mark and was set back":        {mark: clockMark{1, at(9), wall(20)}, want: at(9)},
		"was founded by one without a date":  {mark: clockMark{1, at(9).Add(-3 * 24 * time.Hour), wall(11)}, want: at(12)},
		"is told of a time that was kept":    {ask: func() []clockReading { return []clockReading{{at(9), 1, true}} }, want: at(9)},
		"is told of less by one without any": {ask: func() []clockReading { return []clockReading{{Time: at(11)}} }, want: at(11)},
		"is told of more by one without any": {ask: func() []clockReading { return []clockReading{{Time: at(13)}} }, want: at(12)},
	} {
		c := newClusterClock(noon, func() uint64 { return term }, at(8), 1, test.mark)
		if test.hear != nil {
			test.hear(c)
		}
		ask := test.ask
		if ask == nil {
			ask = nobody
		}
		if got := c.begin(ask).Sub(test.want); got < 0 || got > patience {
			t.Errorf("one that %s begins %v off", name, got)
		}
	}
}

func TestWhatSeveralNodesKnowOfTheTime(t *testing.T) {
	const kept = true
	at := clustertime.FromUnix
	for name, test := range map[string]struct {
		known []clockReading
		want  int64
	}{
		"one":                                    {[]clockReading{{at(5), 1, !kept}}, 5},
		"two: the earlier":                       {[]clockReading{{at(5), 1, !kept}, {at(9), 1, !kept}}, 5},
		"three: the middle":                      {[]clockReading{{at(5), 1, !kept}, {at(9), 1, !kept}, {at(7), 1, !kept}}, 7},
		"four: the earlier one of the middle":    {[]clockReading{{at(5), 1, !kept}, {at(9), 1, !kept}, {at(7), 1, !kept}, {at(8), 1, !kept}}, 7},
		"what was kept counts alone":             {[]clockReading{{at(5), 1, !kept}, {at(9), 1, kept}, {at(7), 1, !kept}}, 9},
		"not later than who knows the leader":    {[]clockReading{{at(5), 2, !kept}, {at(9), 1, !kept}, {at(7), 1, !kept}}, 5},
		"who knows the leader may be wrong, too": {[]clockReading{{at(50), 2, !kept}, {at(9), 1, !kept}, {at(7), 1, !kept}}, 9},
	} {
		if got := agreed(test.known); got != at(test.want) {
			t.Errorf("%s: %d, want %d", name, got.UnixNano(), test.want)
		}
	}
}

func TestAMarkIsBelievedOnlyAsItWasWritten(t *testing.T) {
	dir, want := t.TempDir(), clockMark{epoch: 7, time: clustertime.FromUnix(-1), wall: 1 << 60}
	if got := readClockMark(dir); got != (clockMark{}) {
		t.Errorf("in an empty directory: %+v", got)
	}
	for _, sync := range []bool{true, false} {
		if err := want.write(dir, sync); err != nil {
			t.Fatal(err)
		}
		if got := readClockMark(dir); got != want {
			t.Errorf("written %+v, read %+v", want, got)
		}
	}
	for i := range want.encode() {
		b := want.encode()
		b[i] ^= 1
		if got := decodeClockMark(b); got != (clockMark{}) {
			t.Errorf("with byte %d changed: %+v", i, got)
		}
		if got := decodeClockMark(want.encode()[:i]); got != (clockMark{}) {
			t.Errorf("of %d bytes: %+v", i, got)
		}
	}
}

// After a loss of all nodes one clock is wrong, and all are ahead of the cluster time.
func TestNoClockAloneMovesTheTimeOverALossOfAllNodes(t *testing.T) {
	const outage, ahead = 3 * time.Hour, 30 * time.Second
	for _, step := range append(steps(), 0) {
		for victim := range 3 {
			t.Run(fmt.Sprintf("%v/%d", step, victim), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					walls := make([]steppedClock, 3)
					g := newTweakedGroup(t, nil, func(node int, c *Config) { c.WallClock = walls[node].now })
					leader := g.leader(t)
					for i := range walls {
						walls[i].set(ahead)
					}
					epoch := g.nodes[leader].Epoch()
					time.Sleep(3 * clockEvery)
					for i, dir := range g.dirs {
						eventually(t, "the time is noted", func() bool { return readClockMark(dir).epoch == epoch })
						if mark := readClockMark(dir); mark.wall-mark.time.UnixNano() < int64(ahead-time.Second) {
							t.Fatalf("node %d is %v ahead", i, time.Duration(mark.wall-mark.time.UnixNano()))
						}
					}
					set, at := g.nodes[leader].Now(), time.Now()
					for i := range g.nodes {
						g.stop(t, i)
					}
					walls[victim].set(ahead + step)
					time.Sleep(outage)
					for i := range g.nodes {
						g.start(t, i, nil, nil)
					}
					now := g.nodes[g.leader(t)].Now()
					passed := time.Since(at)
					if gone := now.Sub(set); gone > passed+passed/catchUp || gone < outage {
						t.Errorf("in %v, %v were gone", passed, gone)
					}
				})
			})
		}
	}
}

// A leader that is behind its wall clock catches up with it, no faster than it says.
func TestALeaderCatchesUpSlowlyWithItsWallClock(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		wall := new(steppedClock)
		j := opened(t, Config{WallClock: wall.now})
		leading(t, j)
		wall.set(time.Second)
		for range 100 {
			set, at := j.Now(), time.Now()
			time.Sleep(30 * time.Second)
			passed := time.Since(at)
			if gone := j.Now().Sub(set); gone < passed || gone > passed+passed/catchUp {
				t.Fatalf("in %v, %v were gone", passed, gone)
			}
		}
		if behind := ofMachine(wall.now()).Sub(j.Now()); behind.Abs() > time.Millisecond {
			t.Errorf("after 50 minutes it is %v behind", behind)
		}
	})
}

// A node that learned of a record soon is ahead of one that learned of it late. When
// that one has led meanwhile, timers were set by its time.
func TestNoLeaderIsAheadOfTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clocks [3]*clusterClock
		for i := range clocks {
			clocks[i] = newClusterClock(time.Now, func() uint64 { return 1 }, clustertime.Time{}, 0, clockMark{})
		}
		first, soon, late := clocks[0], clocks[1], clocks[2]
		nobody := func() []clockReading { return nil }
		recorded := first.begin(nobody)
		soon.hear(recorded, 1, 1)
		time.Sleep(300 * time.Millisecond)
		late.hear(recorded, 1, 1)
		first.end()
		time.Sleep(time.Millisecond)
		begun := late.begin(nobody)
		late.hear(begun, 2, 1)
		late.lead(2)
		soon.hear(begun, 2, 1)
		time.Sleep(time.Second)
		before := late.now()
		late.end()
		if begun := soon.begin(nobody); begun.After(before) {
			t.Errorf("a leader begins %v ahead of the one before", begun.Sub(before))
		}
		if now := soon.now(); now.Before(recorded.Add(time.Second)) {
			t.Errorf("a second has passed, and the time is %v after it was recorded", now.Sub(recorded))
		}
		// It leads: what is told of its own past does not take it back.
		now := soon.now()
		time.Sleep(time.Second)
		soon.hear(now, 3, 1)
		if got := soon.now(); got != now.Add(time.Second) {
			t.Errorf("its own record has set it back by %v", now.Add(time.Second).Sub(got))
		}
	})
}
