package actors

import "sync"

// parkedMax bounds how many idle goroutines a dispatcher keeps.
const parkedMax = 64

// throughput is how many messages an actor takes before it lets others run.
const throughput = 300

// A dispatcher runs the mailboxes of actors on goroutines that it keeps: three
// quarters of the cost of a hand-over between actors is the growth of a fresh
// goroutine's stack.
type dispatcher struct {
	work    chan func()
	closing chan struct{}
	tokens  chan struct{} // one for each parked goroutine
	running sync.WaitGroup
}

func newDispatcher() *dispatcher {
	return &dispatcher{
		work:    make(chan func()),
		closing: make(chan struct{}),
		tokens:  make(chan struct{}, parkedMax),
	}
}

// Schedule runs fn soon, on a goroutine of its own.
func (d *dispatcher) Schedule(fn func()) {
	select {
	case d.work <- fn:
	default:
		d.running.Add(1)
		go d.serve(fn)
	}
}

// Throughput returns the number of messages taken in one go.
func (d *dispatcher) Throughput() int { return throughput }

func (d *dispatcher) serve(fn func()) {
	// Deferred, because user code may end this goroutine with Goexit.
	defer d.running.Done()
	for {
		fn()
		select {
		case d.tokens <- struct{}{}:
		default:
			return
		}
		select {
		case fn = <-d.work:
			<-d.tokens
		case <-d.closing:
			return
		}
	}
}

// close ends the parked goroutines, and the running ones when they have done
// their work.
func (d *dispatcher) close() { close(d.closing) }

// wait returns when all goroutines have ended. Nothing may be scheduled that has
// not been when it is called.
func (d *dispatcher) wait() { d.running.Wait() }
