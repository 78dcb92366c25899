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
	if err := d.startWaiting(ctx, e.N); err != nil {
		return nil, err
	}
	if err := d.close(); err != nil {
		return nil, err
	}
	e.Progress("starting again")
	began := time.Now()
	for i := range d.nodes {
		if err := d.startNode(ctx, i); err != nil {
			return nil, err
		}
	}
	opened := time.Since(began)
	if err := cluster.Send(ctx, d.client(), waitingID(e.N/2), word, 1); err != nil {
		return nil, err
	}
	stepped := time.Since(began)
	result = &measure.Result{}
	result.Add(measure.Figure{Name: "until nodes are open", Unit: measure.Duration, Value: float64(opened)})
	result.Add(measure.Figure{Name: "until an event is committed", Unit: measure.Duration, Value: float64(stepped)})
	return result, nil
}

// startWaiting starts n instances that wait for an event.
func (d *deployment) startWaiting(ctx context.Context, n int) error {
	_, err := d.env.burst(ctx, "starts", n, d.env.C, func(ctx context.Context, i int) error {
		_, err := cluster.StartRun(ctx, d.client(), collecting, waitingID(i), 1)
		return err
	})
	return err
}

func waitingID(i int) string { return fmt.Sprintf("waiting-%d", i) }
