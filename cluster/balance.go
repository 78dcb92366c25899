package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Leaders are spread over the nodes by handing groups over, one at a time. Whoever
// leads most decides by what it sees itself: who leads what, and how much each
// journal grows, of which it has all. So nobody has to be asked but the node that is
// to take a group.
//
// Before that, a group goes to where code is: see moveToCode. The nodes tell which code they
// have when they offer themselves as workers.
const (
	// For how many looks the leaders have to be the same, and uneven.
	balancePatience = 3
	// How many looks after a move the next waits, and how many a node is left out that
	// would take no group: it may be about to come back.
	balancePause = 10
	leftOutFor   = 3
	// By how much of a group's mean weight a move has to make the two nodes more
	// alike.
	balanceGain = 0.25
)

// scales are what a node remembers of the groups' weights.
type scales struct {
	applied []uint64  // by group, at the last look
	load    []float64 // entries a look, smoothed
	leaders []string  // by group, at the last look
	uneven  int       // for how many looks they are
	pause   int
	leftOut leftOut
}

// leftOut are nodes that would take no group: for how many looks.
type leftOut map[string]int

// look begins a look.
func (l leftOut) look() {
	for node := range l {
		if l[node]--; l[node] <= 0 {
			delete(l, node)
		}
	}
}

// without returns the nodes that are not left out at this look.
func (l leftOut) without(nodes []string) []string {
	return slices.DeleteFunc(nodes, func(node string) bool { return l[node] > 0 })
}

// weigh returns the weight of each group: half of it is that there is one, half is
// its share of the load. The mean is 1.
func (b *scales) weigh(groups []*group) []float64 {
	weights := make([]float64, len(groups))
	if b.applied == nil {
		b.applied, b.load = make([]uint64, len(groups)), make([]float64, len(groups))
	}
	total := 0.0
	for i, g := range groups {
		now := g.journal.AppliedIndex()
		if b.applied[i] > 0 && now > b.applied[i] {
			b.load[i] += (float64(now-b.applied[i]) - b.load[i]) / 8
		} else {
			b.load[i] -= b.load[i] / 8
		}
		b.applied[i] = now
		total += b.load[i]
	}
	for i := range weights {
		weights[i] = 1
		// The records of the time alone are no load to speak of.
		if mean := total / float64(len(groups)); mean > loadLeast {
			weights[i] = 0.5 + 0.5*b.load[i]/mean
		}
	}
	return weights
}

// loadLeast is from how many entries a look on load counts.
const loadLeast = 20

// A move is a group that is to be led by another node.
type move struct {
	group    int
	from, to string
}

// decide returns what node self should hand over at this look, if anything. The leaders
// have to be uneven for a while. Which of two nodes that carry about as much carries
// most may be another one at each look, and then it is for the one that does by then.
func (b *scales) decide(self string, nodes, leaders []string, weights []float64) (m move, ok bool) {
	if b.pause > 0 {
		b.pause--
		return move{}, false
	}
	same := slices.Equal(leaders, b.leaders)
	b.leaders = leaders
	b.leftOut.look()
	m, ok = chooseMove(b.leftOut.without(nodes), leaders, weights)
	if !ok || !same {
		b.uneven = 0
	}
	if !ok {
		return move{}, false
	}
	b.uneven++
	return m, b.uneven >= balancePatience && m.from == self
}

// chooseMove returns what a node should hand over, if anything: leaders are who leads
// each group, "" if that is not known. Of all nodes the one that carries most moves,
// the first by name of several, to the one that carries least; and only if the two are
// more alike afterwards by enough.
func chooseMove(nodes, leaders []string, weights []float64) (m move, ok bool) {
	if len(nodes) == 0 {
		return move{}, false
	}
	carries := make(map[string]float64)
	for i, leader := range leaders {
		if leader == "" {
			return move{}, false // wait until there is one
		}
		carries[leader] += weights[i]
	}
	most, least := nodes[0], nodes[0]
	for _, node := range nodes { // in order of their names
		if carries[node] > carries[most] {
			most = node
		}
		if carries[node] < carries[least] {
			least = node
		}
	}
	gap, best := carries[most]-carries[least], balanceGain
	for i, leader := range leaders {
		// Of a group of weight w the gap becomes |gap-2w|.
		if after := gap - 2*weights[i]; leader == most && gap-max(after, -after) > best {
			m, ok, best = move{i, most, least}, true, gap-max(after, -after)
		}
	}
	return m, ok
}

// spread hands groups over, to where their code is and to spread the leaders, until the node
// closes.
func (n *Node) spread() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.running.Go(func() { <-n.closing; cancel() })
	b, refused := &scales{leftOut: make(leftOut)}, make(leftOut)
	for rest(ctx, n.closing, n.config.tendEvery) == nil {
		refused.look()
		if n.moveToCode(ctx, refused) {
			b.pause = balancePause
		}
		if len(n.groups) > 1 {
			n.rebalance(ctx, b)
		}
	}
}

// moveToCode hands over the groups in which instances wait for code that another node has,
// and reports whether there was one. That node has to have all that this one has, too: so a
// group goes to more code each time, and not to and fro.
func (n *Node) moveToCode(ctx context.Context, refused leftOut) (moved bool) {
	for _, g := range n.groups {
		p := g.serving()
		if p == nil || n.stopping.Load() {
			continue
		}
		waiting := p.WaitingForCode()
		if len(waiting) == 0 {
			continue
		}
		to, codes, instances := chooseForCode(waiting, g.covering(p, refused))
		if to == "" {
			continue
		}
		if !g.offer(ctx, to) {
			refused[to] = leftOutFor
			continue
		}
		moved = true
		n.config.Logger.Info("partition handed over, to a node that has the code that instances wait for",
			"partition", g.number, "to", to, "instances", instances, "orchestrations", shownCode(codes))
		if !g.giveTo(ctx, to) {
			refused[to] = leftOutFor
		}
	}
	return moved
}

