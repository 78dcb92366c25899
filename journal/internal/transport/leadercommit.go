package transport

import (
	"sync"
	"time"
)

// A follower that stores nothing, because its disk is full or nothing reaches it, cannot detect
// what it lacks. So the journal compares what is applied here with the commit index in the leader's
// messages about entries. It reads that index before Raft does, even if the entries cannot be
// stored. A leader sends such a message to every follower at least every 2 x Config.CommitTimeout,
// and it commits its time once a second. Suppose that a follower had, at some moment of the last
// few seconds, applied all that its leader had committed by then. Then it is storing and applying
// entries.

// lagCheckInterval is the least time between two checks of what is applied.
const lagCheckInterval = 50 * time.Millisecond

// LeaderCommit holds the commit index that the leader has reported.
type LeaderCommit struct {
	// hasApplied reports whether an index is committed and applied here.
	hasApplied func(index uint64) bool

	mu        sync.Mutex
	term      uint64
	latest    reportedCommit
	pending   reportedCommit // the one that check waits for
	checkedAt time.Time
	reachedAt time.Time // when the latest applied one was reported; zero: none
}

// reportedCommit is a commit index of the leader, and when it arrived.
type reportedCommit struct {
	index uint64
	at    time.Time // zero: none
}

// NewLeaderCommit returns a LeaderCommit. hasApplied reports whether an index is committed and
// applied here.
func NewLeaderCommit(hasApplied func(index uint64) bool) *LeaderCommit {
	return &LeaderCommit{hasApplied: hasApplied}
}

// Report records the commit index in a message of a leader; 0 means none.
func (c *LeaderCommit) Report(term, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term < c.term || index == 0 {
		return
	}
	now := time.Now()
	c.term, c.latest = term, reportedCommit{index, now}
	if now.Sub(c.checkedAt) >= lagCheckInterval {
		c.check(now)
	}
}

// check compares what was reported with what is applied.
func (c *LeaderCommit) check(now time.Time) {
	c.checkedAt = now
	if c.pending.at.IsZero() {
		c.pending = c.latest
	}
	if c.pending.at.IsZero() || !c.hasApplied(c.pending.index) {
		return
	}
	c.reachedAt, c.pending = c.pending.at, c.latest
	if c.hasApplied(c.latest.index) {
		c.reachedAt, c.pending = c.latest.at, reportedCommit{}
	}
}

// Lag returns the age of the latest reported commit index that is applied here; negative if there
// is none. last is the latest reported commit index.
func (c *LeaderCommit) Lag() (lag time.Duration, last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.check(now)
	if c.reachedAt.IsZero() {
		return -1, c.latest.index
	}
	return now.Sub(c.reachedAt), c.latest.index
}
