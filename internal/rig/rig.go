package rig

import (
	"context"
	"time"
)

// A Rig is what a node is to do otherwise. Zero values change nothing.
type Rig struct {
	// The wall clock, which may be called concurrently.
	WallClock func() time.Time
	// After how many entries a snapshot is taken, how often that is looked at, and
	// how many entries are kept behind one.
	SnapshotThreshold uint64
	SnapshotInterval  time.Duration
	TrailingLogs      uint64
}

type key struct{}

// With returns a context that carries a rig.
func With(ctx context.Context, r Rig) context.Context { return context.WithValue(ctx, key{}, r) }

// Of returns the rig that a context carries, the zero value if it carries none.
func Of(ctx context.Context) Rig {
	r, _ := ctx.Value(key{}).(Rig)
	return r
}
