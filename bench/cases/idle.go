package cases

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

const (
	// Memory has settled if it falls by less than 1% in this time.
	settleTime = 500 * time.Millisecond
	settleMax  = 60
)

// residentShare is the divisor of N for resident instances, whose memory does not depend on
// their number.
const residentShare = 10

func idle(ctx context.Context, e *Env) (*measure.Result, error) {
	result := &measure.Result{}
	resident := max(1, e.N/residentShare)
	retained, err := idleBytes(ctx, e, "resident", resident, resident)
	if err != nil {
		return nil, err
	}
	addEach(result, "resident, memory each", resident, retained[0], resident)
	half := e.N / 2
	retained, err = idleBytes(ctx, e, "evicted", 1, half, e.N)
	if err != nil {
		return nil, err
	}
	addEach(result, "evicted, memory each", e.N, retained[1], e.N)
	addEach(result, "evicted, memory each of the second half", e.N, retained[1]-retained[0], e.N-half)
	return result, nil
}

func addEach(result *measure.Result, name string, at int, retained float64, instances int) {
	result.Add(measure.Metric{Name: name, At: float64(at), Unit: measure.Bytes, Value: retained / float64(max(1, instances))})
}

// idleBytes returns the memory of waiting instances after each count, with at most residentMax
// resident. It includes bounded caches of the node.
func idleBytes(ctx context.Context, e *Env, name string, residentMax int, counts ...int) (retained []float64, err error) {
	own := *e
	own.Dir = filepath.Join(e.Dir, name)
	own.Progress = func(what string) { e.Progress(name + ": " + what) }
	d, err := deploy(ctx, &own, func(c *cluster.Config) { c.ResidentMax = residentMax })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	before, started := measure.Retained(), 0
	for _, count := range counts {
		if err := d.startWaiting(ctx, started, count); err != nil {
			return nil, err
		}
		started = count
		now, err := settledMemory(ctx)
		if err != nil {
			return nil, err
		}
		retained = append(retained, float64(now)-float64(before))
	}
	return retained, nil
}

// settledMemory waits until the retained memory stops falling, and returns it.
func settledMemory(ctx context.Context) (uint64, error) {
	retained := measure.Retained()
	for range settleMax {
		select {
		case <-time.After(settleTime):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		now := measure.Retained()
		if now > retained-retained/100 {
			return now, nil
		}
		retained = now
	}
	return retained, nil
}
