package engine

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/internal/goroutine"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A callChecker checks that the durable calls of an execution are made by its running coroutine, on
// its own objects.
type callChecker struct {
	id         *host.ID // of the execution
	coroutines *scheduler
	monitor    *Monitor
	foreign    atomic.Pointer[replay.Mismatch] // the first call that failed the check
	answering  atomic.Bool                     // a query runs, and no coroutine does
}

// current returns the running coroutine. It does not return on another goroutine, whose durable
// calls would depend on the Go scheduler, or in a function that SideEffect or Await calls. It may
// read only atomic fields before it has checked the goroutine.
func (k *callChecker) current(what string) *coroutine {
	if goroutine.ID() != k.coroutines.runningID.Load() {
		k.stopForeignCall(what)
	}
	c := k.coroutines.current
	if c != nil && c.callback != "" {
		panic(fmt.Sprintf("tenuto: %s inside a function that was given to %s, in instance %q", what, c.callback, k.id.Instance))
	}
	return c
}

// checkRead is current for calls that only read state of the instance. The functions of queries and
// of Await may make them too.
func (k *callChecker) checkRead(what string) {
	if goroutine.ID() != k.coroutines.runningID.Load() && !k.answering.Load() {
		k.stopForeignCall(what)
	}
}

// stopForeignCall ends a durable call from a goroutine other than the running coroutine's.
//
//   - In code that the engine runs for another purpose (a coroutine of another instance, a query, a
//     codec) it panics. The engine recovers the panic, and the caller's instance or the query
//     fails.
//   - On a goroutine that the author started, it ends the goroutine, whose deferred functions run,
//     and stalls the instance of the Context. A panic on that goroutine would end the process.
//   - A function that [iter.Pull] runs is part of the code that pulls, so the call continues.
func (k *callChecker) stopForeignCall(what string) {
	callers := make([]uintptr, 4096)
	callers = callers[:runtime.Callers(3, callers)]
	switch goroutineStartOf(callers) {
	case startedByPull:
		return
	case startedByEngine:
		panic(fmt.Sprintf("tenuto: %s with the Context of instance %q outside its coroutines: use the Context that the code was given", what, k.id.Instance))
	}
	k.reportForeignCall(what, callers)
	runtime.Goexit()
}

// reportForeignCall stalls the instance because of a durable call from a goroutine that the author
// started.
func (k *callChecker) reportForeignCall(what string, callers []uintptr) {
	m := &replay.Mismatch{
		Kind:      replay.ForeignGoroutine,
		Instance:  k.id.Instance,
		Execution: k.id.Number,
		EventID:   k.monitor.EventID(),
		Expected:  "durable calls on coroutines of the instance: use replay.Go instead of the go statement",
		Found:     what + " on another goroutine",
		Source:    sourceLine(callers),
	}
	if k.foreign.CompareAndSwap(nil, m) && k.monitor.onForeignCall != nil && !k.monitor.abandoned.Load() {
		k.monitor.onForeignCall(m)
	}
}

// checkOwners ends the running coroutine if a future belongs to another execution; see checkOwner.
func (k *callChecker) checkOwners(what string, promises ...*promise) {
	for _, p := range promises {
		k.checkOwner(what, "future", p.owner)
	}
}

// checkOwner ends the running coroutine and stalls the instance if a future or semaphore belongs to
// another execution. Nothing would wake its waiters, and two instances would access the same
// memory. checkOwner reads only the constant ID and number of the other execution, whose coroutines
// may be running.
func (k *callChecker) checkOwner(what, kind string, owner *host.ID) {
	if owner == nil || owner == k.id {
		return
	}
	callers := make([]uintptr, 64)
	k.foreign.CompareAndSwap(nil, &replay.Mismatch{
		Kind:      replay.ForeignFuture,
		Instance:  k.id.Instance,
		Execution: k.id.Number,
		EventID:   k.monitor.EventID(),
		Expected:  kind + "s that this execution created since it was loaded: do not keep them outside the orchestration function",
		Found:     fmt.Sprintf("%s of a %s of %s/%d", what, kind, owner.Instance, owner.Number),
		Source:    sourceLine(callers[:runtime.Callers(2, callers)]),
	})
	k.coroutines.current.exit()
}

// interruption returns why the execution must not continue: a [*replay.Mismatch] after a foreign
// call, or errAbandoned.
func (k *callChecker) interruption() error {
	if m := k.foreign.Load(); m != nil {
		return m
	}
	if k.monitor.abandoned.Load() {
		return errAbandoned
	}
	return nil
}

// A goroutineStart is how a goroutine was started.
type goroutineStart uint8

const (
	startedByAuthor goroutineStart = iota
	startedByEngine
	startedByPull
)

// goroutineStartOf returns how the goroutine with that call stack was started.
func goroutineStartOf(callers []uintptr) goroutineStart {
	frames := runtime.CallersFrames(callers)
	for {
		frame, more := frames.Next()
		switch {
		case frame.Function == "runtime.corostart":
			return startedByPull
		case frame.Function == enginePrefix+"(*coroutine).main", strings.HasPrefix(frame.Function, enginePrefix+"callIsolated.func"):
			return startedByEngine
		case !more:
			return startedByAuthor
		}
	}
}
