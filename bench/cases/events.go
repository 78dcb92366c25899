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
	eventInstances = 10_000
	pingPongRounds = 200
)

func events(ctx context.Context, e *Env) (result *measure.Result, err error) {
	d, err := deploy(ctx, e, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if _, err := d.sendAll(ctx, "warm", 1, min(e.N, warmUpMax)); err != nil {
		return nil, err
	}
	result = &measure.Result{}
	many := max(1, min(eventInstances, e.N/2))
	for _, instances := range []int{1, many} {
		each := e.N / instances
		took, err := d.sendAll(ctx, fmt.Sprintf("of-%d", instances), instances, each)
		if err != nil {
			return nil, err
		}
		result.Add(measure.Metric{Name: "events, by instances", At: float64(instances), Unit: measure.PerSecond,
			Value: float64(instances*each) / took.Seconds(), Baseline: baseline.PackedRecords})
	}
	rounds := min(e.N, pingPongRounds)
	took, err := d.pingPong(ctx, rounds)
	if err != nil {
		return nil, err
	}
	result.Add(measure.Metric{Name: "ping-pong, there and back", Unit: measure.Duration,
		Value: float64(took) / float64(rounds), Baseline: baseline.CommitP50})
	return result, nil
}

// sendAll starts instances that collect events and returns how long it takes until all events
// are sent and collected.
func (d *deployment) sendAll(ctx context.Context, prefix string, instances, each int) (time.Duration, error) {
	e := d.env
	runs := make([]*cluster.Run[int], instances)
	_, err := e.burst(ctx, "starts "+prefix, instances, e.C, func(ctx context.Context, i int) (err error) {
		id := fmt.Sprintf("%s-%d", prefix, i)
		runs[i], err = cluster.StartRun(ctx, d.client(), collecting, id, each)
		return err
	})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	// Interleave the events of instances, like many senders do.
	if _, err := e.burst(ctx, "events "+prefix, instances*each, e.C, func(ctx context.Context, i int) error {
		return cluster.Send(ctx, d.client(), runs[i%instances].ID, word, i)
	}); err != nil {
		return 0, err
	}
	_, err = e.burst(ctx, "ends "+prefix, instances, e.C, func(ctx context.Context, i int) error {
		got, err := runs[i].Wait(ctx)
		return expect(got, each, err)
	})
	return time.Since(began), err
}

// pingPong returns how long two instances take to send each other events. An activity sends each
// event.
func (d *deployment) pingPong(ctx context.Context, rounds int) (time.Duration, error) {
	var runs []*cluster.Run[int]
	for _, ids := range [][2]string{{"ping", "pong"}, {"pong", "ping"}} {
		run, err := cluster.StartRun(ctx, d.client(), playing, ids[0], pingPongInput{ids[1], rounds})
		if err != nil {
			return 0, err
		}
		runs = append(runs, run)
	}
	began := time.Now()
	if err := cluster.Send(ctx, d.client(), "ping", word, 0); err != nil {
		return 0, err
	}
	// ping may end before pong sends its last event. The activity of pong is then retried, so do
	// not wait for pong.
	_, err := runs[0].Wait(ctx)
	return time.Since(began), err
}
