package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// callers is how many start one errand after the other.
const callers = 8

// A traffic is orchestrations that are started and waited for without a break.
type traffic struct {
	client  *cluster.Client
	began   time.Time
	stopped chan struct{}
	calling sync.WaitGroup

	mu       sync.Mutex
	started  int
	finished int
	last     time.Time // when one came to its end
	gap      time.Duration
	steps    map[string]int // by the node that took them
	errs     []error
	changed  chan struct{} // closed when one comes to its end
}

func startTraffic(ctx context.Context, client *cluster.Client) *traffic {
	t := &traffic{client: client, began: time.Now(), stopped: make(chan struct{}), steps: make(map[string]int), changed: make(chan struct{})}
	for caller := range callers {
		t.calling.Go(func() {
			var err error
			for n := 1; err == nil && !t.isOver(); n++ {
				err = t.one(ctx, fmt.Sprintf("errand-%d-%d", caller+1, n))
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.errs = append(t.errs, err)
		})
	}
	return t
}

func (t *traffic) isOver() bool {
	select {
	case <-t.stopped:
		return true
	default:
		return false
	}
}

// one has one errand done. Calls that nobody answers, because there is no majority,
// are repeated with the same ID, as any application would.
func (t *traffic) one(ctx context.Context, id string) error {
	run, err := persist(func() (*cluster.Run[[]string], error) {
		return cluster.StartRun(ctx, t.client, Errand, id, id, cluster.Attach())
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.started++
	t.mu.Unlock()
	steps, err := persist(func() ([]string, error) { return run.Wait(ctx) })
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, node := range steps {
		t.steps[node]++
	}
	now := time.Now()
	if t.finished > 0 {
		t.gap = max(t.gap, now.Sub(t.last))
	}
	t.finished, t.last = t.finished+1, now
	close(t.changed)
	t.changed = make(chan struct{})
	return nil
}

// persist repeats what nobody has answered.
func persist[T any](call func() (T, error)) (T, error) {
	for {
		answer, err := call()
		var unavailable *cluster.UnavailableError
		if !errors.As(err, &unavailable) {
			return answer, err
		}
	}
}

// await waits until so many more have finished.
func (t *traffic) await(ctx context.Context, more int) error {
	t.mu.Lock()
	goal := t.finished + more
	t.mu.Unlock()
	for {
		t.mu.Lock()
		finished, changed := t.finished, t.changed
		t.mu.Unlock()
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

func (t *traffic) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("%d started, %d finished | steps taken: n1 %d, n2 %d, n3 %d", t.started, t.finished, t.steps["n1"], t.steps["n2"], t.steps["n3"])
}

// finish starts no more, waits for all that was started, and sums up. What is lost
// the journal says: it was started, and has not come to its end.
func (t *traffic) finish(ctx context.Context) (string, error) {
	close(t.stopped)
	t.calling.Wait()
	completed, err := persist(func() (int, error) {
		return t.client.Count(ctx, cluster.Filter{Name: Errand.Name(), States: []cluster.State{cluster.Completed}})
	})
	summary := fmt.Sprintf("started %d, finished %d, lost %d; none finished for %v at the longest",
		t.started, completed, t.started-completed, t.gap.Round(time.Millisecond))
	return summary, errors.Join(append(t.errs, err)...)
}
