package cases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

func failover(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var gaps measure.Histogram
	for round := range e.N {
		e.reportProgress("leaders killed", round, e.N)
		gap, err := d.failOver(ctx, round)
		if err != nil {
			return nil, err
		}
		gaps.Record(gap)
		if err := d.start(ctx); err != nil {
			return nil, err
		}
	}
	result = &measure.Result{}
	result.AddLatency("no start acknowledged for", &gaps, "", "")
	if e.Nodes == ThreeNodes {
		result.Note = "the leader is closed, not killed, because the nodes share a process"
	}
	return result, nil
}

// failOver kills the leader under load and returns the longest time without an acknowledged
// start.
func (d *deployment) failOver(ctx context.Context, round int) (time.Duration, error) {
	if err := d.placeLeader(ctx, false); err != nil {
		return 0, err
	}
	leader, err := d.leader(ctx)
	if err != nil {
		return 0, err
	}
	// Callers use the surviving nodes.
	var clients []*cluster.Client
	for i, node := range d.nodes {
		if i != leader && node != nil {
			clients = append(clients, node.Client())
		}
	}
	load := &load{gap: newGap()}
	load.run(ctx, d.env.C, func(ctx context.Context, i int) error {
		_, err := cluster.StartRun(ctx, clients[i%len(clients)], inSequence, fmt.Sprintf("failover-%d-%d", round, i), 1)
		return err
	})
	// The minimum number of starts before and after the kill.
	const enough = 500
	before, err := load.await(ctx, enough)
	if err == nil {
		load.gap.reset()
		err = d.kill(leader)
	}
	if err == nil {
		_, err = load.await(ctx, before+enough)
	}
	return load.gap.longest(), errors.Join(err, load.stop())
}

// A load calls a function repeatedly.
type load struct {
	gap     *gap
	done    atomic.Int64
	failed  atomic.Pointer[error]
	cancel  context.CancelFunc
	workers sync.WaitGroup
}

func (l *load) run(ctx context.Context, c int, do func(ctx context.Context, i int) error) {
	ctx, l.cancel = context.WithCancel(ctx)
	var next atomic.Int64
	for range c {
		l.workers.Go(func() {
			for ctx.Err() == nil {
				if err := do(ctx, int(next.Add(1))); err != nil {
					if ctx.Err() == nil {
						l.failed.Store(&err)
					}
					return
				}
				l.gap.done()
				l.done.Add(1)
			}
		})
	}
}

// await waits until n calls are done and returns their number.
func (l *load) await(ctx context.Context, n int64) (int64, error) {
	done, err := poll(ctx, "the load", func() (int64, bool) {
		done := l.done.Load()
		return done, done >= n || l.failed.Load() != nil
	})
	if failed := l.failed.Load(); failed != nil {
		return done, *failed
	}
	return done, err
}

// stop ends the load and returns its error.
func (l *load) stop() error {
	l.cancel()
	l.workers.Wait()
	if failed := l.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// A gap is the longest time between two calls of done.
type gap struct {
	mu   sync.Mutex
	last time.Time
	max  time.Duration
}

func newGap() *gap { return &gap{last: time.Now()} }

func (g *gap) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.max = max(g.max, now.Sub(g.last))
	g.last = now
}

func (g *gap) reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.max = 0
}

func (g *gap) longest() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.max
}
