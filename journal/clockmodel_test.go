package journal

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/internal/clustertime"
)

// clockWorld is three nodes and the cluster time, without Raft: what is recorded is
// handed to each in order, after a while of its own. It judges every moment at which a
// timer could be set against every later moment at which it could fire.
//
// It keeps to what the clock counts on: a majority of nodes answers a leader that
// asks, of those that were down together the wall clock of one alone is set without
// being noted, and somebody who comes back has noted who led last; two have if a wall
// clock was set.
type clockWorld struct {
	t       *testing.T
	choose  func(n int) int // a number below n
	nodes   []*clockNode
	leader  int // -1 while there is none
	term    uint64
	epoch   uint64
	records []clockRecord
	spans   []clockSpan
	late    time.Duration // how late the time may have become
}

type clockNode struct {
	clock   *clusterClock
	wall    steppedClock
	mark    clockMark // on disk
	applied int       // how many records
	doubt   bool      // its wall clock was set, and the mark does not know
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

func newClockWorld(t *testing.T, choose func(n int) int) *clockWorld {
	w := &clockWorld{t: t, choose: choose, leader: -1}
	for range 3 {
		w.nodes = append(w.nodes, new(clockNode))
	}
	for i := range w.nodes {
		w.start(i)
	}
	w.elect(0)
	return w
}

func (w *clockWorld) start(i int) {
	n := w.nodes[i]
	recorded, epoch := clustertime.Time{}, uint64(0)
	if n.applied > 0 {
		last := w.records[n.applied-1]
		recorded, epoch = last.time, last.epoch
	}
	n.clock = newClusterClock(n.wall.now, func() uint64 { return w.term }, recorded, epoch, n.mark)
}

// hear hands a node what was recorded up to a moment.
func (w *clockWorld) hear(i int, until time.Time) {
	n := w.nodes[i]
	for n.clock != nil && n.applied < len(w.records) && !w.records[n.applied].at.After(until) {
		r := w.records[n.applied]
		n.applied++
		n.clock.hear(r.time, r.epoch, r.term)
	}
}

const slowest = 2 * time.Second // that news travel

// spread hands all nodes something of what is recorded, and has all look at their
// clocks.
func (w *clockWorld) spread() {
	for i, n := range w.nodes {
		delay := []time.Duration{0, time.Millisecond, 30 * time.Millisecond, slowest}[w.choose(4)]
		w.hear(i, time.Now().Add(-delay))
		if n.clock == nil {
			continue
		}
		if mark, kept := n.clock.note(); kept {
			n.mark, n.doubt = mark, false
		}
	}
}

func (w *clockWorld) record(clock clustertime.Time) {
	w.records = append(w.records, clockRecord{clock, w.epoch, w.term, time.Now()})
}

// pass lets time pass, with a leader if there is one.
func (w *clockWorld) pass(d time.Duration) {
	for ; d > 0; d -= clockEvery {
		time.Sleep(min(d, clockEvery))
		if w.leader >= 0 {
			w.judge()
			w.record(w.nodes[w.leader].clock.now())
		}
		w.spread()
	}
}

// judge looks at the time of the leader: none may be ahead of what has passed since
// any moment before, as far as the rate of catching up allows.
func (w *clockWorld) judge() {
	now, at := w.nodes[w.leader].clock.now(), time.Now()
	for _, span := range w.spans {
		passed := at.Sub(span.at)
		if early := now.Sub(span.time) - passed - passed/catchUp; early > time.Microsecond {
			w.t.Fatalf("a timer that was set %v ago fires %v early", passed, early)
		}
	}
	if len(w.spans) > 0 {
		first := w.spans[0]
		if late := at.Sub(first.at) - now.Sub(first.time); late > w.late {
			w.t.Fatalf("the time is %v behind, and may be %v", late, w.late)
		}
	}
	w.spans = append(w.spans, clockSpan{at, now})
}

// elect makes a node lead.
func (w *clockWorld) elect(i int) {
	w.depose()
	w.term++
	w.hear(i, time.Now())
	n := w.nodes[i]
	begun := n.clock.begin(func() (known []clockReading) {
		for j, other := range w.nodes {
			if j != i && other.clock != nil {
				known = append(known, other.clock.reading())
			}
		}
		return known
	})
	w.epoch++
	w.record(begun)
	n.clock.lead(w.epoch)
	w.leader = i
	w.hear(i, time.Now())
	w.late += 2 * (slowest + clockEvery)
	w.judge()
}

func (w *clockWorld) depose() {
	if w.leader >= 0 {
		w.nodes[w.leader].clock.end()
		w.leader = -1
	}
}

// set sets a wall clock, unless there is doubt about one.
func (w *clockWorld) set(i int) {
	if w.doubtful() {
		return
	}
	all := append(steps(), 0, time.Second, -time.Second)
	w.nodes[i].wall.set(all[w.choose(len(all))])
	w.nodes[i].doubt = true
}

// lose ends all nodes, unless nobody has noted who leads, and starts two or three of
// them later.
func (w *clockWorld) lose() {
	left, doubt := w.choose(4), w.doubtful() // 3: none is left behind
	informed := 0                            // of those that come back
	for i, n := range w.nodes {
		if n.mark.epoch == w.epoch && i != left {
			informed++
		}
	}
	if informed == 0 || informed == 1 && doubt {
		return
	}
	w.depose()
	for _, n := range w.nodes {
		n.clock = nil
	}
	outage := []time.Duration{0, time.Second, time.Hour, 9 * time.Hour}[w.choose(4)]
	time.Sleep(outage)
	if informed > 1 && w.choose(2) == 0 {
		w.set(w.choose(3))
	}
	w.late += 2 * clockEvery
	if w.doubtful() {
		w.late += outage // a clock that was set back says that nothing has passed
	}
	for i := range w.nodes {
		if i != left {
			w.start(i)
		}
	}
	w.elect((left + 1 + w.choose(2)) % 3)
	if left < 3 {
		w.start(left)
	}
}

func (w *clockWorld) doubtful() bool {
	return slices.ContainsFunc(w.nodes, func(n *clockNode) bool { return n.doubt })
}

// restart ends one node and starts it again.
func (w *clockWorld) restart(i int) {
	if i == w.leader {
		w.elect((i + 1) % 3)
	}
	w.nodes[i].clock = nil
	w.pass(time.Duration(w.choose(3)) * clockEvery)
	w.start(i)
}

func (w *clockWorld) run(length int) {
	for range length {
		switch w.choose(8) {
		case 0, 1:
			w.pass([]time.Duration{time.Millisecond, clockEvery, 10 * clockEvery, time.Minute}[w.choose(4)])
		case 2, 3:
			w.elect(w.choose(3))
		case 4:
			w.set(w.choose(3))
		case 5:
			w.restart(w.choose(3))
		case 6:
			w.lose()
		case 7: // nobody leads for a while
			w.depose()
			time.Sleep(10 * time.Millisecond)
			w.elect(w.choose(3))
		}
	}
}

func TestNoTimerIsEarlyWhateverBecomesOfNodesAndClocks(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("seed %d", seed)
			newClockWorld(t, rand.New(rand.NewPCG(seed, 17)).IntN).run(60)
		})
		if t.Failed() {
			return
		}
	}
}

func FuzzNoTimerIsEarly(f *testing.F) {
	f.Add([]byte("leaders change, clocks are set and all nodes are lost"))
	f.Fuzz(func(t *testing.T, choices []byte) {
		choices = choices[:min(len(choices), 500)]
		length := len(choices) / 3
		synctest.Test(t, func(t *testing.T) {
			newClockWorld(t, func(n int) int {
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
