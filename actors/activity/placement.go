package activity

import (
	"maps"
	"slices"

	"github.com/tenuto-dev/tenuto/actors/internal/operation"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A Placement says where an attempt begins if several workers can begin it.
type Placement uint8

const (
	// LeaderFirst begins attempts on the leader's node while it has a free slot.
	LeaderFirst Placement = iota
	// Spread begins attempts on the leader's node while less than an eighth of its slots is in use,
	// so that short attempts are not encoded and sent. Further ones begin where the smallest share
	// of the slots is in use.
	Spread
	// WorkersFirst begins attempts on nodes only if no worker that is no node has a free slot for
	// them.
	WorkersFirst
)

// localShare is the part of its slots, 1/localShare, that the leader's node uses before Spread
// begins attempts on other workers.
const localShare = 8

// SetPlacement replaces the placement of attempts that begin from now on.
func (s *Scheduler) SetPlacement(placement Placement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placement = placement
}

// A workerPool holds the sessions of a partition whose workers can run the same: they are on other
// nodes, or on no node, and have equal activities, tags and limits. The worker with the smallest
// share of its slots in use is found without a search, however many there are. The scheduler's lock
// guards it.
type workerPool struct {
	isNodes    bool // the workers are nodes
	activities map[string]bool
	tags       []string
	limits     map[string]uint32
	heap       []*workerSession // the first has the smallest share of its slots in use
	atLimit    map[string]int   // by limited activity: how many of the workers run as many as they may
}

// canRunSame reports whether a worker belongs to the pool.
func (p *workerPool) canRunSame(w *workerSession) bool {
	r := w.registration
	return p.isNodes == (r.Worker == "") && slices.Equal(p.tags, r.Tags) && maps.Equal(p.limits, r.Limits) && maps.Equal(p.activities, w.activities)
}

// serves reports whether the workers take activities of a class.
func (p *workerPool) serves(c class) bool { return p.hasTag(c.tag) && p.activities[c.name] }

func (p *workerPool) hasTag(tag string) bool { return tag == "" || slices.Contains(p.tags, tag) }

// join adds a worker on another node, or on none, to the pool of those that can run the same.
func (w *workerSession) join() {
	at := slices.IndexFunc(w.partition.pools, func(p *workerPool) bool { return p.canRunSame(w) })
	if at < 0 {
		r := w.registration
		at = len(w.partition.pools)
		w.partition.pools = append(w.partition.pools, &workerPool{
			isNodes: r.Worker == "", activities: w.activities, tags: r.Tags, limits: r.Limits, atLimit: make(map[string]int),
		})
	}
	w.pool = w.partition.pools[at]
	w.heapIndex = len(w.pool.heap)
	w.pool.heap = append(w.pool.heap, w)
	w.pool.up(w.heapIndex)
}

// leave removes a worker from its pool, and the pool with its last worker.
func (w *workerSession) leave() {
	p := w.pool
	if p == nil {
		return
	}
	for name, limit := range p.limits {
		if w.runningByName[name] >= int(limit) {
			p.atLimit[name]--
		}
	}
	w.pool = nil
	last := len(p.heap) - 1
	at := w.heapIndex
	p.swap(at, last)
	p.heap[last] = nil
	if p.heap = p.heap[:last]; at < last {
		p.fix(at)
	}
	if last == 0 {
		w.partition.pools = slices.DeleteFunc(w.partition.pools, func(other *workerPool) bool { return other == p })
	}
}

// leastUsed returns the worker with the smallest share of its slots in use that can begin an
// attempt of that name now, nil if there is none.
func (p *workerPool) leastUsed(name string) *workerSession {
	if len(p.heap) == 0 || p.heap[0].freeSlots <= 0 {
		return nil
	}
	if p.heap[0].hasFree(name) {
		return p.heap[0]
	}
	if p.atLimit[name] == len(p.heap) {
		return nil
	}
	// Rare: the first runs as many of that name as it may, and others do not.
	var best *workerSession
	for _, w := range p.heap {
		if w.hasFree(name) && (best == nil || w.isLessUsed(best)) {
			best = w
		}
	}
	return best
}

// isLessUsed reports whether a smaller share of the slots is in use than on another worker. Among
// equals it is the one that has waited longest for an attempt. Workers without a free slot come
// last, also those that have not offered any yet: they have no share.
func (w *workerSession) isLessUsed(than *workerSession) bool {
	if free := w.freeSlots > 0; free != (than.freeSlots > 0) {
		return free
	} else if !free {
		return w.lastAssigned < than.lastAssigned
	}
	one, other := w.freeSlots*than.capacity, than.freeSlots*w.capacity
	if one != other {
		return one > other
	}
	return w.lastAssigned < than.lastAssigned
}

// setFreeSlots sets how many attempts the worker can begin now. The most that it ever offered are
// its capacity.
func (w *workerSession) setFreeSlots(slots int) {
	w.freeSlots = slots
	w.capacity = max(w.capacity, slots)
	if w.pool != nil {
		w.pool.fix(w.heapIndex)
	}
}

// addRunning changes how many attempts of a limited activity run on the worker.
func (w *workerSession) addRunning(name string, change int) {
	limit, limited := w.registration.Limits[name]
	if !limited {
		return
	}
	before := w.runningByName[name]
	w.runningByName[name] = before + change
	if w.pool == nil {
		return
	}
	switch wasAt, isAt := before >= int(limit), before+change >= int(limit); {
	case isAt && !wasAt:
		w.pool.atLimit[name]++
	case wasAt && !isAt:
		w.pool.atLimit[name]--
	}
}

func (p *workerPool) swap(i, j int) {
	p.heap[i], p.heap[j] = p.heap[j], p.heap[i]
	p.heap[i].heapIndex, p.heap[j].heapIndex = i, j
}

// fix restores the order of the heap after the worker at an index has changed.
func (p *workerPool) fix(at int) {
	if !p.down(at) {
		p.up(at)
	}
}

func (p *workerPool) up(at int) {
	for at > 0 {
		parent := (at - 1) / 2
		if !p.heap[at].isLessUsed(p.heap[parent]) {
			return
		}
		p.swap(at, parent)
		at = parent
	}
}

func (p *workerPool) down(at int) (moved bool) {
	for {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(p.heap); child++ {
			if p.heap[child].isLessUsed(p.heap[least]) {
				least = child
			}
		}
		if least == at {
			return moved
		}
		p.swap(at, least)
		at, moved = least, true
	}
}

// leastUsed returns the worker of all pools with the smallest share of its slots in use that can
// begin an attempt of a class now, nil if there is none; with ofNoNode, only among workers that are
// no nodes. The scheduler's lock is held.
func (p *Partition) leastUsed(c class, ofNoNode bool) (best *workerSession) {
	for _, pool := range p.pools {
		if ofNoNode && pool.isNodes || !pool.serves(c) {
			continue
		}
		if w := pool.leastUsed(c.name); w != nil && (best == nil || w.isLessUsed(best)) {
			best = w
		}
	}
	return best
}

// othersServe reports whether a connected worker besides that of this node takes activities of a
// class, now or when it has a free slot. The scheduler's lock is held.
func (p *Partition) othersServe(c class) bool {
	return slices.ContainsFunc(p.pools, func(pool *workerPool) bool { return pool.serves(c) })
}

// place returns the worker that can begin an attempt of a class now, as the placement prefers; nil
// if there is none. The lock is held.
func (s *Scheduler) place(c class) *workerSession {
	p := c.partition
	local, used, slots := s.localCandidate(c)
	switch {
	case len(p.pools) == 0, local != nil && s.placement == LeaderFirst, local != nil && s.placement == Spread && used*localShare < slots:
		return local
	case s.placement == WorkersFirst:
		if w := p.leastUsed(c, true); w != nil {
			return w
		}
	}
	best := p.leastUsed(c, false)
	if local != nil && (best == nil || used*best.capacity <= (best.capacity-best.freeSlots)*slots) {
		return local
	}
	return best
}

// localCandidate returns the session of this node if it can begin an attempt of a class now, with
// how many of the node's slots are in use. A leader that is exempt runs only what no other worker
// serves. The lock is held.
func (s *Scheduler) localCandidate(c class) (local *workerSession, used, slots int) {
	local = c.partition.local
	if local == nil || local.registration == nil || !local.serves(c) || s.config.LeaderExempt && c.partition.othersServe(c) {
		return nil, 0, 0
	}
	used, slots, free := local.local.Load(c.name)
	if !free {
		return nil, 0, 0
	}
	return local, used, slots
}

// RunsOnWorker reports whether an attempt runs on a worker that is no node, of a client, or of any
// if client is "". known is false if that is not known yet: the operations of the instance are not
// recovered, or the worker may still rejoin.
func (p *Partition) RunsOnWorker(id *clusterpb.AttemptID, client string) (runs, known bool) {
	if !p.config.Instances.IsRecovered(id.Ref.Instance) {
		return false, false
	}
	s := p.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	t := p.tasks[operation.KeyOf(id.Ref)]
	switch {
	case p.isClosed():
		return false, false
	case t == nil || t.isOver() || t.current == nil && !t.mayBeRunning:
		return false, true
	case t.current == nil || t.current.workerLost:
		return false, false
	}
	w := t.current.session
	return w != nil && t.current.number == int(id.Number) && w.registration.Worker != "" && (client == "" || w.registration.Client == client), true
}

// A Load is how much of what a worker offers to the leader is in use.
type Load struct{ Used int }

// Loads returns the load of each connected worker that is no node and has offered slots, by what it
// has registered.
func (p *Partition) Loads() map[*clusterpb.RegisterWorker]Load {
	s := p.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[*clusterpb.RegisterWorker]Load)
	for _, w := range p.sessions {
		if w.registration.Worker != "" && w.capacity > 0 {
			all[w.registration] = Load{Used: w.capacity - w.freeSlots}
		}
	}
	return all
}
