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

// Nodes says how many nodes there are, and where.
type Nodes string

// The numbers of nodes.
const (
	OneNode        Nodes = "1"
	ThreeNodes     Nodes = "3"  // in this process
	ThreeProcesses Nodes = "3p" // one in this process, which leads, and two others
)

// AllNodes are the values that Nodes can have.
var AllNodes = []Nodes{OneNode, ThreeNodes, ThreeProcesses}

func (n Nodes) count() int {
	if n == OneNode {
		return 1
	}
	return 3
}

// Env is where and how much.
type Env struct {
	// For the nodes' data; exists and is empty.
	Dir   string
	Nodes Nodes
	// How many Raft groups the nodes have; 0 means one. More than one not with
	// ThreeProcesses.
	Groups int
	// How much is done, and how much of it at a time.
	N, C int
	// Is told what is being done.
	Progress func(string)
	// Of the nodes.
	Logger *slog.Logger
}

// burst does n things, at most c at a time, until all are done or one has
// failed, and returns how long each took.
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
				if err := patiently(ctx, i, do); err != nil {
					cancel(fmt.Errorf("%s %d: %w", what, i, err))
					return
				}
				e.tell(what, took(time.Since(began)), n)
			}
		})
	}
	workers.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return latency, nil
}

// patiently does a thing again while the cluster is too busy to begin it. The
// wait counts: it is part of how long the thing takes.
func patiently(ctx context.Context, i int, do func(ctx context.Context, i int) error) error {
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

// tell reports every hundredth part of the progress.
func (e *Env) tell(what string, done, n int) {
	if part := max(1, n/100); done%part == 0 {
		e.Progress(fmt.Sprintf("%s %d of %d", what, done, n))
	}
}

// sizes returns those of the sizes that are at most N, or N if it is smaller
// than all.
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
