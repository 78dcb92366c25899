package activity

import (
	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Attempts is how far the attempts of an open activity have come.
type Attempts struct {
	State  State // "" if the activity is not open or not recovered yet
	Failed int
	// Begun is the number of the attempt that runs or is pending; Failed if there is none.
	Begun int
	// Earlier are the failed attempts before that one, and when it began.
	Earlier *journalpb.FailedAttempts
	// StartedAt is when that one began, Unix nanoseconds; 0 if there is none.
	StartedAt int64
}

// AttemptsOf returns how far the attempts of an activity have come.
func (p *Partition) AttemptsOf(ref *journalpb.OperationRef) Attempts {
	s := p.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	t := p.tasks[operation.KeyOf(ref)]
	if t == nil {
		return Attempts{}
	}
	a := Attempts{State: t.state, Failed: t.failedAttempts, Begun: t.failedAttempts, Earlier: t.failures.until(t.current)}
	if t.current != nil {
		a.Begun, a.StartedAt = t.current.number, t.current.startedAt.UnixNano()
	}
	return a
}

// Control applies a recorded action of an operator. It has no effect on an activity that is closed
// or is ending.
func (p *Partition) Control(ref *journalpb.OperationRef, action *journalpb.OperationControlled) {
	p.scheduler.withLock(func() func() {
		t := p.tasks[operation.KeyOf(ref)]
		if t == nil || t.isOver() {
			return nil
		}
		return t.control(action)
	})
}

// control applies an action to a task that is not over. The scheduler's lock is held.
func (t *task) control(action *journalpb.OperationControlled) (then func()) {
	switch action.Kind {
	case journalpb.OperationControlled_KIND_RETRY_NOW:
		if t.state != BackingOff || t.failedAttempts+1 != int(action.Attempt) {
			return nil
		}
		t.cancelTimers(timerRetry)
		t.state, t.nextDue = Queued, t.now()
		return t.scheduler().assignOrQueue(t)
	case journalpb.OperationControlled_KIND_HOLD:
		if t.held = true; t.queue != nil {
			t.dequeue()
			t.state = Held
		}
	case journalpb.OperationControlled_KIND_RELEASE:
		if t.held = false; t.state == Held {
			t.state = Queued
			return t.scheduler().assignOrQueue(t)
		}
	case journalpb.OperationControlled_KIND_ADJUST:
		return t.adjust(action.Options)
	}
	return nil
}

// adjust replaces the options of a task. Its timeouts are scheduled again, from the moments from
// which they count. A task whose last failure is final under the new policy ends. The scheduler's
// lock is held.
func (t *task) adjust(options *journalpb.ActivityOptions) (then func()) {
	t.options = options
	if t.started && options.GetScheduleToStart() > 0 {
		t.record() // the next leader must know that an attempt has begun
	}
	t.cancelTimers(timerScheduleToStart, timerScheduleToClose, timerStartToClose, timerHeartbeat)
	t.scheduleTimeouts()
	if t.current != nil {
		t.scheduleAttemptTimeouts(t.current)
		return nil
	}
	switch {
	case t.mayBeRunning: // on a worker that has not registered with this leader yet
		return nil
	case lastFailureIsFinal(t):
		return endWithLastFailure(t)
	case t.state == Queued && t.queue == nil: // its time had passed when it left the queue
		return t.scheduler().assignOrQueue(t)
	}
	return nil
}

// lastFailureIsFinal reports whether the present options permit no attempt after the last failure.
func lastFailureIsFinal(t *task) bool {
	if t.failures.last() == nil || t.failedAttempts == 0 {
		return false
	}
	_, again := engine.RetryAfter(t.options, t.failedAttempts, engine.DecodeError(t.failures.last()), 0)
	return !again
}

// endWithLastFailure ends a task whose last failure is final. The scheduler's lock is held.
func endWithLastFailure(t *task) (then func()) {
	return t.end(t.failures.addTo(failedEvent(engine.DecodeError(t.failures.last()), t.failedAttempts), nil), nil)
}

// hasPassed reports whether a deadline under the present options has passed: an adjustment may have
// moved it after its timer fired.
func hasPassed(now, deadline clustertime.Time) bool {
	return !deadline.IsZero() && !now.Before(deadline)
}

// SetPaused replaces the names of the paused activities. No attempt of them begins; those that run
// go on. The caller must not change the map later.
func (s *Scheduler) SetPaused(paused map[string]bool) {
	s.withLock(func() func() {
		s.paused = paused
		for key, q := range s.queues {
			q.setState(s.queuedState(key))
		}
		s.dispatch()
		return nil
	})
}
