package activity

import (
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/slot"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Config configures a [Scheduler]. All fields are required, but Tags and Rates may be empty.
type Config struct {
	Slots         *slot.Pool // of this node
	Registry      *engine.Registry
	Tags          []string        // that this node serves
	Rates         map[string]Rate // by activity name
	OtherNodes    func() int      // how many other nodes may run activities
	RejoinTimeout time.Duration   // how long a lost worker may take to come back
	// TraceContext returns the text for the tracers of the nodes that make attempts.
	TraceContext func(instance string, execution uint64) string
}

// A Scheduler chooses where attempts run: on this node if it has a free slot, otherwise on the
// worker with the most free slots. Other tasks wait; the open operations in the journal bound their
// number. Its lock is that of the slots.
type Scheduler struct {
	config Config
	slots  *slot.Pool

	// The lock guards the fields below.
	tasks        map[*Partition]map[operation.Key]*task // every task that has not ended
	queues       map[class]*taskQueue
	lastSequence uint64 // number of tasks ever queued
	sessions     map[*Partition][]*workerSession
	counts       Counts
}

// Counts are numbers of attempts that have begun.
type Counts struct {
	Local, Remote uint64 // in slots of this node, and on workers
	Reassigned    uint64 // among these: begun again because their worker was lost
}

// NewScheduler returns a scheduler without partitions.
func NewScheduler(config Config) *Scheduler {
	return &Scheduler{
		config:   config,
		slots:    config.Slots,
		tasks:    make(map[*Partition]map[operation.Key]*task),
		queues:   make(map[class]*taskQueue),
		sessions: make(map[*Partition][]*workerSession),
	}
}

// Counts returns how many attempts have begun. The lock is held.
func (s *Scheduler) Counts() Counts { return s.counts }

// Tasks returns how many tasks have not ended, and how many of them wait for a slot or a worker.
func (s *Scheduler) Tasks() (open, waiting int) {
	s.slots.Lock()
	defer s.slots.Unlock()
	for _, tasks := range s.tasks {
		open += len(tasks)
	}
	for _, l := range s.queues {
		waiting += l.tasks.Len()
	}
	return open, waiting
}

// tryAddTask adds a task. It reports false if the slots or the partition are closed. The lock is
// held.
func (s *Scheduler) tryAddTask(t *task) bool {
	if s.slots.Closed() || t.partition.isClosed() {
		return false
	}
	tasks := s.tasks[t.partition]
	if tasks == nil {
		tasks = make(map[operation.Key]*task)
		s.tasks[t.partition] = tasks
	}
	tasks[operation.KeyOf(t.ref)] = t
	return true
}

// serves reports whether this node takes activities of a class. Every node serves activities
// without a tag.
func (s *Scheduler) serves(c class) bool {
	return (c.tag == "" || slices.Contains(s.config.Tags, c.tag)) && s.config.Registry.HasActivity(c.name)
}

// queuedState returns what a task of a class waits for. The lock is held.
func (s *Scheduler) queuedState(c class) State {
	if s.serves(c) {
		return Queued
	}
	state := WaitingForCode
	if c.tag != "" && !slices.Contains(s.config.Tags, c.tag) {
		state = WaitingForTag
	}
	for _, r := range s.sessions[c.partition] {
		switch {
		case r.serves(c):
			return Queued
		case r.hasTag(c.tag):
			state = WaitingForCode
		}
	}
	return state
}

// candidate returns the worker that can begin an attempt of a class now, nil for this node. ok
// reports whether any can. The lock is held.
func (s *Scheduler) candidate(c class) (r *workerSession, ok bool) {
	ok = s.serves(c) && s.slots.HasFree(c.name)
	if !ok {
		r = s.leastLoaded(c)
		ok = r != nil
	}
	return r, ok && s.rateAllows(c)
}

// assign begins the next attempt of a task on a worker, or here if to is nil. The lock is held.
func (s *Scheduler) assign(t *task, to *workerSession) {
	s.claimTask(t)
	if to == nil {
		s.slots.Start(t)
	} else {
		to.assign(t)
	}
}

// claimTask removes a task whose attempt is about to begin from its queue, and takes a token of its
// rate. The lock is held.
func (s *Scheduler) claimTask(t *task) {
	t.dequeue()
	t.state = Queued
	if b := t.partition.rates[t.Name()]; b != nil {
		b.take(time.Now())
	}
}

// dispatch begins all attempts that can begin, longest waiting first. The lock is held.
func (s *Scheduler) dispatch() {
	for !s.slots.Closed() {
		t := s.oldestQueued(func(c class) bool {
			_, ok := s.candidate(c)
			return ok
		})
		if t == nil {
			return
		}
		to, _ := s.candidate(t.class())
		s.assign(t, to)
	}
}

// NextQueued implements slot.Source.
func (s *Scheduler) NextQueued() slot.Item {
	t := s.oldestQueued(func(c class) bool { return s.serves(c) && s.slots.CanRun(c.name) && s.rateAllows(c) })
	if t == nil {
		return nil
	}
	s.claimTask(t)
	return t
}
