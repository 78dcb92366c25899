package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

func TestClusterClock(t *testing.T) {
	date := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	at := func(hour int) clustertime.Time { return clusterTimeOf(date(hour)) }
	wall := func(hour int) int64 { return date(hour).UnixNano() }
	noon := func() time.Time { return date(12) }
	noReadings := func() []Reading { return nil }
	const term, past = 7, 6
	for name, test := range map[string]struct {
		hear  func(c *Clock)
		query func() []Reading
		saved Sample
		want  clustertime.Time
	}{
		"has heard nothing":       {want: at(12)},
		"has heard of the past":   {hear: func(c *Clock) { c.Observe(at(9), 2, past) }, want: at(12)},
		"has heard of the leader": {hear: func(c *Clock) { c.Observe(at(9), 2, term) }, want: at(9)},
		"has heard of one that is behind": {hear: func(c *Clock) {
			c.Observe(at(9), 2, past)
			c.base = at(11) // by its monotonic clock
			c.Observe(at(10), 3, term)
		}, want: at(10)},
		"has heard late of the same one": {hear: func(c *Clock) {
			c.Observe(at(9), 2, term)
			c.base = at(11)
			c.Observe(at(10), 2, term)
		}, want: at(11)},
		"recorded is later": {hear: func(c *Clock) { c.Observe(at(15), 2, past) }, want: at(15)},
		"led before": {hear: func(c *Clock) {
			c.wall = func() time.Time { return date(7) }
			c.StartLeading(noReadings)
			c.StopLeading()
			c.wall = noon
		}, want: at(8)},
		"has a mark":                         {saved: Sample{1, at(8), wall(10)}, want: at(10)},
		"has a mark of a wall clock behind":  {saved: Sample{1, at(9), wall(8)}, want: at(13)},
		"has a mark and was set back":        {saved: Sample{1, at(9), wall(20)}, want: at(9)},
		"was founded by one without a date":  {saved: Sample{1, at(9).Add(-3 * 24 * time.Hour), wall(11)}, want: at(12)},
		"is told of a time that was kept":    {query: func() []Reading { return []Reading{{at(9), 1, true}} }, want: at(9)},
		"is told of less by one without any": {query: func() []Reading { return []Reading{{Time: at(11)}} }, want: at(11)},
		"is told of more by one without any": {query: func() []Reading { return []Reading{{Time: at(13)}} }, want: at(12)},
	} {
		c := New(noon, func() uint64 { return term }, at(8), 1, test.saved)
		if test.hear != nil {
			test.hear(c)
		}
		query := test.query
		if query == nil {
			query = noReadings
		}
		if got := c.StartLeading(query).Sub(test.want); got < 0 || got > waittest.Timeout {
			t.Errorf("one that %s begins %v off", name, got)
		}
	}
}

func TestClusterTime_MedianOfReadings(t *testing.T) {
	const current = true
	at := clustertime.FromUnixNano
	for name, test := range map[string]struct {
		known []Reading
		want  int64
	}{
		"one":                                    {[]Reading{{at(5), 1, !current}}, 5},
		"two: the earlier":                       {[]Reading{{at(5), 1, !current}, {at(9), 1, !current}}, 5},
		"three: the middle":                      {[]Reading{{at(5), 1, !current}, {at(9), 1, !current}, {at(7), 1, !current}}, 7},
		"four: the earlier one of the middle":    {[]Reading{{at(5), 1, !current}, {at(9), 1, !current}, {at(7), 1, !current}, {at(8), 1, !current}}, 7},
		"what was kept counts alone":             {[]Reading{{at(5), 1, !current}, {at(9), 1, current}, {at(7), 1, !current}}, 9},
		"not later than who knows the leader":    {[]Reading{{at(5), 2, !current}, {at(9), 1, !current}, {at(7), 1, !current}}, 5},
		"who knows the leader may be wrong, too": {[]Reading{{at(50), 2, !current}, {at(9), 1, !current}, {at(7), 1, !current}}, 9},
	} {
		if got := combineReadings(test.known); got != at(test.want) {
			t.Errorf("%s: %d, want %d", name, got.UnixNano(), test.want)
		}
	}
}

func TestClockSample_RejectsDamagedFile(t *testing.T) {
	dir, want := t.TempDir(), Sample{Epoch: 7, Time: clustertime.FromUnixNano(-1), Wall: 1 << 60}
	if got := ReadSample(dir); got != (Sample{}) {
		t.Errorf("in an empty directory: %+v", got)
	}
	for _, sync := range []bool{true, false} {
		if err := want.write(dir, sync); err != nil {
			t.Fatal(err)
		}
		if got := ReadSample(dir); got != want {
			t.Errorf("written %+v, read %+v", want, got)
		}
	}
	for i := range want.encode() {
		b := want.encode()
		b[i] ^= 1
		if got := decodeSample(b); got != (Sample{}) {
			t.Errorf("with byte %d changed: %+v", i, got)
		}
		if got := decodeSample(want.encode()[:i]); got != (Sample{}) {
			t.Errorf("of %d bytes: %+v", i, got)
		}
	}
}

// A node that received a record early is ahead of one that received it late. If the latter has led
// meanwhile, timers were set by its time.
func TestClusterTime_NewLeaderNotAheadOfOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var clocks [3]*Clock
		for i := range clocks {
			clocks[i] = New(time.Now, func() uint64 { return 1 }, clustertime.Time{}, 0, Sample{})
		}
		first, soon, late := clocks[0], clocks[1], clocks[2]
		noReadings := func() []Reading { return nil }
		recorded := first.StartLeading(noReadings)
		soon.Observe(recorded, 1, 1)
		time.Sleep(300 * time.Millisecond)
		late.Observe(recorded, 1, 1)
		first.StopLeading()
		time.Sleep(time.Millisecond)
		started := late.StartLeading(noReadings)
		late.Observe(started, 2, 1)
		late.SetLeaderEpoch(2)
		soon.Observe(started, 2, 1)
		time.Sleep(time.Second)
		before := late.Now()
		late.StopLeading()
		if started := soon.StartLeading(noReadings); started.After(before) {
			t.Errorf("a leader begins %v ahead of the previous one", started.Sub(before))
		}
		if now := soon.Now(); now.Before(recorded.Add(time.Second)) {
			t.Errorf("a second has passed, but the time is %v after its record", now.Sub(recorded))
		}
		// It leads: records of its own past do not set it back.
		now := soon.Now()
		time.Sleep(time.Second)
		soon.Observe(now, 3, 1)
		if got := soon.Now(); got != now.Add(time.Second) {
			t.Errorf("its own record has set it back by %v", now.Add(time.Second).Sub(got))
		}
	})
}

// clusterTimeOf returns the cluster time that a machine's correct clock shows.
func clusterTimeOf(t time.Time) clustertime.Time { return clustertime.FromUnixNano(t.UnixNano()) }
