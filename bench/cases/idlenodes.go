package cases

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// idleNodesWarmUp is the pause before the measurement. The work of starting the nodes ends in it.
const idleNodesWarmUp = 3 * time.Second

// idleNodes measures nodes without load for N seconds.
func idleNodes(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	e.Progress("settling")
	if err := sleep(ctx, idleNodesWarmUp); err != nil {
		return nil, err
	}
	e.Progress("waiting")
	before, processor, began := measure.Wakeups(), measure.ProcessorTime(), time.Now()
	if err := sleep(ctx, time.Duration(e.N)*time.Second); err != nil {
		return nil, err
	}
	took, nodes := time.Since(began), len(d.nodes)
	result = &measure.Result{}
	result.AddRate("wake-ups of goroutines, each node", int(measure.Wakeups()-before)/nodes, took)
	result.Add(measure.Metric{Name: "processor time of each node in a second", Unit: measure.Duration,
		Value: float64(measure.ProcessorTime()-processor) / float64(nodes) / took.Seconds()})
	return result, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
