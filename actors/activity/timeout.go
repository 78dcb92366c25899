package activity

import (
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A timerKind distinguishes the timers of one activity.
type timerKind uint8

const (
	timerScheduleToStart timerKind = iota + 1 // 0 is no timer of an activity
	timerScheduleToClose
	timerStartToClose
	timerHeartbeat
	timerRecordDetails // heartbeat details are to be recorded
	timerRetry         // the next attempt is due
	timerRetryRecord   // the record of the attempts is to be proposed again
	timerRejoin        // the wait for a lost worker ends
)

// scheduleTimer schedules a timer of the task. The scheduler's lock is held.
func (t *task) scheduleTimer(kind timerKind, due clustertime.Time, fire func()) {
	t.scheduledTimers |= 1 << kind
	t.partition.config.Timers.Schedule(due, t.timerKey(kind), fire)
}

// cancelTimers cancels those timers that were scheduled: most tasks have none. The scheduler's
// lock is held.
func (t *task) cancelTimers(kinds ...timerKind) {
	for _, kind := range kinds {
		if t.scheduledTimers&(1<<kind) != 0 {
			t.scheduledTimers &^= 1 << kind
			t.partition.config.Timers.Cancel(t.timerKey(kind))
		}
	}
}

func (t *task) timerKey(kind timerKind) operation.Key {
	key := operation.KeyOf(t.ref)
	key.Timer = uint8(kind)
	return key
}

// deadlineAfter returns the deadline of a timeout, the zero time if there is none.
func deadlineAfter(from clustertime.Time, limit int64) clustertime.Time {
	if limit <= 0 {
		return clustertime.Time{}
	}
	return from.Add(time.Duration(limit))
}

// startDeadline and closeDeadline return the deadlines of the timeouts that run from
// ActivityScheduled.
func (t *task) startDeadline() clustertime.Time {
	return deadlineAfter(t.scheduledAt, t.options.GetScheduleToStart())
}

func (t *task) closeDeadline() clustertime.Time {
	return deadlineAfter(t.scheduledAt, t.options.GetScheduleToClose())
}

// isTooLate reports whether no attempt may begin any more. The timer that ends the task is then
// about to fire.
func (t *task) isTooLate(now clustertime.Time) bool {
	start, end := t.startDeadline(), t.closeDeadline()
	return !t.started && !start.IsZero() && !now.Before(start) || !end.IsZero() && !now.Before(end)
}

// attemptDeadline returns the deadline of an attempt, the zero time if there is none.
func (t *task) attemptDeadline(a *attempt) clustertime.Time {
	end, attemptEnd := t.closeDeadline(), deadlineAfter(a.startedAt, t.options.GetStartToClose())
	if attemptEnd.IsZero() || !end.IsZero() && end.Before(attemptEnd) {
		return end
	}
	return attemptEnd
}

// timeLeft returns the time until the deadline of an attempt, 0 if there is none.
func (t *task) timeLeft(a *attempt) time.Duration {
	end := t.attemptDeadline(a)
	if end.IsZero() {
		return 0
	}
	return max(end.Sub(t.now()), 1)
}

// scheduleTimeouts schedules the timers of the whole activity. The scheduler's lock is held.
func (t *task) scheduleTimeouts() {
	if start := t.startDeadline(); !start.IsZero() && !t.started {
		t.scheduleTimer(timerScheduleToStart, start, func() {
			t.expire(func() bool { return !t.started && hasPassed(t.now(), t.startDeadline()) }, &replay.TimeoutError{Kind: replay.TimeoutScheduleToStart})
		})
	}
	if end := t.closeDeadline(); !end.IsZero() {
		t.scheduleTimer(timerScheduleToClose, end, func() {
			t.expire(func() bool { return hasPassed(t.now(), t.closeDeadline()) }, &replay.TimeoutError{Kind: replay.TimeoutScheduleToClose})
		})
	}
}

// expire ends the activity because of a timeout, if the timeout still applies.
func (t *task) expire(applies func() bool, timeout *replay.TimeoutError) {
	t.scheduler().withLock(func() func() {
		if t.isOver() || !applies() {
			return nil
		}
		made := t.failedAttempts
		if t.current != nil {
			made = t.current.number
		}
		if timeout.Kind == replay.TimeoutScheduleToClose {
			timeout.Err = engine.DecodeError(t.failures.last())
		}
		return t.end(t.failures.addTo(failedEvent(timeout, made), t.current), timeout)
	})
}

// scheduleAttemptTimeouts schedules the timers of one attempt. The scheduler's lock is held.
func (t *task) scheduleAttemptTimeouts(a *attempt) {
	if end := deadlineAfter(a.startedAt, t.options.GetStartToClose()); !end.IsZero() {
		t.scheduleTimer(timerStartToClose, end, a.expire)
	}
	if t.state == Running {
		a.scheduleHeartbeatTimeout()
	}
}

// scheduleHeartbeatTimeout schedules the timer that fires if the next heartbeat is missing. The
// scheduler's lock is held.
func (a *attempt) scheduleHeartbeatTimeout() {
	deadline := deadlineAfter(a.lastHeartbeat, a.task.options.GetHeartbeat())
	if deadline.IsZero() {
		return
	}
	a.task.scheduleTimer(timerHeartbeat, deadline, func() {
		a.task.scheduler().withLock(func() func() {
			switch {
			case a.task.current != a || a.task.state != Running || a.task.options.GetHeartbeat() == 0:
				return nil
			case a.task.now().Before(a.lastHeartbeat.Add(time.Duration(a.task.options.GetHeartbeat()))):
				a.scheduleHeartbeatTimeout()
				return nil
			}
			return a.failWithTimeout(replay.TimeoutHeartbeat)
		})
	})
}

// expire fails an attempt that takes too long, if the attempt still counts.
func (a *attempt) expire() {
	t := a.task
	t.scheduler().withLock(func() func() {
		if t.current != a || !hasPassed(t.now(), deadlineAfter(a.startedAt, t.options.GetStartToClose())) {
			return nil
		}
		return a.failWithTimeout(replay.TimeoutStartToClose)
	})
}

func (a *attempt) failWithTimeout(kind replay.TimeoutKind) (then func()) {
	timeout := &replay.TimeoutError{Kind: kind}
	return a.task.fail(timeout, timeout)
}
