package actors

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A pool runs activities on the bounded number of places that the node has: its
// own, and for the leaders of other nodes those that they have handed over. Where
// the node leads, the pool decides who runs what: itself as long as it has a
// place, then the worker that has most places free. Tasks that nobody can take
// wait; how many there can be is bounded by the operations that the journal has
// open.
type pool struct {
	system *System
	// Of the attempts that run here for other nodes.
	context context.Context
	cancel  context.CancelCauseFunc

	mu       sync.Mutex
	tasks    map[*Partition]map[alarmKey]*task // every one that is not done
	lines    map[class]*line
	arrivals uint64 // of tasks in lines
	remotes  map[*Partition][]*remote
	loans    map[attemptKey]*loan
	leaving  bool  // no more loans are taken
	queued   []job // of loans that have no place yet
	// By group: loans that are given up and whose bodies have not returned, and the
	// leaders that this node works for.
	strays    map[int]int
	employers map[int]*outbox[FromWorker]
	running   map[string]int // by the name of those that are limited
	counts    ActivityCounts
	taken     int // places
	closed    bool
	working   sync.WaitGroup
}

// ActivityCounts are how many attempts a node has begun since it was started.
type ActivityCounts struct {
	// By the leader that counts: on its own places, and on those of other nodes.
	Local  uint64
	Remote uint64
	// Those among them that were begun again, because the worker that had begun
	// them was lost.
	Again uint64
	// For the leaders of other nodes.
	Lent uint64
}

// ActivityCounts returns how many attempts have begun.
func (s *System) ActivityCounts() ActivityCounts {
	s.activities.mu.Lock()
	defer s.activities.mu.Unlock()
	return s.activities.counts
}

func newPool(s *System) *pool {
	p := &pool{
		system:    s,
		tasks:     make(map[*Partition]map[alarmKey]*task),
		lines:     make(map[class]*line),
		remotes:   make(map[*Partition][]*remote),
		loans:     make(map[attemptKey]*loan),
		strays:    make(map[int]int),
		employers: make(map[int]*outbox[FromWorker]),
		running:   make(map[string]int),
	}
	p.context, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// locked calls f under the lock, and then without it what f returns.
func (p *pool) locked(f func() (then func())) {
	then := func() func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		return f()
	}()
	if then != nil {
		then()
	}
}

// keep remembers a task until it is done. p.mu is held.
func (p *pool) keep(t *task) bool {
	if p.closed || t.partition.context.Err() != nil {
		return false
	}
	of := p.tasks[t.partition]
	if of == nil {
		of = make(map[alarmKey]*task)
		p.tasks[t.partition] = of
	}
	of[keyOf(t.ref)] = t
	return true
}

// A job is an attempt that is to be made here. To run it is to make attempts in the
// place that it was given, its own and then others, as long as there are any.
type job interface {
	runnable
	name() string // of the activity
	// start tells how, or that it is not wanted any more. The pool's lock is held.
	start() (run *running, wanted bool)
}

// A running is an attempt as its body sees it.
type running struct {
	context context.Context
	cancel  context.CancelCauseFunc
	info    replay.Attempt
	carried string // for the tracer
	settler settler
	// From the recording of the activity until this attempt got its place, and when its
	// body began, by the clock of this machine.
	waited time.Duration
	began  time.Time
}

// unknownWait is how long an attempt has waited of which the leader does not say it.
const unknownWait = -1

// A settler takes what the body of an attempt has returned.
type settler interface {
	settle(output *journalpb.Payload, err error)
}

// serves tells whether this node takes activities of a class. One without a tag
// is for every node.
func (p *pool) serves(c class) bool {
	return (c.tag == "" || slices.Contains(p.system.config.Tags, c.tag)) && p.system.config.Registry.HasActivity(c.name)
}

// hasPlace tells whether an attempt of that name can begin here now. p.mu is
// held.
func (p *pool) hasPlace(name string) bool {
	return p.taken < p.system.config.ActivitiesMax && p.mayRun(name)
}

// mayRun tells whether the limit of a name lets one more run here. p.mu is held.
func (p *pool) mayRun(name string) bool {
	most, limited := p.system.config.ActivityLimits[name]
	return !limited || p.running[name] < most
}

// occupy counts a job that has got a place. p.mu is held.
func (p *pool) occupy(name string) {
	if _, limited := p.system.config.ActivityLimits[name]; limited {
		p.running[name]++
	}
}

// vacate counts one whose body has returned. p.mu is held.
func (p *pool) vacate(name string) {
	if _, limited := p.system.config.ActivityLimits[name]; limited {
		p.running[name]--
	}
}

// place gives a job one of the places here. p.mu is held.
func (p *pool) place(j job) {
	p.occupy(j.name())
	p.taken++
	p.system.dispatcher.start(j)
}

// prospect tells what a task of a class waits for: a place, or somebody who
// serves it. p.mu is held.
func (p *pool) prospect(c class) ActivityState {
	if p.serves(c) {
		return ActivityQueued
	}
	state := ActivityWaitingForCode
	if c.tag != "" && !slices.Contains(p.system.config.Tags, c.tag) {
		state = ActivityWaitingForTag
	}
	for _, r := range p.remotes[c.partition] {
		switch {
		case r.serves(c):
			return ActivityQueued
		case r.hasTag(c.tag):
			state = ActivityWaitingForCode
		}
	}
	return state
}

