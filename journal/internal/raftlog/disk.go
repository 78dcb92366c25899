package raftlog

import (
	"sync"
	"sync/atomic"
	"time"
)

// Disk measures the writes of this node's log and votes. A write that takes longer than limit is a
// stall. A leader must step down then: nothing is committed without its own disk, and the Raft
// library would lead for as long as the disk is stalled. A stall ends when the write returns.
//
// If the write returns before busyLimit has passed, the disk is busy but works, and another
// leader's disk is probably as busy. Stepping down repeatedly would leave the partition without a
// leader, so busyLimit is the limit for the next minute.
//
// Its timer runs only during a write.
type Disk struct {
	limit     time.Duration
	busyLimit time.Duration // at least busyLimitMin
	// onStall and onRecover are called after a stall has begun or ended, without a lock: they log,
	// and a handler may block on the same disk.
	onStall   func(age time.Duration)
	onRecover func(elapsed time.Duration)
	// observe is called with the duration of each write, in nanoseconds.
	observe func(uint64)
	// changed holds a token after a stall has begun or ended.
	changed chan struct{}

	writeSlot chan struct{} // holds a token during a write
	inStall   atomic.Bool

	mu           sync.Mutex
	writeStart   time.Time     // when the current write began; zero if there is none
	currentLimit time.Duration // for the current write
	busyUntil    time.Time     // zero if the disk was never busy
	timer        *time.Timer
	stallCh      chan struct{} // closed during a stall
}

const (
	// busyLimitMin is how long a write on a busy disk may take. Even the slowest disks that work
	// need less.
	busyLimitMin = time.Second
	// busyDuration is how long the disk counts as busy after a slow write.
	busyDuration = time.Minute
)

// NewDisk returns a Disk that reports a write longer than limit as a stall. observe, onStall and
// onRecover are as in Disk.
func NewDisk(limit time.Duration, observe func(uint64), onStall, onRecover func(time.Duration)) *Disk {
	d := &Disk{
		limit: limit, busyLimit: max(limit, busyLimitMin), observe: observe, onStall: onStall, onRecover: onRecover,
		changed: make(chan struct{}, 1), stallCh: make(chan struct{}), writeSlot: make(chan struct{}, 1),
	}
	d.timer = time.AfterFunc(limit, d.checkStall)
	d.timer.Stop()
	return d
}

// write runs one write and measures it. Concurrent writes wait.
func (d *Disk) write(f func() error) error {
	d.writeSlot <- struct{}{}
	defer func() { <-d.writeSlot }()
	d.beginWrite()
	defer d.finishWrite()
	return f()
}

func (d *Disk) beginWrite() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writeStart, d.currentLimit = time.Now(), d.limit
	if d.writeStart.Before(d.busyUntil) {
		d.currentLimit = d.busyLimit
	}
	d.timer.Reset(d.currentLimit)
}

func (d *Disk) finishWrite() {
	if elapsed, recovered := d.endWrite(); recovered {
		d.onRecover(elapsed)
	}
}

// endWrite returns how long the write took, and reports whether it was a stall.
func (d *Disk) endWrite() (elapsed time.Duration, recovered bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer.Stop()
	elapsed = time.Since(d.writeStart)
	d.writeStart = time.Time{}
	d.observe(uint64(elapsed))
	if d.limit < elapsed && elapsed < d.busyLimit {
		d.busyUntil = time.Now().Add(busyDuration)
	}
	if d.inStall.Swap(false) {
		d.stallCh = make(chan struct{})
		putToken(d.changed)
		recovered = true
	}
	return elapsed, recovered
}

// checkStall runs when the timer has fired. The write that it was set for may just have ended.
func (d *Disk) checkStall() {
	if age, stalls := d.beginStall(); stalls {
		d.onStall(age)
	}
}

// beginStall reports whether the current write has become a stall.
func (d *Disk) beginStall() (age time.Duration, stalls bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writeStart.IsZero() || time.Since(d.writeStart) < d.currentLimit || d.inStall.Swap(true) {
		return 0, false
	}
	close(d.stallCh)
	putToken(d.changed)
	return time.Since(d.writeStart), true
}

// IsStalled reports whether there is a stall. It takes no lock.
func (d *Disk) IsStalled() bool { return d.inStall.Load() }

// StallStarted returns a channel that is closed during a stall, or when the next one begins.
func (d *Disk) StallStarted() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stallCh
}

// Changed returns a channel that holds a token after a stall has begun or ended.
func (d *Disk) Changed() <-chan struct{} { return d.changed }

// BusyLimit returns how long a write may take on a busy disk.
func (d *Disk) BusyLimit() time.Duration { return d.busyLimit }

// WriteAge returns the age of the current write; 0 if there is none.
func (d *Disk) WriteAge() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writeStart.IsZero() {
		return 0
	}
	return time.Since(d.writeStart)
}
