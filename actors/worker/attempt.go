package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An Attempt is an attempt that runs here for the leader of a partition, which may be this node. It
// is kept until that leader or a later one acknowledges its result.
type Attempt struct {
	Context context.Context
	Info    engine.Attempt
	// QueuedFor is the time from the recording of the activity until the attempt got its slot.
	QueuedFor time.Duration

	worker     *Worker
	cancel     context.CancelCauseFunc
	partition  int // of the leader that it runs for
	assignment *clusterpb.AssignAttempt
	assignedAt time.Time // by the local clock
	local      bool      // this node was that leader when the attempt was assigned

	// The worker's lock guards the fields below.
	canceled  bool // its result is dropped; its body may still run
	abandoned bool // its slot was freed although its body runs
	details   *journalpb.Payload
	result    *clusterpb.FromWorker // nil until the body has returned; then in message
	message   session.Result
	// graceTimer frees the slot of a canceled attempt; nil if it has no CancelGrace.
	graceTimer *time.Timer
	onAbandon  func()
}

// UnknownQueueTime is the QueuedFor of an attempt whose leader did not send it.
const UnknownQueueTime = -1

// localDeadline returns the local time when the duration left will have passed; the zero time if
// left is 0. No other function converts a limit in cluster time to local time.
func localDeadline(left time.Duration) time.Time {
	if left <= 0 {
		return time.Time{}
	}
	return time.Now().Add(left)
}

// newAttempt returns the attempt of an assignment.
func (w *Worker) newAttempt(partition int, t *clusterpb.AssignAttempt) *Attempt {
	ref := t.Attempt.Ref
	a := &Attempt{
		worker: w, partition: partition, assignment: t, assignedAt: time.Now(), details: t.Details,
	}
	a.Context, a.cancel = context.WithCancelCause(w.config.Context)
	a.Info = engine.Attempt{
		Attempt: replay.Attempt{
			Name:          t.Name,
			Instance:      ref.Instance,
			Execution:     ref.Execution,
			EventID:       ref.EventId,
			Incarnation:   ref.Incarnation,
			Number:        int(t.Attempt.Number),
			ScheduledTime: time.Unix(0, t.Scheduled),
			Deadline:      localDeadline(time.Duration(t.TimeLeft)),
			LastError:     engine.DecodeError(t.LastError),
		},
		Input:   t.Input,
		Headers: t.Headers,
		Details: t.Details,
		Worker:  a,
	}
	return a
}

// TraceContext returns the text for the tracer.
func (a *Attempt) TraceContext() string { return a.assignment.Trace }

func (a *Attempt) key() session.AttemptKey { return session.KeyOf(a.assignment.Attempt) }

// handleAssignment accepts an attempt, unless this node already has it; then it returns the result,
// if there is one. If a canceled body of the same attempt still runs, the attempt begins after it.
// w.mu is held.
func (w *Worker) handleAssignment(partition int, t *clusterpb.AssignAttempt) (answer *clusterpb.FromWorker) {
	key := session.KeyOf(t.Attempt)
	if a := w.attempts[key]; a != nil {
		return a.result
	}
	if w.slots.closed || w.draining[partition] {
		return nil
	}
	if w.idle != nil {
		return session.StopAssigning(t.Attempt)
	}
	a := w.newAttempt(partition, t)
	if leader := w.leaders[partition]; leader != nil {
		a.local = leader.local
	}
	w.attempts[key] = a
	if w.slots.hasFree(t.Name) && w.canceled[key] == nil {
		w.start(a)
	} else {
		w.queued = append(w.queued, a)
	}
	return nil
}

// begin counts the body as running and reports true. It reports false if the attempt is canceled or
// the worker is closed.
func (a *Attempt) begin() bool {
	w := a.worker
	w.mu.Lock()
	if w.slots.closed {
		w.mu.Unlock()
		return false
	}
	if a.canceled {
		w.releaseCanceled(a)
		return false
	}
	defer w.mu.Unlock()
	w.runningBodies.Add(1)
	if !a.local {
		w.begun++
	}
	a.QueuedFor = UnknownQueueTime
	if a.assignment.QueuedFor > 0 {
		a.QueuedFor = time.Duration(a.assignment.QueuedFor) + time.Since(a.assignedAt)
	}
	return true
}

