package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

const (
	helloSteps = 5
	helloAlone = 20
	fanoutSize = 1_000
	warmUps    = 20
)

// A load measures an instance.
type load struct {
	name, description string
	run               func(ctx context.Context, i instance, a amounts) (*measure.Result, error)
}

var loads = []load{
	{"hello5", "orchestrations of five activities in sequence: some one at a time, then many", hello5},
	{"sequence", "one orchestration of many activities in sequence", sequence},
	{"fanout", fmt.Sprintf("one orchestration of %d activities at once", fanoutSize), fanout},
}

// subjects returns the engines for each load.
func subjects(engines []engine, o *options) []*measure.Subject {
	var all []*measure.Subject
	for _, l := range loads {
		for _, e := range engines {
			a := e.amounts()
			if o.n > 0 {
				a.hellos, a.steps = o.n, o.n
			}
			if o.c > 0 {
				a.concurrency = o.c
			}
			all = append(all, &measure.Subject{
				Name:        l.name + ", " + e.name(),
				Description: l.description,
				Run: func(ctx context.Context, dir string, _ func(string)) (*measure.Result, error) {
					return l.measure(ctx, e, a, dir)
				},
			})
		}
	}
	return all
}

// measure opens the engine, warms it up, and measures.
func (l load) measure(ctx context.Context, e engine, a amounts, dir string) (result *measure.Result, err error) {
	i, err := e.open(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, i.close()) }()
	if _, err := runHellos(ctx, i, "warm", warmUps, warmUps); err != nil {
		return nil, err
	}
	return l.run(ctx, i, a)
}

func hello5(ctx context.Context, i instance, a amounts) (*measure.Result, error) {
	alone, err := runHellos(ctx, i, "alone", helloAlone, 1)
	if err != nil {
		return nil, err
	}
	result := &measure.Result{}
	result.AddLatency("alone", alone, "", "")
	meter := measure.StartMeter()
	loaded, err := runHellos(ctx, i, "loaded", a.hellos, a.concurrency)
	if err != nil {
		return nil, err
	}
	took := meter.Stop(result, "orchestrations", a.hellos)
	result.AddRate("activities", a.hellos*helloSteps, took)
	result.AddLatency("loaded", loaded, "", "")
	result.Note = fmt.Sprintf("%d orchestrations, %d at a time", a.hellos, a.concurrency)
	return result, nil
}

func sequence(ctx context.Context, i instance, a amounts) (*measure.Result, error) {
	began := time.Now()
	got, err := i.sequence(ctx, "sequence", a.steps)
	if err := expect(got, a.steps, err); err != nil {
		return nil, err
	}
	result := &measure.Result{Note: fmt.Sprintf("%d steps", a.steps)}
	result.Add(measure.Metric{Name: "step", Unit: measure.Duration, Value: float64(time.Since(began)) / float64(a.steps)})
	return result, nil
}

func fanout(ctx context.Context, i instance, _ amounts) (*measure.Result, error) {
	began := time.Now()
	got, err := i.fanout(ctx, "fanout", fanoutSize)
	if err := expect(got, fanoutSize, err); err != nil {
		return nil, err
	}
	result := &measure.Result{}
	result.AddRate("activities", fanoutSize, time.Since(began))
	return result, nil
}

func expect(got, want int, err error) error {
	if err == nil && got != want {
		return fmt.Errorf("result %d, want %d", got, want)
	}
	return err
}

// runHellos runs n orchestrations, c at a time, until the first error, and returns their
// latencies.
func runHellos(ctx context.Context, i instance, prefix string, n, c int) (*measure.Histogram, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	var mu sync.Mutex
	latency := &measure.Histogram{}
	for range min(n, c) {
		workers.Go(func() {
			for k := next.Add(1); k <= int64(n) && ctx.Err() == nil; k = next.Add(1) {
				began := time.Now()
				got, err := i.sequence(ctx, fmt.Sprintf("%s-%d", prefix, k), helloSteps)
				if err := expect(got, helloSteps, err); err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				latency.Record(time.Since(began))
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return latency, context.Cause(ctx)
}
