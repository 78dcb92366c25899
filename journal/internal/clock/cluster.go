package clock

import (
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// Interval is how often a leader records the cluster time, and how often every node takes a
// clock sample.
const Interval = time.Second

// CatchUpDivisor limits how much faster than real time the cluster time runs while it is behind the
// leader's wall clock. 1/2000 (500 ppm) is also the highest rate at which NTP corrects a clock.
const CatchUpDivisor = 2000

// Clock is the cluster time on this node: the time that a leader has recorded, plus
// the time since then by this node's monotonic clock. Setting a wall clock does not change it; it
// slowly approaches the wall clock of the leader. It never goes back while this node leads.
// Otherwise it goes back only to the time of a new leader. That may be behind, because earlier
// records took longer to reach the new leader than this node. So no leader is ahead of its
// predecessor, and no timer fires early.
//
// A node that begins to lead and has received no leader's time since its start asks the others. See
// reading.go for how the answers are combined.
type Clock struct {
	wall func() time.Time
	// term returns the term of this node.
	term func() uint64
	// leaderChanged holds a token after the node has adopted the time of another leader.
	leaderChanged chan struct{}

	mu            sync.Mutex
	base          clustertime.Time // the cluster time at baseAt
	baseAt        time.Time        // with the reading of the monotonic clock
	offset        time.Duration    // of the wall clock at the latest sample
	isSampled     bool
	lag           time.Duration    // of base behind the wall clock; 0 unless this node leads
	epoch         uint64           // of the leader whose time this is
	recorded      clustertime.Time // the latest recorded time that was applied here
	recordedEpoch uint64           // the epoch in force when recorded was applied
	sample        Sample           // read from disk at the start
	current       bool             // as in IsCurrent
	leading       bool             // set by StartLeading: recorded times are this node's own
}

// New returns a clock. wall is the wall clock, term returns the term of this node, recorded is the
// time that was recorded last, epoch the epoch in force, and saved the sample on disk.
func New(wall func() time.Time, term func() uint64, recorded clustertime.Time, epoch uint64, saved Sample) *Clock {
	return &Clock{
		wall: wall, term: term, leaderChanged: make(chan struct{}, 1),
		base: recorded, baseAt: time.Now(), epoch: epoch, recorded: recorded, recordedEpoch: epoch, sample: saved,
	}
}

// Observe processes the latest recorded time, the epoch in force, and the term of the entry that
// was applied. A time recorded in the node's present term is current: its leader was running when
// this node received that term.
func (c *Clock) Observe(recorded clustertime.Time, epoch, term uint64) {
	if !c.isNewRecord(recorded, epoch) {
		return
	}
	current := c.term() == term
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recorded, c.recordedEpoch = recorded, epoch
	c.current = c.current || current
	if c.leading {
		return
	}
	// Of the records of one leader, the one that arrived fastest gives the latest and best time.
	// The time of another leader is adopted even if it is behind.
	now := time.Now()
	if epoch != c.epoch || recorded.After(c.timeAt(now)) {
		c.base, c.baseAt, c.lag = recorded, now, 0
	}
	c.adoptEpoch(epoch)
}

func (c *Clock) isNewRecord(recorded clustertime.Time, epoch uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return recorded.After(c.recorded) || epoch != c.recordedEpoch
}

// adoptEpoch records the epoch of the leader whose time this node uses; mu is held.
func (c *Clock) adoptEpoch(epoch uint64) {
	if epoch == c.epoch {
		return
	}
	c.epoch = epoch
	select {
	case c.leaderChanged <- struct{}{}:
	default:
	}
}

// StartLeading returns the time at which a leadership begins. query returns the readings of the
// other nodes; it is called only if this node's time is not current.
func (c *Clock) StartLeading(query func() []Reading) clustertime.Time {
	var known []Reading
	if !c.IsCurrent() {
		known = append(query(), c.reading())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = true
	if !c.current {
		c.current = true
		now := time.Now()
		c.base, c.baseAt = c.timeAt(now), now
		if asked := combineReadings(known); asked.After(c.base) {
			c.base = asked
		}
	}
	return c.timeAt(time.Now())
}

// SetLeaderEpoch sets the epoch of the leadership that has begun.
func (c *Clock) SetLeaderEpoch(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adoptEpoch(epoch)
}

// IsCurrent reports whether a leader's time was received since the start, or this node has begun to
// lead.
func (c *Clock) IsCurrent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// StopLeading ends a leadership, or an attempt at one.
func (c *Clock) StopLeading() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.base, c.baseAt, c.lag = c.timeAt(now), now, 0
	c.leading = false
}

// Now returns the cluster time.
func (c *Clock) Now() clustertime.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeAt(time.Now())
}

// timeAt returns the time at a moment; mu is held.
func (c *Clock) timeAt(now time.Time) clustertime.Time {
	passed := now.Sub(c.baseAt)
	return c.base.Add(passed + min(passed/CatchUpDivisor, c.lag))
}

// takeSample returns the cluster time and the wall clock at the same moment. On a leader, the
// cluster time approaches this wall clock from now on. Only takeSample and Sample.ReadingAt
// let a wall clock influence the cluster time. current is as in IsCurrent.
func (c *Clock) takeSample() (saved Sample, current bool) {
	wall := c.wall().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.base, c.baseAt, c.lag = c.timeAt(now), now, 0
	c.offset, c.isSampled = time.Duration(wall-c.base.UnixNano()), true
	if c.leading {
		c.lag = time.Duration(max(0, wall-c.base.UnixNano()))
	}
	return Sample{Epoch: c.epoch, Time: c.base, Wall: wall}, c.current
}

// Offset returns the wall clock of this node less cluster time at the latest sample, false before
// one and while the cluster time is not current. It does not read the wall clock, which in further
// partitions is the time of the first and may have to be waited for.
func (c *Clock) Offset() (offset time.Duration, current bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset, c.current && c.isSampled
}

// reading returns this node's Reading.
func (c *Clock) reading() Reading {
	wall := c.wall().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current {
		return Reading{Time: c.timeAt(time.Now()), Epoch: c.epoch, Current: true}
	}
	return c.sample.ReadingAt(wall)
}
