package actors

import "sync"

// parkedMax bounds how many idle goroutines a dispatcher keeps: as many as it takes
// for the actors that one entry of the log wakes, and for an activity of each.
const parkedMax = 512

// A runnable is what a goroutine of a dispatcher does.
type runnable interface{ run() }

// A dispatcher runs the mailboxes of actors, and activities, on goroutines that it
// keeps: most of the cost of a hand-over is the growth of a fresh goroutine's
// stack. The one that has come to rest last is the first to go on.
type dispatcher struct {
	running sync.WaitGroup

	mu     sync.Mutex
	parked []chan runnable // each has room for one
	closed bool
}

// start has something run soon, on a goroutine of its own.
func (d *dispatcher) start(r runnable) {
	d.mu.Lock()
	last := len(d.parked) - 1
	if last < 0 {
		d.mu.Unlock()
		d.running.Add(1)
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

func (f function) run() { f() }

// Throughput implements actor.Dispatcher.
func (d *dispatcher) Throughput() int { return throughput }

func (d *dispatcher) serve(r runnable) {
	// Deferred, because user code may end this goroutine with Goexit.
	defer d.running.Done()
	next := make(chan runnable, 1)
	for more := true; more; {
		r.run()
		if !d.park(next) {
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
