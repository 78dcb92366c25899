package actors

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/replay"
)

// A workerSession is a worker on another node, as the leader's pool sees it. The pool's lock
// guards its fields, except the outbox, which has its own.
type workerSession struct {
	partition *Partition
	outbox    *outbox[ToWorker]
	cancel    context.CancelCauseFunc // of the session

	registration  *RegisterWorker
	activities    map[string]bool
	freeSlots     int
	attempts      map[attemptKey]*attempt // current attempts that the worker makes
	runningByName map[string]int          // by the names that the worker limits
}

func (r *workerSession) pool() *pool { return r.partition.system.pool }

// ServeWorker lets a worker run activities of the partition. in carries the worker's messages, out
// those to the worker; neither can be used again. Results that the worker holds are taken, and
// attempts that it already runs continue if still wanted. Attempts unfinished when the session
// ends begin again elsewhere, unless the worker rejoins within Config.RejoinTimeout.
//
// It returns an error that says why the session ended:
//   - the cause of ctx, if ctx ends;
//   - [replay.ErrNodeStopping], if the partition is closed;
//   - [ErrPeerUnreachable], if the worker is unreachable;
//   - [ErrWorkerDrained], if the worker drains; its unfinished attempts begin again at once;
//   - another error, if in is closed.
func (p *Partition) ServeWorker(ctx context.Context, in <-chan FromWorker, out chan<- ToWorker) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.context, func() { cancel(context.Cause(p.context)) })()
	r := &workerSession{partition: p, outbox: newOutbox[ToWorker](), attempts: make(map[attemptKey]*attempt), runningByName: make(map[string]int), cancel: cancel}
	err := runSession(ctx, in, out, r.outbox, r.handle)
	r.pool().endSession(r)
	return err
}

// serveSelf makes this node its own worker if it still has attempts or results that an earlier
// leader assigned to it.
func (p *Partition) serveSelf() {
	pool := p.system.pool
	pool.mu.Lock()
	defer pool.mu.Unlock()
	pending := false
	for _, l := range pool.workerAttempts {
		pending = pending || l.partition == p.config.Partition
	}
	if !pending {
		return
	}
	fromWorker, toWorker := make(chan FromWorker), make(chan ToWorker)
	p.selfSession.Go(func() { _ = p.ServeWorker(p.context, fromWorker, toWorker) })
	p.selfSession.Go(func() {
		_ = p.system.RunWorker(p.context, RegisterWorker{Partition: p.config.Partition}, toWorker, fromWorker)
	})
}

func (r *workerSession) handle(m FromWorker) {
	switch {
	case m.Register != nil:
		r.register(m.Register)
	case r.registration == nil: // only this goroutine sets it
	case m.RunningAttempt != nil:
		r.whenRecovered(m.RunningAttempt.AttemptID, func() { r.resumeAttempt(m.RunningAttempt) })
	case m.FreeSlots > 0:
		r.addFreeSlots(m.FreeSlots)
	case m.Heartbeat != nil:
		r.recordHeartbeat(m.Heartbeat)
	case m.Result != nil:
		r.whenRecovered(m.Result.AttemptID, func() { r.handleResult(m.Result) })
	case m.Drain:
		r.pool().drainSession(r)
		r.cancel(ErrWorkerDrained)
	}
}

// whenRecovered calls f after the operations of the attempt's instance are recovered. Before that
// the task is not known, and f would treat the attempt as closed.
func (r *workerSession) whenRecovered(id AttemptID, f func()) {
	if !r.partition.deferUntilRecovered(id.Ref.Instance, f) {
		f()
	}
}

// register adds the worker. It removes an earlier session of the same node.
func (r *workerSession) register(registration *RegisterWorker) {
	p := r.pool()
	p.withLock(func() func() {
		if p.closed || r.partition.context.Err() != nil || r.registration != nil {
			return nil
		}
		var then []func()
		for _, other := range slices.Clone(p.sessions[r.partition]) {
			if other.registration.Node == registration.Node {
				then = append(then, p.removeSession(other, workerLost))
			}
		}
		r.registration, r.activities = registration, make(map[string]bool)
		for _, name := range registration.Activities {
			r.activities[name] = true
		}
		p.sessions[r.partition] = append(p.sessions[r.partition], r)
		for _, l := range p.queues {
			if r.partition == l.class.partition && r.serves(l.class) {
				l.setState(ActivityQueued)
			}
		}
		return func() {
			for _, f := range then {
				f()
			}
		}
	})
}

