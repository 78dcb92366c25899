package activity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A testLocal is the worker of the leader's node, with slots in use.
type testLocal struct {
	LocalWorker // for methods that placement does not call
	used, slots int
}

func (l testLocal) Load(string) (used, slots int, free bool) {
	return l.used, l.slots, l.used < l.slots
}

// A testWorker is a worker as a table states it.
type testWorker struct {
	name       string // begins with "node" for a node
	used       int
	slots      int
	tags       []string
	activities []string // nil: "a"
	limit      int      // of "a"; 0: none
	running    int      // attempts of "a"
}

func isNodeName(name string) bool { return len(name) >= 4 && name[:4] == "node" }

func (c testWorker) registration() *clusterpb.RegisterWorker {
	r := &clusterpb.RegisterWorker{Tags: c.tags, Activities: c.activities}
	if r.Activities == nil {
		r.Activities = []string{"a"}
	}
	if isNodeName(c.name) {
		r.Node = c.name
	} else {
		r.Worker = c.name
	}
	if c.limit > 0 {
		r.Limits = map[string]uint32{"a": uint32(c.limit)}
	}
	return r
}

// connect adds a session with the worker to a partition.
func (c testWorker) connect(p *Partition) *workerSession {
	w := p.newWorkerSession(remoteLink{session.NewOutbox[clusterpb.ToWorker]()})
	w.register(c.registration())
	w.setFreeSlots(c.slots)
	if c.used > 0 {
		p.scheduler.lastAssigned++
		w.lastAssigned = p.scheduler.lastAssigned
	}
	w.setFreeSlots(c.slots - c.used)
	w.addRunning("a", c.running)
	return w
}

func nameOf(w *workerSession) string {
	switch {
	case w == nil:
		return ""
	case w.local != nil:
		return "leader"
	}
	return w.registration.Node + w.registration.Worker
}

// newTestPartition returns a partition of a leader with slots in use, which has code for "a".
func newTestPartition(t *testing.T, config Config, used, slots int) *Partition {
	s := NewScheduler(config)
	p := s.Lead(PartitionConfig{Context: t.Context()})
	p.local = p.newWorkerSession(nil)
	p.local.local = testLocal{used: used, slots: slots}
	p.local.register(&clusterpb.RegisterWorker{Activities: []string{"a"}})
	return p
}

