package cases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/bench/baseline"
	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

const (
	// All timers are due within this time.
	timersWithin = time.Second
	// The first timer is due this long after 1.5 times the predicted duration of all starts.
	timersSlack = time.Second
	// The number of starts from which the duration of all starts is predicted.
	timersSampled = 5_000
	// One in so many timers has a waiter.
	timersWatched = 100
)

func timers(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, func(c *cluster.Config) { c.ResidentMax = e.N + 10_000 })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	sampled := min(e.N, timersSampled)
	began := time.Now()
	if _, err := e.burst(ctx, "warm-up", sampled, e.C, func(ctx context.Context, i int) error {
		_, err := cluster.StartRun(ctx, d.client(), sleeping, fmt.Sprintf("warm-%d", i), time.Now().UnixNano())
		return err
	}); err != nil {
		return nil, err
	}
	starting := time.Since(began) * time.Duration(e.N) / time.Duration(sampled)
	t := &timing{d: d, first: time.Now().Add(starting + starting/2 + timersSlack)}
	if err := t.run(ctx); err != nil {
		return nil, err
	}
	return t.result(), nil
}

// A timing is one run of many timers.
type timing struct {
	d     *deployment
	first time.Time // when the first is due

	mu             sync.Mutex
	seen           measure.Histogram // lateness seen by waiters
	recorded       measure.Histogram
	early          int
	overdueAtStart int // due before they were set
	cost           measure.Result
}

func (t *timing) due(i int) time.Time {
	return t.first.Add(timersWithin * time.Duration(i) / time.Duration(t.d.env.N))
}

// run sets the timers and waits until all have fired. Every hundredth has a waiter; the others
// are read afterwards, because a client for each would dominate the measurement. The cost of
// firing is counted from the moment at which all are set.
func (t *timing) run(ctx context.Context) error {
	waiters, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiting sync.WaitGroup
	errs := make(chan error, 1)
	e := t.d.env
	runs := make([]*cluster.Run[time.Duration], e.N)
	set := make([]time.Time, e.N)
	_, err := e.burst(ctx, "timers set", e.N, e.C, func(ctx context.Context, i int) (err error) {
		runs[i], err = cluster.StartRun(ctx, t.d.client(), sleeping, fmt.Sprintf("timer-%d", i), t.due(i).UnixNano())
		set[i] = time.Now()
		if err != nil || !t.isWatched(i) {
			return err
		}
		waiting.Go(func() {
			if err := t.watch(waiters, runs[i], i, set[i]); err != nil {
				select {
				case errs <- err:
				default:
				}
			}
		})
		return nil
	})
	if err != nil {
		cancel()
	}
	meter := measure.StartMeter()
	waiting.Wait()
	meter.StopCost(&t.cost, "fired", e.N)
	close(errs)
	if err := errors.Join(err, <-errs); err != nil {
		return err
	}
	_, err = e.burst(ctx, "timers read", e.N, e.C, func(ctx context.Context, i int) error {
		late, err := runs[i].Wait(ctx)
		if err == nil {
			t.recordFired(t.due(i), set[i], late)
		}
		return err
	})
	return err
}

// isWatched reports whether a timer has a waiter: every hundredth, and the last.
func (t *timing) isWatched(i int) bool { return i%timersWatched == 0 || i == t.d.env.N-1 }

// watch waits for a timer to fire.
func (t *timing) watch(ctx context.Context, run *cluster.Run[time.Duration], i int, set time.Time) error {
	if _, err := run.Wait(ctx); err != nil {
		return err
	}
	seen := time.Since(t.due(i))
	t.mu.Lock()
	defer t.mu.Unlock()
	if !set.After(t.due(i)) {
		t.seen.Record(seen)
	}
	return nil
}

// recordFired records the recorded lateness of a timer.
func (t *timing) recordFired(due, set time.Time, late time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if late < 0 {
		t.early++
	}
	if set.After(due) {
		t.overdueAtStart++
		return
	}
	t.recorded.Record(late)
}

func (t *timing) result() *measure.Result {
	result := &t.cost
	result.AddLatency("late, as its waiter sees", &t.seen, baseline.CommitP50, baseline.CommitP99)
	result.AddLatency("late, as recorded", &t.recorded, "", "")
	result.Add(measure.Metric{Name: "early", Unit: measure.Count, Value: float64(t.early)})
	if t.overdueAtStart > 0 {
		result.Note = fmt.Sprintf("%d timers excluded: due before they were set", t.overdueAtStart)
	}
	return result
}
