package activity

import (
	"container/list"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/actors/internal/slot"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
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
	// Ending means that its end is being recorded.
	Ending State = "ending"

	closed State = "gone"
)

// A task is an activity from its schedule to the end of its last attempt.
type task struct {
	partition    *Partition
	ref          *journalpb.OperationRef
	scheduled    *journalpb.ActivityScheduled
	scheduledAt  clustertime.Time // when it was recorded
	traceContext string           // for the tracer of the node that makes the attempt

	// The scheduler's lock guards the fields below.
	state           State
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

func (t *task) scheduler() *Scheduler { return t.partition.scheduler }

func (t *task) now() clustertime.Time { return t.partition.config.Now() }

func (t *task) isOver() bool { return t.state == Ending || t.state == closed }

// submit adds a task. retained is the journal's record of its attempts; nil if there is none.
func (s *Scheduler) submit(t *task, retained *journalpb.Attempt) {
	s.slots.WithLock(func() func() {
		if !s.tryAddTask(t) {
			return nil
		}
		t.started = retained != nil
		t.state = Queued
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
			t.state, t.mayBeRunning = BackingOff, false
			t.scheduleRetry()
		case t.mayBeRunning && s.config.OtherNodes() > 0:
			t.scheduleTimer(timerRejoin, t.now().Add(s.config.RejoinTimeout), func() { s.resume(t) })
		default:
			return s.assignOrQueue(t)
		}
		return nil
	})
}

// resume assigns or queues a task after a delay.
func (s *Scheduler) resume(t *task) {
	s.slots.WithLock(func() func() {
		if s.slots.Closed() || t.isOver() || t.current != nil || t.queue != nil {
			return nil
		}
		return s.assignOrQueue(t)
	})
}

// assignOrQueue begins the next attempt of a task, or queues it until a slot or a worker is
// available. Missing code is not a failure of the activity. The lock is held.
func (s *Scheduler) assignOrQueue(t *task) (then func()) {
	if s.queues[t.class()] == nil {
		if to, ok := s.candidate(t.class()); ok {
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
		a.Cancel(cause)
		if a.session != nil {
			a.session.cancelAttempt(a, cause)
		}
	}
	t.cancelTimers(timerStartToClose, timerHeartbeat, timerRecordDetails, timerRejoin)
}

// cleanUp ends the current attempt, leaves the queue, and cancels all timers. The scheduler's lock
// is held.
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
	return t.resolveWaitersWith(func() error { return outcome })
}

// resolveWaitersWith removes the waiters. The returned function resolves them with what outcome
// returns. The scheduler's lock is held.
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
// The proposal is repeated until it is committed or a later record replaces it. The scheduler's
// lock is held, which keeps records in order.
func (t *task) record() {
	t.recordNumber++
	t.propose(t.recordNumber, sched.BackoffMin)
}

func (t *task) propose(record int, delay time.Duration) {
	retained := &journalpb.Attempt{
		Ref:       t.ref,
		Epoch:     t.partition.config.Epoch,
		Failed:    uint32(t.failedAttempts),
		LastError: t.lastError,
		Heartbeat: t.details,
		Pending:   t.state == Pending,
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

// handleRecorded continues after the journal has committed or refused a record. A refused record
// is proposed again, unless the activity is closed. After a loss of leadership the next leader
// recovers the activity.
func (s *Scheduler) handleRecorded(t *task, record int, delay time.Duration, err error) {
	s.slots.WithLock(func() func() {
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
			s.slots.WithLock(func() func() {
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

// Begin implements slot.Item.
func (t *task) Begin() (*slot.Invocation, bool) {
	if t.state != Queued || t.current != nil || t.isTooLate(t.now()) {
		return nil, false
	}
	a := t.begin()
	t.scheduler().counts.Local++
	return &a.Invocation, true
}

// Name implements slot.Item.
func (t *task) Name() string { return t.scheduled.Name }

// Run implements slot.Item.
func (t *task) Run() bool {
	t.scheduler().slots.RunSlot(t)
	return false
}

// Finish implements Finisher. It removes a task whose end is recorded or was dropped. A dropped end
// means that the activity was already closed, perhaps by the same end.
func (t *task) Finish(dropped bool) {
	s := t.scheduler()
	s.slots.WithLock(func() func() {
		if key := operation.KeyOf(t.ref); s.tasks[t.partition][key] == t {
			delete(s.tasks[t.partition], key)
		}
		if len(t.waiters) == 0 {
			return nil
		}
		return t.resolveWaitersWith(func() error {
			if dropped && !t.partition.hasEndEvent(t.ref, t.outcome) {
				return ErrClosed
			}
			return nil
		})
	})
}
