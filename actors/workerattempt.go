package actors

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A workerAttempt is an attempt that runs here for the leader of another node. It is kept until
// that leader or a later one acknowledges its result. The pool's lock guards its fields.
type workerAttempt struct {
	invocation
	pool       *pool
	partition  int // of the leader that it runs for
	assignment *AssignAttempt
	startedAt  time.Time // by the local clock
	details    *journalpb.Payload
	result     *Result // nil until the body has returned
	canceled   bool    // its result is dropped; its body may still run
}

// RunWorker offers this node's slots to the leader for the duration of one session. Attempts
// continue after the session, and results are kept and offered to the next leader. Tags and Limits
// of the registration come from the configuration. Without Activities the worker takes no new
// attempts.
//
// There is one session per partition; the latest counts. With several partitions each is offered
// a share of the slots. RunWorker returns the errors that [Partition.ServeWorker] returns. If ctx
// ends with [replay.ErrNodeStopping], it first sends Drain, and waits up to 500 ms for the leader
// to end the session. in and out must stay usable for that time.
func (s *System) RunWorker(ctx context.Context, registration RegisterWorker, in <-chan ToWorker, out chan<- FromWorker) error {
	p := s.pool
	box := newOutbox[FromWorker]()
	p.openSession(box, registration)
	defer p.closeSession(registration.Partition, box)
	handle := func(m ToWorker) { p.handleFromLeader(registration.Partition, m) }
	err := runSession(ctx, in, out, box, handle)
	if errors.Is(err, replay.ErrNodeStopping) && ctx.Err() != nil {
		p.drain(box)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		_ = runSession(ctx, in, out, box, handle) // until the leader ends the session
	}
	return err
}

// drain cancels what runs here for other nodes, and sends Drain.
func (p *pool) drain(box *outbox[FromWorker]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	box.put(FromWorker{Drain: true})
	p.cancel(replay.ErrNodeStopping)
}

// openSession begins a session. It sends what this node can run, its attempts and results for the
// partition, and its free slots.
func (p *pool) openSession(box *outbox[FromWorker], registration RegisterWorker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaderOutboxes[registration.Partition] = box
	registration.Tags, registration.Limits = p.system.config.Tags, p.system.config.ActivityLimits
	box.put(FromWorker{Register: &registration})
	consumed := p.canceledRunning[registration.Partition]
	for _, l := range p.workerAttempts {
		if l.partition != registration.Partition {
			continue
		}
		consumed++
		if l.result != nil {
			box.put(FromWorker{Result: l.result})
			continue
		}
		box.put(FromWorker{RunningAttempt: &RunningAttempt{l.assignment.AttemptID, l.assignment.Name, time.Since(l.startedAt)}})
	}
	if freeSlots := max(p.system.config.ActivitiesMax/p.system.config.Partitions, 1) - consumed; freeSlots > 0 {
		box.put(FromWorker{FreeSlots: freeSlots})
	}
}

func (p *pool) closeSession(partitionID int, box *outbox[FromWorker]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leaderOutboxes[partitionID] == box {
		delete(p.leaderOutboxes, partitionID)
	}
}

// sendToLeader sends a message to the leader of a partition, if there is a session. A later leader gets
// the same in its own session. p.mu is held.
func (p *pool) sendToLeader(partitionID int, m FromWorker) {
	if leader := p.leaderOutboxes[partitionID]; leader != nil {
		leader.put(m)
	}
}

// handleFromLeader handles a message from the leader of a partition.
func (p *pool) handleFromLeader(partitionID int, m ToWorker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case m.AssignAttempt != nil:
		p.handleAssignment(partitionID, m.AssignAttempt)
	case m.CancelAttempt != nil:
		if l := p.workerAttempts[m.CancelAttempt.key()]; l != nil {
			l.cancelAttempt(m.CancelAttempt.Timeout)
		}
	case m.Ack != nil:
		if l := p.workerAttempts[m.Ack.key()]; l != nil && l.result != nil {
			delete(p.workerAttempts, m.Ack.key())
			p.sendToLeader(l.partition, FromWorker{FreeSlots: 1})
		}
	}
}

