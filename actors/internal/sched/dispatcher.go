package sched

import (
	"runtime"
	"sync"
	"time"
)

// parkedMax bounds the idle goroutines of a dispatcher: enough for the actors that one committed
// Raft entry wakes, and for an activity of each.
const parkedMax = 512

// A Runnable is a unit of work for a goroutine of a dispatcher. Run reports whether the goroutine
// was abandoned meanwhile.
type Runnable interface{ Run() (abandoned bool) }

// A Dispatcher runs mailboxes and activities on goroutines that it reuses, because most of the
// cost of a new goroutine is the growth of its stack. The goroutine parked last is reused first.
//
// At most activeMax mailboxes run at once; others wait in the order in which they were woken. One
// committed Raft entry wakes hundreds of actors, and the runtime's scheduler has no priorities:
// without the bound, heartbeats would wait for a processor until all of them have run.
type Dispatcher struct {
	running   sync.WaitGroup
	activeMax int

	mu     sync.Mutex
	parked []chan Runnable // each has capacity 1
	closed bool
	active int // goroutines that run mailboxes
	// A linked list of mailboxes that wait for a goroutine, and how many have been taken from it.
	first, last *Mailbox
	dequeued    uint64
	watchdog    *time.Timer // nil while no mailbox waits
}

// activePerProcessor is how many actors may run at once for each processor. It is more than one
// because actors may wait for the disk.
const activePerProcessor = 8

// stuckTimeout is how long mailboxes may wait without any being taken. Then user code blocks or
// disks are slow, and the dispatcher adds one goroutine.
const stuckTimeout = 10 * time.Millisecond

// NewDispatcher returns a dispatcher without goroutines. The caller must call Close.
func NewDispatcher() *Dispatcher {
	return &Dispatcher{activeMax: activePerProcessor * runtime.GOMAXPROCS(0)}
}

// runMailbox runs a mailbox on a goroutine, or queues it while activeMax mailboxes run.
func (d *Dispatcher) runMailbox(m *Mailbox) {
	d.mu.Lock()
	if d.active < d.activeMax {
		d.active++
		d.startLocked(m)
		return
	}
	if d.last == nil {
		d.first = m
	} else {
		d.last.nextWaiting = m
	}
	d.last = m
	if d.watchdog == nil {
		d.startWatchdog()
	}
	d.mu.Unlock()
}

// next returns the next mailbox for a goroutine whose mailbox is empty, nil if none waits.
func (d *Dispatcher) next() *Mailbox {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.pop()
	if m == nil {
		d.active--
	}
	return m
}

// pop removes and returns the mailbox that has waited longest. d.mu is held.
func (d *Dispatcher) pop() *Mailbox {
	m := d.first
	if m == nil {
		return nil
	}
	d.dequeued++
	if d.first, m.nextWaiting = m.nextWaiting, nil; d.first == nil {
		d.last = nil
	}
	return m
}

// startWatchdog checks after stuckTimeout whether waiting mailboxes have been taken. d.mu is held.
func (d *Dispatcher) startWatchdog() {
	before := d.dequeued
	d.watchdog = time.AfterFunc(stuckTimeout, func() {
		d.mu.Lock()
		d.watchdog = nil
		var m *Mailbox
		if d.dequeued == before {
			m = d.pop()
		}
		if d.first != nil {
			d.startWatchdog()
		}
		if m == nil {
			d.mu.Unlock()
			return
		}
		d.active++
		d.startLocked(m)
	})
}

// ReleaseBlocked gives the slot of an actor whose code is blocked to a waiting mailbox.
func (d *Dispatcher) ReleaseBlocked() {
	d.mu.Lock()
	m := d.pop()
	if m == nil {
		d.active--
		d.mu.Unlock()
		return
	}
	d.startLocked(m)
}

// Reacquire takes the slot back when the code resumes, even beyond activeMax.
func (d *Dispatcher) Reacquire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.active++
}

// Abandon stops counting the goroutine of an actor whose code is blocked. The goroutine ends when
// the code returns.
func (d *Dispatcher) Abandon() { d.running.Done() }

// Start runs r soon, on a goroutine that is free.
func (d *Dispatcher) Start(r Runnable) {
	d.mu.Lock()
	d.startLocked(r)
}

// startLocked is Start with d.mu held; it releases d.mu.
func (d *Dispatcher) startLocked(r Runnable) {
	last := len(d.parked) - 1
	if last < 0 {
		d.running.Add(1)
		d.mu.Unlock()
		go d.serve(r)
		return
	}
	next := d.parked[last]
	d.parked = d.parked[:last]
	d.mu.Unlock()
	next <- r
}

// Schedule implements actor.Dispatcher.
func (d *Dispatcher) Schedule(fn func()) { d.Start(runnableFunc(fn)) }

// A runnableFunc is a Runnable that calls a function.
type runnableFunc func()

func (f runnableFunc) Run() bool {
	f()
	return false
}

// Throughput implements actor.Dispatcher.
func (d *Dispatcher) Throughput() int { return throughput }

func (d *Dispatcher) serve(r Runnable) {
	abandoned := false
	// Deferred, because user code may end this goroutine with Goexit.
	defer func() {
		if !abandoned {
			d.running.Done()
		}
	}()
	next := make(chan Runnable, 1)
	for more := true; more; {
		if abandoned = r.Run(); abandoned || !d.park(next) {
			return
		}
		r, more = <-next
	}
}

// park adds a goroutine to the idle ones, and reports whether there was room.
func (d *Dispatcher) park(next chan Runnable) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.parked) == parkedMax {
		return false
	}
	d.parked = append(d.parked, next)
	return true
}

// Close ends the parked goroutines, and the running ones after their work.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, next := range d.parked {
		close(next)
	}
	d.parked = nil
}

// Wait returns when all goroutines have ended. The caller must schedule nothing more.
func (d *Dispatcher) Wait() { d.running.Wait() }
