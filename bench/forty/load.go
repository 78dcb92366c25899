package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// A load is callers that run one errand after another until finish.
type load struct {
	app       *application
	ctx       context.Context
	cancel    context.CancelFunc
	callers   sync.WaitGroup
	finishing atomic.Bool
	started   atomic.Int64
	ended     atomic.Int64
	began     time.Time

	mu      sync.Mutex
	places  map[string]int // activities of results, by where they ran
	longest time.Duration
	err     error
}

func (a *application) newLoad(ctx context.Context) *load {
	l := &load{app: a, places: make(map[string]int), began: time.Now()}
	l.ctx, l.cancel = context.WithCancel(ctx)
	for range a.options.callers {
		l.callers.Go(l.call)
	}
	return l
}

// call runs errands, each until it has a result.
func (l *load) call() {
	for l.ctx.Err() == nil && !l.finishing.Load() {
		n := int(l.started.Add(1))
		began := time.Now()
		places, err := l.callUntilAnswered(errandID(n), n)
		l.mu.Lock()
		if err == nil && len(places) != stepsOfErrand {
			err = fmt.Errorf("it has %d results", len(places))
		}
		if err != nil && l.ctx.Err() == nil {
			l.err = errors.Join(l.err, fmt.Errorf("%s: %w", errandID(n), err))
			l.cancel()
		}
		for _, place := range places {
			l.places[place]++
		}
		l.longest = max(l.longest, time.Since(began))
		l.mu.Unlock()
		l.ended.Add(1)
	}
}

func errandID(n int) string { return fmt.Sprintf("errand-%d", n) }

// callUntilAnswered repeats a call under its request ID while the cluster is busy or has no leader.
func (l *load) callUntilAnswered(id string, n int) ([]string, error) {
	for {
		places, err := cluster.Call(l.ctx, l.app.client, errand, id, n, cluster.RequestID(id))
		busy, unavailable := new(cluster.BusyError), new(cluster.UnavailableError)
		switch {
		case errors.As(err, &busy):
			_ = pause(l.ctx, busy.RetryAfter)
		case errors.As(err, &unavailable):
			_ = pause(l.ctx, 100*time.Millisecond)
		default:
			return places, err
		}
		if l.ctx.Err() != nil {
			return nil, l.ctx.Err()
		}
	}
}

// awaitMore waits until n more errands have ended.
func (l *load) awaitMore(ctx context.Context, n int64) error {
	want := l.ended.Load() + n
	return l.app.await(ctx, fmt.Sprintf("%d errands have ended", want), func() (bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.ended.Load() >= want, l.err
	})
}

// finish waits for all results, checks them and prints the figures.
func (l *load) finish(ctx context.Context) error {
	l.finishing.Store(true)
	l.callers.Wait()
	l.cancel()
	took := time.Since(l.began)
	if l.err != nil {
		return l.err
	}
	fmt.Printf("%d orchestrations have their results: %.0f activities/s, the longest took %v\n",
		l.ended.Load(), float64(l.ended.Load()*stepsOfErrand)/took.Seconds(), round(l.longest))
	for _, place := range []string{"leader", "voter", "standby", "worker"} {
		fmt.Printf("  on a %s: %d activities (%.1f%%)\n", place, l.places[place], 100*float64(l.places[place])/float64(l.ended.Load()*stepsOfErrand))
	}
	for n := range l.ended.Load() {
		if err := l.checkHistory(ctx, errandID(int(n)+1)); err != nil {
			return err
		}
	}
	fmt.Printf("each of %d activities has exactly one completion\n", l.ended.Load()*stepsOfErrand)
	return l.checkKilledWorkers()
}

// checkHistory checks that each activity of an errand has exactly one completion.
func (l *load) checkHistory(ctx context.Context, id string) error {
	history, err := l.app.client.History(ctx, id)
	if err != nil {
		return err
	}
	scheduled, completed := 0, make(map[uint64]int)
	for _, event := range history.Events {
		switch event.Type {
		case "ActivityScheduled":
			scheduled++
		case "ActivityCompleted":
			completed[event.SourceEventID]++
			if completed[event.SourceEventID] > 1 {
				return fmt.Errorf("%s: activity %d has two completions", id, event.SourceEventID)
			}
		case "ActivityFailed":
			return fmt.Errorf("%s: an activity failed", id)
		}
	}
	if scheduled != stepsOfErrand || len(completed) != stepsOfErrand {
		return fmt.Errorf("%s: %d activities, %d completed, want %d", id, scheduled, len(completed), stepsOfErrand)
	}
	return nil
}

// checkKilledWorkers checks that what ran on each killed worker began again on another process.
// What it had reported as ended before it was killed did not.
func (l *load) checkKilledWorkers() error {
	places := make(map[begun][]*process)
	for _, p := range l.app.all() {
		for _, b := range p.attempts() {
			places[b] = append(places[b], p)
		}
	}
	again := 0
	for _, killed := range l.app.killed {
		ofThis := 0
		for _, b := range killed.attempts() {
			if slices.ContainsFunc(places[b], func(p *process) bool { return p != killed }) {
				ofThis++
			}
		}
		if again += ofThis; ofThis == 0 {
			return fmt.Errorf("%s was killed while it ran activities, and none of them began again", killed.settings.Name)
		}
	}
	fmt.Printf("%d activities that ran on the %d killed workers began again on others, under the same numbers\n", again, len(l.app.killed))
	return nil
}
