package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The balancer spreads the leaders of partitions over the nodes. It moves one partition at a time.
// The node with the most weight decides alone: from its replicas it knows all leaders and how fast
// each journal grows. It asks only the node that would take over.
//
// Each round calls moveToWaitingCode first. Nodes report their code when they register as workers.
const (
	// A move requires this many rounds with the same leaders, unevenly spread.
	unevenRoundsMin = 3
	// balanceCooldown is the number of rounds between two moves. A node that declined a partition
	// is offered none for exclusionRounds: it may be ready again soon.
	balanceCooldown = 10
	exclusionRounds = 3
	// How much a move must reduce the difference in weight of two nodes, in mean partition weights.
	balanceGainMin = 0.25
)

// A balancer holds what a node remembers between rounds.
type balancer struct {
	appliedIndexes []uint64  // by partition, in the last round
	loads          []float64 // by partition: entries per round, smoothed
	leaders        []string  // by partition, in the last round
	unevenRounds   int       // how many rounds the leaders have been uneven
	cooldown       int
	excluded       exclusions
}

// exclusions maps nodes that declined a partition to the number of rounds in which they are still
// offered none.
type exclusions map[string]int

func (l exclusions) nextRound() {
	for node := range l {
		if l[node]--; l[node] <= 0 {
			delete(l, node)
		}
	}
}

func (l exclusions) filter(nodes []string) []string {
	return slices.DeleteFunc(nodes, func(node string) bool { return l[node] > 0 })
}

// computeWeights returns the weight of each partition: one half is constant, the other half is
// proportional to its load. The mean weight is 1.
func (b *balancer) computeWeights(partitions []*partition) []float64 {
	weights := make([]float64, len(partitions))
	if b.appliedIndexes == nil {
		b.appliedIndexes, b.loads = make([]uint64, len(partitions)), make([]float64, len(partitions))
	}
	total := 0.0
	for i, g := range partitions {
		now := g.journal.AppliedIndex()
		if b.appliedIndexes[i] > 0 && now > b.appliedIndexes[i] {
			b.loads[i] += (float64(now-b.appliedIndexes[i]) - b.loads[i]) / 8
		} else {
			b.loads[i] -= b.loads[i] / 8
		}
		b.appliedIndexes[i] = now
		total += b.loads[i]
	}
	for i := range weights {
		weights[i] = 1
		// Clock samples alone are not counted as load.
		if mean := total / float64(len(partitions)); mean > balanceLoadMin {
			weights[i] = 0.5 + 0.5*b.loads[i]/mean
		}
	}
	return weights
}

// balanceLoadMin is the mean number of entries per partition and round above which load counts.
const balanceLoadMin = 20

// A move is a partition that another node should lead.
type move struct {
	partition int
	from, to  string
}

// decide returns the partition that node self should hand over now, if any. The leaders must have
// been uneven for unevenRoundsMin rounds. If nodes have nearly equal weights, the node with the
// most weight in the last of these rounds hands over.
func (b *balancer) decide(self string, nodes, leaders []string, weights []float64) (m move, ok bool) {
	if b.cooldown > 0 {
		b.cooldown--
		return move{}, false
	}
	same := slices.Equal(leaders, b.leaders)
	b.leaders = leaders
	b.excluded.nextRound()
	m, ok = chooseMove(b.excluded.filter(nodes), leaders, weights)
	if !ok || !same {
		b.unevenRounds = 0
	}
	if !ok {
		return move{}, false
	}
	b.unevenRounds++
	return m, b.unevenRounds >= unevenRoundsMin && m.from == self
}

