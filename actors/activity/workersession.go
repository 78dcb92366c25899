package activity

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/replay"
)

// A workerSession is a worker on another node, as the leader sees it. The scheduler's lock guards
// its fields, except the outbox, which has its own.
type workerSession struct {
	partition *Partition
	outbox    *session.Outbox[session.ToWorker]
	cancel    context.CancelCauseFunc // of the session

	registration  *session.RegisterWorker
	activities    map[string]bool
	freeSlots     int
	attempts      map[session.AttemptKey]*attempt // current attempts that the worker makes
	runningByName map[string]int                  // by the names that the worker limits
}

func (w *workerSession) scheduler() *Scheduler { return w.partition.scheduler }

// ServeWorker lets a worker run activities of the partition. in carries the worker's messages, out
// those to the worker; neither can be used again. Results that the worker holds are taken, and
// attempts that it already runs continue if still wanted. Attempts unfinished when the session
// ends begin again on other nodes, unless the worker rejoins within Config.RejoinTimeout.
//
// It returns an error that says why the session ended:
//   - the cause of ctx, if ctx ends;
//   - [replay.ErrNodeStopping], if the partition is closed;
//   - [session.ErrPeerUnreachable], if the worker is unreachable;
//   - [session.ErrWorkerDrained], if the worker drains; its attempts begin again at once;
//   - another error, if in is closed.
func (p *Partition) ServeWorker(ctx context.Context, in <-chan session.FromWorker, out chan<- session.ToWorker) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.config.Context, func() { cancel(context.Cause(p.config.Context)) })()
	r := &workerSession{partition: p, outbox: session.NewOutbox[session.ToWorker](), attempts: make(map[session.AttemptKey]*attempt), runningByName: make(map[string]int), cancel: cancel}
	err := session.Run(ctx, in, out, r.outbox, r.handle)
	r.scheduler().endSession(r)
	return err
}

func (w *workerSession) handle(m session.FromWorker) {
	switch {
	case m.Register != nil:
		w.register(m.Register)
	case w.registration == nil: // only this goroutine sets it
	case m.RunningAttempt != nil:
		w.whenRecovered(m.RunningAttempt.AttemptID, func() { w.resumeAttempt(m.RunningAttempt) })
	case m.FreeSlots > 0:
		w.addFreeSlots(m.FreeSlots)
	case m.Heartbeat != nil:
		w.recordHeartbeat(m.Heartbeat)
	case m.Result != nil:
		w.whenRecovered(m.Result.AttemptID, func() { w.handleResult(m.Result) })
	case m.Drain:
		w.scheduler().drainSession(w)
		w.cancel(session.ErrWorkerDrained)
	}
}

// whenRecovered calls f after the operations of the attempt's instance are recovered. Before that
// the scheduler does not have the task, and f would treat the attempt as closed.
func (w *workerSession) whenRecovered(id session.AttemptID, f func()) {
	if !w.partition.config.Instances.DeferUntilRecovered(id.Ref.Instance, f) {
		f()
	}
}

// register adds the worker. It removes an earlier session of the same node.
func (w *workerSession) register(registration *session.RegisterWorker) {
	s := w.scheduler()
	s.slots.WithLock(func() func() {
		if s.slots.Closed() || w.partition.isClosed() || w.registration != nil {
			return nil
		}
		var then []func()
		for _, other := range slices.Clone(s.sessions[w.partition]) {
			if other.registration.Node == registration.Node {
				then = append(then, s.removeSession(other, workerLost))
			}
		}
		w.registration, w.activities = registration, make(map[string]bool)
		for _, name := range registration.Activities {
			w.activities[name] = true
		}
		s.sessions[w.partition] = append(s.sessions[w.partition], w)
		for _, l := range s.queues {
			if w.partition == l.class.partition && w.serves(l.class) {
				l.setState(Queued)
			}
		}
		return func() {
			for _, f := range then {
				f()
			}
		}
	})
}

// serves reports whether the worker takes activities of a class.
func (w *workerSession) serves(c class) bool { return w.hasTag(c.tag) && w.activities[c.name] }

func (w *workerSession) hasTag(tag string) bool {
	return tag == "" || slices.Contains(w.registration.Tags, tag)
}

