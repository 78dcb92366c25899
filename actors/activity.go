package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A task is an activity that an instance waits for, on its way through the
// pool: attempt after attempt until it is done or given up.
type task struct {
	partition *Partition
	ref       *journalpb.OperationRef
	scheduled *journalpb.ActivityScheduled
	attempt   int // how many have begun

	// Guarded by the pool's lock.
	cancel  context.CancelFunc // of the running attempt
	givenUp bool
}

func (t *task) key() alarmKey {
	return alarmKey{t.ref.Instance, t.ref.Execution, t.ref.EventId}
}

// errGivenUp is the cause with which an activity's context ends when its result
// is not wanted any more.
var errGivenUp = errors.New("tenuto: the activity was given up")

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

// submit takes on a task that is new.
func (p *pool) submit(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keep(t) {
		p.queue(t)
	}
}

// resume takes on a task that others have tried before; its next attempt is due
// at a time.
func (p *pool) resume(t *task, due time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.keep(t):
	case due.After(time.Now()):
		t.partition.clock.at(due, alarmKey{}, func() { p.again(t) })
	default:
		p.queue(t)
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
	of[t.key()] = t
	return true
}

// again takes up a task after its pause.
func (p *pool) again(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && !t.givenUp {
		p.queue(t)
	}
}

// queue finds a worker for the task or lets it wait for one. p.mu is held.
func (p *pool) queue(t *task) {
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

// begin makes the context for an attempt, nil if none is wanted.
func (p *pool) begin(t *task) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || t.givenUp {
		return nil
	}
	ctx, cancel := context.WithCancelCause(t.partition.context)
	t.cancel = func() { cancel(errGivenUp) }
	t.attempt++
	p.working.Add(1)
	return ctx
}

// end lets the context of an attempt go.
func (p *pool) end(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.cancel()
	t.cancel = nil
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
		if !t.givenUp {
			return t
		}
	}
	p.waiting = nil
	return nil
}

// giveUp ends a task whose result is not wanted any more.
func (p *pool) giveUp(partition *Partition, key alarmKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.tasks[partition][key]; t != nil {
		t.giveUp()
		delete(p.tasks[partition], key)
	}
}

// giveUp ends the running attempt and forbids another. The pool's lock is held.
func (t *task) giveUp() {
	t.givenUp = true
	if t.cancel != nil {
		t.cancel()
	}
}

// forget gives up every task of a partition that is closed.
func (p *pool) forget(partition *Partition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tasks[partition] {
		t.giveUp()
	}
	delete(p.tasks, partition)
}

// done forgets a task whose end is recorded.
func (p *pool) done(t *task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tasks[t.partition], t.key())
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
	ctx := w.pool.begin(t)
	if ctx == nil {
		return
	}
	defer w.pool.end(t)
	attempt := &replay.Attempt{
		Name:      t.scheduled.Name,
		Input:     t.scheduled.Input,
		Instance:  t.ref.Instance,
		Execution: t.ref.Execution,
		EventID:   t.ref.EventId,
		Number:    t.attempt,
	}
	w.pool.system.config.Registry.Run(ctx, attempt, func(output *journalpb.Payload, err error) {
		if ctx.Err() == nil || err == nil {
			t.settle(output, err)
		}
	})
}

// settle decides what follows an attempt: the result, the failure, or another
// attempt after a pause.
func (t *task) settle(output *journalpb.Payload, err error) {
	if err == nil {
		t.report(&journalpb.Event{Body: &journalpb.Event_ActivityCompleted{
			ActivityCompleted: &journalpb.ActivityCompleted{Result: output, Attempts: uint32(t.attempt)},
		}})
		return
	}
	_, noCode := err.(*replay.NoCodeError)
	err = recorded(err)
	pause, again := t.pause(err, noCode)
	if again {
		t.partition.logger.Warn("activity attempt failed", "activity", t.scheduled.Name, "instance", t.ref.Instance,
			"event_id", t.ref.EventId, "attempt", t.attempt, "error", err, "pause", pause)
		t.tryAgain(err, time.Now().Add(pause))
		return
	}
	t.report(&journalpb.Event{Body: &journalpb.Event_ActivityFailed{
		ActivityFailed: &journalpb.ActivityFailed{Error: replay.EncodeError(err), Attempts: uint32(t.attempt)},
	}})
}

// tryAgain keeps what the attempt came to, so that a failover does not forget it,
// and then waits for the next.
func (t *task) tryAgain(err error, next time.Time) {
	t.partition.journal.Attempt(&journalpb.Attempt{
		Ref:       t.ref,
		Epoch:     t.partition.epoch,
		Failed:    uint32(t.attempt),
		LastError: replay.EncodeError(err),
		NextAt:    next.UnixNano(),
	}, func(error) {
		// Refused, it is no loss but the count: the activity is closed, or a
		// new leader takes it up.
		t.partition.clock.at(next, alarmKey{}, func() { t.partition.system.activities.again(t) })
	})
}

// recorded returns an error as its record has it. Reading an error runs code of
// its author's, which may panic: mostly a nil pointer in an error that is not
// nil.
func recorded(err error) (crossed error) {
	defer func() {
		if value := recover(); value != nil {
			crossed = &replay.PanicError{
				Message: fmt.Sprintf("panic in the activity's error of type %T: %v", err, value),
				Stack:   string(debug.Stack()),
			}
		}
	}()
	return replay.DecodeError(replay.EncodeError(err))
}

// pause decides about another attempt. Missing code is no failure of the
// activity: it waits for a node that has it.
func (t *task) pause(err error, noCode bool) (time.Duration, bool) {
	if noCode {
		pause, _ := replay.RetryAfter(nil, t.attempt, err, rand.Float64())
		return pause, true
	}
	return replay.RetryAfter(t.scheduled.Options, t.attempt, err, rand.Float64())
}

// report repeats the end of the task until the instance has taken it.
func (t *task) report(event *journalpb.Event) {
	t.partition.insist(t.ref.Instance, completion(t.ref, event, func(Answer) {
		t.partition.system.activities.done(t)
	}))
}