// chooseMove returns the best move, if any; leaders holds "" for an unknown leader. A move goes
// from the node with the most weight (the first by name) to the one with the least, and must reduce
// their difference by more than balanceGainMin.
func chooseMove(nodes, leaders []string, weights []float64) (m move, ok bool) {
	if len(nodes) == 0 {
		return move{}, false
	}
	nodeWeights := make(map[string]float64)
	for i, leader := range leaders {
		if leader == "" {
			return move{}, false // wait until there is one
		}
		nodeWeights[leader] += weights[i]
	}
	most, least := nodes[0], nodes[0]
	for _, node := range nodes { // in order of their names
		if nodeWeights[node] > nodeWeights[most] {
			most = node
		}
		if nodeWeights[node] < nodeWeights[least] {
			least = node
		}
	}
	gap, best := nodeWeights[most]-nodeWeights[least], balanceGainMin
	for i, leader := range leaders {
		// A partition of weight w changes the gap to |gap-2w|.
		if after := gap - 2*weights[i]; leader == most && gap-max(after, -after) > best {
			m, ok, best = move{i, most, least}, true, gap-max(after, -after)
		}
	}
	return m, ok
}

// runBalancer hands partitions over until the node closes.
func (n *Node) runBalancer() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.running.Go(func() { <-n.closing; cancel() })
	b, refused := &balancer{excluded: make(exclusions)}, make(exclusions)
	for sleep(ctx, n.closing, n.config.maintenanceInterval) == nil {
		refused.nextRound()
		if n.moveToWaitingCode(ctx, refused) {
			b.cooldown = balanceCooldown
		}
		if len(n.partitions) > 1 {
			n.rebalance(ctx, b)
		}
	}
}

// moveToWaitingCode hands over partitions in which instances wait for code of another node, and reports
// whether it moved any. That node must have all code of this one too, so no partition moves back
// and forth.
func (n *Node) moveToWaitingCode(ctx context.Context, refused exclusions) (moved bool) {
	for _, g := range n.partitions {
		p := g.servingPartition()
		if p == nil || n.stopping.Load() {
			continue
		}
		waiting := p.WaitingForCode()
		if len(waiting) == 0 {
			continue
		}
		to, codes, instances := chooseNodeForCode(waiting, g.workersWithAllCode(p, refused))
		if to == "" {
			continue
		}
		if !g.offerLeadership(ctx, to) {
			refused[to] = exclusionRounds
			continue
		}
		moved = true
		n.config.Logger.Info("handing partition over to a node that has the code its instances wait for",
			"partition", g.number, "to", to, "instances", instances, "orchestrations", codeNames(codes))
		if !g.transferTo(ctx, to) {
			refused[to] = exclusionRounds
		}
	}
	return moved
}

// workersWithAllCode returns the workers that have all code of this node and may lead the partition,
// ordered by name.
func (g *partition) workersWithAllCode(p *actors.Partition, refused exclusions) (workers []*session.RegisterWorker) {
	for _, m := range g.journal.Members() {
		worker := p.Registration(m.Node)
		if m.Voter && m.Node != g.config.NodeID && refused[m.Node] == 0 && g.config.isCoveredBy(worker) {
			workers = append(workers, worker)
		}
	}
	return workers
}

