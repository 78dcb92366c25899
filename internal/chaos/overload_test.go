package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

func TestFiguresOfANodeAreAddedUp(t *testing.T) {
	const figures = `# TYPE ended_total counter
ended_total{orchestration="a",outcome="completed"} 17
ended_total{orchestration="a",outcome="failed"} 1
ended_total{orchestration="b",outcome="completed"} 4
ended_total{orchestration="a",outcome="completed",node="n2"} 2
ended_total_of_another{orchestration="a",outcome="completed"} 1000
`
	got, err := sumOf(strings.NewReader(figures), "ended_total", "a", "completed")
	if err != nil || got != 19 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := sumOf(strings.NewReader(`ended_total{} much`), "ended_total"); err == nil {
		t.Error("what is no number is none")
	}
}

// calls returns some that began in a second and took so long.
func calls(second int, took time.Duration, trouble string, n int) []host.Pressed {
	one := host.Pressed{At: time.Duration(second) * time.Second, Took: took, Trouble: trouble}
	return slices.Repeat([]host.Pressed{one}, n)
}

func TestASecondIsGoodWhenNearlyAllOfItIs(t *testing.T) {
	const slow, fast, limit = time.Second, time.Millisecond, 10 * time.Millisecond
	got := secondsOf(slices.Concat(
		calls(4, fast, "", 10), // they are told in the order of their ends
		calls(0, fast, "", 199), calls(0, slow, "", 1),
		calls(1, fast, "", 100), calls(1, slow, "", 2),
		calls(2, fast, "", 100), calls(2, fast, host.Busy, 3),
		calls(3, fast, "", 100),
	), limit)
	if want := []bool{true, false, false, true, true}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRecoveryIsTheFirstOfSomeGoodSeconds(t *testing.T) {
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

func TestRecoveryIsMeasuredByWhatWasBefore(t *testing.T) {
	seconds := func(took time.Duration) (all []host.Pressed) {
		for second := range recoverRun {
			all = append(all, calls(second, took, "", 10)...)
		}
		return all
	}
	for name, c := range map[string]struct {
		after  []host.Pressed
		missed int
	}{
		"as before":    {after: seconds(100 * time.Millisecond)},
		"much slower":  {after: seconds(time.Second), missed: 1},
		"nothing came": {missed: 1},
	} {
		o := &overload{out: new(bytes.Buffer)}
		if o.judgeRecovery(seconds(100*time.Millisecond), c.after); len(o.missed) != c.missed {
			t.Errorf("%s: %q", name, o.missed)
		}
	}
}

func TestAGoalThatIsMissedIsSaid(t *testing.T) {
	var out bytes.Buffer
	o := &overload{out: &out}
	over := &phase{
		duration: time.Second,
		calls:    slices.Concat(calls(0, time.Millisecond, "", 50), calls(0, time.Second, host.Busy, 9), calls(0, 0, host.Swamped, 1)),
		memory:   [][]int{{1 << 20, 1 << 20, 4 << 20}, {1 << 20, 1 << 20, 1 << 20}},
	}
	o.tell("over", over)
	o.judgeSurge(&surge{rounds: []*phase{over}, shares: []float64{0.5}})
	o.judgeMemory(over.memory)
	if len(o.missed) != 3 || strings.Count(out.String(), "NOT MET") != 3 || !strings.Contains(out.String(), "1: swamped") {
		t.Errorf("%q\n%s", o.missed, &out)
	}
}

func TestWithoutARefusalAtTwiceTheCapacityAGoalIsMissed(t *testing.T) {
	for name, c := range map[string]struct {
		refused, missed int
		insist          bool
	}{
		"none":                    {missed: 1},
		"some":                    {refused: 1},
		"hidden by their callers": {insist: true},
	} {
		o := &overload{out: new(bytes.Buffer)}
		over := &phase{duration: time.Second, calls: slices.Concat(calls(0, time.Millisecond, "", 100), calls(0, 0, host.Busy, c.refused))}
		s := &surge{insist: c.insist, rounds: []*phase{over}, shares: []float64{1}}
		if o.judgeSurge(s); len(o.missed) != c.missed {
			t.Errorf("%s: %q", name, o.missed)
		}
	}
}

func TestWhatEndsTooLateIsNoGoodput(t *testing.T) {
	p := &phase{duration: 2 * time.Second, calls: slices.Concat(
		calls(0, time.Second, "", 8), calls(1, 2*time.Second, "", 4), calls(0, time.Second, host.Busy, 2))}
	if got := p.goodput(); got != 4 {
		t.Errorf("%v", got)
	}
}

func TestTheMiddleOfTheRoundsIsWhatCounts(t *testing.T) {
	for name, c := range map[string]struct {
		shares []float64
		missed int
	}{
		"one bad moment":  {[]float64{0.95, 0.2, 0.91, 0.9, 1.1}, 0},
		"one good moment": {[]float64{0.85, 0.89, 0.8, 0.95, 0.9}, 1},
	} {
		o := &overload{out: new(bytes.Buffer)}
		s := &surge{insist: true, shares: c.shares}
		if o.judgeSurge(s); len(o.missed) != c.missed {
			t.Errorf("%s: %q", name, o.missed)
		}
	}
}

func TestMemoryThatGoesFromOneNodeToAnotherIsFlat(t *testing.T) {
	o := &overload{out: new(bytes.Buffer)}
	if o.judgeMemory([][]int{{5, 5, 5, 9, 9, 9}, {9, 9, 9, 5, 5, 5}}); len(o.missed) != 0 {
		t.Errorf("%q", o.missed)
	}
}

func TestMemoryGrowsWhenMostOfItsSamplesDo(t *testing.T) {
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
		if o.judgeMemory([][]int{c.samples, make([]int, len(c.samples)+1)}); len(o.missed) != c.missed {
			t.Errorf("%s: %q", name, o.missed)
		}
	}
}
