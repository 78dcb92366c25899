package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// heartbeatRecordInterval is the shortest time between two records of heartbeat details.
const heartbeatRecordInterval = time.Second

// An attempt is one try of an activity. It counts while it is the task's current attempt.
// Afterwards its result is dropped.
type attempt struct {
	invocation
	task      *task
	startedAt clustertime.Time

	// The pool's lock guards the fields below.
	session               *workerSession   // the worker that makes it; nil: this node, or a lost worker
	workerLost            bool             // its worker is lost and may come back
	lastHeartbeat         clustertime.Time // the last sign of life
	detailsRecordedAt     clustertime.Time // when details were last recorded
	detailsTimerScheduled bool             // a timer is scheduled to record details
}

// newAttempt returns the next attempt, and makes it the current one. The pool's lock is held.
func (t *task) newAttempt(started clustertime.Time) *attempt {
	a := &attempt{task: t, startedAt: started, lastHeartbeat: started}
	a.info = replay.Attempt{
		Name:      t.scheduled.Name,
		Input:     t.scheduled.Input,
		Instance:  t.ref.Instance,
		Execution: t.ref.Execution,
		EventID:   t.ref.EventId,

		Incarnation: t.ref.Incarnation,

		Number:          t.failedAttempts + 1,
		ScheduledTime:   t.scheduledAt.AsTime(),
		LastError:       replay.DecodeError(t.lastError),
		Deadline:        localDeadline(t.timeLeft(a)),
		Details:         t.details,
		RecordHeartbeat: a.recordHeartbeat,
	}
	a.traceContext, a.resolver, a.queuedFor = t.traceContext, a, max(started.Sub(t.scheduledAt), 0)
	a.context, a.cancel = context.WithCancelCause(t.partition.context)
	t.current = a
	return a
}

// begin begins the next attempt. The pool's lock is held.
func (t *task) begin() *attempt {
	first := !t.started
	a := t.newAttempt(t.now())
	t.markRunning(a)
	if first && t.scheduled.Options.GetScheduleToStart() > 0 {
		t.record() // so that a later leader knows that an attempt began
	}
	return a
}

// markRunning sets the state and the timers of a task whose attempt runs. The pool's lock is held.
func (t *task) markRunning(a *attempt) {
	t.state, t.started, t.mayBeRunning = ActivityRunning, true, false
	t.dequeue()
	t.cancelTimers(timerScheduleToStart, timerRejoin)
	t.scheduleAttemptTimeouts(a)
}

// adoptAttempt is called when an attempt has a result. If it may have begun under an earlier leader
// or in a lost session, it becomes the current attempt. The pool's lock is held.
func (t *task) adoptAttempt(number int) {
	if t.mayBeRunning && t.current == nil && !t.isOver() && number == t.failedAttempts+1 {
		t.markRunning(t.newAttempt(t.now()))
	}
}

// resumePending waits for the end of a pending attempt that an earlier leader began. The pool's
// lock is held.
func (t *task) resumePending(started clustertime.Time) {
	a := t.newAttempt(started)
	t.state = ActivityPending
	t.scheduleAttemptTimeouts(a)
}

func (a *attempt) resolve(output *journalpb.Payload, err error) {
	failure, pending := readError(err)
	t := a.task
	t.partition.system.observeAttempt(&a.invocation, outcomeOf(err, pending))
	t.pool().withLock(func() func() {
		switch {
		case t.current != a:
			return nil // canceled or already failed
		case err == nil:
			return t.end(completedEvent(output, a.info.Number), replay.ErrActivityCanceled)
		case pending:
			t.markPending()
			return nil
		case a.context.Err() != nil:
			return nil // the node is stopping, which is not a failure of the activity
		}
		return t.fail(failure, replay.ErrActivityCanceled)
	})
}

// markPending makes the current attempt wait for its end from outside. The pool's lock is held.
func (t *task) markPending() {
	t.state = ActivityPending
	t.cancelTimers(timerHeartbeat, timerRejoin)
	t.record()
}

// readError returns an error as it will be read from its record, and whether it says that the
// attempt is pending. Reading an error runs user code. That code may panic, for example for a nil
// pointer in a non-nil error.
func readError(err error) (decoded error, pending bool) {
	defer func() {
		if value := recover(); value != nil {
			decoded = &replay.PanicError{
				Message: fmt.Sprintf("panic in the activity's error of type %T: %v", err, value),
				Stack:   string(debug.Stack()),
			}
		}
	}()
	pending = errors.Is(err, replay.ErrResultPending)
	return replay.DecodeError(replay.EncodeError(err)), pending
}

// fail ends the current attempt and decides whether there is another. The pool's lock is held.
func (t *task) fail(failure, cause error) (then func()) {
	t.failedAttempts = t.current.info.Number
	t.lastError = replay.EncodeError(failure)
	t.cancelAttempt(cause)
	delay, again := replay.RetryAfter(t.scheduled.Options, t.failedAttempts, failure, rand.Float64())
	t.nextDue = t.now().Add(delay)
	if !again {
		return t.end(failedEvent(failure, t.failedAttempts), nil)
	}
	if deadline := t.closeDeadline(); !deadline.IsZero() && !t.nextDue.Before(deadline) {
		return t.end(failedEvent(&replay.TimeoutError{Kind: replay.TimeoutScheduleToClose, Err: failure}, t.failedAttempts), nil)
	}
	t.state = ActivityBackingOff
	t.record()
	number := t.failedAttempts
	return func() {
		t.partition.logger.Warn("activity attempt failed", "activity", t.scheduled.Name, "instance", t.ref.Instance,
			"execution", t.ref.Execution, "event_id", t.ref.EventId, "attempt", number, "error", failure, "pause", delay)
	}
}

// completedEvent returns the event that ends an activity with an output. It allocates the event's
// three protobuf messages at once.
func completedEvent(output *journalpb.Payload, attempts int) *journalpb.Event {
	made := &struct {
		event journalpb.Event
		body  journalpb.Event_ActivityCompleted
		done  journalpb.ActivityCompleted
	}{}
	made.done.Result, made.done.Attempts = output, uint32(attempts)
	made.body.ActivityCompleted = &made.done
	made.event.Body = &made.body
	return &made.event
}

func failedEvent(failure error, attempts int) *journalpb.Event {
	return failedEventFrom(replay.EncodeError(failure), attempts)
}

func failedEventFrom(record *journalpb.Error, attempts int) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityFailed{
		ActivityFailed: &journalpb.ActivityFailed{Error: record, Attempts: uint32(attempts)},
	}}
}

func (a *attempt) recordHeartbeat(details *journalpb.Payload) {
	t := a.task
	p := t.pool()
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.current != a {
		return
	}
	now := t.now()
	a.lastHeartbeat = now
	if details == nil || proto.Equal(details, t.details) {
		return
	}
	t.details = details
	if a.detailsTimerScheduled {
		return
	}
	if due := a.detailsRecordedAt.Add(t.heartbeatRecordInterval()); now.Before(due) {
		a.detailsTimerScheduled = true
		t.scheduleTimer(timerRecordDetails, due, func() { p.recordDetails(a) })
		return
	}
	a.detailsRecordedAt = now
	t.record()
}

func (t *task) heartbeatRecordInterval() time.Duration {
	return max(heartbeatRecordInterval, time.Duration(t.scheduled.Options.GetHeartbeat())/3)
}

// recordDetails records the heartbeat details that arrived since the last record.
func (p *pool) recordDetails(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.task.current == a {
		a.detailsTimerScheduled, a.detailsRecordedAt = false, a.task.now()
		a.task.record()
	}
}
