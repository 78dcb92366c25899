package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/crosspartition"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// While leadership changes, a node holds its calls until it serves them itself or the new leader is
// known. If it refused them, their backoff would grow and could last longer than the change.

// servingPartition returns the actors.Partition if this node leads the partition and is not handing
// it over, otherwise nil.
func (pa *partition) servingPartition() *actors.Partition {
	if pa.handingOver.Load() {
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
	limit := time.NewTimer(admission.LeaderWaitMax)
	defer limit.Stop()
	for {
		changed := pa.leaderNotifier.Next()
		if pa.servingPartition() != nil || pa.otherLeader() != "" || pa.journal.Err() != nil {
			return
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

// awaitLeaderChange waits until changed is closed. It returns an error if ctx or the node ends
// first.
func (pa *partition) awaitLeaderChange(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-pa.node.closing:
		return ErrClosed
	}
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

// handOver transfers leadership to another node, if there is one, and returns after that node
// serves calls. Stopping earlier would remove a vote that the next leader needs. It first waits
// until the partition can continue without this node.
func (pa *partition) handOver(ctx context.Context) error {
	if !pa.isLeader() || len(pa.journal.Members()) == 1 {
		return nil
	}
	pa.journal.AwaitSuccessors(ctx)
	return pa.transferAndWait(ctx, pa.journal.TransferLeadership)
}

// transferAndWait transfers leadership and returns after another node serves calls. Meanwhile this
// node holds its calls, so that no new entries delay the next leader.
func (pa *partition) transferAndWait(ctx context.Context, transfer func(context.Context) error) error {
	pa.handingOver.Store(true)
	defer pa.handingOver.Store(false)
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
		return nil, &InputError{"cross-partition messages", fmt.Sprintf("are %d: at most %d are allowed", len(r.Messages), crosspartition.MessagesMax)}
	}
	for _, c := range r.Messages {
		if err := pa.checkCrossMessage(c); err != nil {
			return nil, err
		}
	}
	return crosspartition.Receive(ctx, p, r), nil
}

// checkCrossMessage returns an error for a message that no correct node sends.
func (pa *partition) checkCrossMessage(c *clusterpb.CrossMessage) error {
	switch {
	case c.GetEvent() == nil:
		return &InputError{"cross-partition message", "has no event"}
	case pa.node.partitionOf(c.Instance) != pa:
		return &InputError{"cross-partition message", "is for another partition"}
	}
	return nil
}
