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

func start(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var acknowledged, first measure.Histogram
	for i := -e.N / 10; i < e.N; i++ { // a tenth is for warming up
		ack, activity, err := d.startOne(ctx, fmt.Sprintf("start-%d", i))
		if err != nil {
			return nil, err
		}
		if i >= 0 {
			acknowledged.Record(ack)
			first.Record(activity)
			e.reportProgress("starts", i+1, e.N)
		}
	}
	result = &measure.Result{}
	result.AddLatency("acknowledged", &acknowledged, baseline.CommitP50, baseline.CommitP99)
	result.AddLatency("first activity", &first, baseline.CommitP50, baseline.CommitP99)
	return result, nil
}

// startOne starts an instance and returns the times until the start was acknowledged and until
// the first activity ran. It waits for the end, so that the next one runs alone.
func (d *deployment) startOne(ctx context.Context, id string) (acknowledged, first time.Duration, err error) {
	ran := make(chan time.Time, 1)
	d.code.waiters.Store(id, ran)
	began := time.Now()
	run, err := cluster.StartRun(ctx, d.client(), signaling, id, id)
	if err != nil {
		return 0, 0, err
	}
	acknowledged = time.Since(began)
	if _, err := run.Wait(ctx); err != nil {
		return 0, 0, err
	}
	return acknowledged, (<-ran).Sub(began), nil
}
