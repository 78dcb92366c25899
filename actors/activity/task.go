package activity

import (
	"container/list"
	"errors"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A State says what an open activity is doing or waiting for.
type State string

// The states of an open activity.
const (
	// Queued means that no node that could run it has a free slot, or that its rate delays the
	// attempt. It also means that the leader waits for a worker that may still run it.
	Queued State = "queued"
	// Running means that the body of an attempt runs.
	Running State = "running"
	// BackingOff means that the next attempt is due later.
	BackingOff State = "backing off"
	// Pending means that the body returned [replay.ErrResultPending]: the end will come from
	// outside.
	Pending State = "pending"
	// WaitingForTag means that no node serves its tag.
	WaitingForTag State = "waiting for tag"
	// WaitingForCode means that no node that serves its tag has code for it.
	WaitingForCode State = "waiting for code"
	// Held means that an operator holds it: no further attempt begins.
	Held State = "held"
	// Paused means that all activities of its name are paused: none of their attempts begins.
	Paused State = "paused"
	// Ending means that its end is being recorded.
	Ending State = "ending"

	closed State = "closed"
)

// A task is an activity from its schedule to the end of its last attempt.
type task struct {
	partition    *Partition
	ref          *journalpb.OperationRef
	scheduled    *journalpb.ActivityScheduled
	scheduledAt  clustertime.Time // when it was recorded
	traceContext string           // for the tracer of the node that runs the attempt

	// The scheduler's lock guards the fields below.
	counts          *nameCounts                // of its name; set before an attempt begins
	options         *journalpb.ActivityOptions // of the call, or of the last adjustment; never changed
	state           State
	held            bool   // no attempt begins
	started         bool   // an attempt has begun, under this leader or an earlier one
	mayBeRunning    bool   // the next attempt may already run, on a worker or an earlier leader
	scheduledTimers uint16 // one bit for each timerKind that was scheduled
	recordNumber    uint32 // the number of the latest record
	retryNow        uint32 // the number of an attempt that begins without a backoff; 0: none
	failedAttempts  int
	failures        *failures          // nil if no attempt has failed
	details         *journalpb.Payload // of the last heartbeat
	current         *attempt           // the attempt that counts; nil between attempts
	nextDue         clustertime.Time   // when the next attempt is due, while backing off
	queue           *taskQueue         // where it waits for a slot or a worker
	element         *list.Element      // of queue.tasks
	sequence        uint64             // its number among all queued tasks
	outcome         *journalpb.Event   // the event being recorded, while ending
	waiters         waiters            // for the record of what ended the attempt
}

// A waiter waits until what it has reported of an attempt is recorded: the worker session that
// sent the result, or the caller of [Partition.Complete].
type waiter struct {
	done    func(error)
	session *workerSession       // nil if done is set
	attempt *clusterpb.AttemptID // that the session has reported
}

// resolve tells the waiter the outcome. A session acknowledges a result that is recorded or not
// wanted. The scheduler's lock is not held.
func (w waiter) resolve(outcome error) {
	switch {
	case w.session == nil:
		w.done(outcome)
	case outcome == nil, errors.Is(outcome, ErrClosed):
		w.session.to.Acknowledge(w.attempt)
	}
}

// waiters are the waiters of a task, of which there is rarely more than one.
type waiters struct {
	first waiter
	more  []waiter
}

func (w *waiters) isEmpty() bool { return w.first.done == nil && w.first.session == nil }

func (w *waiters) add(added waiter) {
	if w.isEmpty() {
		w.first = added
	} else {
		w.more = append(w.more, added)
	}
}

// include reports whether a session waits for the record of an attempt.
func (w *waiters) include(s *workerSession, key session.AttemptKey) bool {
	matches := func(added waiter) bool { return added.session == s && session.KeyOf(added.attempt) == key }
	return !w.isEmpty() && (matches(w.first) || slices.ContainsFunc(w.more, matches))
}

// resolve tells every waiter the outcome. There is at least one.
func (w *waiters) resolve(outcome error) {
	w.first.resolve(outcome)
	for _, other := range w.more {
		other.resolve(outcome)
	}
}

func (t *task) scheduler() *Scheduler { return t.partition.scheduler }

func (t *task) now() clustertime.Time { return t.partition.config.Now() }

func (t *task) isOver() bool { return t.state == Ending || t.state == closed }

// submit adds a task. retained is the journal's record of its attempts; nil if there is none.
func (s *Scheduler) submit(t *task, retained *journalpb.Attempt) {
	s.withLock(func() func() {
		if !s.tryAddTask(t) {
			return nil
		}
		t.started = retained != nil
		t.state = Queued
		t.failedAttempts = int(retained.GetFailed())
		t.failures, t.details = failuresOf(retained), retained.GetHeartbeat()
		t.scheduleTimeouts()
		if at := retained.GetNextAt(); at != 0 {
			t.nextDue = clustertime.FromUnixNano(at)
		}
		switch {
		case retained.GetPending():
			t.resumePending(clustertime.FromUnixNano(retained.StartedAt))
		case t.nextDue.After(t.now()) && lastFailureIsFinal(t): // since an adjustment
			return endWithLastFailure(t)
		case t.nextDue.After(t.now()) && t.retryNow != uint32(t.failedAttempts+1):
			t.state, t.mayBeRunning = BackingOff, false
			t.scheduleRetry()
		case t.mayBeRunning && (s.config.OtherNodes() > 0 || t.isOnThisNode()):
			t.scheduleTimer(timerRejoin, t.now().Add(s.config.RejoinTimeout), func() { s.resume(t) })
		default:
			return s.assignOrQueue(t)
		}
		return nil
	})
}

// isOnThisNode reports whether this node runs the next attempt, or has its result, for an earlier
// leader. The scheduler's lock is held.
func (t *task) isOnThisNode() bool {
	return t.partition.config.Worker.Has(session.KeyOf(&clusterpb.AttemptID{Ref: t.ref, Number: uint32(t.failedAttempts + 1)}))
}

// resume assigns or queues a task after a delay.
func (s *Scheduler) resume(t *task) {
	s.withLock(func() func() {
		if t.partition.isClosed() || t.isOver() || t.current != nil || t.queue != nil {
			return nil
		}
		return s.assignOrQueue(t)
	})
}

// assignOrQueue begins the next attempt of a task, or queues it until a slot or a worker is
// available. A held task waits for its release. Missing code is not a failure of the activity. The
// lock is held.
func (s *Scheduler) assignOrQueue(t *task) (then func()) {
	if t.held {
		t.state = Held
		return nil
	}
	if s.queues[t.class()] == nil {
		if to := s.candidate(t.class()); to != nil {
			s.assign(t, to)
			return nil
		}
	}
	s.enqueue(t)
	if t.state != WaitingForCode {
		return nil
	}
	return func() {
		t.partition.config.Logger.Warn("no code for activity, waiting for a node that has it", "activity", t.scheduled.Name,
			"instance", t.ref.Instance, "execution", t.ref.Execution, "event_id", t.ref.EventId)
	}
}

// end sets the outcome of the activity. The returned function reports it to the instance. The
// scheduler's lock is held.
func (t *task) end(event *journalpb.Event, cause error) (then func()) {
	t.cleanUp(cause)
	t.state, t.outcome = Ending, event
	return func() { t.report(event) }
}

// cancel ends a task whose result nothing waits for any more. The returned function resolves the
// waiters with outcome. The scheduler's lock is held.
func (t *task) cancel(outcome error) (then func()) {
	t.cleanUp(replay.ErrActivityCanceled)
	t.state = closed
	return t.resolveWaiters(outcome)
}

// cancelAttempt ends the current attempt, if any. The scheduler's lock is held.
func (t *task) cancelAttempt(cause error) {
	if a := t.current; a != nil {
		t.current = nil
		if a.session != nil {
			a.session.cancelAttempt(a, cause)
		}
	}
	t.cancelTimers(timerStartToClose, timerHeartbeat, timerRecordDetails, timerRejoin)
}

// cleanUp ends the current attempt, removes the task from its queue, and cancels all timers. The
// scheduler's lock is held.
func (t *task) cleanUp(cause error) {
	t.cancelAttempt(cause)
	t.dequeue()
	t.cancelTimers(timerScheduleToStart, timerScheduleToClose, timerRetry, timerRetryRecord)
}

// report delivers the end of the task to the instance reliably.
func (t *task) report(event *journalpb.Event) {
	t.partition.config.Instances.Complete(t.ref, event, t)
}

// resolveWaiters removes the waiters. The returned function resolves them with outcome. The
// scheduler's lock is held.
func (t *task) resolveWaiters(outcome error) (then func()) {
	if t.waiters.isEmpty() {
		return nil
	}
	removed := t.removeWaiters()
	return func() { removed.resolve(outcome) }
}

// removeWaiters removes and returns the waiters. The scheduler's lock is held.
func (t *task) removeWaiters() waiters {
	removed := t.waiters
	t.waiters = waiters{}
	return removed
}

// record proposes a journal record of the attempts' state, so that the state survives a failover.
// The proposal is repeated until it is committed or a later record replaces it. The scheduler's
// lock is held, which keeps records in order.
func (t *task) record() {
	t.recordNumber++
	t.propose(t.recordNumber, sched.BackoffMin)
}

func (t *task) propose(record uint32, delay time.Duration) {
	retained := &journalpb.Attempt{
		Ref:       t.ref,
		Epoch:     t.partition.config.Epoch,
		Failed:    uint32(t.failedAttempts),
		LastError: t.failures.last(),
		Heartbeat: t.details,
		Pending:   t.state == Pending,

		FailedAttempts: t.failures.list(),
	}
	if t.current != nil {
		retained.StartedAt = t.current.startedAt.UnixNano()
	} else if !t.nextDue.IsZero() {
		retained.NextAt = t.nextDue.UnixNano()
	}
	t.partition.config.Journal.Attempt(retained, func(err error) {
		// The journal may call this at once, while the lock is held.
		t.partition.config.Timers.ScheduleAfter(0, func() { t.scheduler().handleRecorded(t, record, delay, err) })
	})
}

// handleRecorded continues after the journal has committed or rejected a record. A rejected record
// is proposed again, unless the activity is closed. After a loss of leadership the next leader
// recovers the activity.
func (s *Scheduler) handleRecorded(t *task, record uint32, delay time.Duration, err error) {
	s.withLock(func() func() {
		if t.isOver() || t.recordNumber != record {
			return nil
		}
		if t.state == BackingOff {
			t.scheduleRetry()
		}
		if err == nil {
			return t.resolveWaiters(nil)
		}
		t.scheduleTimer(timerRetryRecord, t.now().Add(delay), func() {
			s.withLock(func() func() {
				if !t.isOver() && t.recordNumber == record {
					t.propose(record, sched.NextBackoff(delay))
				}
				return nil
			})
		})
		return nil
	})
}

// scheduleRetry schedules the next attempt for the time when it is due. The scheduler's lock is
// held.
func (t *task) scheduleRetry() {
	t.scheduleTimer(timerRetry, t.nextDue, func() { t.scheduler().resume(t) })
}

// Finish implements Finisher. It removes a task whose end is recorded or was dropped. A dropped end
// means that the activity was already closed, perhaps by the same end.
func (t *task) Finish(dropped bool) {
	waiting := t.remove()
	switch {
	case waiting.isEmpty():
	case dropped && !t.partition.hasEndEvent(t.ref, t.outcome):
		waiting.resolve(ErrClosed)
	default:
		waiting.resolve(nil)
	}
}

// remove removes the task from the scheduler and returns its waiters.
func (t *task) remove() waiters {
	s := t.scheduler()
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := operation.KeyOf(t.ref); t.partition.tasks[key] == t {
		t.partition.deleteTask(key, t)
	}
	return t.removeWaiters()
}
