package telemetry

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
)

// A manualClock is a clock that only the test moves.
type manualClock struct{ now time.Time }

func (c *manualClock) read() time.Time { return c.now }

// What is counted is in the step of its time, and is gone an hour later.
func TestRates_KeepOneHour(t *testing.T) {
	clock := &manualClock{time.Unix(1_000_000_000, 0)}
	rates := NewRates(clock.read)
	rates.count(true, "")
	rates.count(true, actors.StateCompleted)
	clock.now = clock.now.Add(RateStep)
	rates.count(false, actors.StateFailed)
	counts := rates.Read()
	if got := counts.Started[RateSteps-2:]; !slices.Equal(got, []uint32{2, 0}) {
		t.Errorf("started: %d", got)
	}
	if got := counts.Ended[RateSteps-2:]; !slices.Equal(got, []uint32{1, 1}) {
		t.Errorf("ended: %d", got)
	}
	if got := counts.Failed[RateSteps-2:]; !slices.Equal(got, []uint32{0, 1}) {
		t.Errorf("failed: %d", got)
	}
	if want := time.Unix(1_000_000_020, 0); !counts.End.Equal(want) {
		t.Errorf("the last step ends at %v; want %v", counts.End, want)
	}

	clock.now = clock.now.Add((RateSteps - 2) * RateStep)
	if counts := rates.Read(); counts.Started[0] != 2 || counts.Failed[1] != 1 {
		t.Errorf("an hour later: %d started, %d failed", counts.Started[0], counts.Failed[1])
	}
	clock.now = clock.now.Add(2 * RateStep)
	rates.count(true, "") // in the slot of the first step
	counts = rates.Read()
	if counts.Started != [RateSteps]uint32{RateSteps - 2: 0, RateSteps - 1: 1} || counts.Failed != [RateSteps]uint32{} {
		t.Errorf("after an hour: %d started, %d failed", counts.Started, counts.Failed)
	}
}

// Concurrent counts at the begin of a step are all kept.
func TestRates_ConcurrentCounts(t *testing.T) {
	clock := &manualClock{time.Unix(1_000_000_000, 0)}
	rates := NewRates(clock.read)
	for range 3 {
		clock.now = clock.now.Add(RateSteps * RateStep) // the same slot, used before
		var counting sync.WaitGroup
		for range 8 {
			counting.Go(func() {
				for range 1_000 {
					rates.count(true, actors.StateCompleted)
				}
			})
		}
		counting.Wait()
		if counts := rates.Read(); counts.Started[RateSteps-1] != 8_000 || counts.Ended[RateSteps-1] != 8_000 {
			t.Fatalf("%d started, %d ended; want 8000 each", counts.Started[RateSteps-1], counts.Ended[RateSteps-1])
		}
	}
}

func BenchmarkRates_Count(b *testing.B) {
	rates := NewRates(time.Now)
	for b.Loop() {
		rates.count(true, actors.StateCompleted)
	}
}
