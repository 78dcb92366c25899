package actors

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/actors/internal/sched"
	"github.com/tenuto-dev/tenuto/actors/worker"
	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// Config configures a [System]. Zero values mean defaults.
type Config struct {
	// Registry holds the code of this node. Required.
	Registry *engine.Registry
	// Logger defaults to slog.Default().
	Logger *slog.Logger
	// Now returns the cluster time, which stamps events and drives timers. It should not step.
	// Defaults to the wall clock.
	Now func() clustertime.Time
	// Partitions is the number of partitions. Each partition led by another node is offered
	// 1/Partitions of this node's slots. Defaults to 1.
	Partitions int
	// ActivitiesMax is how many activities run at once on this node. Defaults to 256.
	ActivitiesMax int
	// ActivityLimits bounds, by name, how many activities run at once on this node; each limit is
	// at least 1. Defaults to no limits.
	ActivityLimits map[string]int
	// ActivityRates bounds, by name, how often attempts begin in the whole partition. Those of the
	// leader apply; see [System.SetActivityRates]. Defaults to no bounds.
	ActivityRates map[string]activity.Rate
	// Tags are the activity tags that this node serves. Every node also serves activities without
	// a tag. Defaults to none.
	Tags []string
	// OtherNodes returns how many other nodes may run activities for this one. It is called
	// concurrently. Defaults to none.
	OtherNodes func() int
	// WorkerOnly makes a system that only runs attempts for leaders on nodes: it has no actors,
	// which cost 3 MB, and can lead no partition.
	WorkerOnly bool
	// LeaderExempt makes the node run, of the partitions that it leads, only activities that no
	// connected worker serves.
	LeaderExempt bool
	// RejoinTimeout is how long a leader waits for a worker that may still run an attempt, after
	// the worker is lost or leadership begins. Defaults to 500 ms.
	RejoinTimeout time.Duration
	// ResidentMax is how many idle instances stay in memory per partition. The least recently used
	// are evicted first. Defaults to 10,000.
	ResidentMax int
	// TurnsMax is how many turns of a partition may be in flight, from taking their messages until
	// their appends are decided. Further turns wait. It must be less than the capacity of the
	// journal's queue. Defaults to 4096.
	TurnsMax int
	// InFlightMax is how many external messages of a partition may be in flight: waiting for a
	// turn or for its commit. One instance gets at most a tenth of them. Defaults to 100,000.
	InFlightMax int
	// InFlightBytesMax bounds the bytes of these messages. One instance gets at most a tenth, but
	// always room for one message. Defaults to 256 MiB.
	InFlightBytesMax int
	// InboxMax is how many of these messages one instance may have. Defaults to 10,000.
	InboxMax int
	// AppendBytesMax is the largest append of one turn, in bytes. An instance that needs more is
	// terminated with that reason. Defaults to 4 MiB less 64 KiB.
	AppendBytesMax int
	// Limits bound each instance. Those of the leader apply; see [System.SetLimits].
	Limits Limits
	// AttemptContext carries values to the bodies of activities: it is the parent of the contexts
	// of attempts. It must not end. Defaults to context.Background().
	AttemptContext context.Context
	// HungAfter is how long the code of an instance may run without reaching a durable call before
	// it counts as hung. Defaults to 1 s.
	HungAfter time.Duration
	// GracePeriod is how long Close waits for activities that ignore the cancellation of their
	// context. Defaults to 1 s.
	GracePeriod time.Duration
	// Observer is told about events in the system. Defaults to none.
	Observer Observer
	// Tracer makes spans of attempts. Defaults to none.
	Tracer Tracer
}

const (
	activitiesMaxDefault = 256
	residentMaxDefault   = 10_000
	turnsMaxDefault      = 4096
	inboxMaxDefault      = 10_000
	inFlightMaxDefault   = 100_000
	inFlightBytesDefault = 256 << 20
	appendBytesDefault   = 4<<20 - 64<<10
	hungAfterDefault     = time.Second
	gracePeriodDefault   = time.Second
	rejoinTimeoutDefault = 500 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = func() clustertime.Time { return clustertime.FromUnixNano(time.Now().UnixNano()) }
	}
	if c.AttemptContext == nil {
		c.AttemptContext = context.Background()
	}
	orDefault(&c.Partitions, 1)
	orDefault(&c.ActivitiesMax, activitiesMaxDefault)
	orDefault(&c.ResidentMax, residentMaxDefault)
	orDefault(&c.TurnsMax, turnsMaxDefault)
	orDefault(&c.InboxMax, inboxMaxDefault)
	orDefault(&c.InFlightMax, inFlightMaxDefault)
	orDefault(&c.InFlightBytesMax, inFlightBytesDefault)
	orDefault(&c.AppendBytesMax, appendBytesDefault)
	orDefault(&c.HungAfter, hungAfterDefault)
	orDefault(&c.GracePeriod, gracePeriodDefault)
	orDefault(&c.RejoinTimeout, rejoinTimeoutDefault)
	return c
}

// orDefault sets a field that is not positive to its default.
func orDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

func (c Config) otherNodes() int {
	if c.OtherNodes == nil {
		return 0
	}
	return c.OtherNodes()
}

