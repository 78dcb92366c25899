package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// callers is the number of concurrent callers. Each runs one errand (an orchestration of two steps)
// after another.
const callers = 8

// A loadGenerator starts orchestrations and waits for them, continuously.
type loadGenerator struct {
	client    *cluster.Client
	startedAt time.Time
	stopped   chan struct{}
	running   sync.WaitGroup

	mu           sync.Mutex
	started      int
	finished     int
	lastFinished time.Time
	longestGap   time.Duration
	steps        map[string]int // by the node that ran them
	errs         []error
	changed      chan struct{} // closed and replaced when one finishes
}

func startLoad(ctx context.Context, client *cluster.Client) *loadGenerator {
	t := &loadGenerator{client: client, startedAt: time.Now(), stopped: make(chan struct{}), steps: make(map[string]int), changed: make(chan struct{})}
	for caller := range callers {
		t.running.Go(func() {
			var err error
			for n := 1; err == nil && !t.isStopped(); n++ {
				err = t.runErrand(ctx, fmt.Sprintf("errand-%d-%d", caller+1, n))
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.errs = append(t.errs, err)
		})
	}
	return t
}

func (l *loadGenerator) isStopped() bool {
	select {
	case <-l.stopped:
		return true
	default:
		return false
	}
}

// runErrand runs one errand. It repeats unanswered calls with the same ID, as any application
// would.
func (l *loadGenerator) runErrand(ctx context.Context, id string) error {
	run, err := retryUnavailable(func() (*cluster.Run[[]string], error) {
		return cluster.StartRun(ctx, l.client, Errand, id, id, cluster.Attach())
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.started++
	l.mu.Unlock()
	steps, err := retryUnavailable(func() ([]string, error) { return run.Wait(ctx) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, node := range steps {
		l.steps[node]++
	}
	now := time.Now()
	if l.finished > 0 {
		l.longestGap = max(l.longestGap, now.Sub(l.lastFinished))
	}
	l.finished, l.lastFinished = l.finished+1, now
	close(l.changed)
	l.changed = make(chan struct{})
	return nil
}

// retryUnavailable repeats a call until it is answered.
func retryUnavailable[T any](call func() (T, error)) (T, error) {
	for {
		answer, err := call()
		var unavailable *cluster.UnavailableError
		if !errors.As(err, &unavailable) {
			return answer, err
		}
	}
}

// await waits until more errands have finished.
func (l *loadGenerator) await(ctx context.Context, more int) error {
	l.mu.Lock()
	goal := l.finished + more
	l.mu.Unlock()
	for {
		l.mu.Lock()
		finished, changed := l.finished, l.changed
		l.mu.Unlock()
		if finished >= goal {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *loadGenerator) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d started, %d finished | steps taken: n1 %d, n2 %d, n3 %d", l.started, l.finished, l.steps["n1"], l.steps["n2"], l.steps["n3"])
}

// finish stops starting errands, waits for those started, and returns a summary. Lost errands
// are those that were started but are not completed in the journal.
func (l *loadGenerator) finish(ctx context.Context) (string, error) {
	close(l.stopped)
	l.running.Wait()
	completed, err := retryUnavailable(func() (int, error) {
		return l.client.Count(ctx, cluster.Filter{Name: Errand.Name(), States: []cluster.State{cluster.Completed}})
	})
	summary := fmt.Sprintf("started %d, finished %d, lost %d; longest time without a finished one %v",
		l.started, completed, l.started-completed, l.longestGap.Round(time.Millisecond))
	return summary, errors.Join(append(l.errs, err)...)
}
