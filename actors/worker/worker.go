package worker

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Config configures a [Worker]. All fields except Limits, Tags and Activities are required.
type Config struct {
	Context    context.Context // the parent of the contexts of attempts; must not end
	Slots      int             // how many bodies run at once
	Limits     map[string]int  // how many bodies run at once, by activity name
	Activities []string        // that there is code for
	Tags       []string        // that this node serves
	Partitions int             // each leader on another node is offered 1/Partitions of the slots
	Starter    Starter
	RunBody    func(*Attempt) // runs the body and calls Resolve
	SlotFreed  func()         // is called after a slot has become free and nothing here waits for it
	Faults     *atomic.Uint64 // counts panics of the engine
	Logger     *slog.Logger
}

// A Worker runs attempts in the slots of this node, for leaders on other nodes and for partitions
// that the node leads itself. Its methods may be called concurrently. It never calls a leader while
// it holds its lock, so that a leader may call it with its own lock held.
type Worker struct {
	config        Config
	runningBodies sync.WaitGroup // one for each running body

	mu       sync.Mutex // guards the fields below
	slots    slots
	attempts map[session.AttemptKey]*Attempt // that run, or whose results are not acknowledged
	canceled map[session.AttemptKey]*Attempt // whose bodies have not returned
	queued   []*Attempt                      // without a slot
	leaders  map[int]*leader                 // that this node works for, by partition
	draining map[int]bool                    // partitions whose leaders' assignments are dropped
	begun    uint64                          // attempts for leaders on other nodes
	idle     chan struct{}                   // closed when no attempt is left; nil before StopAssigning
}

// A leader is the leader of a partition, as the worker sees it. nil means that the worker has no
// session with one.
type leader struct {
	session.Sender[clusterpb.FromWorker]
	local bool // on this node: it asks for free slots itself
	// excess is how many attempts and results the leader had beyond its share of the slots when
	// the session began. That many freed slots are not offered to it.
	excess int
}

// freeSlot returns the message that offers a slot to the leader, nil if it gets none. The worker's
// lock is held.
func (l *leader) freeSlot() *clusterpb.FromWorker {
	switch {
	case l == nil || l.local:
		return nil
	case l.excess > 0:
		l.excess--
		return nil
	}
	return session.FreeSlots(1)
}

// New returns a worker without sessions. The caller must call Close.
func New(config Config) *Worker {
	return &Worker{
		config:   config,
		slots:    slots{max: config.Slots, limits: config.Limits, runningByName: make(map[string]int)},
		attempts: make(map[session.AttemptKey]*Attempt),
		canceled: make(map[session.AttemptKey]*Attempt),
		leaders:  make(map[int]*leader),
		draining: make(map[int]bool),
	}
}

// Begun returns how many attempts have begun for leaders on other nodes.
func (w *Worker) Begun() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.begun
}

// Has reports whether the worker runs an attempt or has its result.
func (w *Worker) Has(key session.AttemptKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attempts[key] != nil
}

// RegisterLocal makes this node work for a partition that it leads itself, until Unregister. The
// leader calls Handle with to as from. RegisterLocal returns the first messages to the leader: this
// node's attempts and results for the partition.
func (w *Worker) RegisterLocal(partition int, to session.Sender[clusterpb.FromWorker]) []*clusterpb.FromWorker {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leaders[partition] = &leader{Sender: to, local: true}
	delete(w.draining, partition)
	messages, _ := w.attemptMessages(partition)
	return messages
}

// Registration returns what this node can run, for a partition that it leads itself. The caller
// must not change it.
func (w *Worker) Registration() *clusterpb.RegisterWorker {
	return &clusterpb.RegisterWorker{Activities: w.config.Activities, Tags: w.config.Tags}
}

// Unregister ends the work for a leader. Attempts continue, and results are kept for the next
// leader of the partition.
func (w *Worker) Unregister(partition int, from session.Sender[clusterpb.FromWorker]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isLeader(partition, from) {
		delete(w.leaders, partition)
	}
}

// Run offers this node's slots to a leader on another node for the duration of one session.
// Attempts continue after the session, and results are kept and offered to the next leader. Tags
// and Limits of the registration come from the configuration. Without Activities the worker takes
// no new attempts.
//
// There is one session per partition; the latest counts. With several partitions each is offered
// a share of the slots. Run returns why the session ended. If ctx ends with
// [replay.ErrNodeStopping], it first sends Drain, and waits up to 500 ms for the leader to end the
// session. in and out must stay usable for that time.
func (w *Worker) Run(ctx context.Context, partition int, registration *clusterpb.RegisterWorker, in <-chan *clusterpb.ToWorker, out chan<- *clusterpb.FromWorker) error {
	box := session.NewOutbox[clusterpb.FromWorker]()
	if !w.openSession(box, partition, registration) {
		return errLeads
	}
	defer w.Unregister(partition, box)
	handle := func(m *clusterpb.ToWorker) {
		if answer := w.Handle(partition, box, m); answer != nil {
			box.Put(answer)
		}
	}
	pings := session.PingsOf(registration)
	err := session.Run(ctx, pings, in, out, box, handle)
	if errors.Is(err, replay.ErrNodeStopping) && ctx.Err() != nil {
		w.drain(partition)
		box.Put(session.Drain())
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		_ = session.Run(ctx, pings, in, out, box, handle) // until the leader ends the session
	}
	return err
}

