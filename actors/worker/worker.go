package worker

import (
	"context"
	"errors"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/slot"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/replay"
)

// Config configures a [Worker].
type Config struct {
	Slots      *slot.Pool // of this node
	Tags       []string   // that this node serves
	Partitions int        // each leader is offered 1/Partitions of the slots
}

// A Worker runs attempts on this node for leaders on other nodes.
type Worker struct {
	config Config
	slots  *slot.Pool
	// The parent context of attempts that run here for other nodes.
	context context.Context
	cancel  context.CancelCauseFunc

	// The lock of the slots guards the fields below.
	attempts map[session.AttemptKey]*attempt
	draining bool       // no more assignments are accepted
	queued   []*attempt // without a slot
	// By partition: how many canceled attempts still hold a slot, and the outboxes to the leaders
	// that this node works for.
	canceledRunning map[int]int
	leaderOutboxes  map[int]*session.Outbox[session.FromWorker]
	begun           uint64 // attempts
}

// New returns a worker without sessions.
func New(config Config) *Worker {
	w := &Worker{
		config:          config,
		slots:           config.Slots,
		attempts:        make(map[session.AttemptKey]*attempt),
		canceledRunning: make(map[int]int),
		leaderOutboxes:  make(map[int]*session.Outbox[session.FromWorker]),
	}
	w.context, w.cancel = context.WithCancelCause(context.Background())
	return w
}

// Close cancels the attempts that run here for other nodes.
func (w *Worker) Close() { w.cancel(replay.ErrNodeStopping) }

// Begun returns how many attempts have begun. The lock of the slots is held.
func (w *Worker) Begun() uint64 { return w.begun }

// HasAttempts reports whether there are attempts or results for the leader of a partition.
func (w *Worker) HasAttempts(partition int) bool {
	w.slots.Lock()
	defer w.slots.Unlock()
	for _, l := range w.attempts {
		if l.partition == partition {
			return true
		}
	}
	return false
}

// Run offers this node's slots to the leader for the duration of one session. Attempts continue
// after the session, and results are kept and offered to the next leader. Tags and Limits of the
// registration come from the configuration. Without Activities the worker takes no new attempts.
//
// There is one session per partition; the latest counts. With several partitions each is offered
// a share of the slots. Run returns the errors that the leader's side returns. If ctx ends with
// [replay.ErrNodeStopping], it first sends Drain, and waits up to 500 ms for the leader to end the
// session. in and out must stay usable for that time.
func (w *Worker) Run(ctx context.Context, registration session.RegisterWorker, in <-chan session.ToWorker, out chan<- session.FromWorker) error {
	box := session.NewOutbox[session.FromWorker]()
	w.openSession(box, registration)
	defer w.closeSession(registration.Partition, box)
	handle := func(m session.ToWorker) { w.handleFromLeader(registration.Partition, m) }
	err := session.Run(ctx, in, out, box, handle)
	if errors.Is(err, replay.ErrNodeStopping) && ctx.Err() != nil {
		w.drain(box)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		_ = session.Run(ctx, in, out, box, handle) // until the leader ends the session
	}
	return err
}

// drainTimeout is how long a stopping worker waits for the leader to take its drain message.
const drainTimeout = 500 * time.Millisecond

// drain cancels the attempts that run here for other nodes, and sends Drain.
func (w *Worker) drain(box *session.Outbox[session.FromWorker]) {
	w.slots.Lock()
	defer w.slots.Unlock()
	w.draining = true
	box.Put(session.FromWorker{Drain: true})
	w.cancel(replay.ErrNodeStopping)
}

// openSession begins a session. It sends what this node can run, its attempts and results for the
// partition, and its free slots.
func (w *Worker) openSession(box *session.Outbox[session.FromWorker], registration session.RegisterWorker) {
	w.slots.Lock()
	defer w.slots.Unlock()
	w.leaderOutboxes[registration.Partition] = box
	registration.Tags, registration.Limits = w.config.Tags, w.slots.Limits()
	box.Put(session.FromWorker{Register: &registration})
	consumed := w.canceledRunning[registration.Partition]
	for _, l := range w.attempts {
		if l.partition != registration.Partition {
			continue
		}
		consumed++
		if l.result != nil {
			box.Put(session.FromWorker{Result: l.result})
			continue
		}
		box.Put(session.FromWorker{RunningAttempt: &session.RunningAttempt{
			AttemptID: l.assignment.AttemptID, Name: l.assignment.Name, Age: time.Since(l.startedAt),
		}})
	}
	if freeSlots := max(w.slots.Max()/w.config.Partitions, 1) - consumed; freeSlots > 0 {
		box.Put(session.FromWorker{FreeSlots: freeSlots})
	}
}

func (w *Worker) closeSession(partitionID int, box *session.Outbox[session.FromWorker]) {
	w.slots.Lock()
	defer w.slots.Unlock()
	if w.leaderOutboxes[partitionID] == box {
		delete(w.leaderOutboxes, partitionID)
	}
}

// sendToLeader sends a message to the leader of a partition, if there is a session. A later leader
// gets the same in its own session. The lock of the slots is held.
func (w *Worker) sendToLeader(partitionID int, m session.FromWorker) {
	if leader := w.leaderOutboxes[partitionID]; leader != nil {
		leader.Put(m)
	}
}

// handleFromLeader handles a message from the leader of a partition.
func (w *Worker) handleFromLeader(partitionID int, m session.ToWorker) {
	w.slots.Lock()
	defer w.slots.Unlock()
	switch {
	case m.AssignAttempt != nil:
		w.handleAssignment(partitionID, m.AssignAttempt)
	case m.CancelAttempt != nil:
		if l := w.attempts[m.CancelAttempt.Key()]; l != nil {
			l.cancelAttempt(m.CancelAttempt.Timeout)
		}
	case m.Ack != nil:
		if l := w.attempts[m.Ack.Key()]; l != nil && l.result != nil {
			delete(w.attempts, m.Ack.Key())
			w.sendToLeader(l.partition, session.FromWorker{FreeSlots: 1})
		}
	}
}
