package cases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

// Nodes is the number and place of nodes.
type Nodes string

// The values of Nodes.
const (
	OneNode        Nodes = "1"
	ThreeNodes     Nodes = "3"  // in this process
	ThreeProcesses Nodes = "3p" // the leader in this process, and two others
)

// AllNodes are all values of Nodes.
var AllNodes = []Nodes{OneNode, ThreeNodes, ThreeProcesses}

func (n Nodes) count() int {
	if n == OneNode {
		return 1
	}
	return 3
}

// Env is the environment of a case.
type Env struct {
	// An empty directory for the nodes' data.
	Dir string
	// A directory for data that is expensive to make and that later runs may use again. "" means
	// that there are no later runs.
	Keep  string
	Nodes Nodes
	// The number of partitions; 0 means 1. Must be 1 with ThreeProcesses.
	Partitions int
	// The amount and the concurrency.
	N, C int
	// Called with a description of what the case is doing.
	Progress func(string)
	// Of the nodes.
	Logger *slog.Logger
}

// burst calls do n times, at most c at a time, until the first error, and returns the
// latencies.
func (e *Env) burst(ctx context.Context, what string, n, c int, do func(ctx context.Context, i int) error) (*measure.Histogram, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	var mu sync.Mutex
	latency := &measure.Histogram{}
	took := func(d time.Duration) (done int) {
		mu.Lock()
		defer mu.Unlock()
		latency.Record(d)
		return int(latency.Count())
	}
	for range min(n, c) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				began := time.Now()
				if err := retryBusy(ctx, i, do); err != nil {
					cancel(fmt.Errorf("%s %d: %w", what, i, err))
					return
				}
				e.reportProgress(what, took(time.Since(began)), n)
			}
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return latency, nil
}

// retryBusy retries while the cluster is overloaded. The wait counts as latency.
func retryBusy(ctx context.Context, i int, do func(ctx context.Context, i int) error) error {
	for {
		err := do(ctx, i)
		var busy *cluster.BusyError
		if !errors.As(err, &busy) {
			return err
		}
		select {
		case <-time.After(busy.RetryAfter):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reportProgress reports each hundredth of the progress.
func (e *Env) reportProgress(what string, done, n int) {
	if part := max(1, n/100); done%part == 0 {
		e.Progress(fmt.Sprintf("%s %d of %d", what, done, n))
	}
}

// sizes returns the sizes that are at most N, or N if all are larger.
func (e *Env) sizes(sizes ...int) []int {
	var fitting []int
	for _, size := range sizes {
		if size <= e.N {
			fitting = append(fitting, size)
		}
	}
	if len(fitting) == 0 {
		return []int{e.N}
	}
	return fitting
}
