package cases

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/bench/baseline"
	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

const (
	// The maximum of orchestrations that run alone.
	aloneMax = 200
	// The maximum of warm-up operations, which are a tenth of N.
	warmUpMax = 2_000
)

func hello(steps int) func(context.Context, *Env) (*measure.Result, error) {
	return func(ctx context.Context, e *Env) (result *measure.Result, err error) {
		d, err := deploy(ctx, e, nil)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, d.close()) }()
		if _, err := e.burst(ctx, "warm-up", min(e.N/10, warmUpMax), e.C, d.callSequence("warm", steps)); err != nil {
			return nil, err
		}
		result = &measure.Result{}
		alone, err := e.burst(ctx, "alone", min(e.N, aloneMax), 1, d.callSequence("alone", steps))
		if err != nil {
			return nil, err
		}
		result.AddLatency("alone", alone, baseline.CommitP50, baseline.CommitP99)
		meter := measure.StartMeter()
		loaded, err := e.burst(ctx, "orchestrations", e.N, e.C, d.callSequence("loaded", steps))
		if err != nil {
			return nil, err
		}
		took := meter.Stop(result, "orchestrations", e.N)
		result.AddRate("activities", e.N*steps, took)
		// One record for the start and one for each completion.
		addRecords(result, e.N*(steps+1), took.Seconds())
		result.AddLatency("loaded", loaded, baseline.CommitP50, baseline.CommitP99)
		noteProcesses(result, e)
		return result, nil
	}
}

// callSequence returns a function that runs a sequence to its end.
func (d *deployment) callSequence(prefix string, steps int) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		got, err := cluster.Call(ctx, d.client(), inSequence, fmt.Sprintf("%s-%d", prefix, i), steps)
		return expect(got, steps, err)
	}
}

// expect returns err, or an error if the result is wrong.
func expect[T comparable](got, want T, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("result %v, want %v", got, want)
	}
	return err
}

func addRecords(result *measure.Result, records int, seconds float64) {
	result.Add(measure.Metric{Name: "records", Unit: measure.PerSecond, Value: float64(records) / seconds, Baseline: baseline.PackedRecords})
}

// noteProcesses notes that allocations of other processes are not counted.
func noteProcesses(result *measure.Result, e *Env) {
	if e.Nodes == ThreeProcesses {
		result.Note = "allocations are of the leader's process"
	}
}