// errLeads means that the session with a former leader began after this node had become the leader.
var errLeads = errors.New("tenuto: worker session: this node leads the partition itself")

// drainTimeout is how long a stopping worker waits for the leader to end the session.
const drainTimeout = 500 * time.Millisecond

// drain cancels the attempts for the leader of a partition, and drops those that wait for a slot.
// No more are accepted.
func (w *Worker) drain(partition int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.draining[partition] = true
	w.queued = slices.DeleteFunc(w.queued, func(a *Attempt) bool { return a.partition == partition })
	for _, a := range w.attempts {
		if a.partition == partition {
			a.cancel(replay.ErrNodeStopping)
		}
	}
}

// openSession begins a session with a leader on another node, unless this node leads the partition.
// It sends what this node can run, its attempts and results for the partition, and its free slots.
func (w *Worker) openSession(box *session.Outbox[clusterpb.FromWorker], partition int, registration *clusterpb.RegisterWorker) (opened bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.leaders[partition]; l != nil && l.local {
		return false
	}
	registration = proto.CloneOf(registration)
	registration.Tags, registration.Limits = w.config.Tags, make(map[string]uint32, len(w.config.Limits))
	for name, limit := range w.config.Limits {
		registration.Limits[name] = uint32(limit)
	}
	box.Put(session.Register(registration))
	messages, consumed := w.attemptMessages(partition)
	for _, m := range messages {
		box.Put(m)
	}
	freeSlots := max(w.config.Slots/w.config.Partitions, 1) - consumed
	l := &leader{Sender: box, excess: max(-freeSlots, 0)}
	if w.idle != nil {
		l.excess = math.MaxInt
		box.Put(session.StopAssigning())
	} else if freeSlots > 0 {
		box.Put(session.FreeSlots(freeSlots))
	}
	w.leaders[partition] = l
	return true
}

// attemptMessages returns the messages about the attempts and results for the leader of a
// partition, and how many of its slots they use. w.mu is held.
func (w *Worker) attemptMessages(partition int) (messages []*clusterpb.FromWorker, consumed int) {
	for _, a := range w.canceled {
		if a.partition == partition {
			consumed++
		}
	}
	for _, a := range w.attempts {
		if a.partition != partition {
			continue
		}
		consumed++
		if a.result != nil {
			messages = append(messages, a.result)
		} else {
			messages = append(messages, session.Running(a.assignment.Attempt, a.Info.Name, time.Since(a.assignedAt)))
		}
	}
	return messages, consumed
}

// Handle handles a message from the leader of a partition. It returns the answer to send, which may
// be nil. It does not block, and calls no leader. A message from an earlier leader, whose session
// another has replaced, is dropped: it must not cancel what runs for its successor.
func (w *Worker) Handle(partition int, from session.Sender[clusterpb.FromWorker], m *clusterpb.ToWorker) (answer *clusterpb.FromWorker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isLeader(partition, from) {
		return nil
	}
	switch body := m.Message.(type) {
	case *clusterpb.ToWorker_AssignAttempt:
		return w.handleAssignment(partition, body.AssignAttempt)
	case *clusterpb.ToWorker_CancelAttempt:
		if a := w.attempts[session.KeyOf(body.CancelAttempt.Attempt)]; a != nil {
			return a.cancelAttempt(replay.TimeoutKind(body.CancelAttempt.Timeout))
		}
	case *clusterpb.ToWorker_Ack:
		return w.acknowledge(body.Ack)
	}
	return nil
}

// Acknowledge is [Worker.Handle] for an acknowledgment of the result of an attempt.
func (w *Worker) Acknowledge(partition int, from session.Sender[clusterpb.FromWorker], id *clusterpb.AttemptID) (answer *clusterpb.FromWorker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isLeader(partition, from) {
		return nil
	}
	return w.acknowledge(id)
}

// isLeader reports whether the latest session for a partition is the sender's. w.mu is held.
func (w *Worker) isLeader(partition int, from session.Sender[clusterpb.FromWorker]) bool {
	l := w.leaders[partition]
	return l != nil && l.Sender == from
}

// acknowledge forgets an attempt whose result is recorded or not wanted. It returns the message
// that offers its slot, if there is one. w.mu is held.
func (w *Worker) acknowledge(id *clusterpb.AttemptID) (answer *clusterpb.FromWorker) {
	a := w.attempts[session.KeyOf(id)]
	if a == nil || a.result == nil {
		return nil
	}
	w.forget(session.KeyOf(id))
	return w.leaders[a.partition].freeSlot()
}
