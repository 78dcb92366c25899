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

// Open is the orchestration of which many stay open: each has a timer set and an
// activity that no node takes.
const Open = "chaos.open"

var open = replay.Orchestration[time.Duration, struct{}](Open)

func runOpen(ctx *replay.Context, d time.Duration) (struct{}, error) {
	idle.Start(ctx, 0, replay.Tag("chaos.nobody"))
	_, err := ctx.Timer(d).Await(ctx)
	return struct{}{}, err
}

// A Filling is how many instances of Open are to be there, and the prefix of their IDs.
type Filling struct {
	Prefix string
	Count  int
}

const (
	fillers = 64
	// When the timers fire: after the campaign, and not all at once.
	openLeast = 24 * time.Hour
	openApart = time.Second
)

// Fill starts them, and returns when all are.
func Fill(ctx context.Context, client *cluster.Client, f Filling) error {
	var filling sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, fillers)
	for i := range fillers {
		filling.Go(func() {
			for n := next.Add(1); n <= int64(f.Count) && errs[i] == nil; n = next.Add(1) {
				id := fmt.Sprintf("%s-%07d", f.Prefix, n)
				_, errs[i] = cluster.StartRun(ctx, client, open, id, openLeast+time.Duration(n)*openApart, cluster.RequestID(id))
			}
		})
	}
	filling.Wait()
	return errors.Join(errs...)
}