// canRun reports whether the worker's limit for a name allows one more attempt.
func (w *workerSession) canRun(name string) bool {
	limit, limited := w.registration.Limits[name]
	return !limited || w.runningByName[name] < limit
}

// leastLoaded returns the worker with the most free slots that takes activities of a class, nil if
// there is none. The lock is held.
func (s *Scheduler) leastLoaded(c class) *workerSession {
	var least *workerSession
	for _, r := range s.sessions[c.partition] {
		if r.freeSlots > 0 && (least == nil || r.freeSlots > least.freeSlots) && r.serves(c) && r.canRun(c.name) {
			least = r
		}
	}
	return least
}

// assign begins the next attempt of a task on the worker, unless it is too late. The scheduler's
// lock is held.
func (w *workerSession) assign(t *task) {
	if t.isTooLate(t.now()) {
		return // a timer is about to end the task
	}
	a := t.begin()
	w.addAttempt(a)
	w.freeSlots--
	w.scheduler().counts.Remote++
	task := &session.AssignAttempt{
		AttemptID:    a.id(),
		Name:         a.Info.Name,
		Input:        a.Info.Input,
		Scheduled:    t.scheduledAt,
		LastError:    t.lastError,
		Details:      t.details,
		TraceContext: t.traceContext,
		TimeLeft:     t.timeLeft(a),
		QueuedFor:    max(a.QueuedFor, 1),
	}
	w.outbox.Put(session.ToWorker{AssignAttempt: task})
}

func (a *attempt) id() session.AttemptID {
	return session.AttemptID{Ref: a.task.ref, Number: a.Info.Number}
}

// addAttempt assigns an attempt to the worker. The scheduler's lock is held.
func (w *workerSession) addAttempt(a *attempt) {
	a.session, a.workerLost = w, false
	w.attempts[a.id().Key()] = a
	w.runningByName[a.Info.Name]++
}

// removeAttempt removes an attempt that the worker no longer makes, or whose result is not wanted.
// The scheduler's lock is held.
func (w *workerSession) removeAttempt(a *attempt) {
	a.session = nil
	delete(w.attempts, a.id().Key())
	if w.runningByName[a.Info.Name]--; w.runningByName[a.Info.Name] <= 0 {
		delete(w.runningByName, a.Info.Name)
	}
}

// cancelAttempt tells the worker to cancel an attempt. The scheduler's lock is held.
func (w *workerSession) cancelAttempt(a *attempt, cause error) {
	w.removeAttempt(a)
	command := &session.CancelAttempt{AttemptID: a.id()}
	var timeout *replay.TimeoutError
	if errors.As(cause, &timeout) {
		command.Timeout = timeout.Kind
	}
	w.outbox.Put(session.ToWorker{CancelAttempt: command})
}

// addFreeSlots adds slots that have become free.
func (w *workerSession) addFreeSlots(slots int) {
	w.scheduler().slots.WithLock(func() func() {
		w.freeSlots += slots
		w.scheduler().dispatch()
		return nil
	})
}

// findTask returns the open task of an attempt, nil if there is none. The scheduler's lock is held.
func (w *workerSession) findTask(id session.AttemptID) *task {
	t := w.scheduler().tasks[w.partition][operation.KeyOf(id.Ref)]
	if t == nil || t.isOver() {
		return nil
	}
	return t
}

// resumeAttempt continues an attempt that the worker already runs, unless it began again on
// another node.
func (w *workerSession) resumeAttempt(run *session.RunningAttempt) {
	s := w.scheduler()
	s.slots.WithLock(func() func() {
		if w.partition.isClosed() || !slices.Contains(s.sessions[w.partition], w) {
			return nil // the next session will report it again
		}
		t := w.findTask(run.AttemptID)
		switch {
		case t == nil:
		case t.current != nil && t.current.session == w && run.Number == t.current.Info.Number:
			return nil
		case t.current == nil && t.mayBeRunning && run.Number == t.failedAttempts+1:
			t.markRunning(t.newAttempt(t.now().Add(-run.Age)))
			w.addAttempt(t.current)
			return nil
		case t.current != nil && t.current.workerLost && run.Number == t.current.Info.Number:
			t.cancelTimers(timerRejoin)
			w.addAttempt(t.current)
			return nil
		}
		w.outbox.Put(session.ToWorker{CancelAttempt: &session.CancelAttempt{AttemptID: run.AttemptID}})
		return nil
	})
}

