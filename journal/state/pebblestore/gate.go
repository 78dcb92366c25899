package pebblestore

import (
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// compactionGate lets no compaction begin before Open has returned: one that
// fails late pulls the rug from under those that it has begun, and they panic.
type compactionGate struct {
	*pebble.ConcurrencyLimitScheduler
	opened atomic.Bool
}

// newCompactionGate returns a closed gate. The scheduler behind it has no
// goroutine of its own: whatever waits begins when another has ended.
func newCompactionGate() *compactionGate {
	return &compactionGate{ConcurrencyLimitScheduler: pebble.NewConcurrencyLimitSchedulerWithNoPeriodicGrantingForTest()}
}

// TrySchedule implements pebble.CompactionScheduler. Who is refused does not ask
// again, and waits.
func (g *compactionGate) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !g.opened.Load() {
		return false, nil
	}
	return g.ConcurrencyLimitScheduler.TrySchedule()
}

// open lets in who waits, as the end of a compaction does.
func (g *compactionGate) open() {
	g.opened.Store(true)
	if granted, handle := g.ConcurrencyLimitScheduler.TrySchedule(); granted {
		handle.Done()
	}
}
