package cases

import (
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// windowMax bounds how many sequences a window has that does not end by time.
const windowMax = 20_000

// A window is one of the compared parts of a run: sequences, with something beside them or without.
type window struct {
	took      time.Duration
	rate      float64 // of sequences
	processor float64 // seconds of this process for each sequence, with what is beside them
	work      float64 // of what is beside them, each second
}

// A windowPair is two windows that are compared.
type windowPair struct{ without, with window }

// pairWindows runs pairs of windows. It adds their rates, under names with what is beside the
// sequences of one of them, and how much of that was done, under the name and unit of work. run
// runs the number-th window, counted from 0.
func (e *Env) pairWindows(result *measure.Result, beside string, pairs int, work measure.Metric, run func(number int, with bool) (window, error)) (all []windowPair, err error) {
	var rates []float64
	for pair := range pairs {
		e.Progress(fmt.Sprintf("windows, pair %d of %d", pair+1, pairs))
		var p windowPair
		for i := range 2 {
			with := (pair+i)%2 == 1 // the order alternates, against drift
			w, err := run(2*pair+i, with)
			if err != nil {
				return nil, err
			}
			if with {
				p.with = w
			} else {
				p.without = w
			}
		}
		all, rates = append(all, p), append(rates, p.with.rate/p.without.rate)
		at := float64(pair + 1)
		result.Add(measure.Metric{Name: "hello5 without " + beside, At: at, Unit: measure.PerSecond, Value: p.without.rate})
		result.Add(measure.Metric{Name: "hello5 with " + beside, At: at, Unit: measure.PerSecond, Value: p.with.rate})
		work.At, work.Value = at, p.with.work
		result.Add(work)
	}
	addQuartiles(result, "hello5 with "+beside+" ÷ without: rate", rates)
	return all, nil
}

// processorRatios returns the ratio of the processor time of a sequence in each pair.
func processorRatios(pairs []windowPair) (ratios []float64) {
	for _, p := range pairs {
		ratios = append(ratios, p.with.processor/p.without.processor)
	}
	return ratios
}

// addQuartiles adds the median of ratios under a name, and their quartiles under names with a
// suffix.
func addQuartiles(result *measure.Result, name string, ratios []float64) {
	for suffix, quantile := range []float64{0.5, 0.25, 0.75} {
		name := name + []string{"", ", lower quartile", ", upper quartile"}[suffix]
		result.Add(measure.Metric{Name: name, Unit: measure.Times, Value: measure.ExactQuantile(ratios, quantile)})
	}
}
