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
	sequenceYoung = 50
	// Each round measures sequenceSteps steps at every age.
	sequenceRounds = 10
	sequenceSteps  = 100
	// The steps of one update while an instance grows.
	sequenceStride = 500
)

func sequence(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	ages := e.sizes(sequenceYoung, 5_000, 50_000)
	for _, age := range ages[1:] {
		if err := d.grow(ctx, ageID(age, 0), age); err != nil {
			return nil, err
		}
	}
	costs := make([][]float64, len(ages))
	for round := range sequenceRounds {
		for i, age := range ages {
			cost, err := d.step(ctx, age, round)
			if err != nil {
				return nil, err
			}
			costs[i] = append(costs[i], float64(cost))
			e.reportProgress("rounds", round+1, sequenceRounds)
		}
	}
	result = &measure.Result{}
	for i, age := range ages {
		result.Add(measure.Metric{Name: "step", At: float64(age), Unit: measure.Duration,
			Value: measure.ExactQuantile(costs[i], 0.5), Baseline: baseline.CommitP50})
	}
	oldest := measure.ExactQuantile(costs[len(costs)-1], 0.5)
	result.Add(measure.Metric{Name: "step of the oldest ÷ step of the youngest", Unit: measure.Times, Value: oldest / measure.ExactQuantile(costs[0], 0.5)})
	return result, nil
}

func ageID(age, round int) string { return fmt.Sprintf("age-%d-%d", age, round) }

// grow starts an instance and makes it take steps.
func (d *deployment) grow(ctx context.Context, id string, steps int) error {
	if _, err := cluster.StartRun(ctx, d.client(), advancing, id, 0); err != nil {
		return err
	}
	for done := 0; done < steps; done += sequenceStride {
		stride := min(sequenceStride, steps-done)
		got, err := cluster.CallUpdate(ctx, d.client(), id, advance, stride)
		if err := expect(got, stride, err); err != nil {
			return err
		}
		d.env.reportProgress("steps", done+stride, steps)
	}
	return nil
}

// step returns the cost of a step of an instance of that age. It starts a new instance for the
// youngest age, because the measured steps age an instance.
func (d *deployment) step(ctx context.Context, age, round int) (time.Duration, error) {
	id := ageID(age, 0)
	if age <= sequenceYoung {
		id = ageID(age, round+1)
		if err := d.grow(ctx, id, age); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	got, err := cluster.CallUpdate(ctx, d.client(), id, advance, sequenceSteps)
	return time.Since(began) / sequenceSteps, expect(got, sequenceSteps, err)
}
