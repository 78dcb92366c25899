package actors

import (
	"container/list"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An ActivityState says what an open activity is doing or waiting for.
type ActivityState string

// The states of an open activity.
const (
	// ActivityQueued: no node that could run it has a place for it, or the rate of
	// the activity does not let an attempt begin, or a worker that may still run it
	// is waited for.
	ActivityQueued ActivityState = "queued"
	// ActivityRunning: an attempt's body runs.
	ActivityRunning ActivityState = "running"
	// ActivityPausing: the next attempt is due later.
	ActivityPausing ActivityState = "pausing"
	// ActivityPending: its end will come from outside.
	ActivityPending ActivityState = "pending"
	// ActivityWaitingForTag: no node serves its tag.
	ActivityWaitingForTag ActivityState = "waiting for tag"
	// ActivityWaitingForCode: no node that serves its tag has code for it.
	ActivityWaitingForCode ActivityState = "waiting for code"
	// ActivityEnding: its end is being recorded.
	ActivityEnding ActivityState = "ending"

	activityGone ActivityState = "gone"
)

// A task is an activity that an instance waits for: attempt after attempt until
// it is done or given up.
type task struct {
	partition *Partition
	ref       *journalpb.OperationRef
	scheduled *journalpb.ActivityScheduled
	since     clustertime.Time // when it was recorded
	carried   string           // for the tracer, where an attempt is made

	// Guarded by the pool's lock, from here on.
	state     ActivityState
	begun     bool // an attempt has begun, now or under a leader before
	earlier   bool // the attempt that is due may have begun under a leader before
	failed    int  // attempts
	lastError *journalpb.Error
	details   *journalpb.Payload // of the last heartbeat
	current   *attempt           // the one that counts; nil between two
	next      clustertime.Time   // when the next is due, while pausing
	line      *line              // in which it waits for somebody to take it
	place     *list.Element      // in the line
	arrival   uint64             // there, in the order of all
	records   int                // how many were made, to know the latest
	alarms    uint               // a bit for each kind of alarm that was armed
	outcome   *journalpb.Event   // that is being recorded, while ending
	waiters   []func(error)      // those who have ended an attempt from outside
}

func (t *task) pool() *pool { return t.partition.system.activities }

func (t *task) over() bool { return t.state == ActivityEnding || t.state == activityGone }

// submit takes on a task. kept is what the journal has of its attempts: nil if it
// is new, or if none has left anything behind.
func (p *pool) submit(t *task, kept *journalpb.Attempt) {
	p.locked(func() func() {
		if !p.keep(t) {
			return nil
		}
		t.begun = kept != nil
		t.state = ActivityQueued
		t.failed = int(kept.GetFailed())
		t.lastError, t.details = kept.GetLastError(), kept.GetHeartbeat()
		t.armLimits()
		if at := kept.GetNextAt(); at != 0 {
			t.next = clustertime.FromUnix(at)
		}
		switch {
		case kept.GetPending():
			t.resumePending(clustertime.FromUnix(kept.StartedAt))
		case t.next.After(t.now()):
			t.state, t.earlier = ActivityPausing, false
			t.armRetry()
		case t.earlier && p.system.config.others() > 0:
			t.arm(alarmRejoin, t.now().Add(p.system.config.RejoinWait), func() { p.again(t) })
		default:
			return p.route(t)
		}
		return nil
	})
}

// again takes up a task after a pause.
func (p *pool) again(t *task) {
	p.locked(func() func() {
		if p.closed || t.over() || t.current != nil || t.line != nil {
			return nil
		}
		return p.route(t)
	})
}

// route has the next attempt of a task begun, or lets it wait for somebody who
// can take it. Missing code is no failure of the activity. p.mu is held.
func (p *pool) route(t *task) (then func()) {
	if p.lines[t.class()] == nil {
		if to, ok := p.taker(t.class()); ok {
			p.give(t, to)
			return nil
		}
	}
	p.wait(t)
	if t.state != ActivityWaitingForCode {
		return nil
	}
	return func() {
		t.partition.logger.Warn("no code for activity", "activity", t.scheduled.Name,
			"instance", t.ref.Instance, "execution", t.ref.Execution, "event_id", t.ref.EventId)
	}
}

// end decides what the activity has come to. The pool's lock is held.
func (t *task) end(event *journalpb.Event, cause error) (then func()) {
	t.drop(cause)
	t.state, t.outcome = ActivityEnding, event
	return func() { t.report(event) }
}

// leave ends a task that nobody waits for any more. The pool's lock is held.
func (t *task) leave(outcome error) (then func()) {
	t.drop(replay.ErrGivenUp)
	t.state = activityGone
	return t.tellWaiters(outcome)
}

// stop ends the attempt that counts, if there is one. The pool's lock is held.
func (t *task) stop(cause error) {
	if a := t.current; a != nil {
		t.current = nil
		a.cancel(cause)
		if a.remote != nil {
			a.remote.giveUp(a, cause)
		}
	}
	t.disarm(alarmStartToClose, alarmHeartbeat, alarmDetails, alarmRejoin)
}

// drop ends the attempt that counts and all alarms. The pool's lock is held.
func (t *task) drop(cause error) {
	t.stop(cause)
	t.unqueue()
	t.disarm(alarmScheduleToStart, alarmScheduleToClose, alarmRetry, alarmRecord)
}

// report repeats the end of the task until the instance has taken it.
func (t *task) report(event *journalpb.Event) {
	t.partition.insist(t.ref.Instance, completion(t.ref, event, func(a Answer) {
		t.pool().done(t, a.Dropped)
	}))
}

// tellWaiters takes those who wait for a record. The pool's lock is held.
func (t *task) tellWaiters(outcome error) (then func()) {
	return t.tell(func() error { return outcome })
}

// tell takes those who wait for a record; they are told what outcome returns.
// The pool's lock is held.
func (t *task) tell(outcome func() error) (then func()) {
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

// record keeps in the journal, with the open activity, what its attempts have
// come to, so that a failover does not forget it. It is repeated until it is
// taken or the next record takes its place. The pool's lock is held, under which
// records are proposed in their order.
func (t *task) record() {
	t.records++
	t.propose(t.records, repeatFirst)
}

func (t *task) propose(record int, pause time.Duration) {
	kept := &journalpb.Attempt{
		Ref:       t.ref,
		Epoch:     t.partition.epoch,
		Failed:    uint32(t.failed),
		LastError: t.lastError,
		Heartbeat: t.details,
		Pending:   t.state == ActivityPending,
	}
	if t.current != nil {
		kept.StartedAt = t.current.begun.UnixNano()
	} else if !t.next.IsZero() {
		kept.NextAt = t.next.UnixNano()
	}
	t.partition.journal.Attempt(kept, func(err error) {
		// It may be called at once: the lock is held then.
		t.partition.clock.after(0, func() { t.pool().recorded(t, record, pause, err) })
	})
}

// recorded goes on after a record was decided. Refused, it is no loss but what
// it says: the activity is closed, or a new leader takes it up.
func (p *pool) recorded(t *task, record int, pause time.Duration, err error) {
	p.locked(func() func() {
		if t.over() || t.records != record {
			return nil
		}
		if t.state == ActivityPausing {
			t.armRetry()
		}
		if err == nil {
			return t.tellWaiters(nil)
		}
		t.arm(alarmRecord, t.now().Add(pause), func() {
			p.locked(func() func() {
				if !t.over() && t.records == record {
					t.propose(record, growing(pause))
				}
				return nil
			})
		})
		return nil
	})
}

// armRetry waits for the time at which the next attempt is due. The pool's lock
// is held.
func (t *task) armRetry() {
	t.arm(alarmRetry, t.next, func() { t.pool().again(t) })
}