func TestPlace(t *testing.T) {
	const slots = 16
	idleNode, idleWorker := testWorker{name: "node", slots: 8}, testWorker{name: "w", slots: 8}
	full := func(w testWorker) testWorker { w.used = w.slots; return w }
	for name, c := range map[string]struct {
		placement Placement
		exempt    bool
		used      int // of the leader's slots
		workers   []testWorker
		tag       string
		activity  string // "a" if empty
		want      string
	}{
		"leader first: the leader has a slot":            {LeaderFirst, false, 15, []testWorker{idleNode, idleWorker}, "", "", "leader"},
		"leader first: the leader is full":               {LeaderFirst, false, 16, []testWorker{{name: "node", slots: 8, used: 2}, {name: "w", slots: 8, used: 1}}, "", "", "w"},
		"leader first: all are full":                     {LeaderFirst, false, 16, []testWorker{full(idleNode), full(idleWorker)}, "", "", ""},
		"spread: the leader uses less than an eighth":    {Spread, false, 1, []testWorker{idleNode, idleWorker}, "", "", "leader"},
		"spread: the leader uses an eighth":              {Spread, false, 2, []testWorker{{name: "w", slots: 8}}, "", "", "w"},
		"spread: equal shares":                           {Spread, false, 4, []testWorker{{name: "w", slots: 8, used: 2}}, "", "", "leader"},
		"spread: a smaller share of more slots":          {Spread, false, 8, []testWorker{{name: "w1", slots: 100, used: 40}, {name: "w2", slots: 4, used: 2}}, "", "", "w1"},
		"spread: a smaller share of fewer slots":         {Spread, false, 8, []testWorker{{name: "w1", slots: 100, used: 40}, {name: "w2", slots: 4, used: 1}}, "", "", "w2"},
		"spread: others are full":                        {Spread, false, 15, []testWorker{full(idleNode), full(idleWorker)}, "", "", "leader"},
		"spread: a node and a worker are equal to it":    {Spread, false, 16, []testWorker{{name: "node", slots: 8, used: 3}, {name: "w", slots: 8, used: 2}}, "", "", "w"},
		"workers first: a worker has one slot":           {WorkersFirst, false, 0, []testWorker{idleNode, {name: "w", slots: 8, used: 7}}, "", "", "w"},
		"workers first: workers are full":                {WorkersFirst, false, 1, []testWorker{idleNode, full(idleWorker)}, "", "", "node"},
		"workers first: workers are full, leader idle":   {WorkersFirst, false, 0, []testWorker{{name: "node", slots: 8, used: 1}, full(idleWorker)}, "", "", "leader"},
		"workers first: none has the tag":                {WorkersFirst, false, 0, []testWorker{idleWorker, {name: "node", slots: 8, used: 7, tags: []string{"gpu"}}}, "gpu", "", "node"},
		"exempt: a worker has a slot":                    {LeaderFirst, true, 0, []testWorker{{name: "w", slots: 8, used: 7}}, "", "", "w"},
		"exempt: those that serve it are full":           {LeaderFirst, true, 0, []testWorker{full(idleWorker)}, "", "", ""},
		"exempt: none serves it":                         {LeaderFirst, true, 15, []testWorker{{name: "w", slots: 8, activities: []string{"b"}}}, "", "", "leader"},
		"exempt: no other is connected":                  {Spread, true, 0, nil, "", "", "leader"},
		"no other is connected, the leader is full":      {Spread, false, 16, nil, "", "", ""},
		"only a worker has the code":                     {LeaderFirst, false, 0, []testWorker{idleNode, {name: "w", slots: 8, used: 3, activities: []string{"b"}}}, "", "b", "w"},
		"none has the code":                              {Spread, false, 0, []testWorker{idleNode, idleWorker}, "", "b", ""},
		"the tag is served by one":                       {Spread, false, 0, []testWorker{idleWorker, {name: "w2", slots: 8, used: 7, tags: []string{"gpu"}}}, "gpu", "", "w2"},
		"the tag is served by none":                      {WorkersFirst, true, 0, []testWorker{idleNode, idleWorker}, "gpu", "", ""},
		"the least used runs as many as it may":          {WorkersFirst, false, 16, []testWorker{{name: "w1", slots: 8, used: 1, limit: 1, running: 1}, {name: "w2", slots: 8, used: 5, limit: 1}}, "", "", "w2"},
		"all workers run as many as they may":            {WorkersFirst, false, 16, []testWorker{{name: "w1", slots: 8, limit: 1, running: 1}, {name: "w2", slots: 8, limit: 1, running: 1}}, "", "", ""},
		"a limit of one pool does not hold for another":  {LeaderFirst, false, 16, []testWorker{{name: "w1", slots: 8, limit: 1, running: 1}, {name: "w2", slots: 8, used: 7, limit: 2, running: 1}}, "", "", "w2"},
		"a worker without slots hides no other":          {WorkersFirst, false, 0, []testWorker{{name: "w1"}, {name: "w2", slots: 8, used: 1}, {name: "w3"}}, "", "", "w2"},
		"a worker without slots gets nothing":            {WorkersFirst, false, 15, []testWorker{{name: "w"}}, "", "", "leader"},
		"a worker that has more running than slots":      {LeaderFirst, false, 16, []testWorker{{name: "w", slots: 2, used: 3}}, "", "", ""},
		"spread: more running than slots, leader slower": {Spread, false, 15, []testWorker{{name: "w", slots: 2, used: 3}}, "", "", "leader"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPartition(t, Config{LeaderExempt: c.exempt}, c.used, slots)
			p.scheduler.SetPlacement(c.placement)
			for _, w := range c.workers {
				w.connect(p)
			}
			of := class{p, "a", c.tag}
			if c.activity != "" {
				of.name = c.activity
			}
			if got := nameOf(p.scheduler.place(of)); got != c.want {
				t.Errorf("it begins on %q, want %q", got, c.want)
			}
		})
	}
}

// Attempts are spread so that no worker could have taken one of a worker with a larger share:
// whatever the capacities, and until every slot is in use.
func TestPlace_SpreadsByFreeSlots(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		p := newTestPartition(t, Config{}, 0, 0)
		total := 0
		for i := range 1 + random.IntN(12) {
			slots := 1 + random.IntN(20)
			testWorker{name: fmt.Sprint([]string{"w", "node"}[random.IntN(2)], i), slots: slots}.connect(p)
			total += slots
		}
		for begun := 0; ; begun++ {
			w := p.scheduler.place(class{p, "a", ""})
			if w == nil {
				if begun != total {
					t.Fatalf("seed %d: %d attempts begin in %d slots", seed, begun, total)
				}
				break
			}
			begin(w)
			for _, a := range p.sessions {
				for _, b := range p.sessions {
					used, other := a.capacity-a.freeSlots, b.capacity-b.freeSlots
					if a.local == nil && b.local == nil && b.freeSlots > 0 && (used-1)*b.capacity > other*a.capacity {
						t.Fatalf("seed %d: %s uses %d of %d slots, %s %d of %d", seed, nameOf(a), used, a.capacity, nameOf(b), other, b.capacity)
					}
				}
			}
		}
	}
}

