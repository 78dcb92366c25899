package actors

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A pool runs attempts in this node's slots: those of partitions that the node leads, and those
// that leaders on other nodes assign. On a leader the pool also chooses where an attempt runs: on
// this node if it has a free slot, otherwise on the worker with the most free slots. Other tasks
// wait; the open operations in the journal bound their number.
type pool struct {
	system *System
	// The parent context of attempts that run here for other nodes.
	context context.Context
	cancel  context.CancelCauseFunc

	mu             sync.Mutex
	tasks          map[*Partition]map[operation.Key]*task // every task that has not ended
	queues         map[class]*taskQueue
	lastSequence   uint64 // number of tasks ever queued
	sessions       map[*Partition][]*workerSession
	workerAttempts map[attemptKey]*workerAttempt
	draining       bool       // no more assignments are accepted
	queuedAttempts []workItem // of workerAttempts without a slot
	// By partition: how many canceled workerAttempts still hold a slot, and the outboxes to the
	// leaders that this node works for.
	canceledRunning map[int]int
	leaderOutboxes  map[int]*outbox[FromWorker]
	runningByName   map[string]int // by name, of limited activities
	counts          ActivityCounts
	usedSlots       int
	closed          bool
	runningBodies   sync.WaitGroup // one for each running body
}

// ActivityCounts counts the attempts that a node has begun since it was started.
type ActivityCounts struct {
	// Local and Remote count, on the leader, attempts in its own slots and on workers.
	Local  uint64
	Remote uint64
	// Reassigned counts, among these, attempts begun again because their worker was lost.
	Reassigned uint64
	// AsWorker counts attempts made for the leaders of other nodes.
	AsWorker uint64
}

// ActivityCounts returns how many attempts have begun.
func (s *System) ActivityCounts() ActivityCounts {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.pool.counts
}

func newPool(s *System) *pool {
	p := &pool{
		system:          s,
		tasks:           make(map[*Partition]map[operation.Key]*task),
		queues:          make(map[class]*taskQueue),
		sessions:        make(map[*Partition][]*workerSession),
		workerAttempts:  make(map[attemptKey]*workerAttempt),
		canceledRunning: make(map[int]int),
		leaderOutboxes:  make(map[int]*outbox[FromWorker]),
		runningByName:   make(map[string]int),
	}
	p.context, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// withLock calls f with the lock held, and then calls what f returns without the lock.
func (p *pool) withLock(f func() (then func())) {
	then := func() func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		return f()
	}()
	if then != nil {
		then()
	}
}

// tryAddTask adds a task. It reports false if the pool or the partition is closed. p.mu is held.
func (p *pool) tryAddTask(t *task) bool {
	if p.closed || t.partition.context.Err() != nil {
		return false
	}
	tasks := p.tasks[t.partition]
	if tasks == nil {
		tasks = make(map[operation.Key]*task)
		p.tasks[t.partition] = tasks
	}
	tasks[operation.KeyOf(t.ref)] = t
	return true
}

// A workItem is an attempt to be made on this node. Its run makes the attempt in its slot, and
// then other waiting attempts in the same slot.
type workItem interface {
	sched.Runnable
	name() string // of the activity
	// start returns the invocation, or reports that the attempt is no longer wanted. The pool's
	// lock is held.
	start() (run *invocation, requested bool)
}

// An invocation is what a node needs to run the body of an attempt.
type invocation struct {
	context      context.Context
	cancel       context.CancelCauseFunc
	info         replay.Attempt
	traceContext string // for the tracer
	resolver     resolver
	// queuedFor is the time from the recording of the activity until the attempt got its slot.
	// bodyStartedAt is when its body began, by the local clock.
	queuedFor     time.Duration
	bodyStartedAt time.Time
}

// unknownQueueTime is the queuedFor of an attempt whose leader did not send it.
const unknownQueueTime = -1

// A resolver takes what the body of an attempt has returned.
type resolver interface {
	resolve(output *journalpb.Payload, err error)
}