// Registration returns what a node has registered, nil if it is not a worker of the partition. The
// caller must not change it.
func (p *Partition) Registration(node string) *RegisterWorker {
	pool := p.system.pool
	pool.mu.Lock()
	defer pool.mu.Unlock()
	for _, r := range pool.sessions[p] {
		if r.registration.Node == node {
			return r.registration
		}
	}
	return nil
}

// serves reports whether the worker takes activities of a class.
func (r *workerSession) serves(c class) bool { return r.hasTag(c.tag) && r.activities[c.name] }

func (r *workerSession) hasTag(tag string) bool {
	return tag == "" || slices.Contains(r.registration.Tags, tag)
}

// canRun reports whether the worker's limit for a name allows one more attempt.
func (r *workerSession) canRun(name string) bool {
	limit, limited := r.registration.Limits[name]
	return !limited || r.runningByName[name] < limit
}

// leastLoaded returns the worker with the most free slots that takes activities of a class, nil if
// there is none. p.mu is held.
func (p *pool) leastLoaded(c class) *workerSession {
	var least *workerSession
	for _, r := range p.sessions[c.partition] {
		if r.freeSlots > 0 && (least == nil || r.freeSlots > least.freeSlots) && r.serves(c) && r.canRun(c.name) {
			least = r
		}
	}
	return least
}

// assign begins the next attempt of a task on the worker, unless it is too late. The pool's lock
// is held.
func (r *workerSession) assign(t *task) {
	if t.isTooLate(t.now()) {
		return // a timer is about to end the task
	}
	a := t.begin()
	r.addAttempt(a)
	r.freeSlots--
	r.pool().counts.Remote++
	task := &AssignAttempt{
		AttemptID:    a.id(),
		Name:         a.info.Name,
		Input:        a.info.Input,
		Scheduled:    t.scheduledAt,
		LastError:    t.lastError,
		Details:      t.details,
		TraceContext: t.traceContext,
		TimeLeft:     t.timeLeft(a),
		QueuedFor:    max(a.queuedFor, 1),
	}
	r.outbox.put(ToWorker{AssignAttempt: task})
}

func (a *attempt) id() AttemptID { return AttemptID{a.task.ref, a.info.Number} }

// addAttempt assigns an attempt to the worker. The pool's lock is held.
func (r *workerSession) addAttempt(a *attempt) {
	a.session, a.workerLost = r, false
	r.attempts[a.id().key()] = a
	r.runningByName[a.info.Name]++
}

// removeAttempt removes an attempt that the worker no longer makes, or whose result is not wanted.
// The pool's lock is held.
func (r *workerSession) removeAttempt(a *attempt) {
	a.session = nil
	delete(r.attempts, a.id().key())
	if r.runningByName[a.info.Name]--; r.runningByName[a.info.Name] <= 0 {
		delete(r.runningByName, a.info.Name)
	}
}

// cancelAttempt tells the worker to cancel an attempt. The pool's lock is held.
func (r *workerSession) cancelAttempt(a *attempt, cause error) {
	r.removeAttempt(a)
	command := &CancelAttempt{AttemptID: a.id()}
	var timeout *replay.TimeoutError
	if errors.As(cause, &timeout) {
		command.Timeout = timeout.Kind
	}
	r.outbox.put(ToWorker{CancelAttempt: command})
}

// addFreeSlots adds slots that have become free.
func (r *workerSession) addFreeSlots(slots int) {
	r.pool().withLock(func() func() {
		r.freeSlots += slots
		r.pool().dispatch()
		return nil
	})
}

// findTask returns the open task of an attempt, nil if there is none. The pool's lock is held.
func (r *workerSession) findTask(id AttemptID) *task {
	t := r.pool().tasks[r.partition][operation.KeyOf(id.Ref)]
	if t == nil || t.isOver() {
		return nil
	}
	return t
}

// resumeAttempt continues an attempt that the worker already runs, unless it began again
// elsewhere.
func (r *workerSession) resumeAttempt(run *RunningAttempt) {
	p := r.pool()
	p.withLock(func() func() {
		if r.partition.context.Err() != nil || !slices.Contains(p.sessions[r.partition], r) {
			return nil // the next session will report it again
		}
		t := r.findTask(run.AttemptID)
		switch {
		case t == nil:
		case t.current != nil && t.current.session == r && run.Number == t.current.info.Number:
			return nil
		case t.current == nil && t.mayBeRunning && run.Number == t.failedAttempts+1:
			t.markRunning(t.newAttempt(t.now().Add(-run.Age)))
			r.addAttempt(t.current)
			return nil
		case t.current != nil && t.current.workerLost && run.Number == t.current.info.Number:
			t.cancelTimers(timerRejoin)
			r.addAttempt(t.current)
			return nil
		}
		r.outbox.put(ToWorker{CancelAttempt: &CancelAttempt{AttemptID: run.AttemptID}})
		return nil
	})
}

