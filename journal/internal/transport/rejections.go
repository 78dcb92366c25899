package transport

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Rejections counts rejected messages and logs them at most once a second.
type Rejections struct {
	logger *slog.Logger
	count  atomic.Uint64

	mu         sync.Mutex
	lastLogged time.Time
	omitted    int
}

// NewRejections returns a Rejections with a count of 0.
func NewRejections(logger *slog.Logger) *Rejections { return &Rejections{logger: logger} }

// Count returns how many messages were rejected.
func (r *Rejections) Count() uint64 { return r.count.Load() }

// Add counts a message of a sender that was rejected.
func (r *Rejections) Add(sender string, reason error) {
	r.count.Add(1)
	if omitted, due := r.shouldLog(); due {
		r.logger.Warn("Raft message rejected", "sender", sender, "error", reason, "omitted", omitted)
	}
}

// shouldLog reports whether to log a rejection, and how many were omitted since the last one.
func (r *Rejections) shouldLog() (omitted int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.lastLogged) < time.Second {
		r.omitted++
		return 0, false
	}
	omitted = r.omitted
	r.lastLogged, r.omitted = now, 0
	return omitted, true
}
