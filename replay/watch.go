package replay

import (
	"errors"
	"sync/atomic"
)

// errAbandoned ends a turn or a replay of an execution that nobody waits for any
// more.
var errAbandoned = errors.New("tenuto: the execution was abandoned while its code ran")

// A Watch lets other goroutines see how far an execution is while its code runs,
// and abandon it. Its methods may be called concurrently; one Watch may serve the
// executions of an instance one after the other. The zero value is ready.
type Watch struct {
	eventID   atomic.Uint64
	abandoned atomic.Bool
	stray     func(*Mismatch)
}

// EventID returns the event_id that the execution has consumed last: the code is
// running the step that follows from it.
func (w *Watch) EventID() uint64 { return w.eventID.Load() }

// Abandon stops the execution for good. Code that is running now goes on until its
// next durable call blocks. No coroutine is resumed after that, except to be ended
// by [Execution.Drop]; [Execution.Turn] and [Execution.Replay] return an error, and
// nothing more is logged.
func (w *Watch) Abandon() { w.abandoned.Store(true) }

// OnStray has f called when a durable call of an execution has come from a goroutine
// that the author's code started itself: once for each execution, on that goroutine. It
// must be called before the first execution is watched. The next turn, if there is one,
// returns the same [Mismatch].
func (w *Watch) OnStray(f func(*Mismatch)) { w.stray = f }

// SetWatch has the execution watched by w. It must be called before the first event.
func (x *Execution) SetWatch(w *Watch) {
	x.watch = w
	x.coroutines.abandoned = &w.abandoned
}
