package activity

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A workerSession is the leader's side of the connection to a worker, on this node or another. The
// scheduler's lock guards its fields, except those that say otherwise.
type workerSession struct {
	partition *Partition
	to        link                    // to the worker; has its own lock
	local     LocalWorker             // the worker if it is that of this node; immutable
	cancel    context.CancelCauseFunc // of the session; nil for the worker of this node

	registration  *clusterpb.RegisterWorker
	activities    map[string]bool
	runningByName map[string]int // of limited activities, on a worker that is not of this node
	// The fields below are of a worker that is not of this node.
	pool         *workerPool // nil before the registration and after the session
	heapIndex    int         // in the pool
	freeSlots    int
	capacity     int    // the most free slots that it ever had
	lastAssigned uint64 // Scheduler.lastAssigned when it last got an attempt
}

// A link takes messages to a worker. It may be called with the scheduler's lock held.
type link interface {
	Put(m *clusterpb.ToWorker)
	// Acknowledge is Put for an acknowledgment of the result of an attempt.
	Acknowledge(id *clusterpb.AttemptID)
}

func (p *Partition) newWorkerSession(to link) *workerSession {
	return &workerSession{partition: p, to: to, runningByName: make(map[string]int)}
}

func (w *workerSession) scheduler() *Scheduler { return w.partition.scheduler }

// ServeLocal lets the worker of this node run activities of the partition, until Close. It must be
// called before anything else.
func (p *Partition) ServeLocal() {
	to := &localLink{worker: p.config.Worker}
	p.local = p.newWorkerSession(to)
	to.session, p.local.local = p.local, p.config.Worker
	p.local.register(p.config.Worker.Registration())
	for _, m := range p.config.Worker.Register(p.local) {
		p.local.Put(m)
	}
}

// A localLink passes messages to the worker of this node.
type localLink struct {
	worker  LocalWorker
	session *workerSession
}

// Put implements link.
func (l *localLink) Put(m *clusterpb.ToWorker) { l.handleAnswer(l.worker.Handle(l.session, m)) }

// Acknowledge implements link.
func (l *localLink) Acknowledge(id *clusterpb.AttemptID) {
	l.handleAnswer(l.worker.Acknowledge(l.session, id))
}

func (l *localLink) handleAnswer(answer *clusterpb.FromWorker) {
	if answer != nil {
		// Later, because the scheduler's lock may be held.
		l.session.partition.config.Timers.ScheduleAfter(0, func() { l.session.Put(answer) })
	}
}

// A remoteLink keeps messages to the worker of another node until they are sent.
type remoteLink struct {
	*session.Outbox[clusterpb.ToWorker]
}

// Acknowledge implements link.
func (l remoteLink) Acknowledge(id *clusterpb.AttemptID) { l.Put(session.Ack(id)) }

// ServeWorker lets a worker run activities of the partition. pings are those of both sides. in
// carries the worker's messages, out those to the worker; neither can be used again. Results that
// the worker holds are taken, and attempts that it already runs continue if still wanted. Attempts
// unfinished when the session ends begin again on other nodes, unless the worker rejoins within
// Config.RejoinTimeout.
//
// It returns an error that says why the session ended:
//   - the cause of ctx, if ctx ends;
//   - [replay.ErrNodeStopping], if the partition is closed;
//   - [session.ErrPeerUnreachable], if the worker is unreachable;
//   - [session.ErrWorkerDrained], if the worker drains; its attempts begin again at once;
//   - another error, if in is closed.
func (p *Partition) ServeWorker(ctx context.Context, pings session.Pings, in <-chan *clusterpb.FromWorker, out chan<- *clusterpb.ToWorker) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.config.Context, func() { cancel(context.Cause(p.config.Context)) })()
	box := session.NewOutbox[clusterpb.ToWorker]()
	w := p.newWorkerSession(remoteLink{box})
	w.cancel = cancel
	err := session.Run(ctx, pings, in, out, box, w.Put)
	w.scheduler().endSession(w)
	return err
}

