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

func idle(ctx context.Context, e *Env) (*measure.Result, error) {
	result := &measure.Result{}
	for _, kept := range []struct {
		name     string
		resident int
	}{
		{"resident", e.N + 1_000},
		{"evicted", 1},
	} {
		each, err := idleBytes(ctx, e, kept.name, kept.resident)
		if err != nil {
			return nil, err
		}
		result.Add(measure.Figure{Name: kept.name + ", memory each", At: float64(e.N), Unit: measure.Bytes, Value: each})
	}
	return result, nil
}

// idleBytes returns how much memory each of N waiting instances takes when so
// many may stay resident.
func idleBytes(ctx context.Context, e *Env, name string, resident int) (each float64, err error) {
	own := *e
	own.Dir = filepath.Join(e.Dir, name)
	own.Progress = func(what string) { e.Progress(name + ": " + what) }
	d, err := deploy(ctx, &own, func(c *cluster.Config) { c.ResidentMax = resident })
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	before := measure.Retained()
	if err := d.startWaiting(ctx, e.N); err != nil {
		return 0, err
	}
	after, err := settled(ctx)
	return (float64(after) - float64(before)) / float64(e.N), err
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
