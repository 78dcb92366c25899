package actors

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// A pool runs the activities of a node on a bounded number of actors. Tasks
// wait in the order in which they came; how many there can be is bounded by the
// operations that the journal has open.
type pool struct {
	system *System

	mu      sync.Mutex
	tasks   map[*Partition]map[alarmKey]*task // every one that is not done
	waiting []*task
	idle    []*actor.PID
	workers int // idle ones and others
	closed  bool
	working sync.WaitGroup
}

func newPool(s *System) *pool {
	return &pool{system: s, tasks: make(map[*Partition]map[alarmKey]*task)}
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

// serves tells whether this node takes activities with a tag. One without is
// for every node.
func (p *pool) serves(tag string) bool {
	return tag == "" || slices.Contains(p.system.config.Tags, tag)
}

// queue finds a worker for the task or lets it wait for one. p.mu is held.
func (p *pool) queue(t *task) {
	t.state = ActivityQueued
	switch {
	case len(p.idle) > 0:
		worker := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		p.system.actors.Root.Send(worker, t)
	case p.workers < p.system.config.ActivitiesMax:
		p.workers++
		worker := &worker{pool: p}
		p.system.actors.Root.Send(p.system.spawn(worker.receive), t)
	default:
		p.waiting = append(p.waiting, t)
	}
}

// begin begins the next attempt of a task, nil if none is wanted.
func (p *pool) begin(t *task) *attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || t.state != ActivityQueued || t.tooLate(time.Now()) {
		return nil
	}
	p.working.Add(1)
	return t.begin()
}

// returned lets the context of an attempt go whose body has returned.
func (p *pool) returned(a *attempt) {
	a.cancel(context.Canceled)
	p.working.Done()
}

// next returns the task for a worker that is free, nil if it may rest.
func (p *pool) next(worker *actor.PID) *task {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.pop(); t != nil {
		return t
	}
	p.idle = append(p.idle, worker)
	return nil
}

// lost counts out a worker whose goroutine user code has ended.
func (p *pool) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers--
	if t := p.pop(); t != nil {
		p.queue(t)
	}
}

// pop takes the next waiting task that is still wanted. p.mu is held.
func (p *pool) pop() *task {
	for len(p.waiting) > 0 {
		t := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		if t.state == ActivityQueued {
			return t
		}
	}
	p.waiting = nil
	return nil
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

// forget gives up every task of a partition that is closed.
func (p *pool) forget(partition *Partition) {
	p.locked(func() func() {
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

// close waits for running activities, for no longer than grace, and ends the
// workers. It tells whether all activities have returned.
func (p *pool) close(grace time.Duration) bool {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, worker := range idle {
		p.system.actors.Root.Stop(worker)
	}
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

// A worker is an actor that runs one activity at a time.
type worker struct{ pool *pool }

func (w *worker) receive(ctx actor.Context) {
	t, ok := ctx.Message().(*task)
	if !ok {
		return
	}
	finished := false
	defer func() {
		if !finished {
			w.pool.lost()
		}
	}()
	for t != nil {
		w.run(t)
		t = w.pool.next(ctx.Self())
	}
	finished = true
}

// run makes one attempt.
func (w *worker) run(t *task) {
	a := w.pool.begin(t)
	if a == nil {
		return
	}
	defer w.pool.returned(a)
	w.pool.system.config.Registry.Run(a.context, &a.info, a.settle)
}
