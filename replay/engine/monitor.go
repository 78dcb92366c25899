package engine

import (
	"errors"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/replay"
)

// errAbandoned ends a turn or a replay of an abandoned execution.
var errAbandoned = errors.New("tenuto: the execution was abandoned while its code ran")

// A Monitor lets other goroutines observe the progress of an execution while its code runs, and
// abandon it. Its methods are safe for concurrent use. One Monitor may serve the successive
// executions of an instance. The zero value is ready.
type Monitor struct {
	eventID       atomic.Uint64
	abandoned     atomic.Bool
	onForeignCall func(*replay.Mismatch)
}

// EventID returns the event_id that the execution consumed last; the code is running the step that
// follows it.
func (m *Monitor) EventID() uint64 { return m.eventID.Load() }

// Abandon stops the execution permanently. Running code continues until its next durable call
// blocks. After that no coroutine is resumed, except to be ended by [Execution.Evict].
// [Execution.Turn] and [Execution.Replay] return an error, and nothing more is logged.
func (m *Monitor) Abandon() { m.abandoned.Store(true) }

// OnForeignCall sets a function that is called when a durable call comes from a goroutine that the
// author's code started: once for each execution, on that goroutine. It must be set before the
// first execution is monitored. The next turn, if any, returns the same [replay.Mismatch].
func (m *Monitor) OnForeignCall(f func(*replay.Mismatch)) { m.onForeignCall = f }

// SetMonitor sets the execution's monitor. It must be called before the first event.
func (x *Execution) SetMonitor(w *Monitor) {
	x.monitor = w
	x.coroutines.abandoned = &w.abandoned
}