// A System holds the actors of one node. Its methods may be called concurrently.
type System struct {
	config                      Config
	logger                      *slog.Logger
	actors                      *actor.ActorSystem
	dispatcher                  *sched.Dispatcher
	activities                  *activity.Scheduler
	worker                      *worker.Worker
	attemptGoroutines           attemptGoroutines // without actors
	limits                      atomic.Pointer[Limits]
	counters                    counters
	turns                       sync.Pool // of *turn
	closeOnce                   sync.Once
	endedQueries, stalledChecks codeSlots

	// All actors share one set of properties, which reads the next receive function and mailbox
	// from nextReceive and nextMailbox.
	spawnMutex  sync.Mutex
	props       *actor.Props
	nextReceive actor.ReceiveFunc
	nextMailbox *sched.Mailbox
}

// NewSystem returns a system. Its actors have nothing to do until the node leads a partition. The
// caller must call Close.
func NewSystem(config Config) *System {
	config = config.withDefaults()
	s := &System{config: config, logger: config.Logger}
	s.endedQueries.init(endedQueriesMax)
	s.stalledChecks.init(stalledChecksMax)
	var starter worker.Starter = &activityActors{system: s}
	if config.WorkerOnly {
		starter = &s.attemptGoroutines
	} else {
		s.startActors()
	}
	s.activities = activity.NewScheduler(activity.Config{
		Registry: config.Registry, Rates: config.ActivityRates, OtherNodes: config.otherNodes,
		RejoinTimeout: config.RejoinTimeout, LeaderExempt: config.LeaderExempt, TraceContext: s.traceContext,
	})
	s.worker = worker.New(worker.Config{
		Context: config.AttemptContext,
		Slots:   config.ActivitiesMax, Limits: config.ActivityLimits, Activities: config.Registry.ActivityNames(), Tags: config.Tags,
		Partitions: config.Partitions, Starter: starter, RunBody: s.runBody, SlotFreed: s.activities.Dispatch,
		Faults: &s.counters.faults, Logger: config.Logger,
	})
	s.SetLimits(config.Limits)
	return s
}

// startActors makes the actor system.
func (s *System) startActors() {
	s.dispatcher = sched.NewDispatcher()
	s.actors = actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(&minLevelHandler{s.config.Logger.Handler(), slog.LevelWarn})
	}))
	s.props = actor.PropsFromProducer(func() actor.Actor { return s.nextReceive },
		actor.WithDispatcher(s.dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return s.nextMailbox }),
		actor.WithGuardian(stopOnPanic),
	)
}

// SetLimits replaces the limits of instances, from their next turn on. What an earlier turn has
// recorded does not change.
func (s *System) SetLimits(limits Limits) {
	limits = limits.WithDefaults()
	s.limits.Store(&limits)
}

// SetActivityRates replaces the rates of activities in every partition.
func (s *System) SetActivityRates(rates map[string]activity.Rate) { s.activities.SetRates(rates) }

// SetActivityPlacement replaces where attempts begin that several workers could run, in every
// partition.
func (s *System) SetActivityPlacement(placement activity.Placement) {
	s.activities.SetPlacement(placement)
}

// SetPausedActivities replaces the names of the activities of which no attempt begins, in every
// partition. The caller must not change the map later.
func (s *System) SetPausedActivities(paused map[string]bool) { s.activities.SetPaused(paused) }

// RunWorker offers this node's slots to the leader of a partition; see [worker.Worker.Run]. It
// returns the errors that [Partition.ServeWorker] returns.
func (s *System) RunWorker(ctx context.Context, partition int, registration *clusterpb.RegisterWorker, in <-chan *clusterpb.ToWorker, out chan<- *clusterpb.FromWorker) error {
	return s.worker.Run(ctx, partition, registration, in, out)
}

// StopAssigning makes a system that is WorkerOnly take no more attempts; see
// [worker.Worker.StopAssigning].
func (s *System) StopAssigning() (idle <-chan struct{}) { return s.worker.StopAssigning() }

// StopAttempts cancels running activities, with [replay.ErrNodeStopping] as the cause, and begins
// no more. From then on errors of their bodies do not count: other nodes begin them again.
func (s *System) StopAttempts() { s.worker.Close() }

// Close ends every actor. The caller must first close all partitions. Close cancels running
// activities and waits up to GracePeriod; activities that still run are abandoned, with a warning
// in the log. It may be called twice.
func (s *System) Close() {
	s.closeOnce.Do(func() {
		s.worker.Close()
		returned := s.worker.Wait(s.config.GracePeriod)
		if s.config.WorkerOnly {
			if returned {
				s.attemptGoroutines.running.Wait()
			}
			return
		}
		s.dispatcher.Close()
		if returned {
			s.dispatcher.Wait()
		}
		s.actors.Shutdown()
	})
}

// spawn starts an actor. protoactor stops an actor that panics and does not restart it, because its
// state must come from the journal.
func (s *System) spawn(receive actor.ReceiveFunc) (*actor.PID, *sched.Mailbox) {
	mailbox := s.dispatcher.NewMailbox()
	return s.spawnWithMailbox(receive, mailbox), mailbox
}

func (s *System) spawnWithMailbox(receive actor.ReceiveFunc, mailbox *sched.Mailbox) *actor.PID {
	s.spawnMutex.Lock()
	defer s.spawnMutex.Unlock()
	s.nextReceive, s.nextMailbox = receive, mailbox
	return s.actors.Root.Spawn(s.props)
}

var stopOnPanic = actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective })

// minLevelHandler drops records below a level.
type minLevelHandler struct {
	slog.Handler
	level slog.Level
}

func (h *minLevelHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.Handler.Enabled(ctx, level)
}

func (h *minLevelHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &minLevelHandler{h.Handler.WithAttrs(attrs), h.level}
}

func (h *minLevelHandler) WithGroup(name string) slog.Handler {
	return &minLevelHandler{h.Handler.WithGroup(name), h.level}
}
