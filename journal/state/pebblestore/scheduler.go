package pebblestore

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// compactionScheduler prevents compactions from starting before Open has returned. When Open fails
// late, it frees resources of running compactions, and they panic.
type compactionScheduler struct {
	*pebble.ConcurrencyLimitScheduler
	enabled atomic.Bool
}

// newCompactionScheduler returns a disabled scheduler. The embedded one has no goroutine of its
// own: a waiting compaction starts when another ends.
func newCompactionScheduler() *compactionScheduler {
	return &compactionScheduler{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// TrySchedule implements pebble.CompactionScheduler. A rejected compaction waits and does not ask
// again.
func (c *compactionScheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !c.enabled.Load() {
		return false, nil
	}
	return c.ConcurrencyLimitScheduler.TrySchedule()
}

// enable permits compactions and starts waiting ones. handle.Done starts them, as at the end of a
// compaction.
func (c *compactionScheduler) enable() {
	c.enabled.Store(true)
	if granted, handle := c.ConcurrencyLimitScheduler.TrySchedule(); granted {
		handle.Done()
	}
}
