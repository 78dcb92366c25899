package cluster

import (
	"context"
	"slices"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Leaders are spread over the nodes by handing groups over, one at a time. Whoever
// leads most decides by what it sees itself: who leads what, and how much each
// journal grows, of which it has all. So nobody has to be asked but the node that is
// to take a group.
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
	leftOut map[string]int // nodes that would take no group: for how many looks
}

// without returns the nodes that are not left out at this look.
func (b *scales) without(nodes []string) []string {
	for node := range b.leftOut {
		if b.leftOut[node]--; b.leftOut[node] <= 0 {
			delete(b.leftOut, node)
		}
	}
	return slices.DeleteFunc(nodes, func(node string) bool { return b.leftOut[node] > 0 })
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
	m, ok = chooseMove(b.without(nodes), leaders, weights)
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

// spread looks after the balance, until the node closes.
func (n *Node) spread() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.running.Go(func() { <-n.closing; cancel() })
	b := &scales{leftOut: make(map[string]int)}
	for rest(ctx, n.closing, n.config.tendEvery) == nil {
		n.rebalance(ctx, b)
	}
}

// rebalance hands a group over if that is due, and nothing else is going on: no change
// of the members, no node that stops.
func (n *Node) rebalance(ctx context.Context, b *scales) {
	weights := b.weigh(n.groups)
	nodes, settled := n.settledVoters()
	m, ok := b.decide(n.config.NodeID, nodes, n.leaders(), weights)
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
	err := g.yield(ctx, func(ctx context.Context) error { return g.journal.TransferLeadershipTo(ctx, m.to) })
	if err != nil && ctx.Err() == nil {
		n.config.Logger.Warn("hand group over", "partition", m.group, "to", m.to, "error", err)
	}
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