// taker returns who can begin an attempt of a class now: a worker, or with nil
// this node. p.mu is held.
func (p *pool) taker(c class) (r *remote, ok bool) {
	ok = p.serves(c) && p.hasPlace(c.name)
	if !ok {
		r = p.freest(c)
		ok = r != nil
	}
	return r, ok && p.mayBegin(c)
}

// give has the next attempt of a task begun by whom taker has returned. p.mu is
// held.
func (p *pool) give(t *task, to *remote) {
	p.begins(t)
	if to == nil {
		p.place(t)
	} else {
		to.give(t)
	}
}

// begins takes a task that is about to begin out of its line and counts it. p.mu
// is held.
func (p *pool) begins(t *task) {
	t.unqueue()
	t.state = ActivityQueued
	if b := t.partition.rates[t.name()]; b != nil {
		b.take(time.Now())
	}
}

// dispatch has begun what can begin, what has waited longest first. p.mu is
// held.
func (p *pool) dispatch() {
	for !p.closed {
		t := p.oldest(func(c class) bool {
			_, ok := p.taker(c)
			return ok
		})
		if t == nil {
			return
		}
		to, _ := p.taker(t.class())
		p.give(t, to)
	}
}

// start begins the next attempt of a task here, unless it is not wanted any
// more. The pool's lock is held.
func (t *task) start() (*running, bool) {
	if t.state != ActivityQueued || t.current != nil || t.tooLate(t.now()) {
		return nil, false
	}
	a := t.begin()
	t.pool().counts.Local++
	return &a.running, true
}

func (t *task) name() string { return t.scheduled.Name }

// start returns the attempt that a job makes, nil if it is not wanted any more.
func (p *pool) start(j job) *running {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	run, wanted := j.start()
	if !wanted {
		return nil
	}
	p.working.Add(1)
	return run
}

// returned lets the context of an attempt go whose body has returned.
func (p *pool) returned(run *running) {
	run.cancel(context.Canceled)
	p.working.Done()
}

// next returns what is to be done in a place where a job is done; nil if there is
// nothing, and the place is free.
func (p *pool) next(done job) job {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.vacate(done.name())
	if j := p.pull(); j != nil {
		p.occupy(j.name())
		return j
	}
	p.taken--
	return nil
}

// lost frees a place whose goroutine user code has ended.
func (p *pool) lost(done job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.vacate(done.name())
	if j := p.pull(); j != nil {
		p.place(j)
	}
}

// pull takes the next job that waits for a place here. p.mu is held.
func (p *pool) pull() job {
	if p.closed {
		return nil
	}
	for i, j := range p.queued {
		if p.mayRun(j.name()) {
			p.queued = slices.Delete(p.queued, i, i+1)
			return j
		}
	}
	t := p.oldest(func(c class) bool { return p.serves(c) && p.mayRun(c.name) && p.mayBegin(c) })
	if t == nil {
		return nil
	}
	p.begins(t)
	return t
}

// giveUp ends a task whose result is not wanted any more.
func (p *pool) giveUp(partition *Partition, key alarmKey) {
	p.locked(func() func() {
		t := p.tasks[partition][key]
		if t == nil {
			return nil
		}
		delete(p.tasks[partition], key)
		return t.leave(ErrActivityClosed)
	})
}

// forget gives up every task of a partition that is closed. Workers go on with
// what they have, for the next leader.
func (p *pool) forget(partition *Partition) {
	p.locked(func() func() {
		for _, r := range p.remotes[partition] {
			r.abandon()
		}
		delete(p.remotes, partition)
		var then []func()
		for _, t := range p.tasks[partition] {
			if tell := t.leave(ErrStopped); tell != nil {
				then = append(then, tell)
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

// done forgets a task whose end is recorded, or was dropped: the activity was
// closed before, perhaps by the same end.
func (p *pool) done(t *task, dropped bool) {
	p.locked(func() func() {
		if key := keyOf(t.ref); p.tasks[t.partition][key] == t {
			delete(p.tasks[t.partition], key)
		}
		if len(t.waiters) == 0 {
			return nil
		}
		return t.tell(func() error {
			if dropped && !t.partition.hasOutcome(t.ref, t.outcome) {
				return ErrActivityClosed
			}
			return nil
		})
	})
}

// close waits for running activities, for no longer than grace. It tells whether
// all have returned.
func (p *pool) close(grace time.Duration) bool {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel(replay.ErrNodeStopping)
	returned := make(chan struct{})
	go func() {
		p.working.Wait()
		close(returned)
	}()
	select {
	case <-returned:
		return true
	case <-time.After(grace):
		p.system.logger.Warn("activities left behind: they did not heed the end of their context")
		return false
	}
}

func (t *task) run() bool {
	t.pool().work(t)
	return false
}

func (l *loan) run() bool {
	l.pool.work(l)
	return false
}

// work makes the attempt of a job that has got a place, and then others in the same
// place, as long as there are any.
func (p *pool) work(j job) {
	defer func() {
		if j == nil {
			return
		}
		if value := recover(); value != nil {
			p.system.counters.faults.Add(1)
			p.system.logger.Error("fault in an activity", "activity", j.name(), "fault", value, "stack", string(debug.Stack()))
		}
		p.lost(j)
	}()
	for j != nil {
		p.attempt(j)
		j = p.next(j)
	}
}

// attempt makes one attempt.
func (p *pool) attempt(j job) {
	run := p.start(j)
	if run == nil {
		return
	}
	defer p.returned(run)
	p.system.perform(run)
}
