package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// Open is the orchestration of instances that stay open: each waits for a timer and for an activity
// that no node executes.
const Open = "chaos.open"

var open = replay.Orchestration[time.Duration, struct{}](Open)

func runOpen(ctx *replay.Context, d time.Duration) (struct{}, error) {
	idle.Start(ctx, 0, replay.Tag("chaos.nobody"))
	_, err := ctx.Timer(d).Await(ctx)
	return struct{}{}, err
}

// A StartOpenRequest is the number of instances of Open to start and the prefix of their IDs.
type StartOpenRequest struct {
	Prefix string
	Count  int
}

const (
	fillWorkers = 64
	// When the timers fire: after the campaign, and not all at once.
	openTimerMin  = 24 * time.Hour
	openTimerStep = time.Second
)

// StartOpen starts the instances and returns when all are started.
func StartOpen(ctx context.Context, client *cluster.Client, f StartOpenRequest) error {
	var filling sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, fillWorkers)
	for i := range fillWorkers {
		filling.Go(func() {
			for n := next.Add(1); n <= int64(f.Count) && errs[i] == nil; n = next.Add(1) {
				id := fmt.Sprintf("%s-%07d", f.Prefix, n)
				_, errs[i] = cluster.StartRun(ctx, client, open, id, openTimerMin+time.Duration(n)*openTimerStep, cluster.RequestID(id))
			}
		})
	}
	filling.Wait()
	return errors.Join(errs...)
}
