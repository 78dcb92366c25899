package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
)

// Rates are kept for the last hour, in steps of RateStep.
const (
	RateStep  = 10 * time.Second
	RateSteps = 360
)

// Rates counts how many runs begin, how many executions end and how many of these fail, in steps of
// the last hour. Counting costs an atomic increment. Its methods may be called concurrently.
type Rates struct {
	now   func() time.Time
	steps [RateSteps]rateStep

	mu sync.Mutex // held while a step begins
}

// A rateStep is one step. Its slot is used again an hour later.
type rateStep struct {
	number                 atomic.Int64 // since 1970, plus 1; 0: never used
	started, ended, failed atomic.Uint32
}

// NewRates returns rates without counts. now is the wall clock.
func NewRates(now func() time.Time) *Rates { return &Rates{now: now} }

// count counts an event of a commit: a run that began, or an outcome, "" for none.
func (r *Rates) count(began bool, outcome actors.State) {
	step := r.step(r.now())
	if began {
		step.started.Add(1)
	}
	if outcome != "" {
		step.ended.Add(1)
	}
	if outcome == actors.StateFailed {
		step.failed.Add(1)
	}
}

func stepNumber(t time.Time) int64 { return t.UnixNano()/int64(RateStep) + 1 }

// step returns the step of a moment. It clears what was counted there an hour ago. A wall clock
// that is set back counts in a step that is past, or in that of an hour later.
func (r *Rates) step(now time.Time) *rateStep {
	number := stepNumber(now)
	step := &r.steps[number%RateSteps]
	if step.number.Load() >= number {
		return step
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if step.number.Load() < number {
		step.started.Store(0)
		step.ended.Store(0)
		step.failed.Store(0)
		step.number.Store(number)
	}
	return step
}

// RateCounts are the counts of the last hour, oldest first. The last step is in progress.
type RateCounts struct {
	End                    time.Time // of the last step
	Started, Ended, Failed [RateSteps]uint32
}

// Read returns the counts.
func (r *Rates) Read() *RateCounts {
	newest := stepNumber(r.now())
	counts := &RateCounts{End: time.Unix(0, newest*int64(RateStep))}
	for i := range RateSteps {
		number := newest - int64(RateSteps-1-i)
		if number <= 0 {
			continue
		}
		if step := &r.steps[number%RateSteps]; step.number.Load() == number {
			counts.Started[i], counts.Ended[i], counts.Failed[i] = step.started.Load(), step.ended.Load(), step.failed.Load()
		}
	}
	return counts
}
