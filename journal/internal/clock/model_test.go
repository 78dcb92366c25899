package clock

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// clockModel is three nodes and the cluster time, without Raft. Each node receives the records in
// order, after a delay of its own. The model checks every moment at which a timer could be set
// against every later moment at which it could fire.
//
// It keeps the assumptions of the cluster time. A majority of nodes answers a leader that asks. Of
// nodes that were down together, at most one has an unrecorded change of its wall clock. At least
// one node that comes back has recorded who led last; if a wall clock was set, two have.
type clockModel struct {
	t       *testing.T
	choose  func(n int) int // a number below n
	nodes   []*clockNode
	leader  int // -1 while there is none
	term    uint64
	epoch   uint64
	records []clockRecord
	spans   []clockSpan
	maxLag  time.Duration // how late the time may have become
}

type clockNode struct {
	clock        *Clock
	wall         steppedClock
	sample       Sample // on disk
	applied      int    // how many records
	unsampledSet bool   // its wall clock was set and not yet sampled
}

type clockRecord struct {
	time        clustertime.Time
	epoch, term uint64
	at          time.Time
}

// A clockSpan begins when a timer may have been set.
type clockSpan struct {
	at   time.Time
	time clustertime.Time
}

func newClockModel(t *testing.T, choose func(n int) int) *clockModel {
	w := &clockModel{t: t, choose: choose, leader: -1}
	for range 3 {
		w.nodes = append(w.nodes, new(clockNode))
	}
	for i := range w.nodes {
		w.start(i)
	}
	w.becomeLeader(0)
	return w
}

func (c *clockModel) start(i int) {
	n := c.nodes[i]
	recorded, epoch := clustertime.Time{}, uint64(0)
	if n.applied > 0 {
		last := c.records[n.applied-1]
		recorded, epoch = last.time, last.epoch
	}
	n.clock = New(n.wall.now, func() uint64 { return c.term }, recorded, epoch, n.sample)
}

// deliver hands a node the records up to a moment.
func (c *clockModel) deliver(i int, until time.Time) {
	n := c.nodes[i]
	for n.clock != nil && n.applied < len(c.records) && !c.records[n.applied].at.After(until) {
		r := c.records[n.applied]
		n.applied++
		n.clock.Observe(r.time, r.epoch, r.term)
	}
}

const maxDelivery = 2 * time.Second // of records

// deliverAll delivers some records to each node, and makes all sample their clocks.
func (c *clockModel) deliverAll() {
	for i, n := range c.nodes {
		delay := []time.Duration{0, time.Millisecond, 30 * time.Millisecond, maxDelivery}[c.choose(4)]
		c.deliver(i, time.Now().Add(-delay))
		if n.clock == nil {
			continue
		}
		if saved, current := n.clock.takeSample(); current {
			n.sample, n.unsampledSet = saved, false
		}
	}
}

func (c *clockModel) record(clock clustertime.Time) {
	c.records = append(c.records, clockRecord{clock, c.epoch, c.term, time.Now()})
}

// advance lets time pass, with a leader if there is one.
func (c *clockModel) advance(d time.Duration) {
	for ; d > 0; d -= Interval {
		time.Sleep(min(d, Interval))
		if c.leader >= 0 {
			c.checkNoEarlyTimer()
			c.record(c.nodes[c.leader].clock.Now())
		}
		c.deliverAll()
	}
}

// checkNoEarlyTimer checks the leader's time: it must not be ahead of what has passed since any
// earlier moment, except by the rate of catching up.
func (c *clockModel) checkNoEarlyTimer() {
	now, at := c.nodes[c.leader].clock.Now(), time.Now()
	for _, span := range c.spans {
		passed := at.Sub(span.at)
		if early := now.Sub(span.time) - passed - passed/CatchUpDivisor; early > time.Microsecond {
			c.t.Fatalf("a timer that was set %v ago fires %v early", passed, early)
		}
	}
	if len(c.spans) > 0 {
		first := c.spans[0]
		if late := at.Sub(first.at) - now.Sub(first.time); late > c.maxLag {
			c.t.Fatalf("the time is %v behind, and may be %v", late, c.maxLag)
		}
	}
	c.spans = append(c.spans, clockSpan{at, now})
}

