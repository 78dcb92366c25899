package actors

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/tenuto-dev/tenuto/replay"
)

// Config is the configuration of a [System]. Zero values mean defaults.
type Config struct {
	// The code of this node. Required.
	Registry *replay.Registry
	// Defaults to slog.Default().
	Logger *slog.Logger
	// How many activities run at once on this node. Defaults to 256.
	ActivitiesMax int
	// The tags of activities that this node runs, besides those without a tag.
	// Defaults to none.
	Tags []string
	// How many idle instances stay in memory per partition; the least recently
	// used ones are dehydrated. Defaults to 10,000.
	ResidentMax int
	// How many messages from outside may wait for one instance. Defaults to
	// 10,000.
	InboxMax int
	// The largest append of one turn, in bytes. An instance that needs more is
	// terminated, with the reason. Defaults to 4 MiB less 64 KiB.
	AppendBytesMax int
	// How long Close waits for activities that do not heed the cancellation of
	// their context. Defaults to 1 s.
	Grace time.Duration
}

const (
	activitiesMaxDefault = 256
	residentMaxDefault   = 10_000
	inboxMaxDefault      = 10_000
	appendBytesDefault   = 4<<20 - 64<<10
	graceDefault         = time.Second
)

func (c Config) withDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.ActivitiesMax <= 0 {
		c.ActivitiesMax = activitiesMaxDefault
	}
	if c.ResidentMax <= 0 {
		c.ResidentMax = residentMaxDefault
	}
	if c.InboxMax <= 0 {
		c.InboxMax = inboxMaxDefault
	}
	if c.AppendBytesMax <= 0 {
		c.AppendBytesMax = appendBytesDefault
	}
	if c.Grace <= 0 {
		c.Grace = graceDefault
	}
	return c
}

// A System is the actors of one node. Its methods may be called concurrently.
type System struct {
	config     Config
	logger     *slog.Logger
	actors     *actor.ActorSystem
	dispatcher *dispatcher
	activities *pool
	closing    sync.Once
}

// NewSystem starts the actors of a node; they have nothing to do until the node
// leads a partition. Close ends them.
func NewSystem(config Config) *System {
	config = config.withDefaults()
	s := &System{config: config, logger: config.Logger, dispatcher: newDispatcher()}
	s.actors = actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(&atLeast{config.Logger.Handler(), slog.LevelWarn})
	}))
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
func (s *System) spawn(receive actor.ReceiveFunc) *actor.PID {
	return s.actors.Root.Spawn(actor.PropsFromFunc(receive,
		actor.WithDispatcher(s.dispatcher),
		actor.WithGuardian(stopAlways),
	))
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
