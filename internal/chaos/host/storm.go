package host

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// A Storm is a series of read-only calls, each with a deadline of up to Longest, that a process
// makes for a while.
type Storm struct {
	Instances []string
	For       time.Duration
	Longest   time.Duration
	Callers   int
}

// A StormResult is the number of calls, and of those that were answered.
type StormResult struct{ Calls, Answered int64 }

func (s Storm) run(ctx context.Context, client *cluster.Client) StormResult {
	ctx, cancel := context.WithTimeout(ctx, s.For)
	defer cancel()
	kinds := []evidence.Kind{evidence.Query, evidence.Query, evidence.Get, evidence.List, evidence.Read, evidence.Watch}
	var calls, answered atomic.Int64
	var calling sync.WaitGroup
	for range s.Callers {
		calling.Go(func() {
			for ctx.Err() == nil && len(s.Instances) > 0 {
				request := evidence.Request{
					Kind:     kinds[rand.IntN(len(kinds))],
					Instance: s.Instances[rand.IntN(len(s.Instances))],
					Limit:    1 + rand.N(s.Longest),
				}
				calls.Add(1)
				if Execute(ctx, client, request).Outcome == evidence.Acked {
					answered.Add(1)
				}
			}
		})
	}
	calling.Wait()
	return StormResult{calls.Load(), answered.Load()}
}
