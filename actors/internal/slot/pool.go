package slot

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
)

// Config configures a [Pool]. All fields except Limits are required.
type Config struct {
	Max     int            // slots
	Limits  map[string]int // how many bodies run at once, by name
	Starter Starter
	RunBody func(*Invocation) // runs the body and resolves the attempt
	Faults  *atomic.Uint64    // counts panics of the engine
	Logger  *slog.Logger
}

// A Starter runs items on goroutines.
type Starter interface{ Start(sched.Runnable) }

// A Source holds attempts that wait for a slot. NextQueued removes and returns the next one that
// can begin, nil if there is none. The pool's lock is held.
type Source interface{ NextQueued() Item }

// A Pool holds the slots of a node. It runs attempts of partitions that the node leads, and
// attempts that leaders on other nodes assign.
//
// Its lock also guards the state of its sources, because to free a slot and to take the next
// attempt must be one step.
type Pool struct {
	sync.Mutex
	config        Config
	sources       []Source
	runningByName map[string]int // by name, of limited activities
	used          int
	closed        bool
	runningBodies sync.WaitGroup // one for each running body
}

// NewPool returns a pool with free slots.
func NewPool(config Config) *Pool {
	return &Pool{config: config, runningByName: make(map[string]int)}
}

// SetSources says where free slots look for attempts, in this order. It must be called before the
// first attempt begins.
func (p *Pool) SetSources(sources ...Source) { p.sources = sources }

// WithLock calls f with the lock held, and then calls what f returns without the lock.
func (p *Pool) WithLock(f func() (then func())) {
	then := func() func() {
		p.Lock()
		defer p.Unlock()
		return f()
	}()
	if then != nil {
		then()
	}
}

// Closed reports whether no more attempts begin. The lock is held.
func (p *Pool) Closed() bool { return p.closed }

// Max returns the number of slots.
func (p *Pool) Max() int { return p.config.Max }

// Limits returns how many bodies run at once, by name. The caller must not change it.
func (p *Pool) Limits() map[string]int { return p.config.Limits }

// HasFree reports whether an attempt of that name can begin here now. The lock is held.
func (p *Pool) HasFree(name string) bool {
	return p.used < p.config.Max && p.CanRun(name)
}

// CanRun reports whether the limit of a name allows one more attempt here. The lock is held.
func (p *Pool) CanRun(name string) bool {
	limit, limited := p.config.Limits[name]
	return !limited || p.runningByName[name] < limit
}

// addRunning counts an attempt that has got a slot. The lock is held.
func (p *Pool) addRunning(name string) {
	if _, limited := p.config.Limits[name]; limited {
		p.runningByName[name]++
	}
}

// removeRunning removes from the count an attempt whose body has returned. The lock is held.
func (p *Pool) removeRunning(name string) {
	if _, limited := p.config.Limits[name]; limited {
		p.runningByName[name]--
	}
}

// Start starts an item in a free slot. The lock is held.
func (p *Pool) Start(j Item) {
	p.addRunning(j.Name())
	p.used++
	p.config.Starter.Start(j)
}

// begin returns the invocation of an item, nil if it is no longer wanted.
func (p *Pool) begin(j Item) *Invocation {
	p.Lock()
	defer p.Unlock()
	if p.closed {
		return nil
	}
	run, requested := j.Begin()
	if !requested {
		return nil
	}
	p.runningBodies.Add(1)
	return run
}

// finish releases the context of an attempt whose body has returned.
func (p *Pool) finish(run *Invocation) {
	run.Cancel(context.Canceled)
	p.runningBodies.Done()
}

// nextInSlot returns the next item for a slot, or nil after it has freed the slot.
func (p *Pool) nextInSlot(done Item) Item {
	p.Lock()
	defer p.Unlock()
	p.removeRunning(done.Name())
	if j := p.nextQueued(); j != nil {
		p.addRunning(j.Name())
		return j
	}
	p.used--
	return nil
}

// free frees a slot whose goroutine ends early, because user code called Goexit or the engine
// panicked.
func (p *Pool) free(done Item) {
	p.Lock()
	defer p.Unlock()
	p.used--
	p.removeRunning(done.Name())
	if j := p.nextQueued(); j != nil {
		p.Start(j)
	}
}

// nextQueued removes and returns the next item that waits for a slot here. The lock is held.
func (p *Pool) nextQueued() Item {
	if p.closed {
		return nil
	}
	for _, source := range p.sources {
		if j := source.NextQueued(); j != nil {
			return j
		}
	}
	return nil
}

// RunSlot makes the attempt of an item that has a slot, and then other waiting attempts in that
// slot.
func (p *Pool) RunSlot(j Item) {
	defer func() {
		if j == nil {
			return
		}
		if value := recover(); value != nil {
			p.config.Faults.Add(1)
			p.config.Logger.Error("fault in activity", "activity", j.Name(), "fault", value, "stack", string(debug.Stack()))
		}
		p.free(j)
	}()
	for j != nil {
		p.runAttempt(j)
		j = p.nextInSlot(j)
	}
}

func (p *Pool) runAttempt(j Item) {
	run := p.begin(j)
	if run == nil {
		return
	}
	defer p.finish(run)
	p.config.RunBody(run)
}

// Close lets no more attempts begin.
func (p *Pool) Close() {
	p.Lock()
	p.closed = true
	p.Unlock()
}

// Wait waits up to grace for running bodies, and reports whether all have returned.
func (p *Pool) Wait(grace time.Duration) bool {
	returned := make(chan struct{})
	go func() {
		p.runningBodies.Wait()
		close(returned)
	}()
	select {
	case <-returned:
		return true
	case <-time.After(grace):
		p.config.Logger.Warn("activities abandoned: they did not return after their context was canceled")
		return false
	}
}
