package journal

import (
	"sync"
	"time"
)

// A follower that stores nothing, because its disk is full or nothing reaches it, knows of
// no entry that it lacks. So what it has is compared with the commit index that the leader
// puts into each of its messages about entries, before Raft sees them, and whether or not
// they can be stored. A leader sends such a message to every follower at least every
// 2 x Config.CommitTimeout, and it commits its time once a second. So a follower that has
// had, at some moment of the last seconds, all that its leader had committed then, stores
// and applies.

// lookApart is the least time between two looks at what is applied.
const lookApart = 50 * time.Millisecond

// leaderCommit is what the leader has told of its commit index.
type leaderCommit struct {
	// has reports whether an index is committed and applied here.
	has func(index uint64) bool

	mu      sync.Mutex
	term    uint64
	latest  toldCommit
	pending toldCommit // the one that is waited for
	looked  time.Time
	reached time.Time // when the latest one was told that is applied; zero: none
}

// toldCommit is a commit index of the leader, and when it came.
type toldCommit struct {
	index uint64
	at    time.Time // zero: none
}

// tell notes the commit index that came with a message of a leader; 0 says nothing.
func (c *leaderCommit) tell(term, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term < c.term || index == 0 {
		return
	}
	now := time.Now()
	c.term, c.latest = term, toldCommit{index, now}
	if now.Sub(c.looked) >= lookApart {
		c.look(now)
	}
}

// look compares what was told with what is applied.
func (c *leaderCommit) look(now time.Time) {
	c.looked = now
	if c.pending.at.IsZero() {
		c.pending = c.latest
	}
	if c.pending.at.IsZero() || !c.has(c.pending.index) {
		return
	}
	c.reached, c.pending = c.pending.at, c.latest
	if c.has(c.latest.index) {
		c.reached, c.pending = c.latest.at, toldCommit{}
	}
}

// lag returns how long ago the leader had committed no more than what is applied here;
// negative if that was never known. last is the commit index that it told last.
func (c *leaderCommit) lag() (lag time.Duration, last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.look(now)
	if c.reached.IsZero() {
		return -1, c.latest.index
	}
	return now.Sub(c.reached), c.latest.index
}

// hasApplied reports whether all up to an index is committed and applied here. A node that
// has stored nothing since it began may have all there is and a full disk: it has to store
// the next entry first, which is the time that the leader commits once a second.
func (j *Journal) hasApplied(index uint64) bool {
	return j.logs.checked.stored.Load() && j.raft.AppliedIndex() >= index && j.AppliedIndex() >= j.lastCommand(index)
}
