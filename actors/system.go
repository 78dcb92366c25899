package actors

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/replay"
)

// Config is the configuration of a [System]. Zero values mean defaults.
type Config struct {
	// The code of this node. Required.
	Registry *replay.Registry
	// Defaults to slog.Default().
	Logger *slog.Logger
	// The cluster time: that of everything that is recorded, and of timers. It
	// should not step. Defaults to the wall clock.
	Now func() clustertime.Time
	// How many partitions there are: each of those that other nodes lead is offered
	// that share of the places of this one. Defaults to 1.
	Groups int
	// How many activities run at once on this node. Defaults to 256.
	ActivitiesMax int
	// How many of them at once, by name; at least 1. Defaults to no limits.
	ActivityLimits map[string]int
	// How often attempts of an activity begin in the whole partition, by name.
	// Defaults to no bounds. To be the same on every node: that of the one that
	// leads counts.
	ActivityRates map[string]Rate
	// The tags of activities that this node runs, besides those without a tag.
	// Defaults to none.
	Tags []string
	// Returns how many other nodes there are that may run activities for this one;
	// called concurrently. Defaults to none.
	Others func() int
	// How long a leader waits for a worker that may still run an attempt, after it
	// has lost touch with it, or has become the leader. Defaults to 500 ms.
	RejoinWait time.Duration
	// How many idle instances stay in memory per partition; the least recently
	// used ones are dehydrated. Defaults to 10,000.
	ResidentMax int
	// How many turns of a partition may be on their way at once, from their messages
	// until their appends are decided; the others wait for their turn. To be less
	// than what the queue of the journal holds. Defaults to 4096.
	TurnsMax int
	// How many messages from outside may be on their way in a partition: waiting
	// for a turn, or for its commit. One instance gets at most a tenth of them.
	// Defaults to 100,000.
	WindowMax int
	// How many bytes they may take; at most a tenth of that for one instance, but
	// one message in any case. Defaults to 256 MiB.
	WindowBytesMax int
	// How many of them there may be for one instance. Defaults to 10,000.
	InboxMax int
	// The largest append of one turn, in bytes. An instance that needs more is
	// terminated, with the reason. Defaults to 4 MiB less 64 KiB.
	AppendBytesMax int
	// What one instance may come to.
	Limits Limits
	// How long Close waits for activities that do not heed the cancellation of
	// their context. Defaults to 1 s.
	Grace time.Duration
	// Is told what happens. Defaults to nobody.
	Observer Observer
	// Makes spans of attempts. Defaults to none.
	Tracer Tracer
}

const (
	activitiesMaxDefault = 256
	residentMaxDefault   = 10_000
	turnsMaxDefault      = 4096
	inboxMaxDefault      = 10_000
	windowMaxDefault     = 100_000
	windowBytesDefault   = 256 << 20
	appendBytesDefault   = 4<<20 - 64<<10
	graceDefault         = time.Second
	rejoinWaitDefault    = 500 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = func() clustertime.Time { return clustertime.FromUnix(time.Now().UnixNano()) }
	}
	orDefault(&c.Groups, 1)
	orDefault(&c.ActivitiesMax, activitiesMaxDefault)
	orDefault(&c.ResidentMax, residentMaxDefault)
	orDefault(&c.TurnsMax, turnsMaxDefault)
	orDefault(&c.InboxMax, inboxMaxDefault)
	orDefault(&c.WindowMax, windowMaxDefault)
	orDefault(&c.WindowBytesMax, windowBytesDefault)
	orDefault(&c.AppendBytesMax, appendBytesDefault)
	orDefault(&c.Grace, graceDefault)
	orDefault(&c.RejoinWait, rejoinWaitDefault)
	c.Limits = c.Limits.withDefaults()
	return c
}

// orDefault gives a field that is not positive its default.
func orDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

func (c Config) others() int {
	if c.Others == nil {
		return 0
	}
	return c.Others()
}

// A System is the actors of one node. Its methods may be called concurrently.
type System struct {
	config     Config
	logger     *slog.Logger
	actors     *actor.ActorSystem
	dispatcher *dispatcher
	activities *pool
	counters   counters
	turns      sync.Pool // of *turn
	closing    sync.Once

	// One set of properties for all actors. It makes each from next.
	spawning sync.Mutex
	props    *actor.Props
	next     actor.ReceiveFunc
	made     *mailbox // of that actor
}

// NewSystem starts the actors of a node; they have nothing to do until the node
// leads a partition. Close ends them.
func NewSystem(config Config) *System {
	config = config.withDefaults()
	s := &System{config: config, logger: config.Logger, dispatcher: newDispatcher()}
	s.actors = actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(&atLeast{config.Logger.Handler(), slog.LevelWarn})
	}))
	s.props = actor.PropsFromProducer(func() actor.Actor { return s.next },
		actor.WithDispatcher(s.dispatcher),
		actor.WithMailbox(func() actor.Mailbox {
			s.made = s.dispatcher.newMailbox()
			return s.made
		}),
		actor.WithGuardian(stopAlways),
	)
	s.activities = newPool(s)
	return s
}

// Close ends every actor. All partitions must be closed already. Activities are
// told to stop; those that do not within the grace are left behind, and said so
// in the log. It may be called twice.
func (s *System) Close() {
	s.closing.Do(func() {
		returned := s.activities.close(s.config.Grace)
		s.dispatcher.close()
		if returned {
			s.dispatcher.wait()
		}
		s.actors.Shutdown()
	})
}

// spawn starts an actor. A panic that reaches protoactor stops it: an actor
// that has lost its state must not be restarted without it.
func (s *System) spawn(receive actor.ReceiveFunc) (*actor.PID, *mailbox) {
	s.spawning.Lock()
	defer s.spawning.Unlock()
	s.next = receive
	pid := s.actors.Root.Spawn(s.props)
	return pid, s.made
}

var stopAlways = actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective })

// atLeast drops what is logged below a level.
type atLeast struct {
	slog.Handler
	level slog.Level
}

func (h *atLeast) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.level && h.Handler.Enabled(ctx, level)
}

func (h *atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &atLeast{h.Handler.WithAttrs(attrs), h.level}
}

func (h *atLeast) WithGroup(name string) slog.Handler {
	return &atLeast{h.Handler.WithGroup(name), h.level}
}