// Resolve takes what the body has returned: an output, the record of a failure, or that the end of
// the attempt will come from outside.
func (a *Attempt) Resolve(output *journalpb.Payload, failure *journalpb.Error, pending bool) {
	w := a.worker
	failed := failure != nil && !pending
	w.mu.Lock()
	switch {
	case a.canceled:
		w.releaseCanceled(a)
		return
	case failed && errors.Is(context.Cause(a.Context), replay.ErrNodeStopping):
		w.mu.Unlock()
		return // the leader will notice that this node is gone
	}
	message, result := a.message.Of(a.assignment.Attempt)
	result.Output, result.Pending = output, pending
	if failed {
		result.Error = failure
	}
	if !proto.Equal(a.details, a.assignment.Details) {
		result.Details = a.details
	}
	a.result = message
	leader := w.leaders[a.partition]
	w.mu.Unlock()
	if leader != nil {
		leader.Put(message)
	}
}

// RecordHeartbeat implements [engine.HeartbeatRecorder].
func (a *Attempt) RecordHeartbeat(details *journalpb.Payload) {
	w := a.worker
	w.mu.Lock()
	if details != nil {
		a.details = details
	}
	details = a.details
	leader := w.leaders[a.partition]
	wanted := leader != nil && !a.canceled && a.result == nil
	w.mu.Unlock()
	if wanted {
		leader.Replace(a.key(), session.Heartbeat(a.assignment.Attempt, details))
	}
}

// cancelAttempt cancels the attempt's context; its result is dropped. The attempt keeps its slot
// until the body returns or its CancelGrace ends. It returns the message that offers the slot, if
// it is already free. w.mu is held.
func (a *Attempt) cancelAttempt(timeout replay.TimeoutKind) (answer *clusterpb.FromWorker) {
	w := a.worker
	w.forget(a.key())
	if a.result != nil {
		return w.leaders[a.partition].freeSlot()
	}
	a.canceled = true
	if timeout != "" {
		a.cancel(&replay.TimeoutError{Kind: timeout})
	} else {
		a.cancel(replay.ErrActivityCanceled)
	}
	// An attempt that waits for a slot is not begun.
	if at := slices.Index(w.queued, a); at >= 0 {
		w.queued = slices.Delete(w.queued, at, at+1)
		return w.leaders[a.partition].freeSlot()
	}
	w.canceled[a.key()] = a
	if grace := a.CancelGrace(); grace > 0 && !w.slots.closed {
		a.graceTimer = time.AfterFunc(grace, a.abandon)
	}
	return nil
}

// CancelGrace returns how long the body may run after a cancellation; 0: no limit.
func (a *Attempt) CancelGrace() time.Duration { return time.Duration(a.assignment.CancelGrace) }

// OnAbandon sets a function to call if the slot of the attempt is freed while its body runs.
func (a *Attempt) OnAbandon(f func()) {
	a.worker.mu.Lock()
	defer a.worker.mu.Unlock()
	a.onAbandon = f
}

// abandon frees the slot of a canceled attempt whose body has not returned within its grace.
func (a *Attempt) abandon() {
	w := a.worker
	w.mu.Lock()
	if w.canceled[a.key()] != a || w.slots.closed {
		w.mu.Unlock()
		return
	}
	delete(w.canceled, a.key())
	a.abandoned = true
	next := w.releaseSlot(a)
	leader, ended := w.leaders[a.partition], a.onAbandon
	message := leader.freeSlot()
	w.mu.Unlock()
	defer func() {
		if value := recover(); value != nil {
			a.recordFault(value)
		}
	}()
	if message != nil {
		leader.Put(message)
	}
	if next == nil {
		w.config.SlotFreed()
	}
	w.config.Logger.Warn("activity body abandoned: it ignores its cancellation; its slot is freed, make it honor its context", "activity", a.Info.Name,
		"instance", a.Info.Instance, "execution", a.Info.Execution, "event_id", a.Info.EventID, "attempt", a.Info.Number,
		"grace", a.CancelGrace())
	if ended != nil {
		ended()
	}
}

// releaseCanceled is called when the body of a canceled attempt has returned or will not begin. It
// unlocks w.mu, which is held.
func (w *Worker) releaseCanceled(a *Attempt) {
	if a.abandoned {
		w.mu.Unlock()
		return
	}
	if a.graceTimer != nil {
		a.graceTimer.Stop()
	}
	delete(w.canceled, a.key())
	leader := w.leaders[a.partition]
	message := leader.freeSlot()
	w.mu.Unlock()
	if message != nil {
		leader.Put(message)
	}
}
