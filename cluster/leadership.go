package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/balance"
	"github.com/tenuto-dev/tenuto/cluster/internal/crosspartition"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// While leadership changes, a node holds its calls until it serves them itself or the new leader is
// known. If it rejected them, their backoff would grow and could last longer than the change.

// servingPartition returns the actors.Partition if this node leads the partition and is not handing
// it over, otherwise nil.
func (pa *partition) servingPartition() *actors.Partition {
	if pa.handingOver.Load() > 0 {
		return nil
	}
	return pa.actorPartition.Load()
}

// otherLeader returns the address of the leader, "" if it is unknown or this node.
func (pa *partition) otherLeader() string {
	if leader, address := pa.journal.Leader(); leader != "" && leader != pa.node.config.NodeID {
		return address
	}
	return ""
}

// awaitLeader waits until this node serves calls or another leader is known, for at most
// admission.LeaderWaitMax.
func (pa *partition) awaitLeader(ctx context.Context) {
	var limit *time.Timer // most calls do not wait
	for {
		changed := pa.leaderNotifier.Next()
		if pa.servingPartition() != nil || pa.otherLeader() != "" || pa.journal.Err() != nil {
			return
		}
		if limit == nil {
			limit = time.NewTimer(admission.LeaderWaitMax)
			defer limit.Stop()
		}
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		case <-pa.node.closing:
			return
		}
	}
}

// leaderChanged cancels calls to a former leader and wakes calls that wait for a new one. The
// journal calls it.
func (pa *partition) leaderChanged() {
	select {
	case <-pa.node.opened:
	case <-pa.node.openFailed:
		return
	}
	pa.cancelStaleCalls()
	if address := pa.otherLeader(); address != "" {
		pa.node.peers.Preconnect(address)
	}
	pa.leaderNotifier.Notify()
}

// handOver hands over leadership of all partitions; see partition.handOver.
func (n *Node) handOver(ctx context.Context) error {
	errs := make([]error, len(n.partitions))
	var handing sync.WaitGroup
	for i, g := range n.partitions {
		handing.Go(func() { errs[i] = g.handOver(ctx) })
	}
	handing.Wait()
	return errors.Join(errs...)
}

// handOver transfers leadership to another voter, if there is one, and returns after that node
// serves calls. Stopping earlier would remove a vote that the next leader needs. It first waits
// until the partition can continue without this node.
func (pa *partition) handOver(ctx context.Context) error {
	if !pa.isLeader() || !hasOtherVoter(pa) {
		return nil
	}
	pa.journal.AwaitSuccessors(ctx)
	err := pa.transferAndWait(ctx, pa.journal.TransferLeadership)
	if errors.Is(err, journal.ErrNotLeader) {
		return nil // lost meanwhile
	}
	return err
}

// hasOtherVoter reports whether another node has a vote in the partition.
func hasOtherVoter(pa *partition) bool {
	return slices.ContainsFunc(pa.journal.Members(), func(m journal.Member) bool { return m.Voter && m.Node != pa.node.config.NodeID })
}

func checkTransferLeadership(r *clusterpb.TransferLeadershipRequest) error {
	if r.GetTo() == r.GetFrom() {
		return invalidArgument("to", "is the node whose leadership is transferred")
	}
	return firstError(checkText("from", r.GetFrom(), 1, nodeIDMax), checkText("to", r.GetTo(), 0, nodeIDMax))
}

// transferLeadership transfers leadership of the partition, if this node leads it and is asked to.
func (h *memberHandler) transferLeadership(ctx context.Context, request *clusterpb.Request, r *clusterpb.TransferLeadershipRequest) (*clusterpb.Response, error) {
	done := &clusterpb.Response{Result: &clusterpb.Response_TransferLeadership{TransferLeadership: new(clusterpb.TransferLeadershipResult)}}
	for _, named := range []string{r.From, r.To} {
		if named != "" && !h.journal.IsMember(named) {
			return nil, fmt.Errorf("%w: %q", ErrNotMember, named)
		}
	}
	switch {
	case r.From != h.partition.node.config.NodeID:
		return done, nil
	case !hasOtherVoter(h.partition):
		return nil, ErrLastVoter
	}
	h.partition.node.config.Logger.Info("handing partition over on request", "partition", h.partition.number, "to", r.To, "principal", request.Principal)
	transfer := h.journal.TransferLeadership
	if r.To != "" {
		transfer = func(ctx context.Context) error { return h.journal.TransferLeadershipTo(ctx, r.To) }
	}
	h.journal.AwaitSuccessors(ctx)
	return done, h.partition.transferAndWait(ctx, transfer)
}

