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

func (w *clockModel) start(i int) {
	n := w.nodes[i]
	recorded, epoch := clustertime.Time{}, uint64(0)
	if n.applied > 0 {
		last := w.records[n.applied-1]
		recorded, epoch = last.time, last.epoch
	}
	n.clock = New(n.wall.now, func() uint64 { return w.term }, recorded, epoch, n.sample)
}

// deliver hands a node the records up to a moment.
func (w *clockModel) deliver(i int, until time.Time) {
	n := w.nodes[i]
	for n.clock != nil && n.applied < len(w.records) && !w.records[n.applied].at.After(until) {
		r := w.records[n.applied]
		n.applied++
		n.clock.Observe(r.time, r.epoch, r.term)
	}
}

const maxDelivery = 2 * time.Second // of records

// deliverAll delivers some records to each node, and makes all sample their clocks.
func (w *clockModel) deliverAll() {
	for i, n := range w.nodes {
		delay := []time.Duration{0, time.Millisecond, 30 * time.Millisecond, maxDelivery}[w.choose(4)]
		w.deliver(i, time.Now().Add(-delay))
		if n.clock == nil {
			continue
		}
		if saved, current := n.clock.takeSample(); current {
			n.sample, n.unsampledSet = saved, false
		}
	}
}

func (w *clockModel) record(clock clustertime.Time) {
	w.records = append(w.records, clockRecord{clock, w.epoch, w.term, time.Now()})
}

// advance lets time pass, with a leader if there is one.
func (w *clockModel) advance(d time.Duration) {
	for ; d > 0; d -= Interval {
		time.Sleep(min(d, Interval))
		if w.leader >= 0 {
			w.checkNoEarlyTimer()
			w.record(w.nodes[w.leader].clock.Now())
		}
		w.deliverAll()
	}
}

// checkNoEarlyTimer checks the leader's time: it must not be ahead of what has passed since any
// earlier moment, except by the rate of catching up.
func (w *clockModel) checkNoEarlyTimer() {
	now, at := w.nodes[w.leader].clock.Now(), time.Now()
	for _, span := range w.spans {
		passed := at.Sub(span.at)
		if early := now.Sub(span.time) - passed - passed/CatchUpDivisor; early > time.Microsecond {
			w.t.Fatalf("a timer that was set %v ago fires %v early", passed, early)
		}
	}
	if len(w.spans) > 0 {
		first := w.spans[0]
		if late := at.Sub(first.at) - now.Sub(first.time); late > w.maxLag {
			w.t.Fatalf("the time is %v behind, and may be %v", late, w.maxLag)
		}
	}
	w.spans = append(w.spans, clockSpan{at, now})
}

// becomeLeader makes a node the leader.
func (w *clockModel) becomeLeader(i int) {
	w.stepDown()
	w.term++
	w.deliver(i, time.Now())
	n := w.nodes[i]
	started := n.clock.StartLeading(func() (known []Reading) {
		for j, other := range w.nodes {
			if j != i && other.clock != nil {
				known = append(known, other.clock.reading())
			}
		}
		return known
	})
	w.epoch++
	w.record(started)
	n.clock.SetLeaderEpoch(w.epoch)
	w.leader = i
	w.deliver(i, time.Now())
	w.maxLag += 2 * (maxDelivery + Interval)
	w.checkNoEarlyTimer()
}

func (w *clockModel) stepDown() {
	if w.leader >= 0 {
		w.nodes[w.leader].clock.StopLeading()
		w.leader = -1
	}
}

// setWallClock sets a wall clock, unless another one has an unsampled change.
func (w *clockModel) setWallClock(i int) {
	if w.hasUnsampledSet() {
		return
	}
	all := append(clockSteps(), 0, time.Second, -time.Second)
	w.nodes[i].wall.set(all[w.choose(len(all))])
	w.nodes[i].unsampledSet = true
}

// restartAll stops all nodes, unless none has recorded who leads, and starts two or three of them
// later.
func (w *clockModel) restartAll() {
	left, uncertain := w.choose(4), w.hasUnsampledSet() // 3: none stays down
	informed := 0                                       // of those that come back
	for i, n := range w.nodes {
		if n.sample.Epoch == w.epoch && i != left {
			informed++
		}
	}
	if informed == 0 || informed == 1 && uncertain {
		return
	}
	w.stepDown()
	for _, n := range w.nodes {
		n.clock = nil
	}
	outage := []time.Duration{0, time.Second, time.Hour, 9 * time.Hour}[w.choose(4)]
	time.Sleep(outage)
	if informed > 1 && w.choose(2) == 0 {
		w.setWallClock(w.choose(3))
	}
	w.maxLag += 2 * Interval
	if w.hasUnsampledSet() {
		w.maxLag += outage // a clock that was set back shows that no time has passed
	}
	for i := range w.nodes {
		if i != left {
			w.start(i)
		}
	}
	w.becomeLeader((left + 1 + w.choose(2)) % 3)
	if left < 3 {
		w.start(left)
	}
}

func (w *clockModel) hasUnsampledSet() bool {
	return slices.ContainsFunc(w.nodes, func(n *clockNode) bool { return n.unsampledSet })
}

// restart stops one node and starts it again.
func (w *clockModel) restart(i int) {
	if i == w.leader {
		w.becomeLeader((i + 1) % 3)
	}
	w.nodes[i].clock = nil
	w.advance(time.Duration(w.choose(3)) * Interval)
	w.start(i)
}

func (w *clockModel) run(length int) {
	for range length {
		switch w.choose(8) {
		case 0, 1:
			w.advance([]time.Duration{time.Millisecond, Interval, 10 * Interval, time.Minute}[w.choose(4)])
		case 2, 3:
			w.becomeLeader(w.choose(3))
		case 4:
			w.setWallClock(w.choose(3))
		case 5:
			w.restart(w.choose(3))
		case 6:
			w.restartAll()
		case 7: // no leader for a while
			w.stepDown()
			time.Sleep(10 * time.Millisecond)
			w.becomeLeader(w.choose(3))
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
