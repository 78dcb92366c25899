package replay

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A growth is an orchestration that goes on for ever, a step at a time.
type growth struct {
	name string
	step func(ctx *Context, n int) error
}

var growths = []growth{
	{"an activity", func(ctx *Context, n int) error {
		_, err := Activity[int, int]("work").Call(ctx, n%10) // a small one, which is boxed without an allocation
		return err
	}},
	{"a scope, a race, a coroutine and a status", func(ctx *Context, n int) error {
		inner, cancel := WithTimeout(ctx, time.Hour)
		defer cancel()
		if err := SetStatus(ctx, n%10); err != nil {
			return err
		}
		work := Go(inner, func(ctx *Context) (int, error) {
			limit := ctx.Timer(time.Minute)
			work := Activity[int, int]("work").Start(ctx, n%10)
			_, err := Race(ctx, limit, work)
			return 0, err
		})
		_, err := Settle(inner, work)
		return err
	}},
}

// begun returns an execution of the growth after its first turn.
func (g growth) begun(tb testing.TB) *Execution {
	registry, err := NewRegistry(Orchestration[any, any]("chain").Bind(func(ctx *Context, _ any) (any, error) {
		for n := 0; ; n++ {
			if err := g.step(ctx, n); err != nil {
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

// next performs one step: it completes the activity that is open.
func (g growth) next(tb testing.TB, x *Execution) *Turn {
	var source uint64
	for id, op := range x.open.all() {
		if op.arm == journalpb.ArmActivityScheduled {
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
	early = 50
	late  = 50_000
)

// BenchmarkGrowth compares the step of an instance that has made 50 with that
// of one that has made 50,000: the metric "late/early" is to be 1.
func BenchmarkGrowth(b *testing.B) {
	for _, g := range growths {
		b.Run(g.name, func(b *testing.B) {
			young, old := g.begun(b), g.begun(b)
			defer young.Drop()
			defer old.Drop()
			for range early {
				g.next(b, young)
			}
			for range late {
				g.next(b, old)
			}
			const round = 100
			var costs [2]time.Duration
			for b.Loop() {

				for i, x := range []*Execution{young, old} {
					start := time.Now()
					for range round {
						g.next(b, x)
					}
					costs[i] += time.Since(start)
				}
				if young.last > 100*early { // to stay young
					young.Drop()
					young = g.begun(b)
				}
			}
			steps := float64(b.N * round)
			b.ReportMetric(float64(costs[0])/steps, "early-ns/step")
			b.ReportMetric(float64(costs[1])/steps, "late-ns/step")
			b.ReportMetric(float64(costs[1])/float64(costs[0]), "late/early")
		})
	}
}

// What a step allocates does not depend on how many were made, and what is kept
// does not grow with them, but by one bit an event.
func TestTheFiftyThousandthStepCostsNoMoreThanTheFiftieth(t *testing.T) {
	for _, g := range growths {
		t.Run(g.name, func(t *testing.T) {
			x := g.begun(t)
			defer x.Drop()
			kept := func() string {
				return fmt.Sprint(x.open.len(), len(x.queue), len(x.coroutines.ready), x.inbox.waiting.len(), x.inbox.buffered.len(), len(x.requests.known))
			}
			for range early {
				g.next(t, x)
			}
			before, keptBefore := testing.AllocsPerRun(100, func() { g.next(t, x) }), kept()
			for range late {
				g.next(t, x)
			}
			after, keptAfter := testing.AllocsPerRun(100, func() { g.next(t, x) }), kept()
			if after > before*1.05 || keptBefore != keptAfter || len(x.coroutines.all) > 10 {
				t.Errorf("%v allocations, then %v; kept %s, then %s; %d coroutines", before, after, keptBefore, keptAfter, len(x.coroutines.all))
			}
		})
	}
}

// BenchmarkColdReplayOfFiftyThousandSteps brings an instance back that has made
// so many.
func BenchmarkColdReplayOfFiftyThousandSteps(b *testing.B) {
	for _, g := range growths {
		b.Run(g.name, func(b *testing.B) {
			live := g.begun(b)
			registry := live.registry
			history := []*journalpb.Event{{EventId: 1, Timestamp: benchmarkStart.UnixNano(), Body: &journalpb.Event_OrchestrationStarted{
				OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "chain"},
			}}}
			live.Drop()
			live = NewExecution("i", 1, registry, nil)
			if err := live.Replay(events(history)); err != nil {
				b.Fatal(err)
			}
			turn, err := live.Turn(benchmarkStart, nil)
			if err != nil {
				b.Fatal(err)
			}
			history = append(history, turn.Events...)
			for range late {
				history = append(history, g.next(b, live).Events...)
			}
			live.Drop()
			b.ReportAllocs()
			for b.Loop() {
				x := NewExecution("i", 1, registry, nil)
				if err := x.Replay(events(history)); err != nil {
					b.Fatal(err)
				}
				x.Drop()
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
