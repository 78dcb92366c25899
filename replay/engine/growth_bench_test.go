package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A workload is an orchestration that runs forever, one step at a time.
type workload struct {
	name string
	step func(ctx *replay.Context, n int) error
}

var workloads = []workload{
	{"an activity", func(ctx *replay.Context, n int) error {
		_, err := replay.Activity[int, int]("work").Call(ctx, n%10) // boxed without an allocation
		return err
	}},
	{"a scope, a race, a coroutine and a status", func(ctx *replay.Context, n int) error {
		inner, cancel := replay.WithTimeout(ctx, time.Hour)
		defer cancel()
		if err := replay.SetStatus(ctx, n%10); err != nil {
			return err
		}
		work := replay.Go(inner, func(ctx *replay.Context) (int, error) {
			limit := ctx.Timer(time.Minute)
			work := replay.Activity[int, int]("work").Start(ctx, n%10)
			_, err := replay.Race(ctx, limit, work)
			return 0, err
		})
		_, err := replay.AllResults(inner, work)
		return err
	}},
}

// start returns an execution of the workload after its first turn.
func (w workload) start(tb testing.TB) *Execution {
	registry, err := NewRegistry(replay.Orchestration[any, any]("chain").Bind(func(ctx *replay.Context, _ any) (any, error) {
		for n := 0; ; n++ {
			if err := w.step(ctx, n); err != nil {
				return nil, err
			}
		}
	}))
	if err != nil {
		tb.Fatal(err)
	}
	x := NewExecution("i", 1, registry, nil)
	if _, err := x.Turn(benchmarkStart, []Message{{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "chain"},
	}}}}); err != nil {
		tb.Fatal(err)
	}
	return x
}

// advance performs one step: it completes the open activity.
func (w workload) advance(tb testing.TB, x *Execution) *Turn {
	var source uint64
	for id, op := range x.program.operations.open.all() {
		if op.eventType == journalpb.TypeActivityScheduled {
			source = id
		}
	}
	turn, err := x.Turn(benchmarkStart, []Message{{Event: &journalpb.Event{
		SourceEventId: source,
		Body:          &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{Result: &journalpb.Payload{Data: []byte("1")}}},
	}}})
	if err != nil || len(turn.Events) < 2 {
		tb.Fatal(turn, err)
	}
	return turn
}

const (
	earlyStep = 50
	lateStep  = 50_000
)

// BenchmarkTurn_AfterManySteps compares a step after 50 steps with one after 50,000. The metric
// "late/early" should be 1.
func BenchmarkTurn_AfterManySteps(b *testing.B) {
	for _, g := range workloads {
		b.Run(g.name, func(b *testing.B) {
			young, old := g.start(b), g.start(b)
			defer young.Evict()
			defer old.Evict()
			for range earlyStep {
				g.advance(b, young)
			}
			for range lateStep {
				g.advance(b, old)
			}
			const round = 100
			var costs [2]time.Duration
			for b.Loop() {

				for i, x := range []*Execution{young, old} {
					start := time.Now()
					for range round {
						g.advance(b, x)
					}
					costs[i] += time.Since(start)
				}
				if young.LastEventID() > 100*earlyStep { // start a new one, so that it stays young
					young.Evict()
					young = g.start(b)
				}
			}
			steps := float64(b.N * round)
			b.ReportMetric(float64(costs[0])/steps, "early-ns/step")
			b.ReportMetric(float64(costs[1])/steps, "late-ns/step")
			b.ReportMetric(float64(costs[1])/float64(costs[0]), "late/early")
		})
	}
}

// The allocations of a step do not depend on the number of earlier steps, and memory grows only by
// one bit an event.
func TestTurn_CostIndependentOfHistoryLength(t *testing.T) {
	for _, g := range workloads {
		t.Run(g.name, func(t *testing.T) {
			x := g.start(t)
			defer x.Evict()
			retained := func() string {
				o := &x.program.operations
				return fmt.Sprint(o.open.len(), len(o.queue.actions), len(x.program.coroutines.ready), o.inbox.waiting.len(), o.inbox.buffered.len(), len(x.requestIDs.known))
			}
			for range earlyStep {
				g.advance(t, x)
			}
			before, retainedBefore := testing.AllocsPerRun(100, func() { g.advance(t, x) }), retained()
			for range lateStep {
				g.advance(t, x)
			}
			after, retainedAfter := testing.AllocsPerRun(100, func() { g.advance(t, x) }), retained()
			if after > before*1.05 || retainedBefore != retainedAfter || len(x.program.coroutines.all) > 10 {
				t.Errorf("%v allocations, then %v; kept %s, then %s; %d coroutines", before, after, retainedBefore, retainedAfter, len(x.program.coroutines.all))
			}
		})
	}
}

// BenchmarkColdReplay_FiftyThousandSteps replays an instance after 50,000 steps.
func BenchmarkColdReplay_FiftyThousandSteps(b *testing.B) {
	for _, g := range workloads {
		b.Run(g.name, func(b *testing.B) {
			live := g.start(b)
			registry := live.program.registry
			history := []*journalpb.Event{{EventId: 1, Timestamp: benchmarkStart.UnixNano(), Body: &journalpb.Event_OrchestrationStarted{
				OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "chain"},
			}}}
			live.Evict()
			live = NewExecution("i", 1, registry, nil)
			if err := live.Replay(events(history)); err != nil {
				b.Fatal(err)
			}
			turn, err := live.Turn(benchmarkStart, nil)
			if err != nil {
				b.Fatal(err)
			}
			history = append(history, turn.Events...)
			for range lateStep {
				history = append(history, g.advance(b, live).Events...)
			}
			live.Evict()
			b.ReportAllocs()
			for b.Loop() {
				x := NewExecution("i", 1, registry, nil)
				if err := x.Replay(events(history)); err != nil {
					b.Fatal(err)
				}
				x.Evict()
			}
			b.ReportMetric(float64(len(history)*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

func events(history []*journalpb.Event) func(func(*journalpb.Event, error) bool) {
	return func(yield func(*journalpb.Event, error) bool) {
		for _, event := range history {
			if !yield(event, nil) {
				return
			}
		}
	}
}
