package actors

import (
	"container/list"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An ActivityState says what an open activity is doing or waiting for.
type ActivityState string

// The states of an open activity.
const (
	// ActivityQueued means that no node that could run it has a free slot, or that its rate delays
	// the attempt. It also means that the leader waits for a worker that may still run it.
	ActivityQueued ActivityState = "queued"
	// ActivityRunning means that the body of an attempt runs.
	ActivityRunning ActivityState = "running"
	// ActivityBackingOff means that the next attempt is due later.
	ActivityBackingOff ActivityState = "backing off"
	// ActivityPending means that the body returned [replay.ErrResultPending]: the end will come
	// from outside.
	ActivityPending ActivityState = "pending"
	// ActivityWaitingForTag means that no node serves its tag.
	ActivityWaitingForTag ActivityState = "waiting for tag"
	// ActivityWaitingForCode means that no node that serves its tag has code for it.
	ActivityWaitingForCode ActivityState = "waiting for code"
	// ActivityEnding means that its end is being recorded.
	ActivityEnding ActivityState = "ending"

	activityClosed ActivityState = "gone"
)

// A task is an activity from its schedule to the end of its last attempt.
type task struct {
	partition    *Partition
	ref          *journalpb.OperationRef
	scheduled    *journalpb.ActivityScheduled
	scheduledAt  clustertime.Time // when it was recorded
	traceContext string           // for the tracer of the node that makes the attempt

	// The pool's lock guards the fields below.
	state           ActivityState
	started         bool // an attempt has begun, under this leader or an earlier one
	mayBeRunning    bool // the next attempt may already run, on a worker or an earlier leader
	failedAttempts  int
	lastError       *journalpb.Error
	details         *journalpb.Payload // of the last heartbeat
	current         *attempt           // the attempt that counts; nil between attempts
	nextDue         clustertime.Time   // when the next attempt is due, while backing off
	queue           *taskQueue         // where it waits for a slot or a worker
	element         *list.Element      // of queue.tasks
	sequence        uint64             // its number among all queued tasks
	recordNumber    int                // the number of the latest record
	scheduledTimers uint               // one bit for each timerKind that was scheduled
	outcome         *journalpb.Event   // the event being recorded, while ending
	waiters         []func(error)      // called when what ended the attempt is recorded
}

func (t *task) pool() *pool { return t.partition.system.pool }

func (t *task) isOver() bool { return t.state == ActivityEnding || t.state == activityClosed }

// submit adds a task. retained is the journal's record of its attempts; nil if there is none.
func (p *pool) submit(t *task, retained *journalpb.Attempt) {
	p.withLock(func() func() {
		if !p.tryAddTask(t) {
			return nil
		}
		t.started = retained != nil
		t.state = ActivityQueued
		t.failedAttempts = int(retained.GetFailed())
		t.lastError, t.details = retained.GetLastError(), retained.GetHeartbeat()
		t.scheduleTimeouts()
		if at := retained.GetNextAt(); at != 0 {
			t.nextDue = clustertime.FromUnixNano(at)
		}
		switch {
		case retained.GetPending():
			t.resumePending(clustertime.FromUnixNano(retained.StartedAt))
		case t.nextDue.After(t.now()):
			t.state, t.mayBeRunning = ActivityBackingOff, false
			t.scheduleRetry()
		case t.mayBeRunning && p.system.config.otherNodes() > 0:
			t.scheduleTimer(timerRejoin, t.now().Add(p.system.config.RejoinTimeout), func() { p.resume(t) })
		default:
			return p.assignOrQueue(t)
		}
		return nil
	})
}

// resume assigns or queues a task after a delay.
func (p *pool) resume(t *task) {
	p.withLock(func() func() {
		if p.closed || t.isOver() || t.current != nil || t.queue != nil {
			return nil
		}
		return p.assignOrQueue(t)
	})
}

// assignOrQueue begins the next attempt of a task, or queues it until a slot or a worker is
// available. Missing code is not a failure of the activity. p.mu is held.
func (p *pool) assignOrQueue(t *task) (then func()) {
	if p.queues[t.class()] == nil {
		if to, ok := p.candidate(t.class()); ok {
			p.assign(t, to)
			return nil
		}
	}
	p.enqueue(t)
	if t.state != ActivityWaitingForCode {
		return nil
	}
	return func() {
		t.partition.logger.Warn("no code for activity, waiting for a node that has it", "activity", t.scheduled.Name,
			"instance", t.ref.Instance, "execution", t.ref.Execution, "event_id", t.ref.EventId)
	}
}

// end sets the outcome of the activity. The returned function reports it to the instance. The
// pool's lock is held.
func (t *task) end(event *journalpb.Event, cause error) (then func()) {
	t.cleanUp(cause)
	t.state, t.outcome = ActivityEnding, event
	return func() { t.report(event) }
}

// cancel ends a task whose result nothing waits for any more. The returned function resolves the
// waiters with outcome. The pool's lock is held.
func (t *task) cancel(outcome error) (then func()) {
	t.cleanUp(replay.ErrActivityCanceled)
	t.state = activityClosed
	return t.resolveWaiters(outcome)
}

// cancelAttempt ends the current attempt, if any. The pool's lock is held.
func (t *task) cancelAttempt(cause error) {
	if a := t.current; a != nil {
		t.current = nil
		a.cancel(cause)
		if a.session != nil {
			a.session.cancelAttempt(a, cause)
		}
	}
	t.cancelTimers(timerStartToClose, timerHeartbeat, timerRecordDetails, timerRejoin)
}

// cleanUp ends the current attempt, leaves the queue, and cancels all timers. The pool's lock is
// held.
func (t *task) cleanUp(cause error) {
	t.cancelAttempt(cause)
	t.dequeue()
	t.cancelTimers(timerScheduleToStart, timerScheduleToClose, timerRetry, timerRetryRecord)
}

// report delivers the end of the task to the instance reliably.
func (t *task) report(event *journalpb.Event) {
	t.partition.deliverReliably(t.ref.Instance, completion(t.ref, event, func(a Answer) {
		t.pool().finishTask(t, a.Dropped)
	}))
}

// resolveWaiters removes the waiters. The returned function resolves them with outcome. The pool's
// lock is held.
func (t *task) resolveWaiters(outcome error) (then func()) {
	return t.resolveWaitersWith(func() error { return outcome })
}

// resolveWaitersWith removes the waiters. The returned function resolves them with what outcome
// returns. The pool's lock is held.
func (t *task) resolveWaitersWith(outcome func() error) (then func()) {
	waiters := t.waiters
	t.waiters = nil
	if len(waiters) == 0 {
		return nil
	}
	return func() {
		err := outcome()
		for _, done := range waiters {
			done(err)
		}
	}
}

// record proposes a journal record of the attempts' state, so that the state survives a failover.
// The proposal is repeated until it is committed or a later record replaces it. The pool's lock is
// held, which keeps records in order.
func (t *task) record() {
	t.recordNumber++
	t.propose(t.recordNumber, sched.BackoffMin)
}

func (t *task) propose(record int, delay time.Duration) {
	retained := &journalpb.Attempt{
		Ref:       t.ref,
		Epoch:     t.partition.epoch,
		Failed:    uint32(t.failedAttempts),
		LastError: t.lastError,
		Heartbeat: t.details,
		Pending:   t.state == ActivityPending,
	}
	if t.current != nil {
		retained.StartedAt = t.current.startedAt.UnixNano()
	} else if !t.nextDue.IsZero() {
		retained.NextAt = t.nextDue.UnixNano()
	}
	t.partition.journal.Attempt(retained, func(err error) {
		// The journal may call this at once, while the lock is held.
		t.partition.timers.scheduleAfter(0, func() { t.pool().handleRecorded(t, record, delay, err) })
	})
}

// handleRecorded continues after the journal has committed or refused a record. A refused record
// is proposed again, unless the activity is closed. After a loss of leadership the next leader
// recovers the activity.
func (p *pool) handleRecorded(t *task, record int, delay time.Duration, err error) {
	p.withLock(func() func() {
		if t.isOver() || t.recordNumber != record {
			return nil
		}
		if t.state == ActivityBackingOff {
			t.scheduleRetry()
		}
		if err == nil {
			return t.resolveWaiters(nil)
		}
		t.scheduleTimer(timerRetryRecord, t.now().Add(delay), func() {
			p.withLock(func() func() {
				if !t.isOver() && t.recordNumber == record {
					t.propose(record, sched.NextBackoff(delay))
				}
				return nil
			})
		})
		return nil
	})
}

// scheduleRetry schedules the next attempt for the time when it is due. The pool's lock is held.
func (t *task) scheduleRetry() {
	t.scheduleTimer(timerRetry, t.nextDue, func() { t.pool().resume(t) })
}
