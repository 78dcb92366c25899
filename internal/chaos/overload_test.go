package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

func TestSumMetric(t *testing.T) {
	const metrics = `# TYPE ended_total counter
ended_total{orchestration="a",outcome="completed"} 17
ended_total{orchestration="a",outcome="failed"} 1
ended_total{orchestration="b",outcome="completed"} 4
ended_total{orchestration="a",outcome="completed",node="n2"} 2
ended_total_of_another{orchestration="a",outcome="completed"} 1000
`
	got, err := sumMetric(strings.NewReader(metrics), "ended_total", "a", "completed")
	if err != nil || got != 19 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := sumMetric(strings.NewReader(`ended_total{} much`), "ended_total"); err == nil {
		t.Error("a value that is not a number was parsed")
	}
}

// calls returns n calls that began in a second and took the given time.
func calls(second int, took time.Duration, failure string, n int) []host.LoadCall {
	one := host.LoadCall{At: time.Duration(second) * time.Second, Took: took, Failure: failure}
	return slices.Repeat([]host.LoadCall{one}, n)
}

func TestGoodSeconds(t *testing.T) {
	const slow, fast, limit = time.Second, time.Millisecond, 10 * time.Millisecond
	got := goodSeconds(slices.Concat(
		calls(4, fast, "", 10), // calls are reported in the order of their ends
		calls(0, fast, "", 199), calls(0, slow, "", 1),
		calls(1, fast, "", 100), calls(1, slow, "", 2),
		calls(2, fast, "", 100), calls(2, fast, host.Busy, 3),
		calls(3, fast, "", 100),
	), limit)
	if want := []bool{true, false, false, true, true}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRecoveredAfter(t *testing.T) {
	good, bad := slices.Repeat([]bool{true}, recoverRun), []bool{false}
	for _, c := range []struct {
		name    string
		seconds []bool
		want    time.Duration
		slow    int
		ok      bool
	}{
		{"at once", good, 0, 0, true},
		{"after some that are too few", slices.Concat(good[1:], bad, good), recoverRun * time.Second, 0, true},
		{"a slow one later", slices.Concat(good, good, bad, good, bad), 0, 2, true},
		{"never", slices.Concat(good[1:], bad, good[1:]), recoverRun * time.Second, 0, false},
		{"nothing to see", nil, 0, 0, false},
	} {
		if got, slow, ok := recoveredAfter(c.seconds); got != c.want || slow != c.slow || ok != c.ok {
			t.Errorf("%s: %v, %d, %v", c.name, got, slow, ok)
		}
	}
}

func TestCheckRecovery_ComparesWithBefore(t *testing.T) {
	seconds := func(took time.Duration) (all []host.LoadCall) {
		for second := range recoverRun {
			all = append(all, calls(second, took, "", 10)...)
		}
		return all
	}
	for name, c := range map[string]struct {
		after  []host.LoadCall
		missed int
	}{
		"as before":    {after: seconds(100 * time.Millisecond)},
		"much slower":  {after: seconds(time.Second), missed: 1},
		"nothing came": {missed: 1},
	} {
		o := &overload{out: new(bytes.Buffer)}
		if o.checkRecovery(seconds(100*time.Millisecond), c.after); len(o.missedGoals) != c.missed {
			t.Errorf("%s: %q", name, o.missedGoals)
		}
	}
}

func TestOverload_ReportsMissedGoals(t *testing.T) {
	var out bytes.Buffer
	o := &overload{out: &out}
	over := &phase{
		duration: time.Second,
		calls:    slices.Concat(calls(0, time.Millisecond, "", 50), calls(0, time.Second, host.Busy, 9), calls(0, 0, host.OverLimit, 1)),
		memory:   [][]int{{1 << 20, 1 << 20, 4 << 20}, {1 << 20, 1 << 20, 1 << 20}},
	}
	o.report("over", over)
	o.checkSurge(&surge{rounds: []*phase{over}, shares: []float64{0.5}})
	o.checkMemory(over.memory)
	if len(o.missedGoals) != 3 || strings.Count(out.String(), "NOT MET") != 3 || !strings.Contains(out.String(), "1: swamped") {
		t.Errorf("%q\n%s", o.missedGoals, &out)
	}
}

func TestCheckSurge_NeedsRejections(t *testing.T) {
	for name, c := range map[string]struct {
		rejected, missed int
		insist           bool
	}{
		"none":                    {missed: 1},
		"some":                    {rejected: 1},
		"hidden by their callers": {insist: true},
	} {
		o := &overload{out: new(bytes.Buffer)}
		over := &phase{duration: time.Second, calls: slices.Concat(calls(0, time.Millisecond, "", 100), calls(0, 0, host.Busy, c.rejected))}
		s := &surge{retryBusy: c.insist, rounds: []*phase{over}, shares: []float64{1}}
		if o.checkSurge(s); len(o.missedGoals) != c.missed {
			t.Errorf("%s: %q", name, o.missedGoals)
		}
	}
}

func TestGoodput_ExcludesLateEnds(t *testing.T) {
	p := &phase{duration: 2 * time.Second, calls: slices.Concat(
		calls(0, time.Second, "", 8), calls(1, 2*time.Second, "", 4), calls(0, time.Second, host.Busy, 2))}
	if got := p.goodput(); got != 4 {
		t.Errorf("%v", got)
	}
}

func TestCheckSurge_UsesMedian(t *testing.T) {
	for name, c := range map[string]struct {
		shares []float64
		missed int
	}{
		"one bad moment":  {[]float64{0.95, 0.2, 0.91, 0.9, 1.1}, 0},
		"one good moment": {[]float64{0.85, 0.89, 0.8, 0.95, 0.9}, 1},
	} {
		o := &overload{out: new(bytes.Buffer)}
		s := &surge{retryBusy: true, shares: c.shares}
		if o.checkSurge(s); len(o.missedGoals) != c.missed {
			t.Errorf("%s: %q", name, o.missedGoals)
		}
	}
}

func TestCheckMemory_SumsNodes(t *testing.T) {
	o := &overload{out: new(bytes.Buffer)}
	if o.checkMemory([][]int{{5, 5, 5, 9, 9, 9}, {9, 9, 9, 5, 5, 5}}); len(o.missedGoals) != 0 {
		t.Errorf("%q", o.missedGoals)
	}
}

func TestCheckMemory_DetectsGrowth(t *testing.T) {
	for name, c := range map[string]struct {
		samples []int
		missed  int
	}{
		"one peak":       {[]int{5, 5, 5, 5, 5, 5, 5, 9, 5}, 0},
		"up and down":    {[]int{5, 9, 7, 5, 9, 7, 5, 9, 7}, 0},
		"always more":    {[]int{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1},
		"too few to say": {[]int{1, 9}, 0},
	} {
		o := &overload{out: new(bytes.Buffer)}
		if o.checkMemory([][]int{c.samples, make([]int, len(c.samples)+1)}); len(o.missedGoals) != c.missed {
			t.Errorf("%s: %q", name, o.missedGoals)
		}
	}
}
