package cases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
)

const (
	// How many rounds of comparisons are measured alone, and how many pairs of windows with and
	// without them there are.
	compareRounds, comparePairs = 4, 5
	// How long idle nodes are measured, which depends on N.
	compareIdleMin, compareIdleMax = 200 * time.Millisecond, 10 * time.Second
)

// comparisons measures comparisons of the replicas of N instances that have ended, each a sequence
// of five activities.
func comparisons(ctx context.Context, e *Env) (result *measure.Result, err error) {
	load := measure.LoadAverage()
	d, err := deploy(ctx, e, func(c *cluster.Config) { c.ResidentMax = listResidentMax })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if _, err := e.burst(ctx, "instances", e.N, e.C, d.callSequence("compared", 5)); err != nil {
		return nil, err
	}
	m := &comparisonMeasurement{deployment: d, result: &measure.Result{}}
	if err := m.rounds(ctx); err != nil {
		return nil, err
	}
	if err := m.windows(ctx); err != nil {
		return nil, err
	}
	m.result.Note = fmt.Sprintf("load average before: %s, after: %s; processor time is that of this process", load, measure.LoadAverage())
	return m.result, nil
}

type comparisonMeasurement struct {
	*deployment
	result *measure.Result
}

// round compares all replicas, and returns how many instances and bytes there are. It is not
// complete if a node has missed a view.
func (m *comparisonMeasurement) round(ctx context.Context) (instances, bytes uint64, complete bool, err error) {
	all, err := operate.Verify(ctx, m.client(), nil)
	if err != nil {
		return 0, 0, false, err
	}
	complete = true
	for _, of := range all {
		instances, bytes = instances+of.Instances, bytes+of.Bytes
		complete = complete && of.Replicas == of.Voters
		if len(of.Differences) > 0 {
			return 0, 0, false, fmt.Errorf("replicas in partition %d differ: %v", of.Partition, of.Differences)
		}
	}
	return instances, bytes, complete, nil
}

// rounds measures rounds alone, without the processor time that idle nodes take.
func (m *comparisonMeasurement) rounds(ctx context.Context) error {
	m.env.Progress("settling")
	length := max(compareIdleMin, min(compareIdleMax, time.Duration(m.env.N)*100*time.Microsecond))
	if err := sleep(ctx, length); err != nil {
		return err
	}
	processor, began := measure.ProcessorTime(), time.Now()
	if err := sleep(ctx, length); err != nil {
		return err
	}
	idle := (measure.ProcessorTime() - processor).Seconds() / time.Since(began).Seconds()
	var rounds table
	for measured := 0; measured < compareRounds; {
		m.env.Progress(fmt.Sprintf("round %d of %d", measured+1, compareRounds))
		processor, began := measure.ProcessorTime(), time.Now()
		instances, bytes, complete, err := m.round(ctx)
		if err != nil {
			return err
		}
		if !complete {
			continue
		}
		measured++
		took := time.Since(began)
		used := max(0, (measure.ProcessorTime()-processor).Seconds()-idle*took.Seconds())
		thousands := float64(instances) / 1_000
		rounds.add("processor time of 1,000 instances", measure.Duration, used/thousands*1e9)
		rounds.add("bytes of 1,000 instances, each replica", measure.Bytes, float64(bytes)/thousands)
		rounds.add("requested round", measure.Duration, float64(took))
	}
	rounds.addTo(m.result)
	m.result.Add(measure.Metric{Name: "processor time of idle nodes in a second", Unit: measure.Duration, Value: idle * 1e9})
	return nil
}

// windows runs sequences with and without comparisons alternately.
func (m *comparisonMeasurement) windows(ctx context.Context) error {
	n := min(m.env.N, windowMax)
	if _, err := m.window(ctx, 0, min(n, warmUpMax), false); err != nil {
		return err
	}
	work := measure.Metric{Name: "instances compared each second", Unit: measure.Count}
	pairs, err := m.env.pairWindows(m.result, "comparisons", comparePairs, work, func(number int, compare bool) (window, error) {
		return m.window(ctx, 1+number, n, compare)
	})
	if err != nil {
		return err
	}
	addQuartiles(m.result, "hello5 with comparisons ÷ without: processor time", processorRatios(pairs))
	return nil
}

// window runs n sequences, and beside them requested rounds of comparisons, one after another, if
// that is wanted.
func (m *comparisonMeasurement) window(ctx context.Context, number, n int, compare bool) (w window, err error) {
	var compared atomic.Uint64
	var failed error
	running, stop := context.WithCancel(ctx)
	var rounds sync.WaitGroup
	if compare {
		rounds.Go(func() { failed = m.compareUntil(running, &compared) })
	}
	meter, processor := measure.StartMeter(), measure.ProcessorTime()
	_, err = m.env.burst(ctx, "sequences", n, m.env.C, m.callSequence(fmt.Sprint("window-", number), 5))
	w.took = meter.Elapsed()
	w.rate, w.processor = float64(n)/w.took.Seconds(), (measure.ProcessorTime()-processor).Seconds()/float64(n)
	w.work = float64(compared.Load()) / w.took.Seconds()
	stop()
	rounds.Wait()
	return w, errors.Join(err, failed)
}

// compareUntil makes rounds until ctx ends, and counts the instances of each as it proceeds.
func (m *comparisonMeasurement) compareUntil(ctx context.Context, compared *atomic.Uint64) error {
	for ctx.Err() == nil {
		before := uint64(0)
		_, err := operate.Verify(ctx, m.client(), func(v operate.Verification) {
			if v.Instances > before {
				compared.Add(v.Instances - before)
				before = v.Instances
			}
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
