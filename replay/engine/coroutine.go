package engine

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/internal/goroutine"
	"github.com/tenuto-dev/tenuto/replay"
)

// A signal is a command to a parked coroutine, or the coroutine's answer.
type signal uint8

const (
	signalResume      signal = iota // return from park
	signalUnwind                    // end, running deferred functions
	signalReportStack               // store the call stack and stay parked
	signalParked                    // the answer: parked, or ended
)

// A coroutine runs one function of user code. After each resume it runs until it parks or ends. It
// is a goroutine and not an [iter.Pull]: a switch costs 0.2 µs more, which is little compared with
// a commit. In return, runtime.Goexit and runtime.LockOSThread in user code cannot affect the
// goroutine that resumes it (DESIGN.md has the figures).
//
// Only one goroutine at a time may call its methods. park is called from inside.
type coroutine struct {
	body func()

	// Signals to the coroutine and its answers. They alternate, so one channel serves both.
	signals chan signal

	id        uintptr         // of its goroutine
	runningID *atomic.Uintptr // ID of the goroutine that may make durable calls

	started  bool
	done     bool
	unwound  bool
	callback string // the call whose function is running, which must not make durable calls
	crash    *crash // how it ended, if not by returning

	scope         *scope    // the scope that it runs in
	future        *promise  // of its result; nil if it has none
	rejectedCalls int       // awaits and durable calls that failed after its phase ended
	waiting       *wait     // what it is parked for
	waitBuf       wait      // memory for waiting
	stack         []uintptr // answer to signalReportStack
}

// A crash is the end of user code by a panic or by runtime.Goexit.
type crash struct {
	value any
	stack string
}

func (c *crash) error() error {
	if c.value == nil {
		return &replay.PanicError{Message: "runtime.Goexit called in user code", Stack: c.stack}
	}
	return &replay.PanicError{Message: panicText(c.value), Stack: c.stack}
}

// panicText describes the value of a panic. The value's own method may panic with such a value
// again, which fmt passes on.
func panicText(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("panic: a %T, whose text panics", value)
		}
	}()
	return fmt.Sprintf("panic: %v", value)
}

// resume runs the coroutine until it parks or ends.
func (c *coroutine) resume() {
	if c.started {
		c.runningID.Store(c.id)
		c.switchTo(signalResume)
		return
	}
	c.started = true
	c.signals = make(chan signal)
	go c.main()
	<-c.signals
}

// unwind ends a parked coroutine and returns after its deferred functions have run.
func (c *coroutine) unwind() {
	c.runningID.Store(c.id)
	c.switchTo(signalUnwind)
}

// reportStack makes a parked coroutine store its call stack.
func (c *coroutine) reportStack() { c.switchTo(signalReportStack) }

// switchTo sends a signal and returns when the coroutine has parked again or has ended.
func (c *coroutine) switchTo(w signal) {
	c.signals <- w
	<-c.signals
}

// park returns control to the goroutine that resumed the coroutine. It returns after the next
// resume, and does not return if the coroutine is unwound.
func (c *coroutine) park() {
	for {
		c.signals <- signalParked
		switch <-c.signals {
		case signalResume:
			return
		case signalReportStack:
			pcs := make([]uintptr, 32)
			c.stack = pcs[:runtime.Callers(2, pcs)]
		case signalUnwind:
			// Goexit instead of a panic: user code that recovers must not mistake an eviction for
			// its own error.
			c.exit()
		}
	}
}

// wait parks the coroutine until one of the promises is resolved or the scope ends. It returns the
// error of the scope if that ended first.
func (c *coroutine) wait(s *scope, promises []*promise, now time.Time) error {
	w := &c.waitBuf
	w.promises = append(w.promises[:0], promises...)
	w.scope, w.err, w.since = s, nil, now.UnixNano()
	for _, p := range promises {
		if p.waiters == nil {
			p.waiters = p.waiterBuf[:0]
		}
		p.waiters = append(p.waiters, c)
	}
	c.waiting = w
	c.park()
	clear(w.promises)
	return w.err
}

// exit ends the running coroutine, running its deferred functions, without a crash.
func (c *coroutine) exit() {
	c.unwound = true
	runtime.Goexit()
}

func (c *coroutine) main() {
	c.id = goroutine.ID()
	c.runningID.Store(c.id)
	returned := false
	defer func() {
		value := recover()
		c.runningID.Store(0) // a later goroutine may get the same ID
		if !returned && !c.unwound {
			c.crash = &crash{value: value, stack: string(debug.Stack())}
		}
		c.done = true
		c.signals <- signalParked
	}()
	c.body()
	returned = true
}
