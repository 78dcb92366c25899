package cases

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// How many pairs of windows with and without open pages there are, and how many sequences a window
// has, at most.
const windowPairs, windowMax = 10, 20_000

// compareWindows runs sequences with and without open pages alternately, and adds how the windows
// differ.
func (s *dashboardServer) compareWindows(ctx context.Context, result *measure.Result) error {
	n, pairs := min(s.env.N, windowMax), min(windowPairs, max(2, s.env.N/1_000))
	if _, err := s.window(ctx, 0, min(n, warmUpMax), false); err != nil {
		return err
	}
	var rates, costs, shares []float64
	for pair := range pairs {
		s.env.Progress(fmt.Sprintf("windows, pair %d of %d", pair+1, pairs))
		var without, with window
		for i := range 2 {
			open := (pair+i)%2 == 1 // the order alternates, against drift
			w, err := s.window(ctx, 1+2*pair+i, n, open)
			switch {
			case err != nil:
				return err
			case open:
				with = w
			default:
				without = w
			}
		}
		rates = append(rates, with.rate/without.rate)
		costs = append(costs, float64(with.processor)/float64(without.processor))
		more := with.processor - without.processor
		shares = append(shares, more.Seconds()/with.took.Seconds()/float64(runtime.GOMAXPROCS(0)))
		at := float64(pair + 1)
		result.Add(measure.Metric{Name: "hello5 without pages", At: at, Unit: measure.PerSecond, Value: without.rate})
		result.Add(measure.Metric{Name: "hello5 with pages", At: at, Unit: measure.PerSecond, Value: with.rate})
		result.Add(measure.Metric{Name: "events and reads of pages each second", At: at, Unit: measure.Count, Value: with.work})
	}
	addQuartiles(result, "hello5 with pages ÷ without: rate", rates)
	addQuartiles(result, "hello5 with pages ÷ without: processor time", costs)
	// If other programs use the machine, the sequences get less than all of it, but pages cost the
	// same.
	addQuartiles(result, "pages: processor time ÷ that of all processors", shares)
	return nil
}

// addQuartiles adds the median of ratios under a name, and their quartiles under names with a
// suffix.
func addQuartiles(result *measure.Result, name string, ratios []float64) {
	for suffix, quantile := range []float64{0.5, 0.25, 0.75} {
		name := name + []string{"", ", lower quartile", ", upper quartile"}[suffix]
		result.Add(measure.Metric{Name: name, Unit: measure.Times, Value: measure.ExactQuantile(ratios, quantile)})
	}
}

// A window is one of the compared parts of the run, with or without open pages.
type window struct {
	took      time.Duration
	rate      float64       // of sequences
	processor time.Duration // of this process, including the pages
	work      float64       // events and reads of pages per second
}

// window runs n sequences, with open pages or without.
func (s *dashboardServer) window(ctx context.Context, number, n int, open bool) (w window, err error) {
	pages := new(livePageSet)
	if open {
		if pages, err = s.openPages(ctx); err != nil {
			return w, err
		}
		defer func() { err = errors.Join(err, pages.close()) }()
	}
	meter, processor, worked := measure.StartMeter(), measure.ProcessorTime(), pages.work.Load()
	if _, err := s.env.burst(ctx, "sequences", n, s.env.C, s.callSequence(fmt.Sprint("window-", number), 5)); err != nil {
		return w, err
	}
	w.took = meter.Elapsed()
	w.rate, w.processor = float64(n)/w.took.Seconds(), measure.ProcessorTime()-processor
	w.work = float64(pages.work.Load()-worked) / w.took.Seconds()
	return w, nil
}