// covering returns what the nodes can do that have all code that this one has and may lead the
// group, in order of their names.
func (g *group) covering(p *actors.Partition, refused leftOut) (workers []*actors.Hello) {
	for _, m := range g.journal.Members() {
		worker := p.Worker(m.Node)
		if m.Voter && m.Node != g.config.NodeID && refused[m.Node] == 0 && g.config.isCoveredBy(worker) {
			workers = append(workers, worker)
		}
	}
	return workers
}

// chooseForCode returns the node that has code for most of the instances that wait, "" if none
// has code for any, with that code and for how many it is.
func chooseForCode(waiting map[actors.Code]int, workers []*actors.Hello) (to string, codes []actors.Code, instances int) {
	for _, worker := range workers {
		var has []actors.Code
		count := 0
		names := make(map[string]bool)
		for _, code := range worker.Orchestrations {
			n := waiting[code]
			if !names[code.Name] { // any version will do for these
				n += waiting[actors.Code{Name: code.Name, Version: replay.NewestVersion}]
			}
			names[code.Name] = true
			if n > 0 {
				has, count = append(has, code), count+n
			}
		}
		if count > instances {
			to, codes, instances = worker.Node, has, count
		}
	}
	return to, codes, instances
}

// shownCodeMax is how many orchestrations a line of the log names.
const shownCodeMax = 10

// shownCode names orchestrations for the log.
func shownCode(codes []actors.Code) (names []string) {
	for _, code := range codes[:min(len(codes), shownCodeMax)] {
		name := fmt.Sprintf("%q", code.Name)
		if code.Version != "" {
			name += fmt.Sprintf(" version %q", code.Version)
		}
		names = append(names, name)
	}
	return names
}

// rebalance hands a group over if that is due, and nothing else is going on: no change
// of the members, no node that stops.
func (n *Node) rebalance(ctx context.Context, b *scales) {
	weights := b.weigh(n.groups)
	nodes, settled := n.settledVoters()
	m, ok := b.decide(n.config.NodeID, n.withCode(nodes), n.leaders(), weights)
	if !ok || !settled || n.stopping.Load() || !n.groups[m.group].leads() {
		return
	}
	b.uneven = 0
	g := n.groups[m.group]
	if !g.offer(ctx, m.to) {
		b.leftOut[m.to] = leftOutFor
		return
	}
	b.pause = balancePause
	n.config.Logger.Info("group handed over, to spread the leaders", "partition", m.group, "to", m.to)
	g.giveTo(ctx, m.to)
}

// giveTo hands the group over to a node that takes it, and reports whether that node, or
// another, leads it then.
func (g *group) giveTo(ctx context.Context, node string) (given bool) {
	err := g.yield(ctx, func(ctx context.Context) error { return g.journal.TransferLeadershipTo(ctx, node) })
	if err != nil && ctx.Err() == nil {
		g.config.Logger.Warn("hand group over", "partition", g.number, "to", node, "error", err)
	}
	return err == nil
}

// withCode returns the nodes without those to which a group that this node leads must not go to
// spread the leaders: they are not there as workers, or they lack code that this node has. One
// that does not tell what it has is believed to have it.
func (n *Node) withCode(nodes []string) []string {
	led := n.led()
	return slices.DeleteFunc(nodes, func(node string) bool {
		if node == n.config.NodeID || len(led) == 0 {
			return false
		}
		worker := led[0].worker(node)
		return worker == nil || worker.CodeKnown && !n.config.isCoveredBy(worker)
	})
}

// worker returns what a node can do for the group, nil if it is not there as a worker or this
// node does not lead the group.
func (g *group) worker(node string) *actors.Hello {
	p := g.partition.Load()
	if p == nil {
		return nil
	}
	return p.Worker(node)
}

// leaders returns which node leads each group, "" where none is known.
func (n *Node) leaders() (leaders []string) {
	for _, g := range n.groups {
		leader, _ := g.journal.Leader()
		leaders = append(leaders, leader)
	}
	return leaders
}

// settledVoters returns the nodes, in order of their names, and whether all of them
// have a vote in every group.
func (n *Node) settledVoters() (nodes []string, settled bool) {
	settled = true
	for i, g := range n.groups {
		var names []string
		for _, m := range g.journal.Members() {
			names = append(names, m.Node)
			settled = settled && m.Voter
		}
		if i == 0 {
			nodes = names
		}
		settled = settled && slices.Equal(names, nodes)
	}
	return nodes, settled
}

// offer asks a node whether it would lead one more group.
func (g *group) offer(ctx context.Context, node string) bool {
	at := ""
	for _, m := range g.journal.Members() {
		if m.Node == node {
			at = m.Address
		}
	}
	response := g.askOnce(ctx, at, g.request(&clusterpb.Request{Call: &clusterpb.Request_Offer{Offer: new(clusterpb.OfferRequest)}}))
	return response.GetOffer().GetTaken()
}

// takeOffer answers one: a node that is not ready would only be in the way.
func (n *Node) takeOffer() (*clusterpb.Response, error) {
	if n.stopping.Load() {
		return nil, journal.ErrNotLeader
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Offer{Offer: &clusterpb.OfferResult{Taken: n.Health().Ready() == nil}}}, nil
}
