package journal

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// clockEvery is how often a leader records the cluster time.
const clockEvery = time.Second

// clusterClock is the cluster time as this node knows it: what a leader has
// recorded last, and what has passed since by the monotonic clock of this node.
// No step of a wall clock moves it. It never goes back while this node leads, and
// otherwise only to the time of the leader, who learned of an earlier record later
// than this node did: so no leader is ahead of the one before, and no timer fires
// before its time. What that costs is that the time falls behind a little with every
// change of the leader.
//
// A wall clock is believed once: by a node that begins to lead and has heard of
// no time since it was started, because nobody has kept it. Then all were down,
// or the leader before was lost within clockEvery of the node's start.
type clusterClock struct {
	wall func() time.Time
	// Entries up to here were in the log when the node was started: what they
	// record is of the past.
	past uint64

	mu       sync.Mutex
	base     int64     // the time, Unix nanoseconds, ...
	at       time.Time // ... at this moment
	recorded int64     // the latest that is known to be recorded
	kept     bool      // base is not of the past
	leading  bool      // what is heard is of this node's own making
}

func newClusterClock(wall func() time.Time, recorded int64, past uint64) *clusterClock {
	return &clusterClock{wall: wall, past: past, base: recorded, recorded: recorded, at: time.Now()}
}

func openClusterClock(wall func() time.Time, machine *state.Machine, logs raft.LogStore) (*clusterClock, error) {
	past, err := logs.LastIndex()
	if err != nil {
		return nil, err
	}
	return newClusterClock(wall, machine.Clock(), past), nil
}

// hear takes note of the time that is recorded in an entry, or in one before.
func (c *clusterClock) hear(recorded int64, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if recorded <= c.recorded {
		return
	}
	c.recorded = recorded
	c.kept = c.kept || index > c.past
	if !c.leading {
		c.base, c.at = recorded, time.Now()
	}
}

// begin returns the time at which a reign begins.
func (c *clusterClock) begin() int64 {
	var wall time.Time
	if !c.isKept() {
		wall = c.wall() // it may take its time
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = true
	if !c.kept {
		c.kept = true
		c.advance(wall.UnixNano())
	}
	return c.read()
}

func (c *clusterClock) isKept() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

// end says that the reign is over, or has come to nothing.
func (c *clusterClock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = false
}

func (c *clusterClock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read()
}

// read returns the time; mu is held.
func (c *clusterClock) read() int64 { return c.base + int64(time.Since(c.at)) }

// advance goes forward to a time, unless it is over; mu is held.
func (c *clusterClock) advance(to int64) {
	if to > c.read() {
		c.base, c.at = to, time.Now()
	}
}

// clockedFSM tells the clock what is recorded.
type clockedFSM struct {
	*fsm
	clock *clusterClock
}

// Apply implements raft.FSM.
func (f *clockedFSM) Apply(log *raft.Log) any {
	result := f.fsm.Apply(log)
	f.clock.hear(f.machine.Clock(), log.Index)
	return result
}

// Now returns the cluster time: that of the leaders, kept by all nodes and
// recorded in the journal once a second. It never goes back on a node that leads,
// and steps of wall clocks do not move it. On a node that does not lead it may be
// behind, and before a leader was heard of it is of the past.
func (j *Journal) Now() time.Time { return time.Unix(0, j.clock.now()) }

// ClockKept tells whether the cluster time is that of now: a leader was heard of since
// the start, or this node has begun to lead.
func (j *Journal) ClockKept() bool { return j.clock.isKept() }

// recordClock has the cluster time recorded, if this node leads, and returns a
// channel that is closed when that is decided. What becomes of it does not matter:
// the next is due soon.
func (j *Journal) recordClock() <-chan struct{} {
	decided := make(chan struct{})
	r := j.reign.Load()
	if r == nil {
		close(decided)
		return decided
	}
	j.proposeGroup(r, &journalpb.GroupChange{}, func(error) { close(decided) })
	return decided
}

// proposeGroup proposes a change of the group at the cluster time.
func (j *Journal) proposeGroup(r *reign, c *journalpb.GroupChange, done func(error)) {
	c.Epoch, c.Clock = r.epoch, j.clock.now()
	record, err := encodeGroupChange(c)
	if err != nil {
		done(err)
		return
	}
	j.propose(proposal{record: record, done: done})
}

// changeGroup has a change of the group recorded, on the leader.
func (j *Journal) changeGroup(ctx context.Context, c *journalpb.GroupChange) error {
	r := j.reign.Load()
	if r == nil {
		return ErrNotLeader
	}
	result := make(chan error, 1)
	j.proposeGroup(r, c, func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
