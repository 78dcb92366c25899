package journal

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/raftlog"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// clockInterval is how often a leader records the cluster time, and how often every node takes a
// clock sample.
const clockInterval = time.Second

// catchUpDivisor limits how much faster than real time the cluster time runs while it is behind the
// leader's wall clock. 1/2000 (500 ppm) is also the highest rate at which NTP corrects a clock.
const catchUpDivisor = 2000

// clusterClock is the cluster time as this node knows it: the time that a leader has recorded, plus
// the time since then by this node's monotonic clock. Setting a wall clock does not change it; it
// slowly approaches the wall clock of the leader. It never goes back while this node leads.
// Otherwise it goes back only to the time of a new leader. That may be behind, because earlier
// records took longer to reach the new leader than this node. So no leader is ahead of its
// predecessor, and no timer fires early.
//
// A node that begins to lead and has received no leader's time since its start asks the others. See
// clockreading.go for how the answers are combined.
type clusterClock struct {
	wall func() time.Time
	// term returns the term of this node.
	term func() uint64
	// leaderChanged holds a token after the node has adopted the time of another leader.
	leaderChanged chan struct{}

	mu            sync.Mutex
	base          clustertime.Time // the cluster time at baseAt
	baseAt        time.Time        // with the reading of the monotonic clock
	lag           time.Duration    // of base behind the wall clock; 0 unless this node leads
	epoch         uint64           // of the leader whose time this is
	recorded      clustertime.Time // the latest recorded time that was applied here
	recordedEpoch uint64           // the epoch in force when recorded was applied
	sample        clockSample      // read from disk at the start
	current       bool             // as in IsClockCurrent
	leading       bool             // set by startLeading: recorded times are this node's own
}

func newClusterClock(wall func() time.Time, term func() uint64, recorded clustertime.Time, epoch uint64, saved clockSample) *clusterClock {
	return &clusterClock{
		wall: wall, term: term, leaderChanged: make(chan struct{}, 1),
		base: recorded, baseAt: time.Now(), epoch: epoch, recorded: recorded, recordedEpoch: epoch, sample: saved,
	}
}

func openClusterClock(c *Config, machine *state.Machine, stable raft.StableStore) *clusterClock {
	term := func() uint64 { return raftlog.CurrentTerm(stable) }
	return newClusterClock(c.WallClock, term, machine.Clock(), machine.Epoch(), readClockSample(c.Dir))
}

// observe processes the latest recorded time, the epoch in force, and the term of the entry that
// was applied. A time recorded in the node's present term is current: its leader was alive when
// this node learned of that term.
func (c *clusterClock) observe(recorded clustertime.Time, epoch, term uint64) {
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

func (c *clusterClock) isNewRecord(recorded clustertime.Time, epoch uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return recorded.After(c.recorded) || epoch != c.recordedEpoch
}

// adoptEpoch records the epoch of the leader whose time this node uses; mu is held.
func (c *clusterClock) adoptEpoch(epoch uint64) {
	if epoch == c.epoch {
		return
	}
	c.epoch = epoch
	select {
	case c.leaderChanged <- struct{}{}:
	default:
	}
}

// startLeading returns the time at which a leadership begins. query returns the readings of the
// other nodes; it is called only if this node's time is not current.
func (c *clusterClock) startLeading(query func() []clockReading) clustertime.Time {
	var known []clockReading
	if !c.isCurrent() {
		known = append(query(), c.reading())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = true
	if !c.current {
		c.current = true
		now := time.Now()
		c.base, c.baseAt = c.timeAt(now), now
		if asked := combineClockReadings(known); asked.After(c.base) {
			c.base = asked
		}
	}
	return c.timeAt(time.Now())
}

// setLeaderEpoch sets the epoch of the leadership that has begun.
func (c *clusterClock) setLeaderEpoch(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.adoptEpoch(epoch)
}

func (c *clusterClock) isCurrent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// stopLeading ends a leadership, or an attempt at one.
func (c *clusterClock) stopLeading() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.base, c.baseAt, c.lag = c.timeAt(now), now, 0
	c.leading = false
}

func (c *clusterClock) now() clustertime.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeAt(time.Now())
}

// timeAt returns the time at a moment; mu is held.
func (c *clusterClock) timeAt(now time.Time) clustertime.Time {
	passed := now.Sub(c.baseAt)
	return c.base.Add(passed + min(passed/catchUpDivisor, c.lag))
}

// takeSample returns the cluster time and the wall clock at the same moment. On a leader, the
// cluster time approaches this wall clock from now on. Only takeSample and clockSample.readingAt
// let a wall clock influence the cluster time. current is as in IsClockCurrent.
func (c *clusterClock) takeSample() (saved clockSample, current bool) {
	wall := c.wall().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.base, c.baseAt, c.lag = c.timeAt(now), now, 0
	if c.leading {
		c.lag = time.Duration(max(0, wall-c.base.UnixNano()))
	}
	return clockSample{epoch: c.epoch, time: c.base, wall: wall}, c.current
}

// reading returns what this node knows of the time.
func (c *clusterClock) reading() clockReading {
	wall := c.wall().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current {
		return clockReading{Time: c.timeAt(time.Now()), Epoch: c.epoch, Current: true}
	}
	return c.sample.readingAt(wall)
}

// clockedFSM passes recorded times to the clock.
type clockedFSM struct {
	*fsm
	clock *clusterClock
}

// Apply implements raft.FSM.
func (f *clockedFSM) Apply(log *raft.Log) any {
	result := f.fsm.Apply(log)
	f.clock.observe(f.machine.Clock(), f.machine.Epoch(), log.Term)
	return result
}

// Now returns the cluster time. The leader records it in the journal once a second, and all nodes
// continue it by their monotonic clocks. It never goes back on a node that leads, and setting a
// wall clock does not change it. It runs at the rate of real time, or faster by one part in 2,000
// while it is behind the leader's wall clock. On a node that does not lead it may be behind. Until
// such a node has received a leader's time, Now continues the time that was recorded last before
// the start.
func (j *Journal) Now() clustertime.Time { return j.clock.now() }

// IsClockCurrent reports whether the cluster time is current: a leader's time was received since
// the start, or this node has begun to lead.
func (j *Journal) IsClockCurrent() bool { return j.clock.isCurrent() }

// recordClock proposes a record of the cluster time if this node leads, and returns a channel that
// is closed when the outcome is decided. The outcome does not matter: the next record is due soon.
func (j *Journal) recordClock() <-chan struct{} {
	decided := make(chan struct{})
	r := j.leadership.Load()
	if r == nil {
		close(decided)
		return decided
	}
	j.proposeMetadata(r, &journalpb.MetadataChange{}, func(error) { close(decided) })
	return decided
}

// proposeMetadata proposes a metadata change at the cluster time.
func (j *Journal) proposeMetadata(r *leadership, c *journalpb.MetadataChange, done func(error)) {
	c.Epoch, c.Clock = r.epoch, j.clock.now().UnixNano()
	record, err := encodeMetadataChange(c)
	if err != nil {
		done(err)
		return
	}
	j.propose(proposal{record: record, done: done})
}

// changeMetadata commits a metadata change, on the leader.
func (j *Journal) changeMetadata(ctx context.Context, c *journalpb.MetadataChange) error {
	r := j.leadership.Load()
	if r == nil {
		return ErrNotLeader
	}
	result := make(chan error, 1)
	j.proposeMetadata(r, c, func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
