package journal

import (
	"sync"
	"sync/atomic"
	"time"
)

// disk watches the writes of this node's log and of its votes. A write that
// takes longer than limit is a stall: a leader must give way then, because
// nothing is committed without its own disk, and the Raft library would go on
// leading for as long as the disk hangs. A stall ends when the write returns.
//
// If it returns before patience has passed, the disk is busy and does not hang, and
// another leader would probably be no better off. To give way again and again would
// leave the group without one, so patience is the limit for the next minute.
//
// Its timer is the only thing that runs by itself, and only while a write is on
// its way.
type disk struct {
	limit    time.Duration
	patience time.Duration // no less
	// onStall and onRecover are called after a stall has begun or ended, under no lock: they
	// log, and a handler may block on the same disk.
	onStall   func(age time.Duration)
	onRecover func(took time.Duration)
	latency   histogram // of the writes, in nanoseconds
	// changed holds a token after a stall has begun or ended.
	changed chan struct{}

	writing chan struct{} // holds a token while a write is on its way
	hanging atomic.Bool

	mu      sync.Mutex
	since   time.Time     // when the write began; zero if there is none
	allowed time.Duration // for it
	busy    time.Time     // until then; zero if it never was
	timer   *time.Timer
	stalled chan struct{} // closed during a stall
}

const (
	// How long a write may take on a disk that is busy, which the worst of one that is
	// not broken stay below.
	busyPatience = time.Second
	// For how long it is taken to be busy after a write that took long.
	busyFor = time.Minute
)

func newDisk(limit time.Duration, onStall, onRecover func(time.Duration)) *disk {
	d := &disk{
		limit: limit, patience: max(limit, busyPatience), onStall: onStall, onRecover: onRecover,
		changed: make(chan struct{}, 1), stalled: make(chan struct{}), writing: make(chan struct{}, 1),
	}
	d.timer = time.AfterFunc(limit, d.stall)
	d.timer.Stop()
	return d
}

// write runs one write and measures it. Others wait meanwhile.
func (d *disk) write(f func() error) error {
	d.writing <- struct{}{}
	defer func() { <-d.writing }()
	d.begin()
	defer d.end()
	return f()
}

func (d *disk) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.since, d.allowed = time.Now(), d.limit
	if d.since.Before(d.busy) {
		d.allowed = d.patience
	}
	d.timer.Reset(d.allowed)
}

func (d *disk) end() {
	if took, recovered := d.endWrite(); recovered {
		d.onRecover(took)
	}
}

// endWrite returns how long the write took, and reports whether it was a stall.
func (d *disk) endWrite() (took time.Duration, recovered bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer.Stop()
	took = time.Since(d.since)
	d.since = time.Time{}
	d.latency.observe(uint64(took))
	if d.limit < took && took < d.patience {
		d.busy = time.Now().Add(busyFor)
	}
	if d.hanging.Swap(false) {
		d.stalled = make(chan struct{})
		notify(d.changed)
		recovered = true
	}
	return took, recovered
}

// stall runs when the timer has fired, which may be just after the write for
// which it was set.
func (d *disk) stall() {
	if age, stalls := d.beginStall(); stalls {
		d.onStall(age)
	}
}

// beginStall reports whether the write on its way has become a stall.
func (d *disk) beginStall() (age time.Duration, stalls bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.since.IsZero() || time.Since(d.since) < d.allowed || d.hanging.Swap(true) {
		return 0, false
	}
	close(d.stalled)
	notify(d.changed)
	return time.Since(d.since), true
}

// hangs reports whether there is a stall. It costs nothing.
func (d *disk) hangs() bool { return d.hanging.Load() }

// stalls returns a channel that is closed when there is a stall, or when the
// next one begins.
func (d *disk) stalls() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stalled
}

// age returns for how long the write that is on its way has been so; 0 if there
// is none.
func (d *disk) age() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.since.IsZero() {
		return 0
	}
	return time.Since(d.since)
}

// notify leaves a token in a channel that holds one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
