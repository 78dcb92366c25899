package actors

import (
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An alarmKind tells the alarms of one operation apart.
type alarmKind uint8

const (
	alarmTimer alarmKind = iota // of an orchestration
	alarmScheduleToStart
	alarmScheduleToClose
	alarmStartToClose
	alarmHeartbeat
	alarmDetails // of a heartbeat are to be recorded
	alarmRetry   // the next attempt is due
	alarmRecord  // what the attempts have come to is to be recorded again
	alarmRejoin  // the worker that has begun the attempt is not waited for any more
)

// arm sets an alarm of the task. The pool's lock is held.
func (t *task) arm(kind alarmKind, due clustertime.Time, ring func()) {
	t.alarms |= 1 << kind
	t.partition.clock.at(due, t.alarmKey(kind), ring)
}

// disarm takes back those alarms that were armed: most tasks arm none. The
// pool's lock is held.
func (t *task) disarm(kinds ...alarmKind) {
	for _, kind := range kinds {
		if t.alarms&(1<<kind) != 0 {
			t.alarms &^= 1 << kind
			t.partition.clock.disarm(t.alarmKey(kind))
		}
	}
}

func (t *task) alarmKey(kind alarmKind) alarmKey {
	key := keyOf(t.ref)
	key.kind = kind
	return key
}

// after returns the time when a limit has passed, the zero time if there is
// none.
func after(from clustertime.Time, limit int64) clustertime.Time {
	if limit <= 0 {
		return clustertime.Time{}
	}
	return from.Add(time.Duration(limit))
}

// startBy and closeBy return when the limits pass that begin with the schedule.
func (t *task) startBy() clustertime.Time {
	return after(t.since, t.scheduled.Options.GetScheduleToStart())
}

func (t *task) closeBy() clustertime.Time {
	return after(t.since, t.scheduled.Options.GetScheduleToClose())
}

// tooLate tells whether no attempt may begin any more. The alarm that says so is
// on its way, then.
func (t *task) tooLate(now clustertime.Time) bool {
	start, end := t.startBy(), t.closeBy()
	return !t.begun && !start.IsZero() && !now.Before(start) || !end.IsZero() && !now.Before(end)
}

// deadline returns when an attempt will be given up, the zero time if never.
func (t *task) deadline(a *attempt) clustertime.Time {
	end, alone := t.closeBy(), after(a.begun, t.scheduled.Options.GetStartToClose())
	if alone.IsZero() || !end.IsZero() && end.Before(alone) {
		return end
	}
	return alone
}

// left returns how long it is until an attempt will be given up, 0 if it never is.
func (t *task) left(a *attempt) time.Duration {
	end := t.deadline(a)
	if end.IsZero() {
		return 0
	}
	return max(end.Sub(t.now()), 1)
}

// armLimits arms the alarms of the whole activity. The pool's lock is held.
func (t *task) armLimits() {
	if start := t.startBy(); !start.IsZero() && !t.begun {
		t.arm(alarmScheduleToStart, start, func() {
			t.expire(func() bool { return !t.begun }, &replay.TimeoutError{Kind: replay.TimeoutScheduleToStart})
		})
	}
	if end := t.closeBy(); !end.IsZero() {
		t.arm(alarmScheduleToClose, end, func() {
			t.expire(func() bool { return true }, &replay.TimeoutError{Kind: replay.TimeoutScheduleToClose})
		})
	}
}

// expire ends the activity because a limit has passed, if it still matters.
func (t *task) expire(matters func() bool, timeout *replay.TimeoutError) {
	t.pool().locked(func() func() {
		if t.over() || !matters() {
			return nil
		}
		made := t.failed
		if t.current != nil {
			made = t.current.info.Number
		}
		if timeout.Kind == replay.TimeoutScheduleToClose {
			timeout.Err = replay.DecodeError(t.lastError)
		}
		return t.end(failed(timeout, made), timeout)
	})
}

// armAttempt arms the alarms of one attempt. The pool's lock is held.
func (t *task) armAttempt(a *attempt) {
	if end := after(a.begun, t.scheduled.Options.GetStartToClose()); !end.IsZero() {
		t.arm(alarmStartToClose, end, func() { a.expire(replay.TimeoutStartToClose) })
	}
	if t.state == ActivityRunning {
		a.watch()
	}
}

// watch arms the alarm for the next missing heartbeat. The pool's lock is held.
func (a *attempt) watch() {
	silent := after(a.heard, a.task.scheduled.Options.GetHeartbeat())
	if silent.IsZero() {
		return
	}
	a.task.arm(alarmHeartbeat, silent, func() {
		a.task.pool().locked(func() func() {
			switch {
			case a.task.current != a || a.task.state != ActivityRunning:
				return nil
			case a.task.now().Before(a.heard.Add(time.Duration(a.task.scheduled.Options.GetHeartbeat()))):
				a.watch()
				return nil
			}
			return a.timeOut(replay.TimeoutHeartbeat)
		})
	})
}

// expire fails an attempt because a limit has passed, if it still counts.
func (a *attempt) expire(kind replay.TimeoutKind) {
	a.task.pool().locked(func() func() {
		if a.task.current != a {
			return nil
		}
		return a.timeOut(kind)
	})
}

func (a *attempt) timeOut(kind replay.TimeoutKind) (then func()) {
	timeout := &replay.TimeoutError{Kind: kind}
	return a.task.fail(timeout, timeout)
}

// Activity says what an open activity is doing; "" if it is not open, or not
// known yet.
func (p *Partition) Activity(ref *journalpb.OperationRef) ActivityState {
	pool := p.system.activities
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if t := pool.tasks[p][keyOf(ref)]; t != nil {
		return t.state
	}
	return ""
}
