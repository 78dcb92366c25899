package host

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// Brief is the orchestration that measures throughput: BriefLength activities that do nothing, one
// after the other.
const (
	Brief       = "chaos.brief"
	BriefLength = 3
)

var (
	brief = replay.Orchestration[int, int](Brief)
	idle  = replay.Activity[int, int]("chaos.idle")
)

func runBrief(ctx *replay.Context, n int) (int, error) {
	for range BriefLength {
		var err error
		if n, err = idle.Call(ctx, n); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func runIdle(_ context.Context, n int) (int, error) { return n + 1, nil }

// A Load is a load that a host puts on its own node, like the application that embeds it. Every
// call starts an instance and waits for its end.
type Load struct {
	Prefix string // of the instances' IDs; must differ between nodes
	For    time.Duration
	// The number of concurrent callers, each of which makes one call after the other. If PerSecond
	// is not 0, that many calls start per second instead, however many are in flight.
	Callers   int
	PerSecond float64
	// Whether rejected starts are retried, which is the default for clients. Otherwise the first
	// rejection ends the call.
	RetryBusy bool
}

// A LoadCall is the result of one call of a load.
type LoadCall struct {
	At time.Duration // from the start of the load to the start of the call
	// The time until the start was acknowledged, 0 if it was not; and until the instance ended or
	// the call failed.
	Accepted time.Duration
	Took     time.Duration
	// "" if the instance completed; Busy if its start was rejected; otherwise what went wrong.
	Failure string
}

// A LoadResult is the result of a load on one process: its calls, the processor time used by calls
// and node, and the scheduler latencies.
type LoadResult struct {
	Calls      CallBatches
	Processors time.Duration // used by the process
	RunQueue   LatencyQuantiles
}

// CallBatches holds calls in batches of callBatchSize; the last may be shorter. There may be
// millions of calls: growing one slice would copy all of them and stall the process.
type CallBatches [][]LoadCall

const callBatchSize = 4096

func (c *CallBatches) add(call LoadCall) {
	last := len(*c) - 1
	if last < 0 || len((*c)[last]) == callBatchSize {
		*c = append(*c, make([]LoadCall, 0, callBatchSize))
		last++
	}
	(*c)[last] = append((*c)[last], call)
}

// Write writes a result for [LoadResult.Read]. It must be cheap, because it runs on the measured
// machine and must not delay heartbeats.
func (l *LoadResult) Write(w io.Writer) error {
	batches := gob.NewEncoder(w)
	if err := batches.Encode(LoadResult{Processors: l.Processors, RunQueue: l.RunQueue}); err != nil {
		return err
	}
	for _, batch := range l.Calls {
		if err := batches.Encode(batch); err != nil {
			return err
		}
	}
	return nil
}

// Read reads a result written by [LoadResult.Write], up to the end of the input.
func (l *LoadResult) Read(r io.Reader) error {
	batches := gob.NewDecoder(r)
	if err := batches.Decode(l); err != nil {
		return err
	}
	for {
		var batch []LoadCall
		if err := batches.Decode(&batch); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		l.Calls = append(l.Calls, batch)
	}
}

// LatencyQuantiles are upper bounds of the quantiles of a latency.
type LatencyQuantiles struct{ P50, P99, Max time.Duration }

// Busy is the failure of a call that was rejected because of overload.
const Busy = "busy"

const (
	// The limits of one call's duration and of the calls in flight. A call beyond the second limit
	// is not started and fails with OverLimit.
	loadCallTimeout = 10 * time.Second
	loadInFlightMax = 20_000
	OverLimit       = "swamped"
)

// RunLoad puts a load on a node and returns the result.
func RunLoad(ctx context.Context, client *cluster.Client, p Load) LoadResult {
	used, latencies := cpuTime(), schedulerLatencies()
	run := &loadRun{Load: p, client: client, began: time.Now(), slots: make(chan struct{}, loadInFlightMax)}
	if p.PerSecond > 0 {
		run.runOpenLoop(ctx)
	} else {
		run.runClosedLoop(ctx)
	}
	run.calling.Wait()
	return LoadResult{Calls: run.calls, Processors: cpuTime() - used, RunQueue: latenciesSince(latencies)}
}

type loadRun struct {
	Load
	client  *cluster.Client
	began   time.Time
	slots   chan struct{}
	calling sync.WaitGroup

	mu    sync.Mutex
	calls CallBatches
}

// runClosedLoop runs callers that wait for one instance to end before they start the next.
func (l *loadRun) runClosedLoop(ctx context.Context) {
	for caller := range l.Callers {
		l.runCaller(ctx, caller, 0)
	}
}

// runCaller makes the nth call of a caller, then the next one. Each call has its own goroutine, as
// in runOpenLoop.
func (l *loadRun) runCaller(ctx context.Context, caller, n int) {
	l.calling.Go(func() {
		l.makeCall(ctx, fmt.Sprintf("%s-%d-%d", l.Prefix, caller, n))
		if time.Since(l.began) < l.For && ctx.Err() == nil {
			l.runCaller(ctx, caller, n+1)
		}
	})
}

// runOpenLoop starts calls at the given rate, in small batches.
func (l *loadRun) runOpenLoop(ctx context.Context) {
	batches := time.NewTicker(5 * time.Millisecond)
	defer batches.Stop()
	for begun := 0; time.Since(l.began) < l.For && ctx.Err() == nil; <-batches.C {
		for due := int(time.Since(l.began).Seconds() * l.PerSecond); begun < due; begun++ {
			id := fmt.Sprintf("%s-%d", l.Prefix, begun)
			select {
			case l.slots <- struct{}{}:
				l.calling.Go(func() {
					l.makeCall(ctx, id)
					<-l.slots
				})
			default:
				l.record(LoadCall{At: time.Since(l.began), Failure: OverLimit})
			}
		}
	}
}

func (l *loadRun) makeCall(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, loadCallTimeout)
	defer cancel()
	begin := time.Now()
	call := LoadCall{At: begin.Sub(l.began)}
	starting := ctx
	if !l.RetryBusy {
		starting = cluster.WithoutBusyRetries(ctx)
	}
	run, err := cluster.StartRun(starting, l.client, brief, id, 0)
	if err == nil {
		call.Accepted = time.Since(begin)
		_, err = run.Wait(ctx)
	}
	call.Took, call.Failure = time.Since(begin), failureOf(err)
	l.record(call)
}

func failureOf(err error) string {
	var unavailable *cluster.UnavailableError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, cluster.ErrBusy):
		return Busy
	case errors.As(err, &unavailable):
		return "no answer from a leader"
	case errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	}
	return err.Error()
}

func (l *loadRun) record(call LoadCall) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls.add(call)
}