// recordHeartbeat takes a heartbeat of an attempt that the worker makes.
func (r *workerSession) recordHeartbeat(b *Heartbeat) {
	p := r.pool()
	p.mu.Lock()
	a := r.attempts[b.key()]
	p.mu.Unlock()
	if a != nil {
		a.recordHeartbeat(b.Details)
	}
}

// handleResult takes the result of an attempt. It acknowledges the result after it is recorded, or
// if it is not wanted. If the partition is closed it acknowledges nothing, and the worker offers
// the result to the next leader.
func (r *workerSession) handleResult(result *Result) {
	acknowledge := func(err error) {
		if err == nil || errors.Is(err, ErrActivityClosed) {
			r.outbox.put(ToWorker{Ack: &result.AttemptID})
		}
	}
	pending := false
	p := r.pool()
	p.withLock(func() func() {
		t := r.findTask(result.AttemptID)
		if t == nil || r.partition.context.Err() != nil {
			return nil
		}
		t.adoptAttempt(result.Number)
		if t.current == nil || t.current.info.Number != result.Number {
			return nil
		}
		if t.current.session == r {
			r.removeAttempt(t.current)
		}
		if result.Details != nil {
			t.details = result.Details
		}
		if pending = result.Pending; pending {
			t.waiters = append(t.waiters, acknowledge)
			t.markPending()
		}
		return nil
	})
	if pending {
		return
	}
	if result.Pending {
		acknowledge(r.lateResultError())
		return
	}
	r.partition.CompleteActivity(Completion{
		Ref: result.Ref, Attempt: result.Number, Result: result.Output, Error: result.Error,
	}, acknowledge)
}

// lateResultError returns the error for the result of an attempt that no longer counts.
func (r *workerSession) lateResultError() error {
	if r.partition.context.Err() != nil {
		return ErrStopped
	}
	return ErrActivityClosed
}

// Why a session was removed, for the log.
const (
	workerLost    = "worker lost"
	workerDrained = "worker drained"
)

// endSession removes a worker whose session has ended.
func (p *pool) endSession(r *workerSession) {
	p.withLock(func() func() { return p.removeSession(r, workerLost) })
}

// drainSession removes a worker that will not come back, and begins its attempts again at once.
func (p *pool) drainSession(r *workerSession) {
	p.mu.Lock()
	left := slices.Collect(maps.Values(r.attempts))
	then := p.removeSession(r, workerDrained)
	p.mu.Unlock()
	if then != nil {
		then()
	}
	for _, a := range left {
		p.restartAttempt(a)
	}
}

// removeSession removes a session. The worker's attempts continue until RejoinTimeout, so that it
// can rejoin. reason is for the log. p.mu is held.
func (p *pool) removeSession(r *workerSession, reason string) (then func()) {
	all := p.sessions[r.partition]
	at := slices.Index(all, r)
	if at < 0 {
		return nil
	}
	p.sessions[r.partition] = slices.Delete(all, at, at+1)
	lost := len(r.attempts)
	for _, a := range r.attempts {
		r.removeAttempt(a)
		a.workerLost = true
		a.task.scheduleTimer(timerRejoin, a.task.now().Add(p.system.config.RejoinTimeout), func() { p.restartAttempt(a) })
	}
	return func() {
		if lost > 0 {
			r.partition.logger.Warn(reason, "worker", r.registration.Node, "activities", lost)
		}
	}
}

// restartAttempt begins an attempt again if its worker has not rejoined. The attempt keeps its
// number, because the loss of a worker is not a failure of the activity.
func (p *pool) restartAttempt(a *attempt) {
	p.withLock(func() func() {
		t := a.task
		if p.closed || t.current != a || !a.workerLost || t.state != ActivityRunning {
			return nil
		}
		t.cancelAttempt(replay.ErrNodeStopping)
		t.state, t.mayBeRunning = ActivityQueued, true
		p.counts.Reassigned++
		return p.assignOrQueue(t)
	})
}

// detachAttempts detaches all attempts from the session without canceling them. The pool's lock is
// held.
func (r *workerSession) detachAttempts() {
	for _, a := range r.attempts {
		r.removeAttempt(a)
	}
}
