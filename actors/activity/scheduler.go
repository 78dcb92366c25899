package activity

import (
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Config configures a [Scheduler]. All fields are required, but Rates may be empty.
type Config struct {
	Registry      *engine.Registry
	Rates         map[string]Rate // by activity name; see SetRates
	OtherNodes    func() int      // how many other nodes may run activities
	RejoinTimeout time.Duration   // how long a lost worker may take to come back
	LeaderExempt  bool            // this node runs no attempts that another worker serves, while it leads
	// TraceContext returns the text for the tracers of the nodes that run attempts.
	TraceContext func(instance string, execution uint64) string
}

// A Scheduler chooses where attempts run; see [Placement]. Tasks that cannot begin wait; the open
// operations in the journal bound their number. With its lock held it may call the worker of this
// node, which never calls back with its own lock held.
type Scheduler struct {
	config Config

	mu           sync.Mutex // guards the fields below
	partitions   map[*Partition]bool
	queues       map[class]*taskQueue
	lastSequence uint64          // number of tasks ever queued
	rates        map[string]Rate // not changed in place
	paused       map[string]bool // names of activities; not changed in place
	counts       Counts
	placement    Placement
	lastAssigned uint64 // number of attempts that have begun on workers that are not of this node
}

// Counts are numbers of attempts that have begun.
type Counts struct {
	Local, Remote uint64 // on this node, and on others
	Reassigned    uint64 // among these: begun again because their worker was lost
}

// NewScheduler returns a scheduler without partitions.
func NewScheduler(config Config) *Scheduler {
	return &Scheduler{
		config:     config,
		partitions: make(map[*Partition]bool),
		queues:     make(map[class]*taskQueue),
		rates:      config.Rates,
	}
}

// withLock calls f with the lock held, and then calls what f returns without the lock.
func (s *Scheduler) withLock(f func() (then func())) {
	then := func() func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		return f()
	}()
	if then != nil {
		then()
	}
}

// Counts returns how many attempts have begun.
func (s *Scheduler) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Tasks returns how many tasks have not ended, and how many of them wait for a slot or a worker.
func (s *Scheduler) Tasks() (open, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.partitions {
		open += len(p.tasks)
	}
	for _, q := range s.queues {
		waiting += q.tasks.Len()
	}
	return open, waiting
}

// tryAddTask adds a task. It reports false if the partition is closed. The lock is held.
func (s *Scheduler) tryAddTask(t *task) bool {
	if t.partition.isClosed() {
		return false
	}
	t.partition.addTask(t)
	return true
}

// queuedState returns what a task of a class waits for. The lock is held.
func (s *Scheduler) queuedState(c class) State {
	if s.paused[c.name] {
		return Paused
	}
	local, pools := c.partition.local, c.partition.pools
	switch {
	case local.serves(c), c.partition.othersServe(c):
		return Queued
	case local.hasTag(c.tag), slices.ContainsFunc(pools, func(p *workerPool) bool { return p.hasTag(c.tag) }):
		return WaitingForCode
	}
	return WaitingForTag
}

// candidate returns the worker that can begin an attempt of a class now; nil if there is none. The
// lock is held.
func (s *Scheduler) candidate(c class) *workerSession {
	if s.paused[c.name] {
		return nil
	}
	if w := s.place(c); w != nil && s.rateAllows(c) {
		return w
	}
	return nil
}

// assign begins the next attempt of a task on a worker. The lock is held.
func (s *Scheduler) assign(t *task, to *workerSession) {
	s.claimTask(t)
	to.assign(t)
}

// claimTask removes a task whose attempt is about to begin from its queue, and takes a token of its
// rate. The lock is held.
func (s *Scheduler) claimTask(t *task) {
	t.dequeue()
	t.state = Queued
	if b := t.partition.bucket(t.scheduled.Name); b != nil {
		b.take(time.Now())
	}
}

// dispatch begins all attempts that can begin, longest waiting first. The lock is held.
func (s *Scheduler) dispatch() {
	for len(s.queues) > 0 {
		var to *workerSession
		t := s.oldestQueued(func(c class) bool {
			w := s.candidate(c)
			if w != nil {
				to = w
			}
			return w != nil
		})
		if t == nil {
			return
		}
		s.assign(t, to)
	}
}

// Dispatch begins all attempts that can begin. It is called after a slot of this node has become
// free.
func (s *Scheduler) Dispatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dispatch()
}
