package actors_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// BenchmarkApply_FiveActivityRuns runs orchestrations of five sequential activities, so many at a
// time, over a journal in memory. It measures the engine without Raft and without a disk.
func BenchmarkApply_FiveActivityRuns(b *testing.B) {
	for _, inFlight := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) { benchmarkHello5(b, inFlight) })
	}
}

func benchmarkHello5(b *testing.B, inFlight int) {
	registry, err := engine.NewRegistry(
		upper.Bind(func(_ context.Context, text string) (string, error) { return text, nil }),
		program("hello5", func(ctx *replay.Context, text string) (string, error) {
			for range 5 {
				var err error
				if text, err = upper.Call(ctx, text); err != nil {
					return "", err
				}
			}
			return text, nil
		}))
	if err != nil {
		b.Fatal(err)
	}
	freeSlots := make(chan struct{}, inFlight)
	for range inFlight {
		freeSlots <- struct{}{}
	}
	journal := &endNotifyingJournal{testJournal: newTestJournal(), ended: func() { freeSlots <- struct{}{} }}
	system := actors.NewSystem(actors.Config{Registry: registry, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	partition := system.Lead(b.Context(), journal, journal.newEpoch(b))
	input := payload(b, "hello")
	// A start beyond the bounds is rejected at once, and repeated.
	var rejected atomic.Bool
	noteRejection := func(a actors.Answer) {
		switch {
		case errors.Is(a.Err, actors.ErrBusy):
			rejected.Store(true)
		case a.Err != nil:
			b.Error(a.Err)
			freeSlots <- struct{}{}
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		<-freeSlots
		start := message(&journalpb.OrchestrationStarted{Name: "hello5", Input: input})
		start.Done = noteRejection
		id := fmt.Sprint("i", i)
		for partition.Deliver(id, start); rejected.Swap(false); partition.Deliver(id, start) {
			runtime.Gosched()
		}
	}
	for range inFlight {
		<-freeSlots
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orchestrations/s")
	partition.Close()
	system.Close()
}

type endNotifyingJournal struct {
	*testJournal
	ended func()
}

func (j *endNotifyingJournal) Append(a *journalpb.Append, done func(error)) {
	a = proto.CloneOf(a)
	last := new(journalpb.Event)
	events := a.Segments[0].Events
	j.testJournal.Append(a, func(err error) {
		done(err)
		if isTerminal(last, events[len(events)-1]) {
			j.ended()
		}
	})
}

func isTerminal(event *journalpb.Event, encoded []byte) bool {
	return proto.Unmarshal(encoded, event) == nil && journalpb.IsTerminal(event.TypeNumber())
}
