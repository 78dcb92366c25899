package activity

import (
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// heartbeatRecordInterval is the shortest time between two records of heartbeat details.
const heartbeatRecordInterval = time.Second

// An attempt is one try of an activity. It counts while it is the task's current attempt.
// Afterwards its result is dropped.
type attempt struct {
	task      *task
	number    int
	startedAt clustertime.Time

	// The scheduler's lock guards the fields below.
	assignment            session.Assignment
	id                    *clusterpb.AttemptID // nil until a worker runs it
	session               *workerSession       // of the worker that runs it; nil if it is lost
	workerLost            bool                 // its worker is lost and may come back
	lastHeartbeat         clustertime.Time     // or when it began or was resumed
	detailsRecordedAt     clustertime.Time     // when details were last recorded
	detailsTimerScheduled bool                 // a timer is scheduled to record details
}

// newAttempt returns the next attempt, and makes it the current one. The scheduler's lock is held.
func (t *task) newAttempt(started clustertime.Time) *attempt {
	t.current = &attempt{task: t, number: t.failedAttempts + 1, startedAt: started, lastHeartbeat: started}
	return t.current
}

func (a *attempt) name() string { return a.task.scheduled.Name }

// begin begins the next attempt. The scheduler's lock is held.
func (t *task) begin() *attempt {
	first := !t.started
	a := t.newAttempt(t.now())
	t.markRunning(a)
	if first && t.options.GetScheduleToStart() > 0 {
		t.record() // so that a later leader knows that an attempt began
	}
	return a
}

// markRunning sets the state and the timers of a task whose attempt runs. The scheduler's lock is
// held.
func (t *task) markRunning(a *attempt) {
	t.state, t.started, t.mayBeRunning = Running, true, false
	t.dequeue()
	t.cancelTimers(timerScheduleToStart, timerRejoin)
	t.scheduleAttemptTimeouts(a)
}

// adoptAttempt is called when an attempt has a result. If it may have begun under an earlier leader
// or in a lost session, it becomes the current attempt. The scheduler's lock is held.
func (t *task) adoptAttempt(number int) {
	if t.mayBeRunning && t.current == nil && !t.isOver() && number == t.failedAttempts+1 {
		t.markRunning(t.newAttempt(t.now()))
	}
}

// resumePending waits for the end of a pending attempt that an earlier leader began. The
// scheduler's lock is held.
func (t *task) resumePending(started clustertime.Time) {
	a := t.newAttempt(started)
	t.state = Pending
	t.scheduleAttemptTimeouts(a)
}

// markPending makes the current attempt wait for its end from outside. The scheduler's lock is
// held.
func (t *task) markPending() {
	t.state = Pending
	t.cancelTimers(timerHeartbeat, timerRejoin)
	t.record()
}

// fail ends the current attempt and decides whether there is another. The scheduler's lock is held.
func (t *task) fail(failure, cause error) (then func()) {
	failed := t.current
	t.failedAttempts, t.failures = failed.number, t.failures.withLast(engine.EncodeError(failure))
	t.cancelAttempt(cause)
	delay, again := engine.RetryAfter(t.options, t.failedAttempts, failure, rand.Float64())
	t.nextDue = t.now().Add(delay)
	if !again {
		return t.end(t.failures.addTo(failedEvent(failure, t.failedAttempts), failed), nil)
	}
	if deadline := t.closeDeadline(); !deadline.IsZero() && !t.nextDue.Before(deadline) {
		timeout := &replay.TimeoutError{Kind: replay.TimeoutScheduleToClose, Err: failure}
		return t.end(t.failures.addTo(failedEvent(timeout, t.failedAttempts), failed), nil)
	}
	t.state, t.failures = BackingOff, t.failures.withAttempt(failed, t.now())
	t.record()
	number := t.failedAttempts
	return func() {
		t.partition.config.Logger.Warn("activity attempt failed", "activity", t.scheduled.Name, "instance", t.ref.Instance,
			"execution", t.ref.Execution, "event_id", t.ref.EventId, "attempt", number, "error", failure, "backoff", delay)
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
	return failedEventFrom(engine.EncodeError(failure), attempts)
}

func failedEventFrom(record *journalpb.Error, attempts int) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityFailed{
		ActivityFailed: &journalpb.ActivityFailed{Error: record, Attempts: uint32(attempts)},
	}}
}

// recordHeartbeat takes a heartbeat of the current attempt. The scheduler's lock is held.
func (a *attempt) recordHeartbeat(details *journalpb.Payload) {
	t := a.task
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
		t.scheduleTimer(timerRecordDetails, due, func() { t.scheduler().recordDetails(a) })
		return
	}
	a.detailsRecordedAt = now
	t.record()
}

func (t *task) heartbeatRecordInterval() time.Duration {
	return max(heartbeatRecordInterval, time.Duration(t.options.GetHeartbeat())/3)
}

// recordDetails records the heartbeat details that arrived since the last record.
func (s *Scheduler) recordDetails(a *attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.task.current == a {
		a.detailsTimerScheduled, a.detailsRecordedAt = false, a.task.now()
		a.task.record()
	}
}
