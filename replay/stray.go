package replay

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/tenuto-dev/tenuto/internal/goroutine"
)

// running returns the coroutine that is running now, and does not return where the call
// may not be made. Durable calls from anywhere else are the author's mistake: their order
// would depend on the Go scheduler. It reads nothing that the code's goroutine writes
// before it knows that it is on that goroutine.
func (x *Execution) running(what string) *coroutine {
	if goroutine.ID() != x.coroutines.running.Load() {
		x.stop(what)
	}
	if x.sideways {
		panic(fmt.Sprintf("tenuto: %s inside a function that was given to Once, in instance %q", what, x.instance))
	}
	return x.coroutines.current
}

// stop ends a durable call that comes from a goroutine other than the running coroutine's.
//
//   - In code that the engine runs for another purpose (a coroutine of another instance, a
//     query, a codec) it panics. The engine contains that: the caller's instance fails, or
//     the query does.
//   - On a goroutine of the author's own it ends the goroutine, running its deferred
//     functions, and the instance of the Context stalls. A panic there would end the
//     process.
//   - A function that [iter.Pull] runs is part of the code that pulls, so it may go on.
func (x *Execution) stop(what string) {
	callers := make([]uintptr, 4096)
	callers = callers[:runtime.Callers(3, callers)]
	switch startOf(callers) {
	case startedByPull:
		return
	case startedByEngine:
		panic(fmt.Sprintf("tenuto: %s with the Context of instance %q outside its coroutines: use the Context that the code was given", what, x.instance))
	}
	x.blame(what, callers)
	runtime.Goexit()
}

// blame has the instance stall because of a durable call from a goroutine of the
// author's own.
func (x *Execution) blame(what string, callers []uintptr) {
	m := &Mismatch{
		Kind:      CalledOutside,
		Instance:  x.instance,
		Execution: x.number,
		EventID:   x.watch.EventID(),
		Expected:  "durable calls on coroutines of the instance: use replay.Go instead of the go statement",
		Found:     what + " on another goroutine",
		Source:    sourceLine(callers),
	}
	if x.stray.CompareAndSwap(nil, m) && x.watch.stray != nil && !x.watch.abandoned.Load() {
		x.watch.stray(m)
	}
}

// ownsAll ends the running coroutine if a future is another execution's, see owns.
func (x *Execution) ownsAll(what string, promises ...*promise) {
	for _, p := range promises {
		x.owns(what, "future", p.of)
	}
}

// owns ends the running coroutine if a future or semaphore has another owner, and stalls the
// instance: nothing would wake who waits for it, and two instances would touch the same memory.
// Nothing else of the other execution is read, because its coroutines may run at the same time.
func (x *Execution) owns(what, noun string, owner *Execution) {
	if owner == nil || owner == x {
		return
	}
	callers := make([]uintptr, 64)
	x.stray.CompareAndSwap(nil, &Mismatch{
		Kind:      ForeignFuture,
		Instance:  x.instance,
		Execution: x.number,
		EventID:   x.last,
		Expected:  noun + "s that this execution has made since it came into memory: keep none outside of the function of the orchestration",
		Found:     fmt.Sprintf("%s of a %s of %s/%d", what, noun, owner.instance, owner.number),
		Source:    sourceLine(callers[:runtime.Callers(2, callers)]),
	})
	x.coroutines.current.leave()
}

// interrupted returns why the execution must not go on, whatever its code does: a
// [*Mismatch] after a stray call, or errAbandoned.
func (x *Execution) interrupted() error {
	if m := x.stray.Load(); m != nil {
		return m
	}
	if x.watch.abandoned.Load() {
		return errAbandoned
	}
	return nil
}

// How a goroutine was started.
type start uint8

const (
	startedByAuthor start = iota
	startedByEngine
	startedByPull
)

// startOf says how the goroutine with that call stack was started.
func startOf(callers []uintptr) start {
	frames := runtime.CallersFrames(callers)
	for {
		frame, more := frames.Next()
		switch {
		case frame.Function == "runtime.corostart":
			return startedByPull
		case frame.Function == ours+"(*coroutine).main", strings.HasPrefix(frame.Function, ours+"apart.func"):
			return startedByEngine
		case !more:
			return startedByAuthor
		}
	}
}