// Put handles a message from the worker. The scheduler's lock is not held.
func (w *workerSession) Put(m *clusterpb.FromWorker) {
	if register, ok := m.Message.(*clusterpb.FromWorker_Register); ok {
		w.register(register.Register)
		return
	}
	if w.registration == nil { // what comes before the registration is ignored
		return
	}
	switch body := m.Message.(type) {
	case *clusterpb.FromWorker_RunningAttempt:
		w.whenRecovered(body.RunningAttempt.Attempt, func() { w.resumeAttempt(body.RunningAttempt) })
	case *clusterpb.FromWorker_FreeSlots:
		w.addFreeSlots(int(body.FreeSlots))
	case *clusterpb.FromWorker_Heartbeat:
		w.recordHeartbeat(body.Heartbeat)
	case *clusterpb.FromWorker_Result:
		w.handleResult(body.Result)
	case *clusterpb.FromWorker_StopAssigning:
		w.stopAssigning()
		for _, id := range body.StopAssigning.Returned {
			w.whenRecovered(id, func() { w.takeBack(id) })
		}
	case *clusterpb.FromWorker_Drain:
		w.scheduler().drainSession(w)
		w.cancel(session.ErrWorkerDrained)
	}
}

// Replace implements session.Sender.
func (w *workerSession) Replace(_ session.AttemptKey, m *clusterpb.FromWorker) { w.Put(m) }

// whenRecovered calls f after the operations of the attempt's instance are recovered. Before that
// the scheduler does not have the task, and f would treat the attempt as closed.
func (w *workerSession) whenRecovered(id *clusterpb.AttemptID, f func()) {
	if !w.partition.config.Instances.DeferUntilRecovered(id.Ref.Instance, f) {
		f()
	}
}

// handleResult takes the result of an attempt, when the operations of its instance are recovered.
func (w *workerSession) handleResult(result *clusterpb.AttemptResult) {
	if w.partition.config.Instances.IsRecovered(result.Attempt.Ref.Instance) {
		w.takeResult(result)
		return
	}
	w.whenRecovered(result.Attempt, func() { w.takeResult(result) })
}

// isSame reports whether two registrations are of the same worker: of a node, or of a process of a
// client.
func isSame(a, b *clusterpb.RegisterWorker) bool {
	return a.Node == b.Node && a.Worker == b.Worker && a.Client == b.Client
}

