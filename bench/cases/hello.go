package cases

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/bench/yardstick"
	"github.com/tenuto-dev/tenuto/cluster"
)

const (
	// Orchestrations one at a time, to see what one takes.
	aloneMax = 200
	// Operations before anything is measured: a tenth, at most so many.
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
		result.AddLatency("alone", alone, yardstick.CommitP50, yardstick.CommitP99)
		meter := measure.StartMeter()
		loaded, err := e.burst(ctx, "orchestrations", e.N, e.C, d.callSequence("loaded", steps))
		if err != nil {
			return nil, err
		}
		took := meter.Stop(result, "orchestrations", e.N)
		result.AddRate("activities", e.N*steps, took)
		// The start, and each completion with what follows from it.
		addRecords(result, e.N*(steps+1), took.Seconds())
		result.AddLatency("loaded", loaded, yardstick.CommitP50, yardstick.CommitP99)
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

// expect returns the error, or one that says that the result is wrong.
func expect[T comparable](got, want T, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("the result is %v; it has to be %v", got, want)
	}
	return err
}

func addRecords(result *measure.Result, records int, seconds float64) {
	result.Add(measure.Figure{Name: "records", Unit: measure.PerSecond, Value: float64(records) / seconds, Against: yardstick.PackedRecords})
}

// noteProcesses says what the allocations of several processes leave out.
func noteProcesses(result *measure.Result, e *Env) {
	if e.Nodes == ThreeProcesses {
		result.Note = "allocations are those of the leader's process"
	}
}
