package activity

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// PartitionConfig holds what a partition provides to its activities. All fields are required.
type PartitionConfig struct {
	// Context ends when the partition is closed.
	Context context.Context
	// ErrStopped is what callers get after Context has ended.
	ErrStopped error
	Epoch      uint64
	Now        func() clustertime.Time
	Logger     *slog.Logger
	Journal    Journal
	Timers     Timers
	Instances  Instances
	Worker     LocalWorker
}

// A LocalWorker is the worker of the leader's own node. It is a worker like those of other nodes,
// but messages go to it as calls, and it has no share of the slots: the leader asks for free ones.
// Its methods do not block.
type LocalWorker interface {
	// Registration returns what the worker can run. The caller must not change it.
	Registration() *clusterpb.RegisterWorker
	// Register begins the work for the leader, and returns the first messages to it: the worker's
	// attempts and results for the partition.
	Register(leader session.Sender[clusterpb.FromWorker]) []*clusterpb.FromWorker
	// Handle takes a message of the leader, and returns the answer, which may be nil. It drops the
	// message if another leader has registered since.
	Handle(leader session.Sender[clusterpb.FromWorker], m *clusterpb.ToWorker) (answer *clusterpb.FromWorker)
	// Acknowledge is Handle for an acknowledgment of the result of an attempt.
	Acknowledge(leader session.Sender[clusterpb.FromWorker], id *clusterpb.AttemptID) (answer *clusterpb.FromWorker)
	// Unregister ends the work for the leader. Attempts continue for the next one.
	Unregister(leader session.Sender[clusterpb.FromWorker])
	// Load returns how many of the slots are in use, and whether an attempt of that name could
	// begin at once.
	Load(name string) (used, slots int, free bool)
	// Has reports whether the worker runs an attempt or has its result.
	Has(key session.AttemptKey) bool
}

// A Journal is the part of a partition's journal that records activities.
type Journal interface {
	// Events yields the history of an execution from an event_id on.
	Events(instance string, execution, from uint64) iter.Seq2[*journalpb.Event, error]
	// Event returns one event.
	Event(instance string, execution, eventID uint64) (*journalpb.Event, error)
	// Attempt proposes a record of an open activity's attempts. It does not block. done is called
	// exactly once, with nil after the record is committed and applied.
	Attempt(a *journalpb.Attempt, done func(error))
}

// Timers call functions at a cluster time or after a delay.
type Timers interface {
	// Schedule schedules fire for a time. It replaces a timer with the same key.
	Schedule(due clustertime.Time, key operation.Key, fire func())
	// ScheduleAfter schedules fire after a delay.
	ScheduleAfter(delay time.Duration, fire func())
	// Cancel cancels the timer with a key.
	Cancel(key operation.Key)
}

// Instances are the instances that wait for activities.
type Instances interface {
	// Complete delivers the end of an activity to its instance reliably. It then tells f whether
	// the event was dropped.
	Complete(ref *journalpb.OperationRef, event *journalpb.Event, f Finisher)
	// DeferUntilRecovered calls f after the operations of an instance are recovered. It reports
	// false, without calling f, if they are already recovered.
	DeferUntilRecovered(instance string, f func()) bool
	// IsRecovered reports whether the operations of an instance are recovered.
	IsRecovered(instance string) bool
}

// A Finisher is told when the end of an activity is recorded, or dropped because the activity had
// ended before.
type Finisher interface{ Finish(dropped bool) }

// A Partition holds the activities of one partition, on the node that leads it. Its methods may be
// called concurrently.
type Partition struct {
	scheduler *Scheduler
	config    PartitionConfig
	local     *workerSession // of this node

	// The scheduler's lock guards the fields below.
	buckets  map[string]*tokenBucket // of limited activities
	tasks    map[operation.Key]*task // that have not ended
	sessions []*workerSession
	pools    []*workerPool          // of the sessions with workers that are not of this node
	byName   map[string]*nameCounts // of the tasks
}

// Lead opens a partition. The caller must call Close.
func (s *Scheduler) Lead(config PartitionConfig) *Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &Partition{scheduler: s, config: config, buckets: newTokenBuckets(s.rates), tasks: make(map[operation.Key]*task), byName: make(map[string]*nameCounts)}
	s.partitions[p] = true
	return p
}

func (p *Partition) isClosed() bool { return p.config.Context.Err() != nil }

// Submit begins the activity of a committed ActivityScheduled event.
func (p *Partition) Submit(instance string, incarnation, execution uint64, event *journalpb.Event) {
	p.scheduler.submit(p.newTask(instance, incarnation, execution, event), nil)
}

// Recover continues an open activity of an earlier leader, with what the journal has recorded of
// it. adjusted are the options that replace those of the call; nil if there are none.
func (p *Partition) Recover(open *journalpb.Operation, event *journalpb.Event, adjusted *journalpb.ActivityOptions) {
	ref, retained := open.Ref, open.Attempt
	t := p.newTask(ref.Instance, ref.Incarnation, ref.Execution, event)
	t.mayBeRunning, t.held, t.retryNow = true, open.Held, open.RetryNow
	if adjusted != nil {
		t.options = adjusted
	}
	p.scheduler.submit(t, retained)
}

// newTask returns the task for an ActivityScheduled event.
func (p *Partition) newTask(instance string, incarnation, execution uint64, event *journalpb.Event) *task {
	made := &struct {
		task task
		ref  journalpb.OperationRef
	}{}
	made.ref.Instance, made.ref.Incarnation = instance, incarnation
	made.ref.Execution, made.ref.EventId = execution, event.EventId
	t := &made.task
	t.partition, t.ref = p, &made.ref
	t.scheduled = event.GetActivityScheduled()
	t.options = t.scheduled.Options
	t.scheduledAt = clustertime.FromUnixNano(event.Timestamp)
	t.traceContext = p.scheduler.config.TraceContext(instance, execution)
	return t
}

// Cancel cancels an activity whose result is no longer wanted.
func (p *Partition) Cancel(ref *journalpb.OperationRef) {
	s := p.scheduler
	s.withLock(func() func() {
		key := operation.KeyOf(ref)
		t := p.tasks[key]
		if t == nil {
			return nil
		}
		p.deleteTask(key, t)
		return t.cancel(ErrClosed)
	})
}

// Close drops all activities of the partition, whose Context must have ended. Workers, including
// that of this node, continue their attempts for the next leader.
func (p *Partition) Close() {
	s := p.scheduler
	if p.local != nil {
		p.config.Worker.Unregister(p.local)
	}
	s.withLock(func() func() {
		for _, r := range p.sessions {
			r.detachAttempts()
		}
		delete(s.partitions, p)
		var then []func()
		for _, t := range p.tasks {
			if resolve := t.cancel(p.config.ErrStopped); resolve != nil {
				then = append(then, resolve)
			}
		}
		p.sessions, p.pools, p.tasks, p.byName = nil, nil, nil, nil
		return func() {
			for _, f := range then {
				f()
			}
		}
	})
}

// Registration returns what another node has registered, nil if it is not a worker of the
// partition. The caller must not change it.
func (p *Partition) Registration(node string) *clusterpb.RegisterWorker {
	s := p.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range p.sessions {
		if w.local == nil && w.registration.Worker == "" && w.registration.Node == node {
			return w.registration
		}
	}
	return nil
}
