package engine

import (
	"iter"
	"runtime"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A mechanism runs user code between parks: that of coroutine.go, or iter.Pull.
type mechanism struct {
	name string
	// start returns two functions: resume, and end, which unwinds. If end cannot unwind by itself,
	// park returns false.
	start func(body func(park func() bool)) (resume, end func())
}

var mechanisms = []mechanism{
	{"coroutine", func(body func(park func() bool)) (resume, end func()) {
		c := new(coroutine)
		c.body = func() { body(func() bool { c.park(); return true }) }
		return c.resume, c.unwind
	}},
	{"iter.Pull", func(body func(park func() bool)) (resume, end func()) {
		next, stop := iter.Pull(func(yield func(struct{}) bool) {
			body(func() bool { return yield(struct{}{}) })
		})
		return func() { next() }, stop
	}},
}

func BenchmarkResume(b *testing.B) {
	for _, m := range mechanisms {
		b.Run(m.name, func(b *testing.B) {
			resume, end := m.start(func(park func() bool) {
				for park() {
				}
			})
			b.ReportAllocs()
			for b.Loop() {
				resume()
			}
			end()
		})
	}
}

func BenchmarkCreateAndFinish(b *testing.B) {
	for _, m := range mechanisms {
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resume, _ := m.start(func(func() bool) {})
				resume()
			}
		})
	}
}

func BenchmarkParked(b *testing.B) {
	const parked = 10000
	for _, m := range mechanisms {
		b.Run(m.name, func(b *testing.B) {
			var bytes uint64
			for b.Loop() {
				ends := make([]func(), parked)
				before := memoryInUse()
				for i := range ends {
					resume, end := m.start(func(park func() bool) { park() })
					resume()
					ends[i] = end
				}
				bytes = memoryInUse() - before
				for _, end := range ends {
					end()
				}
			}
			b.ReportMetric(float64(bytes)/parked, "B/parked")
		})
	}
}

func memoryInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

var benchmarkStart = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

func benchmarkRegistry(b *testing.B) *Registry {
	work := replay.Activity[int, int]("work")
	registry, err := NewRegistry(replay.Orchestration[int, int]("chain").Bind(func(ctx *replay.Context, length int) (int, error) {
		for n := range length {
			if _, err := work.Call(ctx, n); err != nil {
				return 0, err
			}
		}
		return length, nil
	}))
	if err != nil {
		b.Fatal(err)
	}
	return registry
}

func startChain(b *testing.B, x *Execution, length int) *Turn {
	input, err := Encode(length)
	if err != nil {
		b.Fatal(err)
	}
	turn, err := x.Turn(benchmarkStart, []Message{{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{
		OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "chain", Input: input},
	}}}})
	if err != nil {
		b.Fatal(err)
	}
	return turn
}

// advanceChain completes the open activity of the chain.
func advanceChain(b *testing.B, x *Execution) *Turn {
	turn, err := x.Turn(benchmarkStart, []Message{{Event: &journalpb.Event{
		SourceEventId: x.LastEventID(),
		Body:          &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{Result: &journalpb.Payload{Data: []byte("1")}}},
	}}})
	if err != nil || len(turn.Events) != 2 {
		b.Fatal(turn, err)
	}
	return turn
}

// BenchmarkColdReplay replays a history of 10,000 events.
func BenchmarkColdReplay(b *testing.B) {
	const length = 4999 // activities, each with a completion, plus start and end
	registry := benchmarkRegistry(b)
	live := NewExecution("i", 1, registry, nil)
	history := startChain(b, live, length).Events
	for range length {
		history = append(history, advanceChain(b, live).Events...)
	}
	if len(history) != 10000 {
		b.Fatal(len(history), "events")
	}
	b.ReportAllocs()
	for b.Loop() {
		x := NewExecution("i", 1, registry, nil)
		err := x.Replay(func(yield func(*journalpb.Event, error) bool) {
			for _, event := range history {
				if !yield(event, nil) {
					return
				}
			}
		})
		if err != nil || !x.Ended() {
			b.Fatal(err)
		}
		x.Evict()
	}
	b.ReportMetric(float64(len(history)*b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkResidentTurn delivers one completion, which causes one call.
func BenchmarkResidentTurn(b *testing.B) {
	x := NewExecution("i", 1, benchmarkRegistry(b), nil)
	startChain(b, x, 1<<40)
	b.ReportAllocs()
	for b.Loop() {
		advanceChain(b, x)
	}
	x.Evict()
}

// BenchmarkEnqueue measures the cost of recording the call stack.
func BenchmarkEnqueue(b *testing.B) {
	event := new(journalpb.Event)
	for name, records := range map[string]bool{"with the call": true, "without": false} {
		b.Run(name, func(b *testing.B) {
			queue := actionQueue{recordsCallers: records}
			b.ReportAllocs()
			for b.Loop() {
				queue.add(event, nil)
				queue.actions = queue.actions[:0]
			}
		})
	}
}