// recordHeartbeat takes a heartbeat of an attempt that the worker makes.
func (w *workerSession) recordHeartbeat(b *session.Heartbeat) {
	s := w.scheduler()
	s.slots.Lock()
	a := w.attempts[b.Key()]
	s.slots.Unlock()
	if a != nil {
		a.recordHeartbeat(b.Details)
	}
}

// handleResult takes the result of an attempt. It acknowledges the result after it is recorded, or
// if it is not wanted. If the partition is closed it acknowledges nothing, and the worker offers
// the result to the next leader.
func (w *workerSession) handleResult(result *session.Result) {
	acknowledge := func(err error) {
		if err == nil || errors.Is(err, ErrClosed) {
			w.outbox.Put(session.ToWorker{Ack: &result.AttemptID})
		}
	}
	pending := false
	s := w.scheduler()
	s.slots.WithLock(func() func() {
		t := w.findTask(result.AttemptID)
		if t == nil || w.partition.isClosed() {
			return nil
		}
		t.adoptAttempt(result.Number)
		if t.current == nil || t.current.Info.Number != result.Number {
			return nil
		}
		if t.current.session == w {
			w.removeAttempt(t.current)
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
		acknowledge(w.lateResultError())
		return
	}
	w.partition.Complete(Completion{
		Ref: result.Ref, Attempt: result.Number, Result: result.Output, Error: result.Error,
	}, acknowledge)
}

// lateResultError returns the error for the result of an attempt that no longer counts.
func (w *workerSession) lateResultError() error {
	if w.partition.isClosed() {
		return w.partition.config.ErrStopped
	}
	return ErrClosed
}

// Why a session was removed, for the log.
const (
	workerLost    = "worker lost, its attempts begin on other nodes unless it rejoins"
	workerDrained = "worker drained"
)

// endSession removes a worker whose session has ended.
func (s *Scheduler) endSession(r *workerSession) {
	s.slots.WithLock(func() func() { return s.removeSession(r, workerLost) })
}

// drainSession removes a worker that will not come back, and begins its attempts again at once.
func (s *Scheduler) drainSession(r *workerSession) {
	s.slots.Lock()
	left := slices.Collect(maps.Values(r.attempts))
	then := s.removeSession(r, workerDrained)
	s.slots.Unlock()
	if then != nil {
		then()
	}
	for _, a := range left {
		s.restartAttempt(a)
	}
}

// removeSession removes a session. The worker's attempts continue until RejoinTimeout, so that it
// can rejoin. reason is for the log. The lock is held.
func (s *Scheduler) removeSession(r *workerSession, reason string) (then func()) {
	all := s.sessions[r.partition]
	at := slices.Index(all, r)
	if at < 0 {
		return nil
	}
	s.sessions[r.partition] = slices.Delete(all, at, at+1)
	lost := len(r.attempts)
	for _, a := range r.attempts {
		r.removeAttempt(a)
		a.workerLost = true
		a.task.scheduleTimer(timerRejoin, a.task.now().Add(s.config.RejoinTimeout), func() { s.restartAttempt(a) })
	}
	return func() {
		if lost > 0 {
			r.partition.config.Logger.Warn(reason, "worker", r.registration.Node, "activities", lost)
		}
	}
}

// restartAttempt begins an attempt again if its worker has not rejoined. The attempt keeps its
// number, because the loss of a worker is not a failure of the activity.
func (s *Scheduler) restartAttempt(a *attempt) {
	s.slots.WithLock(func() func() {
		t := a.task
		if s.slots.Closed() || t.current != a || !a.workerLost || t.state != Running {
			return nil
		}
		t.cancelAttempt(replay.ErrNodeStopping)
		t.state, t.mayBeRunning = Queued, true
		s.counts.Reassigned++
		return s.assignOrQueue(t)
	})
}

// detachAttempts detaches all attempts from the session without canceling them. The scheduler's
// lock is held.
func (w *workerSession) detachAttempts() {
	for _, a := range w.attempts {
		w.removeAttempt(a)
	}
}