func TestAddFreeSlots_CountsAtMostSlotsMax(t *testing.T) {
	w := testWorker{name: "w", slots: 3}.connect(newTestPartition(t, Config{}, 0, 0))
	w.addFreeSlots(4)
	if w.freeSlots != 7 {
		t.Errorf("%d slots are free, want 7", w.freeSlots)
	}
	for range 2 {
		w.addFreeSlots(math.MaxUint32)
		if w.freeSlots != session.SlotsMax || w.capacity != session.SlotsMax {
			t.Errorf("%d of %d slots are free", w.freeSlots, w.capacity)
		}
	}
}

// begin counts an attempt of "a" as running on a worker, as assign does.
func begin(w *workerSession) {
	s := w.scheduler()
	s.lastAssigned++
	w.lastAssigned = s.lastAssigned
	w.setFreeSlots(w.freeSlots - 1)
	w.addRunning("a", 1)
}

// Whatever connects, leaves, begins and ends, leastUsed finds what a search of all workers finds.
func TestLeastUsed_FindsWhatSearchFinds(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		p := newTestPartition(t, Config{}, 0, 0)
		var connected []*workerSession
		for step := range 150 {
			switch at := random.IntN(max(len(connected), 1)); {
			case len(connected) == 0 || len(connected) < 12 && random.IntN(5) == 0:
				c := testWorker{name: fmt.Sprint([]string{"w", "node"}[random.IntN(2)], step), slots: random.IntN(5), limit: random.IntN(3)}
				if random.IntN(2) == 0 {
					c.tags = []string{"gpu"}
				}
				connected = append(connected, c.connect(p))
			case random.IntN(10) == 0:
				p.scheduler.endSession(connected[at])
				connected = append(connected[:at], connected[at+1:]...)
			case random.IntN(20) == 0:
				connected[at].stopAssigning()
				connected = append(connected[:at], connected[at+1:]...)
			case connected[at].hasFree("a") && random.IntN(2) == 0:
				begin(connected[at])
			case connected[at].freeSlots < connected[at].capacity:
				connected[at].setFreeSlots(connected[at].freeSlots + 1)
				if _, limited := connected[at].registration.Limits["a"]; !limited || connected[at].runningByName["a"] > 0 {
					connected[at].addRunning("a", -1)
				}
			}
			checkLeastUsed(t, fmt.Sprintf("seed %d, step %d", seed, step), p, connected)
		}
	}
}

func checkLeastUsed(t *testing.T, at string, p *Partition, connected []*workerSession) {
	t.Helper()
	for _, tag := range []string{"", "gpu"} {
		for _, ofNoNode := range []bool{false, true} {
			c := class{p, "a", tag}
			var want *workerSession
			for _, w := range connected {
				if w.serves(c) && w.hasFree("a") && (!ofNoNode || w.registration.Worker != "") && (want == nil || w.isLessUsed(want)) {
					want = w
				}
			}
			got := p.leastUsed(c, ofNoNode)
			if (got == nil) != (want == nil) || got != nil && (want.isLessUsed(got) || !got.hasFree("a") || !got.serves(c)) {
				t.Fatalf("%s: tag %q, only workers %v: %q is found, want one as %q", at, tag, ofNoNode, nameOf(got), nameOf(want))
			}
		}
	}
	inPools := 0
	for _, pool := range p.pools {
		inPools += len(pool.heap)
		atLimit := 0
		for i, w := range pool.heap {
			if limit := w.registration.Limits["a"]; limit > 0 && w.runningByName["a"] >= int(limit) {
				atLimit++
			}
			if w.heapIndex != i || w.pool != pool || i > 0 && w.isLessUsed(pool.heap[(i-1)/2]) {
				t.Fatalf("%s: the heap is not in order at %d", at, i)
			}
		}
		if atLimit != pool.atLimit["a"] || len(pool.heap) == 0 {
			t.Fatalf("%s: %d of %d workers are counted as at their limit, want %d", at, pool.atLimit["a"], len(pool.heap), atLimit)
		}
	}
	if inPools != len(connected) {
		t.Fatalf("%s: %d workers are in pools, want %d", at, inPools, len(connected))
	}
}
