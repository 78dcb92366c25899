package harness

import (
	"context"
	"time"
)

// Overrides change the behavior of a node. Zero values change nothing.
type Overrides struct {
	// WallClock replaces the wall clock. It may be called concurrently.
	WallClock func() time.Time
	// SnapshotThreshold is after how many entries a snapshot is taken, SnapshotInterval how often
	// that is checked, and TrailingLogs how many older entries are kept.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64
}

type key struct{}

// NewContext returns a context that carries overrides.
func NewContext(ctx context.Context, overrides Overrides) context.Context {
	return context.WithValue(ctx, key{}, overrides)
}

// FromContext returns the overrides of a context, or the zero value if it carries none.
func FromContext(ctx context.Context) Overrides {
	overrides, _ := ctx.Value(key{}).(Overrides)
	return overrides
}