// chooseNodeForCode returns the node that has code for the most waiting instances, that code, and
// the number of instances. The name is "" if there is none.
func chooseNodeForCode(waiting map[session.Code]int, workers []*session.RegisterWorker) (to string, codes []session.Code, instances int) {
	for _, worker := range workers {
		var has []session.Code
		count := 0
		names := make(map[string]bool)
		for _, code := range worker.Orchestrations {
			n := waiting[code]
			if !names[code.Name] { // instances that accept any version
				n += waiting[session.Code{Name: code.Name, Version: replay.NewestVersion}]
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

// codeNamesMax bounds the orchestrations named in a log line.
const codeNamesMax = 10

func codeNames(codes []session.Code) (names []string) {
	for _, code := range codes[:min(len(codes), codeNamesMax)] {
		name := fmt.Sprintf("%q", code.Name)
		if code.Version != "" {
			name += fmt.Sprintf(" version %q", code.Version)
		}
		names = append(names, name)
	}
	return names
}

// rebalance hands a partition over if that is due, unless members change or this node stops.
func (n *Node) rebalance(ctx context.Context, b *balancer) {
	weights := b.computeWeights(n.partitions)
	nodes, lastAnnounced := n.stableVoters()
	m, ok := b.decide(n.config.NodeID, n.filterNodesWithCode(nodes), n.leaders(), weights)
	if !ok || !lastAnnounced || n.stopping.Load() || !n.partitions[m.partition].isLeader() {
		return
	}
	b.unevenRounds = 0
	g := n.partitions[m.partition]
	if !g.offerLeadership(ctx, m.to) {
		b.excluded[m.to] = exclusionRounds
		return
	}
	b.cooldown = balanceCooldown
	n.config.Logger.Info("handing partition over to balance leaders", "partition", m.partition, "to", m.to)
	g.transferTo(ctx, m.to)
}

// transferTo hands the partition over to a node that has accepted it, and reports whether another
// node leads it afterwards.
func (g *partition) transferTo(ctx context.Context, node string) (transferred bool) {
	err := g.transferAndWait(ctx, func(ctx context.Context) error { return g.journal.TransferLeadershipTo(ctx, node) })
	if err != nil && ctx.Err() == nil {
		g.config.Logger.Warn("cannot hand partition over", "partition", g.number, "to", node, "error", err)
	}
	return err == nil
}

// filterNodesWithCode removes other nodes that are not registered as workers or lack code of this node.
// It removes none if this node leads no partition. A worker that does not report its code counts as
// having all.
func (n *Node) filterNodesWithCode(nodes []string) []string {
	led := n.ledPartitions()
	return slices.DeleteFunc(nodes, func(node string) bool {
		if node == n.config.NodeID || len(led) == 0 {
			return false
		}
		worker := led[0].worker(node)
		return worker == nil || worker.CodeKnown && !n.config.isCoveredBy(worker)
	})
}

// worker returns the registration of a worker, nil if there is none or this node does not lead.
func (g *partition) worker(node string) *session.RegisterWorker {
	p := g.actorPartition.Load()
	if p == nil {
		return nil
	}
	return p.Registration(node)
}

// leaders returns the leader of each partition, "" where it is unknown.
func (n *Node) leaders() (leaders []string) {
	for _, g := range n.partitions {
		leader, _ := g.journal.Leader()
		leaders = append(leaders, leader)
	}
	return leaders
}

// stableVoters returns the nodes, ordered by name, and whether all of them are voters in every
// partition.
func (n *Node) stableVoters() (nodes []string, lastAnnounced bool) {
	lastAnnounced = true
	for i, g := range n.partitions {
		var names []string
		for _, m := range g.journal.Members() {
			names = append(names, m.Node)
			lastAnnounced = lastAnnounced && m.Voter
		}
		if i == 0 {
			nodes = names
		}
		lastAnnounced = lastAnnounced && slices.Equal(names, nodes)
	}
	return nodes, lastAnnounced
}

// offerLeadership asks a node whether it would lead one more partition.
func (g *partition) offerLeadership(ctx context.Context, node string) bool {
	at := ""
	for _, m := range g.journal.Members() {
		if m.Node == node {
			at = m.Address
		}
	}
	response := g.askOnce(ctx, at, g.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_OfferLeadership{OfferLeadership: new(clusterpb.OfferLeadershipRequest)}}))
	return response.GetOfferLeadership().GetAccepted()
}

// handleLeadershipOffer accepts an offer if this node is ready.
func (n *Node) handleLeadershipOffer() (*clusterpb.Response, error) {
	if n.stopping.Load() {
		return nil, journal.ErrNotLeader
	}
	return &clusterpb.Response{Result: &clusterpb.Response_OfferLeadership{OfferLeadership: &clusterpb.OfferLeadershipResult{Accepted: n.Health().Ready() == nil}}}, nil
}
