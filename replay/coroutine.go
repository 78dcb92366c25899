package replay

import (
	"runtime"
	"runtime/debug"
)

// wake is what the owner tells a parked coroutine.
type wake uint8

const (
	wakeGoOn   wake = iota // return from park
	wakeUnwind             // end, running deferred functions
	wakeReport             // store the call stack and stay parked
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

	wake   chan wake
	parked chan<- struct{} // shared by the coroutines of one execution

	started bool
	done    bool
	dropped bool
	crash   *crash // how it ended, if not by returning

	waiting *wait     // what it is parked for
	wait    wait      // its memory
	stack   []uintptr // answer to wakeReport
}

// crash is the end of user code by a panic or by runtime.Goexit.
type crash struct {
	value any
	stack string
}

// resume lets the coroutine run until it parks or ends. The caller then
// receives from the parked channel.
func (c *coroutine) resume() {
	if c.started {
		c.wake <- wakeGoOn
		return
	}
	c.started = true
	c.wake = make(chan wake)
	go c.main()
}

// unwind ends a parked coroutine: its deferred functions run, then its
// goroutine is gone. The caller then receives from the parked channel.
func (c *coroutine) unwind() { c.wake <- wakeUnwind }

// report makes a parked coroutine store its call stack. The caller then
// receives from the parked channel.
func (c *coroutine) report() { c.wake <- wakeReport }

// park hands control back to the owner and returns when resumed. It does not
// return when the coroutine is unwound.
func (c *coroutine) park() {
	for {
		c.parked <- struct{}{}
		switch <-c.wake {
		case wakeGoOn:
			return
		case wakeReport:
			pcs := make([]uintptr, 32)
			c.stack = pcs[:runtime.Callers(2, pcs)]
		case wakeUnwind:
			// Goexit and not a panic: user code that recovers must not be
			// able to mistake a dehydration for an error of its own.
			c.dropped = true
			runtime.Goexit()
		}
	}
}

func (c *coroutine) main() {
	returned := false
	defer func() {
		value := recover()
		if !returned && !c.dropped {
			c.crash = &crash{value: value, stack: string(debug.Stack())}
		}
		c.done = true
		c.parked <- struct{}{}
	}()
	c.body()
	returned = true
}