// serves reports whether this node takes activities of a class. Every node serves activities
// without a tag.
func (p *pool) serves(c class) bool {
	return (c.tag == "" || slices.Contains(p.system.config.Tags, c.tag)) && p.system.config.Registry.HasActivity(c.name)
}

// hasSlot reports whether an attempt of that name can begin here now. p.mu is held.
func (p *pool) hasSlot(name string) bool {
	return p.usedSlots < p.system.config.ActivitiesMax && p.canRun(name)
}

// canRun reports whether the limit of a name allows one more attempt here. p.mu is held.
func (p *pool) canRun(name string) bool {
	limit, limited := p.system.config.ActivityLimits[name]
	return !limited || p.runningByName[name] < limit
}

// addRunning counts an attempt that has got a slot. p.mu is held.
func (p *pool) addRunning(name string) {
	if _, limited := p.system.config.ActivityLimits[name]; limited {
		p.runningByName[name]++
	}
}

// removeRunning removes from the count an attempt whose body has returned. p.mu is held.
func (p *pool) removeRunning(name string) {
	if _, limited := p.system.config.ActivityLimits[name]; limited {
		p.runningByName[name]--
	}
}

// startInSlot starts a work item in a free slot. p.mu is held.
func (p *pool) startInSlot(j workItem) {
	p.addRunning(j.name())
	p.usedSlots++
	p.system.dispatcher.Start(j)
}

// queuedState returns what a task of a class waits for. p.mu is held.
func (p *pool) queuedState(c class) ActivityState {
	if p.serves(c) {
		return ActivityQueued
	}
	state := ActivityWaitingForCode
	if c.tag != "" && !slices.Contains(p.system.config.Tags, c.tag) {
		state = ActivityWaitingForTag
	}
	for _, r := range p.sessions[c.partition] {
		switch {
		case r.serves(c):
			return ActivityQueued
		case r.hasTag(c.tag):
			state = ActivityWaitingForCode
		}
	}
	return state
}

// candidate returns the worker that can begin an attempt of a class now, nil for this node. ok
// reports whether any can. p.mu is held.
func (p *pool) candidate(c class) (r *workerSession, ok bool) {
	ok = p.serves(c) && p.hasSlot(c.name)
	if !ok {
		r = p.leastLoaded(c)
		ok = r != nil
	}
	return r, ok && p.rateAllows(c)
}

// assign begins the next attempt of a task on a worker, or here if to is nil. p.mu is held.
func (p *pool) assign(t *task, to *workerSession) {
	p.claimTask(t)
	if to == nil {
		p.startInSlot(t)
	} else {
		to.assign(t)
	}
}

// claimTask removes a task whose attempt is about to begin from its queue, and takes a token of its
// rate. p.mu is held.
func (p *pool) claimTask(t *task) {
	t.dequeue()
	t.state = ActivityQueued
	if b := t.partition.rates[t.name()]; b != nil {
		b.take(time.Now())
	}
}

// dispatch begins all attempts that can begin, longest waiting first. p.mu is held.
func (p *pool) dispatch() {
	for !p.closed {
		t := p.oldestQueued(func(c class) bool {
			_, ok := p.candidate(c)
			return ok
		})
		if t == nil {
			return
		}
		to, _ := p.candidate(t.class())
		p.assign(t, to)
	}
}

// start begins the next attempt of a task here, unless it is no longer wanted. The pool's lock is
// held.
func (t *task) start() (*invocation, bool) {
	if t.state != ActivityQueued || t.current != nil || t.isTooLate(t.now()) {
		return nil, false
	}
	a := t.begin()
	t.pool().counts.Local++
	return &a.invocation, true
}

func (t *task) name() string { return t.scheduled.Name }

// start returns the attempt of a work item, nil if it is no longer wanted.
func (p *pool) start(j workItem) *invocation {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	run, requested := j.start()
	if !requested {
		return nil
	}
	p.runningBodies.Add(1)
	return run
}

// finishAttempt releases the context of an attempt whose body has returned.
func (p *pool) finishAttempt(run *invocation) {
	run.cancel(context.Canceled)
	p.runningBodies.Done()
}

