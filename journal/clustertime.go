package journal

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// clockEvery is how often a leader records the cluster time, and how often every node
// notes how it stands to its own wall clock.
const clockEvery = time.Second

// catchUp is by how much, as a divisor, the cluster time goes faster than time does
// while it is behind the wall clock of the leader: as much as machines let their own
// clocks be corrected by the network (500 ppm).
const catchUp = 2000

// clusterClock is the cluster time as this node knows it: what a leader has
// recorded, and what has passed since by the monotonic clock of this node. No step of
// a wall clock moves it; the wall clock of the leader draws it after itself, slowly.
// It never goes back while this node leads, and otherwise only to the time of a new
// leader, who learned of an earlier record later than this node did: so no leader is
// ahead of the one before, and no timer fires before its time.
//
// A node that begins to lead and has heard of no leader since it was started asks the
// others. See agreed for what is made of the answers.
type clusterClock struct {
	wall func() time.Time
	// term returns the term in which the node is.
	term func() uint64
	// fresh holds a token when the node goes by the time of another leader.
	fresh chan struct{}

	mu       sync.Mutex
	base     clustertime.Time // the time ...
	at       time.Time        // ... at this moment
	behind   time.Duration    // what was to be caught up with then; 0 unless this node leads
	epoch    uint64           // of the leader whose time this is
	recorded clustertime.Time // the latest that is known to be recorded, ...
	inForce  uint64           // ... and the epoch in force then
	mark     clockMark        // of before the start
	kept     bool             // base is not of the past
	leading  bool             // what is heard is of this node's own making
}

func newClusterClock(wall func() time.Time, term func() uint64, recorded clustertime.Time, epoch uint64, mark clockMark) *clusterClock {
	return &clusterClock{
		wall: wall, term: term, fresh: make(chan struct{}, 1),
		base: recorded, at: time.Now(), epoch: epoch, recorded: recorded, inForce: epoch, mark: mark,
	}
}

func openClusterClock(c *Config, machine *state.Machine, stable raft.StableStore) *clusterClock {
	term := func() uint64 {
		now, _ := stable.GetUint64([]byte(keyTerm)) // 0, of no leader, if it cannot be told
		return now
	}
	return newClusterClock(c.WallClock, term, machine.Clock(), machine.Epoch(), readClockMark(c.Dir))
}

// hear takes note of the latest time that is recorded, of the epoch in force, and of
// the term of the entry that was applied. What is recorded in the term of now is of
// a leader that was there when the node heard of that term: of now, not of the past.
func (c *clusterClock) hear(recorded clustertime.Time, epoch, term uint64) {
	if !c.isNews(recorded, epoch) {
		return
	}
	current := c.term() == term
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recorded, c.inForce = recorded, epoch
	c.kept = c.kept || current
	if c.leading {
		return
	}
	// Of one leader the record that took the least time to arrive is the best. Another
	// may be behind the one before.
	now := time.Now()
	if epoch != c.epoch || recorded.After(c.readAt(now)) {
		c.base, c.at, c.behind = recorded, now, 0
	}
	c.goBy(epoch)
}

func (c *clusterClock) isNews(recorded clustertime.Time, epoch uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return recorded.After(c.recorded) || epoch != c.inForce
}

// goBy notes whose time it is; mu is held.
func (c *clusterClock) goBy(epoch uint64) {
	if epoch == c.epoch {
		return
	}
	c.epoch = epoch
	select {
	case c.fresh <- struct{}{}:
	default:
	}
}

// begin returns the time at which a reign begins. ask returns what the other nodes
// know of the time; it is called when this one knows too little.
func (c *clusterClock) begin(ask func() []clockReading) clustertime.Time {
	var known []clockReading
	if !c.isKept() {
		known = append(ask(), c.reading())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = true
	if !c.kept {
		c.kept = true
		now := time.Now()
		c.base, c.at = c.readAt(now), now
		if asked := agreed(known); asked.After(c.base) {
			c.base = asked
		}
	}
	return c.readAt(time.Now())
}

// lead says of which epoch the reign is that has begun.
func (c *clusterClock) lead(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.goBy(epoch)
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
	now := time.Now()
	c.base, c.at, c.behind = c.readAt(now), now, 0
	c.leading = false
}

func (c *clusterClock) now() clustertime.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readAt(time.Now())
}

// readAt returns the time at a moment; mu is held.
func (c *clusterClock) readAt(now time.Time) clustertime.Time {
	passed := now.Sub(c.at)
	return c.base.Add(passed + min(passed/catchUp, c.behind))
}

// note looks at the wall clock: a leader catches up with it from now on, and every
// node learns how the cluster time stands to it. This, and what a mark makes of a wall
// clock, is all that the cluster time learns from one. kept is whether that is known.
func (c *clusterClock) note() (mark clockMark, kept bool) {
	wall := c.wall().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.base, c.at, c.behind = c.readAt(now), now, 0
	if c.leading {
		c.behind = time.Duration(max(0, wall-c.base.UnixNano()))
	}
	return clockMark{epoch: c.epoch, time: c.base, wall: wall}, c.kept
}

// reading returns what this node knows of the time.
func (c *clusterClock) reading() clockReading {
	wall := c.wall().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept {
		return clockReading{Time: c.readAt(time.Now()), Epoch: c.epoch, Kept: true}
	}
	return c.mark.at(wall)
}

// clockedFSM tells the clock what is recorded.
type clockedFSM struct {
	*fsm
	clock *clusterClock
}

// Apply implements raft.FSM.
func (f *clockedFSM) Apply(log *raft.Log) any {
	result := f.fsm.Apply(log)
	f.clock.hear(f.machine.Clock(), f.machine.Epoch(), log.Term)
	return result
}

// Now returns the cluster time: that of the leaders, kept by all nodes and
// recorded in the journal once a second. It never goes back on a node that leads,
// and steps of wall clocks do not move it: it goes as time does, or faster by one part
// in 2,000 while it is behind the leader's wall clock. On a node that does not lead it
// may be behind, and before a leader was heard of it is of the past.
func (j *Journal) Now() clustertime.Time { return j.clock.now() }

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
	c.Epoch, c.Clock = r.epoch, j.clock.now().UnixNano()
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
