package crosspartition

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// reviewInterval is how often a leader checks for new epochs of the other partitions.
const reviewInterval = 50 * time.Millisecond

// A Partition is a partition of the cluster, on this node.
type Partition struct {
	Journal *journal.Journal
	// CatchUp waits until this node's replica shows all that was committed before the call.
	CatchUp func(ctx context.Context) error
	// Ask sends a request to the partition's leader, once.
	Ask func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
}

// Config describes the partition that this node leads, and the others.
type Config struct {
	Node       string
	Partition  int // that this node leads
	Partitions []Partition
	Owner      func(instance string) int // the partition of an instance
	// Actors returns the actors of the partition, nil while this node does not lead.
	Actors  func() *actors.Partition
	Closing <-chan struct{} // closed when the node begins to close
	// SyncInterval is how often the members are compared with those of the first partition.
	SyncInterval time.Duration
	Logger       *slog.Logger
}

// A Leader does, for one epoch, the work of a partition's leader that concerns the other
// partitions.
type Leader struct {
	Config
	own      *journal.Journal
	epoch    uint64
	batchers []*batcher // by partition; nil for its own
	// The epochs of the other partitions up to which everything was reviewed.
	reviewedEpochs []uint64
	hidden         atomic.Bool // a replica has hidden an instance since the last review
}

// NewLeader returns a Leader for an epoch. It must be called before the actors.Partition is opened,
// because opening it recovers what earlier epochs of the other partitions have left.
func NewLeader(config Config, epoch uint64) *Leader {
	r := &Leader{
		Config: config, own: config.Partitions[config.Partition].Journal, epoch: epoch,
		batchers: make([]*batcher, len(config.Partitions)), reviewedEpochs: make([]uint64, len(config.Partitions)),
	}
	for i, other := range config.Partitions {
		r.reviewedEpochs[i] = other.Journal.Epoch()
		if i != config.Partition {
			r.batchers[i] = newBatcher(other.Ask, r.own)
		}
	}
	return r
}

// ReviewAll makes the next review check the operations shared with all other partitions.
func (r *Leader) ReviewAll() { clear(r.reviewedEpochs) }

// Owns implements actors.OtherPartitions.
func (r *Leader) Owns(instance string) bool {
	return r.Owner(instance) != r.Partition
}

// Replica implements actors.OtherPartitions.
func (r *Leader) Replica(instance string) actors.Replica {
	return &replica{r.Partitions[r.Owner(instance)].Journal, r}
}

// Send implements actors.OtherPartitions.
func (r *Leader) Send(c *actors.CrossMessage, done func(actors.Answer)) {
	r.batchers[r.Owner(c.Instance)].put(pendingMessage{c, done})
}

// ForgetChainedStart implements actors.OtherPartitions.
func (r *Leader) ForgetChainedStart(target string, done func(error)) {
	r.own.ForgetChainedStart(r.epoch, target, done)
}

// Run sends cross-partition messages, synchronizes members and reviews new epochs, until ctx ends.
func (r *Leader) Run(ctx context.Context) {
	var sending sync.WaitGroup
	defer sending.Wait()
	for _, c := range r.batchers {
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
			r.followCuts(ctx)
			r.review()
		case <-ctx.Done():
			return
		}
	}
}

// review checks the operations shared with partitions that have a new epoch. This node's replica of
// such a partition shows all that the previous leader committed.
func (r *Leader) review() {
	p := r.Actors()
	if p == nil {
		return
	}
	changed := make(map[int]bool)
	for i, other := range r.Partitions {
		if epoch := other.Journal.Epoch(); i != r.Partition && epoch != r.reviewedEpochs[i] {
			r.reviewedEpochs[i], changed[i] = epoch, true
		}
	}
	if len(changed) > 0 {
		p.ResendAfterFailover(func(instance string) bool { return changed[r.Owner(instance)] })
	}
}

// syncMembership applies the first partition's decisions about members to this one, until ctx ends.
func (r *Leader) syncMembership(ctx context.Context) {
	for admission.Sleep(ctx, r.Closing, r.SyncInterval) == nil {
		r.removeMembers(ctx)
		r.adoptMembers(ctx)
	}
}

// adoptMembers records in this partition the directories that the first partition has recorded. The
// first decides, and the client that asked may not repeat its call.
func (r *Leader) adoptMembers(ctx context.Context) {
	first := r.Partitions[0]
	differing := func() map[string]string {
		decided := make(map[string]string)
		for _, m := range first.Journal.Members() {
			decided[m.Node] = m.Identity
		}
		for _, m := range r.own.Members() {
			if m.Identity == "" || decided[m.Node] == m.Identity {
				delete(decided, m.Node)
			}
		}
		return decided
	}
	if r.Partition == 0 || len(differing()) == 0 || first.CatchUp(ctx) != nil {
		return
	}
	for node, identity := range differing() { // again: the first partition's replica has caught up
		if identity == "" || !r.own.IsMember(node) || node == r.Node {
			continue
		}
		err := r.own.AdoptMember(ctx, node, identity)
		if err != nil && ctx.Err() == nil && !errors.Is(err, journal.ErrMembershipChanging) && !errors.Is(err, journal.ErrNotLeader) {
			r.Logger.Warn("cannot adopt member directory in partition", "member", node, "partition", r.Partition, "error", err)
		}
	}
}

// removeMembers removes from this partition the nodes that the first has removed. The first
// decides, and the client that asked may not repeat its call.
func (r *Leader) removeMembers(ctx context.Context) {
	removed := r.Partitions[0].Journal.RemovedNodes()
	for _, m := range r.own.Members() {
		if _, gone := slices.BinarySearch(removed, m.Node); !gone || r.Partition == 0 {
			continue
		}
		err := r.own.RemoveMember(ctx, m.Node)
		if err != nil && ctx.Err() == nil && !errors.Is(err, journal.ErrMembershipChanging) && !errors.Is(err, journal.ErrNotLeader) {
			r.Logger.Warn("cannot remove member from partition", "member", m.Node, "partition", r.Partition, "error", err)
		}
	}
}
