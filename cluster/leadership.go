package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// reviewInterval is how often a leader checks for new epochs of the other partitions.
const reviewInterval = 50 * time.Millisecond

// A leadership does, for one epoch, what the leader of a partition does together with the other
// partitions.
type crossPartitionLeader struct {
	partition     *partition
	epoch         uint64
	crossBatchers []*crossBatcher // by partition; nil for its own
	// The epochs of the other partitions up to which everything was reviewed.
	reviewedEpochs []uint64
}

// newLeadership must be called before the actors.Partition is opened: opening it recovers what
// earlier epochs of the other partitions have left.
func newLeadership(g *partition, epoch uint64) *crossPartitionLeader {
	r := &crossPartitionLeader{partition: g, epoch: epoch, crossBatchers: make([]*crossBatcher, len(g.partitions)), reviewedEpochs: make([]uint64, len(g.partitions))}
	for i, other := range g.partitions {
		r.reviewedEpochs[i] = other.journal.Epoch()
		if other != g {
			r.crossBatchers[i] = newCrossBatcher(other)
		}
	}
	return r
}

// Owns implements actors.OtherPartitions.
func (r *crossPartitionLeader) Owns(instance string) bool {
	return r.partition.partitionOf(instance) != r.partition
}

// Replica implements actors.OtherPartitions.
func (r *crossPartitionLeader) Replica(instance string) actors.Replica {
	return r.partition.partitionOf(instance).journal
}

// Send implements actors.OtherPartitions.
func (r *crossPartitionLeader) Send(c *actors.CrossMessage, done func(actors.Answer)) {
	r.crossBatchers[r.partition.partitionOf(c.Instance).number].put(pendingCrossMessage{c, done})
}

// ForgetChainedStart implements actors.OtherPartitions.
func (r *crossPartitionLeader) ForgetChainedStart(target string, done func(error)) {
	r.partition.journal.ForgetChainedStart(r.epoch, target, done)
}

// run sends cross-partition messages, synchronizes members and reviews new epochs, until ctx ends.
func (r *crossPartitionLeader) run(ctx context.Context) {
	var sending sync.WaitGroup
	defer sending.Wait()
	for _, c := range r.crossBatchers {
		if c != nil {
			sending.Go(func() { c.run(ctx) })
		}
	}
	sending.Go(func() { r.syncMembership(ctx) })
	ticker := time.NewTicker(reviewInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.review()
		case <-ctx.Done():
			return
		}
	}
}

// review checks the operations shared with partitions that have a new epoch. This node's replica of
// such a partition shows all that the previous leader committed.
func (r *crossPartitionLeader) review() {
	p := r.partition.actorPartition.Load()
	if p == nil {
		return
	}
	changed := make(map[*partition]bool)
	for i, other := range r.partition.partitions {
		if epoch := other.journal.Epoch(); other != r.partition && epoch != r.reviewedEpochs[i] {
			r.reviewedEpochs[i], changed[other] = epoch, true
		}
	}
	if len(changed) > 0 {
		p.ResendAfterFailover(func(instance string) bool { return changed[r.partition.partitionOf(instance)] })
	}
}

// syncMembership applies the first partition's decisions about members to this one, until ctx ends.
func (r *crossPartitionLeader) syncMembership(ctx context.Context) {
	for sleep(ctx, r.partition.closing, r.partition.config.maintenanceInterval) == nil {
		r.removeMembers(ctx)
		r.adoptMembers(ctx)
	}
}

// adoptMembers records in this partition the directories that the first partition has recorded. The
// first decides, and the client that asked may not repeat its call.
func (r *crossPartitionLeader) adoptMembers(ctx context.Context) {
	g, first := r.partition, r.partition.partitions[0]
	differing := func() map[string]string {
		decided := make(map[string]string)
		for _, m := range first.journal.Members() {
			decided[m.Node] = m.Identity
		}
		for _, m := range g.journal.Members() {
			if m.Identity == "" || decided[m.Node] == m.Identity {
				delete(decided, m.Node)
			}
		}
		return decided
	}
	if g.number == 0 || len(differing()) == 0 || first.catchUp(ctx) != nil {
		return
	}
	for node, identity := range differing() { // again: the first partition's replica has caught up
		if identity == "" || !g.journal.IsMember(node) || node == g.config.NodeID {
			continue
		}
		err := g.journal.AdoptMember(ctx, node, identity)
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrMembershipChanging) && !errors.Is(err, journal.ErrNotLeader) {
			g.config.Logger.Warn("cannot adopt member directory in partition", "member", node, "partition", g.number, "error", err)
		}
	}
}

// removeMembers removes from this partition the nodes that the first has removed. The first
// decides, and the client that asked may not repeat its call.
func (r *crossPartitionLeader) removeMembers(ctx context.Context) {
	g := r.partition
	removed := g.partitions[0].journal.RemovedNodes()
	for _, m := range g.journal.Members() {
		if _, gone := slices.BinarySearch(removed, m.Node); !gone || g.number == 0 {
			continue
		}
		err := g.journal.RemoveMember(ctx, m.Node)
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrMembershipChanging) && !errors.Is(err, journal.ErrNotLeader) {
			g.config.Logger.Warn("cannot remove member from partition", "member", m.Node, "partition", g.number, "error", err)
		}
	}
}

// catchUp waits until this node's replica of the partition has applied all that was committed
// before the call.
func (g *partition) catchUp(ctx context.Context) error {
	response, err := g.call(ctx, g.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_CommitIndex{CommitIndex: new(clusterpb.CommitIndexRequest)}}))
	if err != nil {
		return err
	}
	return g.poll(ctx, func() bool { return g.journal.AppliedIndex() >= response.AppliedIndex })
}
