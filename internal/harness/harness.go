package harness

import (
	"context"
	"time"
)

// Overrides change the behavior of a node. Zero values change nothing.
type Overrides struct {
	// WallClock replaces the wall clock. It may be called concurrently.
	WallClock func() time.Time
	// SnapshotThreshold is the number of entries after which a snapshot is taken. SnapshotInterval
	// is how often that is checked. TrailingLogs is how many older entries are kept.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64
	// HeartbeatTimeout is that of the journals, which elections follow.
	HeartbeatTimeout time.Duration
	// Protocol is the newest protocol that the node speaks, as if it ran an earlier or later build.
	Protocol uint32
	// CompareInterval is how often the replicas of a partition are compared.
	CompareInterval time.Duration
	// RepairStep is called after each step of a repair of a replica that this node has made, with
	// the step's name.
	RepairStep func(step string)
}

type contextKey struct{}

// NewContext returns a context that carries overrides.
func NewContext(ctx context.Context, overrides Overrides) context.Context {
	return context.WithValue(ctx, contextKey{}, overrides)
}

// FromContext returns the overrides of a context, if it carries any.
func FromContext(ctx context.Context) (overrides Overrides, ok bool) {
	overrides, ok = ctx.Value(contextKey{}).(Overrides)
	return overrides, ok
}
