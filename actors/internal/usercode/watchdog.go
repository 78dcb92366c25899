package usercode

import (
	"context"
	"log/slog"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay/engine"
)

const (
	// blockedChecks is the check at which code counts as blocked. The interval of the checks is
	// half the limit, so that is after one to one and a half times the limit.
	blockedChecks = 3
	// rewarnInterval is the time until the warning is repeated.
	rewarnInterval = 10 * time.Minute
)

// An Owner is the actor of an instance that runs user code.
type Owner interface {
	// Instance returns the ID of the instance.
	Instance() string
	// HandleBlocked is called when the code counts as blocked, and again when the warning is
	// repeated. first says that it was not blocked at the last check. The owner may abandon the
	// code, and returns why; "" if it waits. then is called without the lock; it may be nil. The
	// watchdog's lock is held.
	HandleBlocked(first bool) (abandonReason string, then func())
}

// A Code says whether an owner is running user code. The watchdog's lock guards all fields except
// Monitor and labels.
type Code struct {
	Monitor engine.Monitor

	owner        Owner
	running      bool
	checks       int // how many checks found it running
	runningSince time.Time
	blocked      bool // it has run for too long
	abandoned    bool // permanently: the owner must have no further effect
	// Neighbors in the watchdog's list.
	previous, next *Code

	labels context.Context // carries label; made at the first use
}

// Blocked reports whether the code has run for too long. The watchdog's lock is held.
func (c *Code) Blocked() bool { return c.blocked }

// RunningSince returns the time of the first check that found the code running. The watchdog's lock
// is held.
func (c *Code) RunningSince() time.Time { return c.runningSince }

// Label labels the calling goroutine as running code of an instance. Goroutines that the code
// starts inherit the label.
func (c *Code) Label(instance string) {
	if c.labels == nil {
		c.labels = pprof.WithLabels(context.Background(), pprof.Labels(label, instance))
	}
	pprof.SetGoroutineLabels(c.labels)
}

// Unlabel removes the label of the calling goroutine.
func Unlabel() { pprof.SetGoroutineLabels(context.Background()) }

// A Watchdog checks the running code of a partition.
type Watchdog struct {
	logger        *slog.Logger
	actorFunction string
	checkInterval time.Duration // how often running code is checked, while any runs
	rewarnChecks  int           // the number of checks until the warning is repeated

	lock            sync.Locker // the caller's, which guards the fields below
	first           *Code       // that is running
	blocked         int         // how many of these are blocked
	checksScheduled bool
	timer           *time.Timer    // runs check
	checking        sync.WaitGroup // 1 while the timer is scheduled or check runs
}

// NewWatchdog returns a watchdog that uses the caller's lock. Code that runs for longer than limit
// counts as blocked. actorFunction is the name, in stacks, of the function in which actors receive
// their messages. The caller must call Stop.
func NewWatchdog(lock sync.Locker, limit time.Duration, actorFunction string, logger *slog.Logger) *Watchdog {
	interval := limit / (blockedChecks - 1)
	return &Watchdog{
		lock: lock, actorFunction: actorFunction, logger: logger,
		checkInterval: interval, rewarnChecks: max(int(rewarnInterval/interval), 1),
	}
}

// Stack returns the stack of blocked code of an instance, "" if none runs. It takes
// milliseconds if the process has many goroutines. The lock must not be held.
func (w *Watchdog) Stack(instance string) string { return codeStacks(w.actorFunction)[instance] }

// Blocked returns how many owners run blocked code. The lock is held.
func (w *Watchdog) Blocked() int { return w.blocked }

// Enter records that an owner begins to run code. The lock is held.
func (w *Watchdog) Enter(c *Code, owner Owner) {
	c.owner, c.running, c.checks = owner, true, 0
	c.next = w.first
	if c.next != nil {
		c.next.previous = c
	}
	w.first = c
	if w.checksScheduled {
		return
	}
	w.checksScheduled = true
	w.checking.Add(1)
	if w.timer == nil {
		w.timer = time.AfterFunc(w.checkInterval, w.check)
	} else {
		w.timer.Reset(w.checkInterval)
	}
}

// Leave records that the code has returned. It returns how long the code was blocked and whether it
// was abandoned meanwhile. The lock is held.
func (w *Watchdog) Leave(c *Code) (blocked time.Duration, abandoned bool) {
	if c.abandoned {
		return 0, true
	}
	if c.blocked {
		blocked = time.Since(c.runningSince)
	}
	w.unlink(c)
	return blocked, false
}

// Abandon stops watching code for which nothing waits any more. Its later durable calls have no
// effect. The lock is held.
func (w *Watchdog) Abandon(c *Code) {
	w.unlink(c)
	c.abandoned = true
	c.Monitor.Abandon()
}

// unlink removes code from the list. The lock is held.
func (w *Watchdog) unlink(c *Code) {
	if !c.running {
		return
	}
	if c.next != nil {
		c.next.previous = c.previous
	}
	if c.previous != nil {
		c.previous.next = c.next
	} else {
		w.first = c.next
	}
	if c.blocked {
		w.blocked--
	}
	c.running, c.blocked, c.previous, c.next = false, false, nil, nil
}

// check checks running code, and reschedules itself while any runs.
func (w *Watchdog) check() {
	var f findings
	w.lock.Lock()
	for c := w.first; c != nil; {
		next := c.next
		w.checkCode(c, &f)
		c = next
	}
	w.lock.Unlock()
	w.handle(f)
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.first != nil {
		w.timer.Reset(w.checkInterval)
		return
	}
	w.checksScheduled = false
	w.checking.Done()
}

// checkCode checks the code of one owner. The lock is held.
func (w *Watchdog) checkCode(c *Code, f *findings) {
	c.checks++
	if c.checks == 1 {
		c.runningSince = time.Now()
	}
	if c.checks < blockedChecks || c.checks > blockedChecks && (c.checks-blockedChecks)%w.rewarnChecks != 0 {
		return
	}
	first := !c.blocked
	if first {
		c.blocked = true
		w.blocked++
	}
	f.add(c, first)
}

// closeInterval is the interval of the checks after CheckBlocked.
const closeInterval = 500 * time.Millisecond

// CheckBlocked asks the owners of all blocked code again what to do. A closing partition calls it;
// from then on, code counts as blocked after at most 1.5 s. The caller must call report without the
// lock. The lock is held.
func (w *Watchdog) CheckBlocked() (report func()) {
	if w.checkInterval > closeInterval {
		w.checkInterval = closeInterval
		if w.checksScheduled && w.timer.Stop() {
			w.timer.Reset(w.checkInterval)
		}
	}
	var f findings
	for c := w.first; c != nil; {
		next := c.next
		if c.blocked {
			f.add(c, false)
		}
		c = next
	}
	return func() { w.handle(f) }
}

// Stop ends the checks, and returns after a running one. All code must have returned or been
// abandoned.
func (w *Watchdog) Stop() {
	w.lock.Lock()
	if w.checksScheduled && w.timer.Stop() {
		w.checksScheduled = false
		w.checking.Done()
	}
	w.lock.Unlock()
	w.checking.Wait()
}
