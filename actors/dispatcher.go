package actors

import (
	"runtime"
	"sync"
	"time"
)

// parkedMax bounds how many idle goroutines a dispatcher keeps: as many as it takes
// for the actors that one entry of the log wakes, and for an activity of each.
const parkedMax = 512

// A runnable is what a goroutine of a dispatcher does. run reports whether the
// goroutine was forsaken meanwhile.
type runnable interface{ run() (forsaken bool) }

// A dispatcher runs the mailboxes of actors, and activities, on goroutines that it
// keeps: most of the cost of a hand-over is the growth of a fresh goroutine's
// stack. The one that has come to rest last is the first to go on.
//
// Of actors no more than actingMax run at once; the other mailboxes wait in the order in
// which they were woken. One entry of the log wakes hundreds of them, and the runtime's
// scheduler makes no difference: what must not be late, the heartbeats above all, would
// have to wait for a processor behind all of them.
type dispatcher struct {
	running   sync.WaitGroup
	actingMax int

	mu     sync.Mutex
	parked []chan runnable // each has room for one
	closed bool
	acting int // goroutines that run mailboxes
	// Mailboxes that wait for one of those, linked, and how many have been taken.
	first, last *mailbox
	taken       uint64
	watchdog    *time.Timer // nil while nothing waits
}

// actingPerProcessor is how many actors may run at once for each processor: more than
// one, because they may wait for the disk.
const actingPerProcessor = 8

// stuckAfter is how long mailboxes may wait without any of them being taken. Then code
// of users blocks where it should not, or disks are slow, and one goroutine more is
// given to those that wait.
const stuckAfter = 10 * time.Millisecond

func newDispatcher() *dispatcher {
	return &dispatcher{actingMax: actingPerProcessor * runtime.GOMAXPROCS(0)}
}

// act has a mailbox run soon.
func (d *dispatcher) act(m *mailbox) {
	d.mu.Lock()
	if d.acting < d.actingMax {
		d.acting++
		d.begin(m)
		return
	}
	if d.last == nil {
		d.first = m
	} else {
		d.last.behind = m
	}
	d.last = m
	if d.watchdog == nil {
		d.watch()
	}
	d.mu.Unlock()
}

// next returns the mailbox that is to run on the goroutine of one that rests, nil if
// none waits.
func (d *dispatcher) next() *mailbox {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.pop()
	if m == nil {
		d.acting--
	}
	return m
}

// pop takes the mailbox that has waited longest. d.mu is held.
func (d *dispatcher) pop() *mailbox {
	m := d.first
	if m == nil {
		return nil
	}
	d.taken++
	if d.first, m.behind = m.behind, nil; d.first == nil {
		d.last = nil
	}
	return m
}

// watch looks after stuckAfter whether those that wait get on. d.mu is held.
func (d *dispatcher) watch() {
	before := d.taken
	d.watchdog = time.AfterFunc(stuckAfter, func() {
		d.mu.Lock()
		d.watchdog = nil
		var m *mailbox
		if d.taken == before {
			m = d.pop()
		}
		if d.first != nil {
			d.watch()
		}
		if m == nil {
			d.mu.Unlock()
			return
		}
		d.acting++
		d.begin(m)
	})
}

// pause gives the place of an actor whose code is blocked to a mailbox that waits.
func (d *dispatcher) pause() {
	d.mu.Lock()
	m := d.pop()
	if m == nil {
		d.acting--
		d.mu.Unlock()
		return
	}
	d.begin(m)
}

// resume takes back that place when the code goes on, even if there is none.
func (d *dispatcher) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.acting++
}

// forsake gives up the goroutine of an actor that is paused: it is not waited for, and
// ends when the code returns.
func (d *dispatcher) forsake() { d.running.Done() }

// start has something run soon, on a goroutine of its own.
func (d *dispatcher) start(r runnable) {
	d.mu.Lock()
	d.begin(r)
}

// begin is start with d.mu held, which it releases.
func (d *dispatcher) begin(r runnable) {
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
func (d *dispatcher) Schedule(fn func()) { d.start(function(fn)) }

// A function is a runnable of one call.
type function func()

func (f function) run() bool {
	f()
	return false
}

// Throughput implements actor.Dispatcher.
func (d *dispatcher) Throughput() int { return throughput }

func (d *dispatcher) serve(r runnable) {
	forsaken := false
	// Deferred, because user code may end this goroutine with Goexit.
	defer func() {
		if !forsaken {
			d.running.Done()
		}
	}()
	next := make(chan runnable, 1)
	for more := true; more; {
		if forsaken = r.run(); forsaken || !d.park(next) {
			return
		}
		r, more = <-next
	}
}

// park puts a goroutine among the idle ones, unless there are enough.
func (d *dispatcher) park(next chan runnable) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.parked) == parkedMax {
		return false
	}
	d.parked = append(d.parked, next)
	return true
}

// close ends the parked goroutines, and the running ones when they have done
// their work.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, next := range d.parked {
		close(next)
	}
	d.parked = nil
}

// wait returns when all goroutines have ended. Nothing may be scheduled that has
// not been when it is called.
func (d *dispatcher) wait() { d.running.Wait() }
