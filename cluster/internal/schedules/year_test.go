package schedules

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/replaytest"
)

var (
	count   = replay.Activity[string, int]("count")
	counted = replay.Orchestration[string, int]("counted")
)

// A callCount counts the calls of an activity by instance.
type callCount struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *callCount) add(ctx context.Context, _ string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := replay.ActivityInfo(ctx).Instance
	c.calls[id]++
	return c.calls[id], nil
}

// A year in three zones, with every instance evicted and replayed after each append. Some nights
// the schedules are suspended when they are due: for 3 hours, within the catch-up window, or for 9
// hours. Each due time that is not missed starts one run, and nothing else does.
func TestSchedule_YearInThreeZonesStartsEachDueTimeOnce(t *testing.T) {
	days := 366
	if testing.Short() || shorttest.Race {
		days = 100 // with a change of each clock
	}
	calls := &callCount{calls: make(map[string]int)}
	env := newEnv(t, count.Bind(calls.add), counted.Bind(func(ctx *replay.Context, zone string) (int, error) { return count.Call(ctx, zone) }))
	begin := env.Now()
	end := begin.Add(time.Duration(days) * 24 * time.Hour)
	at := [][2]int{{2, 30}, {2, 30}, {2, 15}} // skipped once a year in their zones
	ids := []string{"berlin", "york", "howe"}
	var want []string
	var missed [3]int
	for i, name := range zones {
		spec := Spec{Calendars: []Calendar{{Hours: []int{at[i][0]}, Minutes: []int{at[i][1]}}}, TimeZone: name, CatchUp: 6 * time.Hour}
		if _, err := replaytest.StartRun(env, Orchestration, ids[i], Input{Spec: spec, Target: Target{counted.Name(), []byte(`"` + name + `"`)}}); err != nil {
			t.Fatal(err)
		}
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for night, due := range expectedDue(zone, at[i][0], at[i][1], begin, end) {
			outage := map[int]time.Duration{3: 3 * time.Hour, 8: 9 * time.Hour}[night%20]
			if outage > 0 {
				scheduleOutage(t, env, ids[i], due.Add(-time.Minute).Sub(begin), outage)
			}
			if outage > spec.CatchUp {
				missed[i]++
			} else {
				want = append(want, runID(spec, ids[i], due, 0))
			}
		}
	}
	env.Advance(end.Sub(begin))

	var got []string
	for _, id := range env.Instances() {
		if strings.Contains(id, "-2000-") {
			got = append(got, id)
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d runs; want %d:\n%v\n%v", len(got), len(want), got, want)
	}
	for _, id := range want {
		if calls.calls[id] != 1 {
			t.Errorf("%s ran %d times", id, calls.calls[id])
		}
	}
	for i, id := range ids {
		d, err := replaytest.Query(env, id, DescribeQuery, env.Now())
		if err != nil || d.Missed != missed[i] || d.Skipped != 0 || d.Started != days-missed[i] && d.Started != days-1-missed[i] {
			t.Errorf("%s: started %d, missed %d, skipped %d; want missed %d; %v", id, d.Started, d.Missed, d.Skipped, missed[i], err)
		}
		if status, err := env.Get(id); err != nil || days == 366 && status.Execution < 3 {
			t.Errorf("%s: execution %d, %v", id, status.Execution, err)
		}
	}
	t.Logf("%d runs, missed %v", len(got), missed)
}

// scheduleOutage suspends a schedule for a time.
func scheduleOutage(t *testing.T, env *replaytest.Env, id string, from, outage time.Duration) {
	env.At(from, func() {
		if err := env.Suspend(id, "an outage"); err != nil {
			t.Error(err)
		}
	})
	env.At(from+outage, func() {
		if err := env.Resume(id, "the end of the outage"); err != nil {
			t.Error(err)
		}
	})
}
