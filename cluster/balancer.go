package cluster

import (
	"context"
	"slices"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/balance"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A leaderBalancer spreads the leaders of partitions over the nodes. It moves one partition at a
// time. The node with the most weight decides alone: its replicas show all leaders and how fast
// each journal grows. It asks only the node that would take over.
//
// Each round calls moveToWaitingCode first. Nodes report their code when they register as workers.
type leaderBalancer struct {
	node     *Node
	balancer *balance.Balancer
	// Nodes that declined a partition whose instances wait for code.
	refused balance.Exclusions
}

func newLeaderBalancer(n *Node) *leaderBalancer {
	return &leaderBalancer{node: n, balancer: balance.New(), refused: make(balance.Exclusions)}
}

// run hands partitions over until the node closes.
func (b *leaderBalancer) run() {
	n := b.node
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.running.Go(func() { <-n.closing; cancel() })
	for admission.Sleep(ctx, n.closing, n.config.maintenanceInterval) == nil {
		b.refused.NextRound()
		if b.moveToWaitingCode(ctx) {
			b.balancer.Pause()
		}
		if len(n.partitions) > 1 {
			b.rebalance(ctx)
		}
	}
}

// moveToWaitingCode hands over partitions in which instances wait for code of another node, and
// reports whether it moved any. That node must have all code of this one too, so no partition moves
// back and forth.
func (b *leaderBalancer) moveToWaitingCode(ctx context.Context) (moved bool) {
	n := b.node
	for _, g := range n.partitions {
		p := g.servingPartition()
		if p == nil || n.stopping.Load() {
			continue
		}
		waiting := p.WaitingForCode()
		if len(waiting) == 0 {
			continue
		}
		to, codes, instances := balance.NodeForCode(waiting, b.workersWithAllCode(g, p))
		if to == "" {
			continue
		}
		if !offerLeadership(ctx, g, to) {
			b.refused.Exclude(to)
			continue
		}
		moved = true
		n.config.Logger.Info("handing partition over to a node that has the code its instances wait for",
			"partition", g.number, "to", to, "instances", instances, "orchestrations", balance.CodeNames(codes))
		if !transferTo(ctx, g, to) {
			b.refused.Exclude(to)
		}
	}
	return moved
}

// workersWithAllCode returns the workers that have all code of this node and may lead the
// partition, ordered by name.
func (b *leaderBalancer) workersWithAllCode(g *partition, p *actors.Partition) (workers []*session.RegisterWorker) {
	for _, m := range g.journal.Members() {
		worker := p.Registration(m.Node)
		if m.Voter && m.Node != g.node.config.NodeID && b.refused[m.Node] == 0 && g.node.config.isCoveredBy(worker) {
			workers = append(workers, worker)
		}
	}
	return workers
}

// rebalance hands a partition over if that is due, unless members change or this node stops.
func (b *leaderBalancer) rebalance(ctx context.Context) {
	n := b.node
	applied := make([]uint64, len(n.partitions))
	for i, g := range n.partitions {
		applied[i] = g.journal.AppliedIndex()
	}
	weights := b.balancer.Weights(applied)
	nodes, lastAnnounced := b.stableVoters()
	m, ok := b.balancer.Decide(n.config.NodeID, b.filterNodesWithCode(nodes), b.leaders(), weights)
	if !ok || !lastAnnounced || n.stopping.Load() || !n.partitions[m.Partition].isLeader() {
		return
	}
	b.balancer.Offer()
	g := n.partitions[m.Partition]
	if !offerLeadership(ctx, g, m.To) {
		b.balancer.Exclude(m.To)
		return
	}
	b.balancer.Pause()
	n.config.Logger.Info("handing partition over to balance leaders", "partition", m.Partition, "to", m.To)
	transferTo(ctx, g, m.To)
}

// transferTo hands the partition over to a node that has accepted it, and reports whether another
// node leads it afterwards.
func transferTo(ctx context.Context, g *partition, node string) (transferred bool) {
	err := g.transferAndWait(ctx, func(ctx context.Context) error { return g.journal.TransferLeadershipTo(ctx, node) })
	if err != nil && ctx.Err() == nil {
		g.node.config.Logger.Warn("cannot hand partition over", "partition", g.number, "to", node, "error", err)
	}
	return err == nil
}

// filterNodesWithCode removes other nodes that are not registered as workers or lack code of this
// node. It removes none if this node leads no partition. A worker that does not report its code
// counts as having all.
func (b *leaderBalancer) filterNodesWithCode(nodes []string) []string {
	n := b.node
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
func (pa *partition) worker(node string) *session.RegisterWorker {
	p := pa.actorPartition.Load()
	if p == nil {
		return nil
	}
	return p.Registration(node)
}

// leaders returns the leader of each partition, "" where it is unknown.
func (b *leaderBalancer) leaders() (leaders []string) {
	for _, g := range b.node.partitions {
		leader, _ := g.journal.Leader()
		leaders = append(leaders, leader)
	}
	return leaders
}

// stableVoters returns the nodes, ordered by name, and whether all of them are voters in every
// partition.
func (b *leaderBalancer) stableVoters() (nodes []string, lastAnnounced bool) {
	lastAnnounced = true
	for i, g := range b.node.partitions {
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
func offerLeadership(ctx context.Context, g *partition, node string) bool {
	at := ""
	for _, m := range g.journal.Members() {
		if m.Node == node {
			at = m.Address
		}
	}
	response := g.node.askOnce(ctx, at, g.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_OfferLeadership{OfferLeadership: new(clusterpb.OfferLeadershipRequest)}}))
	return response.GetOfferLeadership().GetAccepted()
}

// handleLeadershipOffer accepts an offer if this node is ready.
func (d *dispatcher) handleLeadershipOffer() (*clusterpb.Response, error) {
	if d.node.stopping.Load() {
		return nil, journal.ErrNotLeader
	}
	return &clusterpb.Response{Result: &clusterpb.Response_OfferLeadership{OfferLeadership: &clusterpb.OfferLeadershipResult{Accepted: d.node.Health().Ready() == nil}}}, nil
}