// handleAssignment accepts an attempt, unless this node already has it. p.mu is held.
func (p *pool) handleAssignment(partitionID int, t *AssignAttempt) {
	if l := p.workerAttempts[t.key()]; l != nil {
		if l.result != nil {
			p.sendToLeader(l.partition, FromWorker{Result: l.result})
		}
		return
	}
	if p.closed || p.draining {
		return
	}
	l := &workerAttempt{pool: p, partition: partitionID, assignment: t, startedAt: time.Now(), details: t.Details}
	l.traceContext, l.resolver = t.TraceContext, l
	l.context, l.cancel = context.WithCancelCause(p.context)
	l.info = replay.Attempt{
		Name:      t.Name,
		Input:     t.Input,
		Instance:  t.Ref.Instance,
		Execution: t.Ref.Execution,
		EventID:   t.Ref.EventId,

		Incarnation: t.Ref.Incarnation,

		Number:          t.Number,
		ScheduledTime:   t.Scheduled.AsTime(),
		Deadline:        localDeadline(t.TimeLeft),
		LastError:       replay.DecodeError(t.LastError),
		Details:         t.Details,
		RecordHeartbeat: l.recordHeartbeat,
	}
	p.workerAttempts[t.key()] = l
	if p.hasSlot(t.Name) {
		p.startInSlot(l)
	} else {
		p.queuedAttempts = append(p.queuedAttempts, l)
	}
}

func (l *workerAttempt) name() string { return l.assignment.Name }

func (l *workerAttempt) start() (*invocation, bool) {
	if l.canceled {
		l.pool.canceledRunning[l.partition]--
		l.pool.sendToLeader(l.partition, FromWorker{FreeSlots: 1})
		return nil, false
	}
	l.pool.counts.AsWorker++
	l.queuedFor = unknownQueueTime
	if l.assignment.QueuedFor > 0 {
		l.queuedFor = l.assignment.QueuedFor + time.Since(l.startedAt)
	}
	return &l.invocation, true
}

func (l *workerAttempt) resolve(output *journalpb.Payload, err error) {
	failure, pending := readError(err)
	p := l.pool
	p.system.observeAttempt(&l.invocation, outcomeOf(err, pending))
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case l.canceled:
		p.canceledRunning[l.partition]--
		p.sendToLeader(l.partition, FromWorker{FreeSlots: 1})
		return
	case err != nil && !pending && errors.Is(context.Cause(l.context), replay.ErrNodeStopping):
		return // the leader will notice that this node is gone
	}
	l.result = &Result{AttemptID: l.assignment.AttemptID, Output: output, Pending: pending}
	if err != nil && !pending {
		l.result.Error = replay.EncodeError(failure)
	}
	if !proto.Equal(l.details, l.assignment.Details) {
		l.result.Details = l.details
	}
	p.sendToLeader(l.partition, FromWorker{Result: l.result})
}

func (l *workerAttempt) recordHeartbeat(details *journalpb.Payload) {
	p := l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if details != nil {
		l.details = details
	}
	if leader := p.leaderOutboxes[l.partition]; leader != nil && !l.canceled && l.result == nil {
		leader.replace(l.assignment.key(), FromWorker{Heartbeat: &Heartbeat{l.assignment.AttemptID, l.details}})
	}
}

// cancelAttempt cancels the attempt's context; its result is dropped. The attempt keeps its slot
// until the body has returned. The pool's lock is held.
func (l *workerAttempt) cancelAttempt(timeout replay.TimeoutKind) {
	p := l.pool
	delete(p.workerAttempts, l.assignment.key())
	if l.result != nil {
		p.sendToLeader(l.partition, FromWorker{FreeSlots: 1})
		return
	}
	l.canceled = true
	p.canceledRunning[l.partition]++
	if timeout != "" {
		l.cancel(&replay.TimeoutError{Kind: timeout})
	} else {
		l.cancel(replay.ErrActivityCanceled)
	}
	// An attempt that waits for a slot is not begun.
	if at := slices.Index(p.queuedAttempts, workItem(l)); at >= 0 {
		p.queuedAttempts = slices.Delete(p.queuedAttempts, at, at+1)
		_, _ = l.start()
	}
}
