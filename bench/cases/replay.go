package cases

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The number of replays of each history.
const (
	replaysPure = 10
	replaysCold = 3
)

func replays(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	sizes := e.sizes(10_000, 50_000)
	lengths := make([]int, len(sizes))
	result = &measure.Result{}
	for i, size := range sizes {
		if lengths[i], err = d.replayPure(ctx, result, size); err != nil {
			return nil, err
		}
	}
	cold := make([][]float64, len(sizes))
	for range replaysCold {
		if err := errors.Join(d.close(), d.start(ctx)); err != nil {
			return nil, err
		}
		for i, size := range sizes {
			began := time.Now()
			got, err := cluster.Query(ctx, d.client(), grownID(size), grown, 0)
			if err := expect(got, size/2, err); err != nil {
				return nil, err
			}
			cold[i] = append(cold[i], float64(lengths[i])/time.Since(began).Seconds())
		}
	}
	for i, size := range sizes {
		result.Add(measure.Metric{Name: "events, by a query of a cold instance", At: float64(size), Unit: measure.PerSecond,
			Value: measure.ExactQuantile(cold[i], 0.5)})
	}
	return result, nil
}

func grownID(events int) string { return fmt.Sprintf("grown-%d", events) }

// replayPure creates a history of about size events, replays it without a node, and returns
// its length.
func (d *deployment) replayPure(ctx context.Context, result *measure.Result, size int) (int, error) {
	d.env.Progress(fmt.Sprintf("growing a history of %d events", size))
	id := grownID(size)
	if _, err := cluster.StartRun(ctx, d.client(), growing, id, size/2); err != nil {
		return 0, err
	}
	if _, err := poll(ctx, id, func() (int, bool) {
		n, err := cluster.Query(ctx, d.client(), id, grown, 0)
		return n, err == nil && n == size/2
	}); err != nil {
		return 0, err
	}
	history, err := d.client().History(ctx, id)
	if err != nil {
		return 0, err
	}
	registry, err := engine.NewRegistry(d.code.definitions()...)
	if err != nil {
		return 0, err
	}
	messages := eventpb.Messages(history.Events)
	var rates []float64
	for range replaysPure {
		x := engine.NewExecution(id, 1, registry, slog.New(slog.DiscardHandler))
		meter := measure.StartMeter()
		err := x.Replay(eventSeq(messages))
		rates = append(rates, float64(len(history.Events))/meter.Elapsed().Seconds())
		x.Evict()
		if err != nil {
			return 0, err
		}
	}
	result.Add(measure.Metric{Name: "events, by the turn alone", At: float64(size), Unit: measure.PerSecond, Value: measure.ExactQuantile(rates, 0.5)})
	return len(history.Events), nil
}

func eventSeq(events []*journalpb.Event) iter.Seq2[*journalpb.Event, error] {
	return func(yield func(*journalpb.Event, error) bool) {
		for _, event := range events {
			if !yield(event, nil) {
				return
			}
		}
	}
}