// nextInSlot returns the next work item for a slot, or nil after it has freed the slot.
func (p *pool) nextInSlot(done workItem) workItem {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeRunning(done.name())
	if j := p.nextQueued(); j != nil {
		p.addRunning(j.name())
		return j
	}
	p.usedSlots--
	return nil
}

// freeSlot frees a slot whose goroutine ends early, because user code called Goexit or the engine
// panicked.
func (p *pool) freeSlot(done workItem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usedSlots--
	p.removeRunning(done.name())
	if j := p.nextQueued(); j != nil {
		p.startInSlot(j)
	}
}

// nextQueued removes and returns the next work item that waits for a slot here. p.mu is held.
func (p *pool) nextQueued() workItem {
	if p.closed {
		return nil
	}
	for i, j := range p.queuedAttempts {
		if p.canRun(j.name()) {
			p.queuedAttempts = slices.Delete(p.queuedAttempts, i, i+1)
			return j
		}
	}
	t := p.oldestQueued(func(c class) bool { return p.serves(c) && p.canRun(c.name) && p.rateAllows(c) })
	if t == nil {
		return nil
	}
	p.claimTask(t)
	return t
}

// cancelTask cancels a task whose result is no longer wanted.
func (p *pool) cancelTask(partition *Partition, key operation.Key) {
	p.withLock(func() func() {
		t := p.tasks[partition][key]
		if t == nil {
			return nil
		}
		delete(p.tasks[partition], key)
		return t.cancel(ErrActivityClosed)
	})
}

// forgetPartition cancels every task of a closed partition. Workers continue their attempts for
// the next leader.
func (p *pool) forgetPartition(partition *Partition) {
	p.withLock(func() func() {
		for _, r := range p.sessions[partition] {
			r.detachAttempts()
		}
		delete(p.sessions, partition)
		var then []func()
		for _, t := range p.tasks[partition] {
			if resolve := t.cancel(ErrStopped); resolve != nil {
				then = append(then, resolve)
			}
		}
		delete(p.tasks, partition)
		return func() {
			for _, f := range then {
				f()
			}
		}
	})
}

// finishTask removes a task whose end is recorded or was dropped. A dropped end means that the
// activity was already closed, perhaps by the same end.
func (p *pool) finishTask(t *task, dropped bool) {
	p.withLock(func() func() {
		if key := operation.KeyOf(t.ref); p.tasks[t.partition][key] == t {
			delete(p.tasks[t.partition], key)
		}
		if len(t.waiters) == 0 {
			return nil
		}
		return t.resolveWaitersWith(func() error {
			if dropped && !t.partition.hasEndEvent(t.ref, t.outcome) {
				return ErrActivityClosed
			}
			return nil
		})
	})
}

// close waits up to grace for running activities, and reports whether all have returned.
func (p *pool) close(grace time.Duration) bool {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel(replay.ErrNodeStopping)
	returned := make(chan struct{})
	go func() {
		p.runningBodies.Wait()
		close(returned)
	}()
	select {
	case <-returned:
		return true
	case <-time.After(grace):
		p.system.logger.Warn("activities abandoned: they did not return after their context was canceled")
		return false
	}
}

func (t *task) Run() bool {
	t.pool().runSlot(t)
	return false
}

func (l *workerAttempt) Run() bool {
	l.pool.runSlot(l)
	return false
}

// runSlot makes the attempt of a work item that has a slot, and then other waiting attempts in
// that slot.
func (p *pool) runSlot(j workItem) {
	defer func() {
		if j == nil {
			return
		}
		if value := recover(); value != nil {
			p.system.counters.faults.Add(1)
			p.system.logger.Error("fault in activity", "activity", j.name(), "fault", value, "stack", string(debug.Stack()))
		}
		p.freeSlot(j)
	}()
	for j != nil {
		p.runAttempt(j)
		j = p.nextInSlot(j)
	}
}

func (p *pool) runAttempt(j workItem) {
	run := p.start(j)
	if run == nil {
		return
	}
	defer p.finishAttempt(run)
	p.system.runBody(run)
}
