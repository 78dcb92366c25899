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

// beatsEvery is the shortest time between two records of heartbeats.
const beatsEvery = time.Second

// An attempt is one run of an activity's body. It counts as long as it is its
// task's current one: what comes of it later is dropped.
type attempt struct {
	running
	task  *task
	begun clustertime.Time

	// Guarded by the pool's lock.
	remote *remote          // the worker that makes it; nil: this node, or one that is lost
	lost   bool             // its worker is, and may come back
	heard  clustertime.Time // the last sign of life
	kept   clustertime.Time // when details were recorded last
	unkept bool             // an alarm is armed that will record them
}

// newAttempt makes the next attempt. The pool's lock is held.
func (t *task) newAttempt(begun clustertime.Time) *attempt {
	a := &attempt{task: t, begun: begun, heard: begun}
	a.info = replay.Attempt{
		Name:      t.scheduled.Name,
		Input:     t.scheduled.Input,
		Instance:  t.ref.Instance,
		Execution: t.ref.Execution,
		EventID:   t.ref.EventId,

		Incarnation: t.ref.Incarnation,

		Number:    t.failed + 1,
		Scheduled: t.since.Shown(),
		LastError: replay.DecodeError(t.lastError),
		Deadline:  localDeadline(t.left(a)),
		Details:   t.details,
		Beat:      a.beat,
	}
	a.carried, a.settler, a.waited = t.carried, a, max(begun.Sub(t.since), 0)
	a.context, a.cancel = context.WithCancelCause(t.partition.context)
	t.current = a
	return a
}

// begin begins the next attempt. The pool's lock is held.
func (t *task) begin() *attempt {
	first := !t.begun
	a := t.newAttempt(t.now())
	t.await(a)
	if first && t.scheduled.Options.GetScheduleToStart() > 0 {
		t.record() // so that no later leader takes it for one that never began
	}
	return a
}

// await waits for the end of an attempt that runs. The pool's lock is held.
func (t *task) await(a *attempt) {
	t.state, t.begun, t.earlier = ActivityRunning, true, false
	t.unqueue()
	t.disarm(alarmScheduleToStart, alarmRejoin)
	t.armAttempt(a)
}

// presume takes an attempt for the current one that nobody here has begun: a
// leader before has, and it has come to something. The pool's lock is held.
func (t *task) presume(number int) {
	if t.earlier && t.current == nil && !t.over() && number == t.failed+1 {
		t.await(t.newAttempt(t.now()))
	}
}

// resumePending waits for the end of an attempt that was begun by a leader
// before and is pending. The pool's lock is held.
func (t *task) resumePending(begun clustertime.Time) {
	a := t.newAttempt(begun)
	t.state = ActivityPending
	t.armAttempt(a)
}

// settle takes what the body has returned.
func (a *attempt) settle(output *journalpb.Payload, err error) {
	failure, pending := read(err)
	t := a.task
	t.partition.system.attempted(&a.running, outcomeOf(err, pending))
	t.pool().locked(func() func() {
		switch {
		case t.current != a:
			return nil // given up, or failed already
		case err == nil:
			return t.end(completed(output, a.info.Number), replay.ErrGivenUp)
		case pending:
			t.pend()
			return nil
		case a.context.Err() != nil:
			return nil // the node is stopping, which is no failure of the activity
		}
		return t.fail(failure, replay.ErrGivenUp)
	})
}

// pend lets the attempt that counts wait for its end from outside. The pool's
// lock is held.
func (t *task) pend() {
	t.state = ActivityPending
	t.disarm(alarmHeartbeat, alarmRejoin)
	t.record()
}

// read returns an error as its record has it, and whether it says that the
// attempt is pending. Reading an error runs code of its author's, which may
// panic: mostly a nil pointer in an error that is not nil.
func read(err error) (crossed error, pending bool) {
	defer func() {
		if value := recover(); value != nil {
			crossed = &replay.PanicError{
				Message: fmt.Sprintf("panic in the activity's error of type %T: %v", err, value),
				Stack:   string(debug.Stack()),
			}
		}
	}()
	pending = errors.Is(err, replay.ErrPending)
	return replay.DecodeError(replay.EncodeError(err)), pending
}

// fail ends the attempt that counts and decides about another. The pool's lock
// is held.
func (t *task) fail(failure, cause error) (then func()) {
	t.failed = t.current.info.Number
	t.lastError = replay.EncodeError(failure)
	t.stop(cause)
	pause, again := replay.RetryAfter(t.scheduled.Options, t.failed, failure, rand.Float64())
	t.next = t.now().Add(pause)
	if !again {
		return t.end(failed(failure, t.failed), nil)
	}
	if by := t.closeBy(); !by.IsZero() && !t.next.Before(by) {
		return t.end(failed(&replay.TimeoutError{Kind: replay.TimeoutScheduleToClose, Err: failure}, t.failed), nil)
	}
	t.state = ActivityPausing
	t.record()
	number := t.failed
	return func() {
		t.partition.logger.Warn("activity attempt failed", "activity", t.scheduled.Name, "instance", t.ref.Instance,
			"execution", t.ref.Execution, "event_id", t.ref.EventId, "attempt", number, "error", failure, "pause", pause)
	}
}

// completed returns the event that ends an activity with an output; the three
// messages that it is made of are one allocation.
func completed(output *journalpb.Payload, attempts int) *journalpb.Event {
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

func failed(failure error, attempts int) *journalpb.Event {
	return failedWith(replay.EncodeError(failure), attempts)
}

func failedWith(record *journalpb.Error, attempts int) *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityFailed{
		ActivityFailed: &journalpb.ActivityFailed{Error: record, Attempts: uint32(attempts)},
	}}
}

// beat takes a heartbeat.
func (a *attempt) beat(details *journalpb.Payload) {
	t := a.task
	p := t.pool()
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.current != a {
		return
	}
	now := t.now()
	a.heard = now
	if details == nil || proto.Equal(details, t.details) {
		return
	}
	t.details = details
	if a.unkept {
		return
	}
	if due := a.kept.Add(t.beatsEvery()); now.Before(due) {
		a.unkept = true
		t.arm(alarmDetails, due, func() { p.keepDetails(a) })
		return
	}
	a.kept = now
	t.record()
}

func (t *task) beatsEvery() time.Duration {
	return max(beatsEvery, time.Duration(t.scheduled.Options.GetHeartbeat())/3)
}

// keepDetails records what heartbeats have said since the last record.
func (p *pool) keepDetails(a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.task.current == a {
		a.unkept, a.kept = false, a.task.now()
		a.task.record()
	}
}
