package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/bench/baseline"
	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

const fanoutSmall = 100

func fanout(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	// Each size has the same number of activities, in sequential instances.
	sizes := e.sizes(fanoutSmall, 1_000, 10_000)
	if _, err := d.fan(ctx, "warm-up", min(e.N, 1_000), sizes[0], 1); err != nil {
		return nil, err
	}
	result = &measure.Result{}
	var costs []float64
	for _, size := range sizes {
		took, err := d.fan(ctx, fmt.Sprintf("of %d", size), e.N, size, 1)
		if err != nil {
			return nil, err
		}
		done := e.N / size * size
		costs = append(costs, float64(took)/float64(done))
		result.Add(measure.Metric{Name: "activities, one instance", At: float64(size), Unit: measure.PerSecond,
			Value: float64(done) / took.Seconds(), Baseline: baseline.PackedRecords})
	}
	result.Add(measure.Metric{Name: "cost of an activity, the largest ÷ the smallest", Unit: measure.Times, Value: costs[len(costs)-1] / costs[0]})
	meter := measure.StartMeter()
	if _, err := d.fan(ctx, "many instances", 2*e.N, sizes[0], e.C); err != nil {
		return nil, err
	}
	meter.Stop(result, "activities, many instances", 2*e.N/sizes[0]*sizes[0])
	noteProcesses(result, e)
	return result, nil
}

// fan runs activities in instances of the given size, c instances at a time, and returns how
// long it takes.
func (d *deployment) fan(ctx context.Context, what string, activities, size, c int) (time.Duration, error) {
	began := time.Now()
	_, err := d.env.burst(ctx, what, activities/size, c, func(ctx context.Context, i int) error {
		got, err := cluster.Call(ctx, d.client(), atOnce, fmt.Sprintf("%d-%d", began.UnixNano(), i), size)
		return expect(got, size, err)
	})
	return time.Since(began), err
}
