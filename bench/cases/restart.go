package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
)

func restart(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	result = &measure.Result{}
	began := time.Now()
	if err := d.startWaiting(ctx, 0, e.N); err != nil {
		return nil, err
	}
	if err := d.restartWaiting(ctx, result); err != nil {
		return nil, err
	}
	return result, d.restartOverdue(ctx, result, time.Since(began))
}

// restartAt stops all nodes, waits until a time, and starts them.
func (d *deployment) restartAt(ctx context.Context, at time.Time) error {
	if err := d.close(); err != nil {
		return err
	}
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
		return ctx.Err()
	}
	d.env.Progress("starting again")
	for i := range d.nodes {
		if err := d.startNode(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// restartWaiting restarts the nodes with instances that wait for events. It measures the time
// until one has made a step, and the cost of all until everything is idle.
func (d *deployment) restartWaiting(ctx context.Context, result *measure.Result) error {
	if err := d.close(); err != nil {
		return err
	}
	before := measure.Retained()
	meter := measure.StartMeter()
	if err := d.restartAt(ctx, time.Now()); err != nil {
		return err
	}
	result.Add(measure.Metric{Name: "until nodes are open", Unit: measure.Duration, Value: float64(meter.Elapsed())})
	n := d.env.N
	if err := cluster.Send(ctx, d.client(), waitingID(n/2), word, 1); err != nil {
		return err
	}
	result.Add(measure.Metric{Name: "until an event is committed", Unit: measure.Duration, Value: float64(meter.Elapsed())})
	after, err := settledMemory(ctx)
	if err != nil {
		return err
	}
	meter.StopCost(result, "recovered", n)
	result.Add(measure.Metric{Name: "recovered: memory each", Unit: measure.Bytes, Value: max(0, float64(after)-float64(before)) / float64(n)})
	return nil
}

// restartOverdue restarts the nodes with overdue timers. It measures the time until all have
// fired, and the peak of memory. setting is about how long starting the instances takes.
func (d *deployment) restartOverdue(ctx context.Context, result *measure.Result, setting time.Duration) error {
	n := d.env.N
	due := time.Now().Add(2*setting + timersSlack)
	if _, err := d.env.burst(ctx, "timers set", n, d.env.C, func(ctx context.Context, i int) error {
		_, err := cluster.StartRun(ctx, d.client(), sleeping, fmt.Sprintf("overdue-%d", i), due.UnixNano())
		return err
	}); err != nil {
		return err
	}
	if err := d.close(); err != nil {
		return err
	}
	before := measure.Retained()
	peak := measure.StartPeak()
	defer peak.Stop()
	if err := d.restartAt(ctx, due); err != nil {
		return err
	}
	meter := measure.StartMeter()
	if _, err := d.env.burst(ctx, "timers fired", n, d.env.C, func(ctx context.Context, i int) error {
		_, err := d.client().Wait(ctx, fmt.Sprintf("overdue-%d", i))
		return err
	}); err != nil {
		return err
	}
	result.Add(measure.Metric{Name: "until all overdue timers have fired", Unit: measure.Duration, Value: float64(meter.Elapsed())})
	meter.StopCost(result, "overdue timers fired", n)
	result.Add(measure.Metric{Name: "overdue timers: peak of memory", Unit: measure.Bytes, Value: float64(peak.Stop() - before)})
	return nil
}

// startWaiting starts instances that wait for an event, numbered from from to to-1.
func (d *deployment) startWaiting(ctx context.Context, from, to int) error {
	_, err := d.env.burst(ctx, "starts", to-from, d.env.C, func(ctx context.Context, i int) error {
		_, err := cluster.StartRun(ctx, d.client(), collecting, waitingID(from+i), 1)
		return err
	})
	return err
}

func waitingID(i int) string { return fmt.Sprintf("waiting-%d", i) }