// transferAndWait transfers leadership and returns after another node serves calls. Meanwhile this
// node holds its calls, so that no new entries delay the next leader.
func (pa *partition) transferAndWait(ctx context.Context, transfer func(context.Context) error) error {
	pa.handingOver.Add(1)
	defer pa.handingOver.Add(-1)
	epoch := pa.journal.Epoch()
	if err := transfer(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	return pa.node.poll(ctx, func() bool { return pa.journal.Epoch() > epoch && pa.otherLeader() != "" })
}

// handOverTimeout bounds how long a node waits for the next leader to serve.
const handOverTimeout = 2 * time.Second

// catchUp waits until this node's replica of the partition has applied all that was committed
// before the call.
func (pa *partition) catchUp(ctx context.Context) error {
	response, err := pa.node.router.call(ctx, pa.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_CommitIndex{CommitIndex: new(clusterpb.CommitIndexRequest)}}))
	if err != nil {
		return err
	}
	return pa.node.poll(ctx, func() bool { return pa.journal.AppliedIndex() >= response.AppliedIndex })
}

// crossPartitions returns the configuration of package crosspartition for this partition.
func (pa *partition) crossPartitions() crosspartition.Config {
	config := crosspartition.Config{
		Node:         pa.node.config.NodeID,
		Partition:    pa.number,
		Owner:        func(instance string) int { return pa.node.partitionOf(instance).number },
		Actors:       pa.actorPartition.Load,
		Closing:      pa.node.closing,
		SyncInterval: pa.node.config.maintenanceInterval,
		Logger:       pa.node.config.Logger,
	}
	for _, other := range pa.node.partitions {
		config.Partitions = append(config.Partitions, crosspartition.Partition{
			Journal: other.journal,
			CatchUp: other.catchUp,
			Ask: func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
				return pa.node.ask(ctx, other.prepareRequest(request))
			},
		})
	}
	return config
}

// receiveCrossMessages receives messages of another partition, on the leader of this one.
func (pa *partition) receiveCrossMessages(ctx context.Context, p *actors.Partition, r *clusterpb.CrossMessagesRequest) (*clusterpb.Response, error) {
	if len(r.Messages) > crosspartition.MessagesMax {
		return nil, invalidArgument("cross-partition messages", fmt.Sprintf("are %d: at most %d are allowed", len(r.Messages), crosspartition.MessagesMax))
	}
	for _, c := range r.Messages {
		if err := pa.checkCrossMessage(c); err != nil {
			return nil, err
		}
	}
	return crosspartition.Receive(ctx, p, pa.journal, r)
}

// checkCrossMessage returns an error for a message that no correct node sends.
func (pa *partition) checkCrossMessage(c *clusterpb.CrossMessage) error {
	switch {
	case c.GetEvent() == nil:
		return invalidArgument("cross-partition message", "has no event")
	case pa.node.partitionOf(c.Instance) != pa:
		return invalidArgument("cross-partition message", "is for another partition")
	}
	return nil
}

// A leaderBalancer spreads the leaders of partitions over the nodes. It moves one partition at a
// time. The node with the most weight decides alone: its replicas show all leaders and how fast
// each journal grows. It asks only the node that would take over.
//
// Each round calls moveToWaitingCode first. Nodes report their code when they register as workers.
type leaderBalancer struct {
	node     *Node
	balancer *balance.Balancer
	// Nodes that declined a partition whose instances wait for code.
	rejected balance.Exclusions
}

func newLeaderBalancer(n *Node) *leaderBalancer {
	return &leaderBalancer{node: n, balancer: balance.New(), rejected: make(balance.Exclusions)}
}

// run hands partitions over until the node closes.
func (b *leaderBalancer) run() {
	n := b.node
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.running.Go(func() { <-n.closing; cancel() })
	for admission.Sleep(ctx, n.closing, n.config.maintenanceInterval) == nil {
		b.rejected.NextRound()
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
			b.rejected.Exclude(to)
			continue
		}
		moved = true
		n.config.Logger.Info("handing partition over to a node that has the code its instances wait for",
			"partition", g.number, "to", to, "instances", instances, "orchestrations", balance.CodeNames(codes))
		if !transferTo(ctx, g, to) {
			b.rejected.Exclude(to)
		}
	}
	return moved
}

