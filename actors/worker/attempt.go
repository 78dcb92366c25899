package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/internal/slot"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// An attempt is an attempt that runs here for the leader of another node. It is kept until that
// leader or a later one acknowledges its result. The lock of the slots guards its fields.
type attempt struct {
	slot.Invocation
	worker     *Worker
	partition  int // of the leader that it runs for
	assignment *session.AssignAttempt
	startedAt  time.Time // by the local clock
	details    *journalpb.Payload
	result     *session.Result // nil until the body has returned
	canceled   bool            // its result is dropped; its body may still run
}

// handleAssignment accepts an attempt, unless this node already has it. The lock of the slots is
// held.
func (w *Worker) handleAssignment(partitionID int, t *session.AssignAttempt) {
	if l := w.attempts[t.Key()]; l != nil {
		if l.result != nil {
			w.sendToLeader(l.partition, session.FromWorker{Result: l.result})
		}
		return
	}
	if w.slots.Closed() || w.draining {
		return
	}
	l := &attempt{worker: w, partition: partitionID, assignment: t, startedAt: time.Now(), details: t.Details}
	l.TraceContext, l.Resolver = t.TraceContext, l
	l.Context, l.Cancel = context.WithCancelCause(w.context)
	l.Info = engine.Attempt{
		Attempt: replay.Attempt{
			Name:          t.Name,
			Instance:      t.Ref.Instance,
			Execution:     t.Ref.Execution,
			EventID:       t.Ref.EventId,
			Incarnation:   t.Ref.Incarnation,
			Number:        t.Number,
			ScheduledTime: t.Scheduled.AsTime(),
			Deadline:      slot.LocalDeadline(t.TimeLeft),
			LastError:     engine.DecodeError(t.LastError),
		},
		Input:           t.Input,
		Details:         t.Details,
		RecordHeartbeat: l.recordHeartbeat,
	}
	w.attempts[t.Key()] = l
	if w.slots.HasFree(t.Name) {
		w.slots.Start(l)
	} else {
		w.queued = append(w.queued, l)
	}
}

// NextQueued implements slot.Source.
func (w *Worker) NextQueued() slot.Item {
	for i, l := range w.queued {
		if w.slots.CanRun(l.Name()) {
			w.queued = slices.Delete(w.queued, i, i+1)
			return l
		}
	}
	return nil
}

// Run implements slot.Item.
func (a *attempt) Run() bool {
	a.worker.slots.RunSlot(a)
	return false
}

// Name implements slot.Item.
func (a *attempt) Name() string { return a.assignment.Name }

// Begin implements slot.Item.
func (a *attempt) Begin() (*slot.Invocation, bool) {
	w := a.worker
	if a.canceled {
		w.canceledRunning[a.partition]--
		w.sendToLeader(a.partition, session.FromWorker{FreeSlots: 1})
		return nil, false
	}
	w.begun++
	a.QueuedFor = slot.UnknownQueueTime
	if a.assignment.QueuedFor > 0 {
		a.QueuedFor = a.assignment.QueuedFor + time.Since(a.startedAt)
	}
	return &a.Invocation, true
}

// Resolve implements slot.Resolver.
func (a *attempt) Resolve(output *journalpb.Payload, end slot.End) {
	w := a.worker
	failed := end.Failure != nil && !end.Pending
	w.slots.Lock()
	defer w.slots.Unlock()
	switch {
	case a.canceled:
		w.canceledRunning[a.partition]--
		w.sendToLeader(a.partition, session.FromWorker{FreeSlots: 1})
		return
	case failed && errors.Is(context.Cause(a.Context), replay.ErrNodeStopping):
		return // the leader will notice that this node is gone
	}
	a.result = &session.Result{AttemptID: a.assignment.AttemptID, Output: output, Pending: end.Pending}
	if failed {
		a.result.Error = engine.EncodeError(end.Failure)
	}
	if !proto.Equal(a.details, a.assignment.Details) {
		a.result.Details = a.details
	}
	w.sendToLeader(a.partition, session.FromWorker{Result: a.result})
}

func (a *attempt) recordHeartbeat(details *journalpb.Payload) {
	w := a.worker
	w.slots.Lock()
	defer w.slots.Unlock()
	if details != nil {
		a.details = details
	}
	if leader := w.leaderOutboxes[a.partition]; leader != nil && !a.canceled && a.result == nil {
		leader.Replace(a.assignment.Key(), session.FromWorker{Heartbeat: &session.Heartbeat{AttemptID: a.assignment.AttemptID, Details: a.details}})
	}
}

// cancelAttempt cancels the attempt's context; its result is dropped. The attempt keeps its slot
// until the body has returned. The lock of the slots is held.
func (a *attempt) cancelAttempt(timeout replay.TimeoutKind) {
	w := a.worker
	delete(w.attempts, a.assignment.Key())
	if a.result != nil {
		w.sendToLeader(a.partition, session.FromWorker{FreeSlots: 1})
		return
	}
	a.canceled = true
	w.canceledRunning[a.partition]++
	if timeout != "" {
		a.Cancel(&replay.TimeoutError{Kind: timeout})
	} else {
		a.Cancel(replay.ErrActivityCanceled)
	}
	// An attempt that waits for a slot is not begun.
	if at := slices.Index(w.queued, a); at >= 0 {
		w.queued = slices.Delete(w.queued, at, at+1)
		_, _ = a.Begin()
	}
}
