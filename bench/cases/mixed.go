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

const (
	mixedSteps  = 3
	mixedFanout = 10
	mixedSleep  = 10 * time.Millisecond
)

func mixed(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if _, err := e.burst(ctx, "warm-up", min(e.N/10, warmUpMax), e.C, d.callMixed("warm")); err != nil {
		return nil, err
	}
	result = &measure.Result{}
	meter := measure.StartMeter()
	latency, err := e.burst(ctx, "orchestrations", e.N, e.C, d.callMixed("mixed"))
	if err != nil {
		return nil, err
	}
	took := meter.Stop(result, "orchestrations", e.N)
	addRecords(result, mixedRecords(e.N), took.Seconds())
	result.AddLatency("each", latency, baseline.CommitP50, baseline.CommitP99)
	noteProcesses(result, e)
	return result, nil
}

// callMixed returns a function that runs one orchestration. Of ten, five are sequences, two
// fan out, and one each sleeps, has children, and waits for an event.
func (d *deployment) callMixed(prefix string) func(context.Context, int) error {
	inSequence := d.callSequence(prefix, mixedSteps)
	inTree := d.callTree(prefix, 1, treeWidth)
	return func(ctx context.Context, i int) error {
		id := fmt.Sprintf("%s-%d", prefix, i)
		switch i % 10 {
		case 0, 1, 2, 3, 4:
			return inSequence(ctx, i)
		case 5, 6:
			got, err := cluster.Call(ctx, d.client(), atOnce, id, mixedFanout)
			return expect(got, mixedFanout, err)
		case 7:
			_, err := cluster.Call(ctx, d.client(), sleeping, id, time.Now().Add(mixedSleep).UnixNano())
			return err
		case 8:
			return inTree(ctx, i)
		default:
			return d.callWithEvent(ctx, id)
		}
	}
}

func (d *deployment) callWithEvent(ctx context.Context, id string) error {
	run, err := cluster.StartRun(ctx, d.client(), collecting, id, 1)
	if err != nil {
		return err
	}
	if err := cluster.Send(ctx, d.client(), id, word, 1); err != nil {
		return err
	}
	got, err := run.Wait(ctx)
	return expect(got, 1, err)
}

// mixedRecords returns the minimum number of records of n orchestrations: concurrent
// completions may share a record.
func mixedRecords(n int) int {
	each := [10]int{4, 4, 4, 4, 4, 2, 2, 2, 2 + 2*treeWidth, 2}
	records := 0
	for i := range n {
		records += each[i%10]
	}
	return records
}