// workersWithAllCode returns the workers that have all code of this node and may lead the
// partition, ordered by name.
func (b *leaderBalancer) workersWithAllCode(g *partition, p *actors.Partition) (workers []*clusterpb.RegisterWorker) {
	for _, m := range g.journal.Members() {
		worker := p.Registration(m.Node)
		if m.Voter && m.Node != g.node.config.NodeID && b.rejected[m.Node] == 0 && g.node.config.isCoveredBy(worker) {
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
	nodes, stable := b.stableVoters()
	m, ok := b.balancer.Decide(n.config.NodeID, b.filterNodesWithCode(nodes), b.leaders(), weights)
	if !ok || !stable || n.stopping.Load() || !n.partitions[m.Partition].isLeader() {
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
		return worker == nil || session.KnowsCode(worker) && !n.config.isCoveredBy(worker)
	})
}

// worker returns the registration of a worker, nil if there is none or this node does not lead.
func (pa *partition) worker(node string) *clusterpb.RegisterWorker {
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

// stableVoters returns the nodes that are to vote, ordered by name, and whether exactly these are
// the voters of every partition.
func (b *leaderBalancer) stableVoters() (nodes []string, stable bool) {
	for i, g := range b.node.partitions {
		var names, voters []string
		for _, m := range g.journal.Members() {
			names = append(names, m.Node)
			if m.Voter {
				voters = append(voters, m.Node)
			}
		}
		if i == 0 {
			if nodes, stable = b.node.roles.VotersOf(names); !stable {
				return nil, false
			}
		}
		stable = stable && slices.Equal(voters, nodes)
	}
	return nodes, stable
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

// acceptLeadership accepts an offer of leadership if this node is ready.
func (r *replicaCalls) acceptLeadership(_ context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if r.node.stopping.Load() {
		return nil, journal.ErrNotLeader
	}
	result := &clusterpb.OfferLeadershipResult{Accepted: r.node.Health().Ready() == nil && !isQuarantined(r.node.partitionFor(request), "")}
	return &clusterpb.Response{Result: &clusterpb.Response_OfferLeadership{OfferLeadership: result}}, nil
}

// recordMissingCode records, once a leadership has begun, that its running instances wait for code
// that this node does not have, also those without input. A leader with the code removes that
// again. The cost is proportional to the number of such instances, or to that of all instances if
// the index is not complete. An error ends it: the condition of an instance is recorded at its next
// input.
func recordMissingCode(ctx context.Context, pa *partition, epoch uint64) error {
	if !pa.journal.IsIndexed() {
		return recordMissingCodeInPass(ctx, pa, epoch)
	}
	running := index.Query{States: []index.State{index.Running, index.Suspended}}
	groups, err := pa.journal.CountBy(ctx, &running, index.Grouping{Dimension: index.DimensionName}, index.Grouping{Dimension: index.DimensionVersion})
	if err != nil {
		return err
	}
	for _, group := range groups {
		name, version := group.Values[0], group.Values[1]
		if pa.node.registry.HasOrchestration(name, version) {
			continue
		}
		q := running
		q.Name, q.Version = name, version
		var after *index.Cursor
		for more := true; more; {
			page, err := pa.journal.Query(ctx, &q, after, listMax)
			if err != nil {
				return err
			}
			for _, known := range page.Instances {
				if err := recordWaitsForCode(ctx, pa, epoch, known); err != nil {
					return err
				}
			}
			after, more = &page.Next, page.More
		}
	}
	return nil
}

// recordMissingCodeInPass is recordMissingCode in one pass over all instances.
func recordMissingCodeInPass(ctx context.Context, pa *partition, epoch uint64) error {
	for known := range pa.journal.Instances() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		state := state.RunState(known.Status, known.Condition.GetKind(), known.Suspended)
		if state != index.Running && state != index.Suspended || pa.node.registry.HasOrchestration(known.Name, known.Version) {
			continue
		}
		if err := recordWaitsForCode(ctx, pa, epoch, known); err != nil {
			return err
		}
	}
	return pa.journal.Err()
}

// recordWaitsForCode records that an instance waits for code, unless its history has grown.
func recordWaitsForCode(ctx context.Context, pa *partition, epoch uint64, known *journalpb.Instance) error {
	done := make(chan error, 1)
	pa.journal.SetCondition(&journalpb.SetCondition{
		Instance: known.Instance, Epoch: epoch, Incarnation: known.Incarnation, Execution: known.Execution, LastEventId: known.LastEventId,
		Condition: &journalpb.Condition{Kind: journalpb.ConditionKind_CONDITION_KIND_WAITING_FOR_CODE},
	}, func(err error) { done <- err })
	select {
	case err := <-done:
		if errors.As(err, new(*state.ConflictError)) {
			return nil
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
