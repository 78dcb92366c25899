package cases

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// windowPairs is how many pairs of windows with and without open pages there are.
const windowPairs = 10

// compareWindows runs sequences with and without open pages alternately, and adds how the windows
// differ.
func (s *dashboardServer) compareWindows(ctx context.Context, result *measure.Result) error {
	n, pairs := min(s.env.N, windowMax), min(windowPairs, max(2, s.env.N/1_000))
	if _, err := s.window(ctx, 0, min(n, warmUpMax), false); err != nil {
		return err
	}
	work := measure.Metric{Name: "events and reads of pages each second", Unit: measure.Count}
	compared, err := s.env.pairWindows(result, "pages", pairs, work, func(number int, open bool) (window, error) {
		return s.window(ctx, 1+number, n, open)
	})
	if err != nil {
		return err
	}
	addQuartiles(result, "hello5 with pages ÷ without: processor time", processorRatios(compared))
	var shares []float64
	for _, p := range compared {
		more := (p.with.processor - p.without.processor) * float64(n)
		shares = append(shares, more/p.with.took.Seconds()/float64(runtime.GOMAXPROCS(0)))
	}
	// If other programs use the machine, the sequences get less than all of it, but pages cost the
	// same.
	addQuartiles(result, "pages: processor time ÷ that of all processors", shares)
	return nil
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
	w.rate, w.processor = float64(n)/w.took.Seconds(), (measure.ProcessorTime()-processor).Seconds()/float64(n)
	w.work = float64(pages.work.Load()-worked) / w.took.Seconds()
	return w, nil
}
