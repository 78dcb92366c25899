package replay

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/internal/goroutine"
)

// wake is what the owner tells a parked coroutine, and its answer.
type wake uint8

const (
	wakeGoOn   wake = iota // return from park
	wakeUnwind             // end, running deferred functions
	wakeReport             // store the call stack and stay parked
	wakeParked             // the answer: it waits to be told something, or has ended
)

// A coroutine runs one function of user code, a stretch at a time: from resume
// until it parks or ends. It is a goroutine of its own and not an [iter.Pull]:
// the hand-over costs 0.2 µs more, little beside a commit, and in return
// neither runtime.Goexit nor runtime.LockOSThread in user code can hurt the
// goroutine that resumes it (DESIGN.md has the figures).
//
// One goroutine at a time may call its methods; park is called from inside.
type coroutine struct {
	body func()

	// What the owner tells it, and back that it has parked or ended. They take
	// turns, so one channel does for both.
	hand chan wake

	id      uintptr         // of its goroutine
	running *atomic.Uintptr // the id of the one that may make durable calls

	started bool
	done    bool
	dropped bool
	crash   *crash // how it ended, if not by returning

	scope   *scope    // what it runs in
	future  *promise  // of what it returns; nil if nobody can ask for it
	refused int       // how many awaits found that the code of its phase is over
	waiting *wait     // what it is parked for
	wait    wait      // its memory
	stack   []uintptr // answer to wakeReport
}

// crash is the end of user code by a panic or by runtime.Goexit.
type crash struct {
	value any
	stack string
}

// resume lets the coroutine run until it parks or ends.
func (c *coroutine) resume() {
	if c.started {
		c.running.Store(c.id)
		c.tell(wakeGoOn)
		return
	}
	c.started = true
	c.hand = make(chan wake)
	go c.main()
	<-c.hand
}

// unwind ends a parked coroutine: its deferred functions run, then its
// goroutine is gone.
func (c *coroutine) unwind() {
	c.running.Store(c.id)
	c.tell(wakeUnwind)
}

// report makes a parked coroutine store its call stack.
func (c *coroutine) report() { c.tell(wakeReport) }

// tell returns when the coroutine has parked again or has ended.
func (c *coroutine) tell(w wake) {
	c.hand <- w
	<-c.hand
}

// park hands control back to the owner and returns when resumed. It does not
// return when the coroutine is unwound.
func (c *coroutine) park() {
	for {
		c.hand <- wakeParked
		switch <-c.hand {
		case wakeGoOn:
			return
		case wakeReport:
			pcs := make([]uintptr, 32)
			c.stack = pcs[:runtime.Callers(2, pcs)]
		case wakeUnwind:
			// Goexit and not a panic: user code that recovers must not be
			// able to mistake a dehydration for an error of its own.
			c.leave()
		}
	}
}

// leave ends the running coroutine: its deferred functions run, and it has not
// crashed.
func (c *coroutine) leave() {
	c.dropped = true
	runtime.Goexit()
}

func (c *coroutine) main() {
	c.id = goroutine.ID()
	c.running.Store(c.id)
	returned := false
	defer func() {
		value := recover()
		c.running.Store(0) // the goroutine's successor may get the same id
		if !returned && !c.dropped {
			c.crash = &crash{value: value, stack: string(debug.Stack())}
		}
		c.done = true
		c.hand <- wakeParked
	}()
	c.body()
	returned = true
}