// register adds the worker. It removes an earlier session of the same worker.
func (w *workerSession) register(registration *clusterpb.RegisterWorker) {
	s := w.scheduler()
	s.withLock(func() func() {
		if w.partition.isClosed() || w.registration != nil {
			return nil
		}
		var then []func()
		for _, other := range slices.Clone(w.partition.sessions) {
			if other.local == nil && isSame(other.registration, registration) {
				then = append(then, s.removeSession(other, workerLost))
			}
		}
		w.registration, w.activities = registration, make(map[string]bool)
		for _, name := range registration.Activities {
			w.activities[name] = true
		}
		w.partition.sessions = append(w.partition.sessions, w)
		if w.local == nil {
			w.join()
		}
		for _, q := range s.queues {
			if w.partition == q.class.partition && w.serves(q.class) {
				q.setState(s.queuedState(q.class))
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

// hasFree reports whether a worker that is not of this node can begin an attempt of that name now.
func (w *workerSession) hasFree(name string) bool {
	limit, limited := w.registration.Limits[name]
	return w.freeSlots > 0 && (!limited || w.runningByName[name] < int(limit))
}

// assign begins the next attempt of a task on the worker, unless it is too late. The scheduler's
// lock is held.
func (w *workerSession) assign(t *task) {
	if t.current != nil || t.isTooLate(t.now()) {
		return // a timer is about to end the task
	}
	a := t.begin()
	message, assign := a.assignment.Of(t.ref, a.number)
	a.id = assign.Attempt
	w.addAttempt(a)
	if w.local != nil {
		w.scheduler().counts.Local++
	} else {
		s := w.scheduler()
		s.lastAssigned++
		w.lastAssigned = s.lastAssigned
		w.setFreeSlots(w.freeSlots - 1)
		s.counts.Remote++
	}
	assign.Name = t.scheduled.Name
	assign.Input = t.scheduled.Input
	assign.Scheduled = t.scheduledAt.UnixNano()
	assign.LastError = t.failures.last()
	assign.Details = t.details
	assign.Trace = t.traceContext
	assign.TimeLeft = int64(t.timeLeft(a))
	assign.Headers = t.options.GetHeaders()
	assign.CancelGrace = t.options.GetCancelGrace()
	assign.QueuedFor = int64(max(a.startedAt.Sub(t.scheduledAt), 1))
	w.to.Put(message)
}

// addAttempt counts an attempt as running on the worker. The scheduler's lock is held.
func (w *workerSession) addAttempt(a *attempt) {
	if a.session == nil {
		a.task.counts.running++
	}
	a.session, a.workerLost = w, false
	w.addRunning(a.name(), 1)
}

// removeAttempt removes an attempt that the worker no longer runs, or whose result is not wanted.
// The scheduler's lock is held.
func (w *workerSession) removeAttempt(a *attempt) {
	if a.session != nil {
		a.task.counts.running--
	}
	a.session = nil
	w.addRunning(a.name(), -1)
}

// attempts returns the current attempts that the worker runs. The scheduler's lock is held.
func (w *workerSession) attempts() (all []*attempt) {
	for _, t := range w.partition.tasks {
		if t.current != nil && t.current.session == w {
			all = append(all, t.current)
		}
	}
	return all
}

// cancelAttempt tells the worker to cancel an attempt. The scheduler's lock is held.
func (w *workerSession) cancelAttempt(a *attempt, cause error) {
	w.removeAttempt(a)
	var kind replay.TimeoutKind
	var timeout *replay.TimeoutError
	if errors.As(cause, &timeout) {
		kind = timeout.Kind
	}
	w.to.Put(session.Cancel(a.id, kind))
}

// addFreeSlots adds slots that have become free. Those beyond session.SlotsMax are not counted.
func (w *workerSession) addFreeSlots(slots int) {
	w.scheduler().withLock(func() func() {
		w.setFreeSlots(min(w.freeSlots+slots, session.SlotsMax))
		w.scheduler().dispatch()
		return nil
	})
}

// findTask returns the open task of an attempt, nil if there is none. The scheduler's lock is held.
func (w *workerSession) findTask(id *clusterpb.AttemptID) *task {
	t := w.partition.tasks[operation.KeyOf(id.Ref)]
	if t == nil || t.isOver() {
		return nil
	}
	return t
}

// awaitsRecord reports whether the worker has sent a result of an attempt that is not recorded yet.
// The scheduler's lock is held.
func (w *workerSession) awaitsRecord(id *clusterpb.AttemptID) bool {
	t := w.partition.tasks[operation.KeyOf(id.Ref)]
	return t != nil && t.waiters.include(w, session.KeyOf(id))
}

// resumeAttempt continues an attempt that the worker already runs, unless it began again on
// another node.
func (w *workerSession) resumeAttempt(run *clusterpb.RunningAttempt) {
	s, number := w.scheduler(), int(run.Attempt.Number)
	s.withLock(func() func() {
		if w.partition.isClosed() || !slices.Contains(w.partition.sessions, w) {
			return nil // the next session will report it again
		}
		t := w.findTask(run.Attempt)
		switch {
		case w.awaitsRecord(run.Attempt):
			return nil // its result has overtaken this message, which waited for the recovery
		case t == nil:
		case t.current != nil && t.current.session == w && number == t.current.number:
			return nil
		case t.current == nil && t.mayBeRunning && number == t.failedAttempts+1:
			a := t.newAttempt(t.now().Add(-time.Duration(run.Age)))
			a.lastHeartbeat = t.now() // the worker sent its heartbeats to an earlier leader
			t.markRunning(a)
			t.current.id = run.Attempt
			w.addAttempt(t.current)
			return nil
		case t.current != nil && t.current.workerLost && number == t.current.number:
			t.cancelTimers(timerRejoin)
			w.addAttempt(t.current)
			return nil
		}
		w.to.Put(session.Cancel(run.Attempt, ""))
		return nil
	})
}

// recordHeartbeat takes a heartbeat of an attempt that the worker runs.
func (w *workerSession) recordHeartbeat(b *clusterpb.Heartbeat) {
	s := w.scheduler()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := w.findTask(b.Attempt); t != nil && t.current != nil && t.current.session == w && t.current.number == int(b.Attempt.Number) {
		t.current.recordHeartbeat(b.Details)
	}
}

// takeResult takes the result of an attempt. It acknowledges the result after it is recorded, or if
// it is not wanted. If the partition is closed it acknowledges nothing, and the worker offers the
// result to the next leader.
func (w *workerSession) takeResult(result *clusterpb.AttemptResult) {
	reporter := waiter{session: w, attempt: result.Attempt}
	c := Completion{Ref: result.Attempt.Ref, Attempt: int(result.Attempt.Number), Result: result.Output, Error: result.Error}
	c.normalize()
	w.scheduler().withLock(func() func() {
		wanted := w.detachFinished(result)
		switch {
		case wanted != nil && result.Pending:
			wanted.waiters.add(reporter)
			wanted.markPending()
			return nil
		case wanted != nil:
			return w.partition.completeTask(wanted, &c, reporter)
		case result.Pending:
			return func() { reporter.resolve(w.lateResultError()) }
		}
		return w.partition.complete(&c, reporter)
	})
}

// detachFinished removes a finished attempt from the worker. It returns the task if the attempt is
// its current one, nil if not. The scheduler's lock is held.
func (w *workerSession) detachFinished(result *clusterpb.AttemptResult) *task {
	t := w.findTask(result.Attempt)
	if t == nil || w.partition.isClosed() {
		return nil
	}
	t.adoptAttempt(int(result.Attempt.Number))
	if t.current == nil || t.current.number != int(result.Attempt.Number) {
		return nil
	}
	if t.current.session == w {
		w.removeAttempt(t.current)
	}
	if result.Details != nil {
		t.details = result.Details
	}
	return t
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
func (s *Scheduler) endSession(w *workerSession) {
	s.withLock(func() func() { return s.removeSession(w, workerLost) })
}

// drainSession removes a worker that will not come back, and begins its attempts again at once.
func (s *Scheduler) drainSession(w *workerSession) {
	s.mu.Lock()
	left := w.attempts()
	then := s.removeSession(w, workerDrained)
	s.mu.Unlock()
	if then != nil {
		then()
	}
	for _, a := range left {
		s.restartAttempt(a)
	}
}

// stopAssigning lets no more attempts begin on the worker. Those that it runs continue.
func (w *workerSession) stopAssigning() {
	s := w.scheduler()
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.leave(); s.config.LeaderExempt {
		s.dispatch() // what only this worker served now begins on this node
	}
}

// takeBack begins an attempt again that was assigned to the worker and has not begun there.
func (w *workerSession) takeBack(id *clusterpb.AttemptID) {
	s := w.scheduler()
	s.mu.Lock()
	t := w.findTask(id)
	if t == nil || t.current == nil || t.current.session != w || t.current.number != int(id.Number) {
		s.mu.Unlock()
		return
	}
	a := t.current
	w.removeAttempt(a)
	a.workerLost = true
	s.mu.Unlock()
	s.restartAttempt(a)
}

// removeSession removes a session. The worker's attempts continue until RejoinTimeout, so that it
// can rejoin. reason is for the log. The lock is held.
func (s *Scheduler) removeSession(w *workerSession, reason string) (then func()) {
	all := w.partition.sessions
	at := slices.Index(all, w)
	if at < 0 {
		return nil
	}
	w.partition.sessions = slices.Delete(all, at, at+1)
	w.leave()
	lost := w.attempts()
	for _, a := range lost {
		w.removeAttempt(a)
		a.workerLost = true
		a.task.scheduleTimer(timerRejoin, a.task.now().Add(s.config.RejoinTimeout), func() { s.restartAttempt(a) })
	}
	if s.config.LeaderExempt {
		s.dispatch() // what only this worker served now begins on this node
	}
	return func() {
		if len(lost) > 0 {
			w.partition.config.Logger.Warn(reason, "worker", w.registration.Node+w.registration.Worker, "attempts", len(lost))
		}
	}
}

// restartAttempt begins an attempt again if its worker has not rejoined. The attempt keeps its
// number, because the loss of a worker is not a failure of the activity.
func (s *Scheduler) restartAttempt(a *attempt) {
	s.withLock(func() func() {
		t := a.task
		if t.partition.isClosed() || t.current != a || !a.workerLost || t.state != Running {
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
	for _, a := range w.attempts() {
		w.removeAttempt(a)
	}
}