// becomeLeader makes a node the leader.
func (c *clockModel) becomeLeader(i int) {
	c.stepDown()
	c.term++
	c.deliver(i, time.Now())
	n := c.nodes[i]
	started := n.clock.StartLeading(func() (known []Reading) {
		for j, other := range c.nodes {
			if j != i && other.clock != nil {
				known = append(known, other.clock.reading())
			}
		}
		return known
	})
	c.epoch++
	c.record(started)
	n.clock.SetLeaderEpoch(c.epoch)
	c.leader = i
	c.deliver(i, time.Now())
	c.maxLag += 2 * (maxDelivery + Interval)
	c.checkNoEarlyTimer()
}

func (c *clockModel) stepDown() {
	if c.leader >= 0 {
		c.nodes[c.leader].clock.StopLeading()
		c.leader = -1
	}
}

// setWallClock sets a wall clock, unless another one has an unsampled change.
func (c *clockModel) setWallClock(i int) {
	if c.hasUnsampledSet() {
		return
	}
	all := append(clockSteps(), 0, time.Second, -time.Second)
	c.nodes[i].wall.set(all[c.choose(len(all))])
	c.nodes[i].unsampledSet = true
}

// restartAll stops all nodes, unless none has recorded who leads, and starts two or three of them
// later.
func (c *clockModel) restartAll() {
	left, uncertain := c.choose(4), c.hasUnsampledSet() // 3: none stays down
	informed := 0                                       // of those that come back
	for i, n := range c.nodes {
		if n.sample.Epoch == c.epoch && i != left {
			informed++
		}
	}
	if informed == 0 || informed == 1 && uncertain {
		return
	}
	c.stepDown()
	for _, n := range c.nodes {
		n.clock = nil
	}
	outage := []time.Duration{0, time.Second, time.Hour, 9 * time.Hour}[c.choose(4)]
	time.Sleep(outage)
	if informed > 1 && c.choose(2) == 0 {
		c.setWallClock(c.choose(3))
	}
	c.maxLag += 2 * Interval
	if c.hasUnsampledSet() {
		c.maxLag += outage // a clock that was set back shows that no time has passed
	}
	for i := range c.nodes {
		if i != left {
			c.start(i)
		}
	}
	c.becomeLeader((left + 1 + c.choose(2)) % 3)
	if left < 3 {
		c.start(left)
	}
}

func (c *clockModel) hasUnsampledSet() bool {
	return slices.ContainsFunc(c.nodes, func(n *clockNode) bool { return n.unsampledSet })
}

// restart stops one node and starts it again.
func (c *clockModel) restart(i int) {
	if i == c.leader {
		c.becomeLeader((i + 1) % 3)
	}
	c.nodes[i].clock = nil
	c.advance(time.Duration(c.choose(3)) * Interval)
	c.start(i)
}

func (c *clockModel) run(length int) {
	for range length {
		switch c.choose(8) {
		case 0, 1:
			c.advance([]time.Duration{time.Millisecond, Interval, 10 * Interval, time.Minute}[c.choose(4)])
		case 2, 3:
			c.becomeLeader(c.choose(3))
		case 4:
			c.setWallClock(c.choose(3))
		case 5:
			c.restart(c.choose(3))
		case 6:
			c.restartAll()
		case 7: // no leader for a while
			c.stepDown()
			time.Sleep(10 * time.Millisecond)
			c.becomeLeader(c.choose(3))
		}
	}
}

func TestClusterTime_NoTimerFiresEarly(t *testing.T) {
	for seed := range uint64(waittest.Repetitions(300, 300)) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			newClockModel(t, rand.New(rand.NewPCG(seed, 17)).IntN).run(60)
		})
		if t.Failed() {
			return
		}
	}
}

func FuzzClusterTime_NoTimerFiresEarly(f *testing.F) {
	f.Add([]byte("leaders change, clocks are set and all nodes are lost"))
	f.Fuzz(func(t *testing.T, choices []byte) {
		choices = choices[:min(len(choices), 500)]
		length := len(choices) / 3
		synctest.Test(t, func(t *testing.T) {
			newClockModel(t, func(n int) int {
				if len(choices) == 0 {
					return 0
				}
				c := int(choices[0]) % n
				choices = choices[1:]
				return c
			}).run(length)
		})
	})
}

// steppedClock is a wall clock that the test sets.
type steppedClock struct{ step atomic.Int64 }

func (c *steppedClock) now() time.Time { return time.Now().Add(time.Duration(c.step.Load())) }

func (c *steppedClock) set(step time.Duration) { c.step.Store(int64(step)) }

func clockSteps() []time.Duration {
	return []time.Duration{time.Hour, 26 * time.Hour, -time.Hour, -26 * time.Hour}
}
