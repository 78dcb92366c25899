package backup

import (
	"context"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
)

// Bounds of pauses; bench/RESULTS.md has what they cost a backup, and what they save the node.
const (
	// pauseFactor is how long a pause is, in multiples of the time since the pause before.
	pauseFactor = 3
	// pauseMax is the longest pause. A slow network or destination leaves the node enough time.
	pauseMax = 25 * time.Millisecond
)

// A pacer lets reads pause while the node is in use: its own work comes first.
type pacer struct {
	applied func() uint64 // the entries that the node has applied

	mu      sync.Mutex
	seen    uint64    // applied, at the latest read
	resumed time.Time // when the latest pause ended
}

// pause waits if the node has applied an entry since the latest read. The error is that of ctx.
func (p *pacer) pause(ctx context.Context) error {
	if wait := p.next(); wait > 0 {
		if err := admission.Sleep(ctx, nil, wait); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumed = time.Now()
	return nil
}

// next returns how long to wait before the next read.
func (p *pacer) next() time.Duration {
	applied := p.applied()
	p.mu.Lock()
	defer p.mu.Unlock()
	idle := applied == p.seen
	p.seen = applied
	if idle {
		return 0
	}
	return min(pauseFactor*time.Since(p.resumed), pauseMax)
}
