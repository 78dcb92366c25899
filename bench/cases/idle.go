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
	// Memory has settled when it has not fallen by a hundredth in this time.
	settleTime = 500 * time.Millisecond
	settleMax  = 60
)

// residentShare is the part of N that stays in memory, where all do: what each
// takes does not depend on how many there are.
const residentShare = 10

func idle(ctx context.Context, e *Env) (*measure.Result, error) {
	result := &measure.Result{}
	resident := max(1, e.N/residentShare)
	held, err := idleBytes(ctx, e, "resident", resident, resident)
	if err != nil {
		return nil, err
	}
	addEach(result, "resident, memory each", resident, held[0], resident)
	half := e.N / 2
	held, err = idleBytes(ctx, e, "evicted", 1, half, e.N)
	if err != nil {
		return nil, err
	}
	addEach(result, "evicted, memory each", e.N, held[1], e.N)
	addEach(result, "evicted, memory each of the second half", e.N, held[1]-held[0], e.N-half)
	return result, nil
}

func addEach(result *measure.Result, name string, at int, held float64, instances int) {
	result.Add(measure.Figure{Name: name, At: float64(at), Unit: measure.Bytes, Value: held / float64(max(1, instances))})
}

// idleBytes returns how much memory so many waiting instances take, counted in
// turn, when that many may stay resident. What the node holds whatever there is
// (caches, and the instances that it keeps for being appended to again, up to a
// bound) is among it.
func idleBytes(ctx context.Context, e *Env, name string, residentMax int, counts ...int) (held []float64, err error) {
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
		now, err := settled(ctx)
		if err != nil {
			return nil, err
		}
		held = append(held, float64(now)-float64(before))
	}
	return held, nil
}

// settled waits until the memory held does not fall any more, and returns it.
func settled(ctx context.Context) (uint64, error) {
	held := measure.Retained()
	for range settleMax {
		select {
		case <-time.After(settleTime):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		now := measure.Retained()
		if now > held-held/100 {
			return now, nil
		}
		held = now
	}
	return held, nil
}
