package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
)

// While leadership changes, a node holds its calls until it serves them itself or knows the new
// leader. If it refused them, their backoff would grow and could last longer than the change.

// leaderWaitMax bounds that wait. A call refused after the wait is retried like any other.
const leaderWaitMax = 500 * time.Millisecond

// A notifier wakes all goroutines that wait for a change. The zero value is ready to use.
type notifier struct {
	mu      sync.Mutex
	changed chan struct{}
}

// next returns a channel that is closed at the next notify. The caller must get it before it checks
// the state that may change.
func (b *notifier) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

func (b *notifier) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// servingPartition returns the actors.Partition if this node leads the partition and is not handing
// it over, otherwise nil.
func (g *partition) servingPartition() *actors.Partition {
	if g.handingOver.Load() {
		return nil
	}
	return g.actorPartition.Load()
}

// otherLeader returns the address of the leader, "" if it is unknown or this node.
func (g *partition) otherLeader() string {
	if leader, address := g.journal.Leader(); leader != "" && leader != g.config.NodeID {
		return address
	}
	return ""
}

// awaitLeader waits until this node serves calls or another leader is known, for at most
// leaderWaitMax.
func (g *partition) awaitLeader(ctx context.Context) {
	limit := time.NewTimer(leaderWaitMax)
	defer limit.Stop()
	for {
		changed := g.leaderNotifier.next()
		if g.servingPartition() != nil || g.otherLeader() != "" || g.journal.Err() != nil {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		case <-g.closing:
			return
		}
	}
}

// leaderChanged cancels calls to a former leader and wakes calls that wait for a new one. The
// journal calls it.
func (g *partition) leaderChanged() {
	select {
	case <-g.opened:
	case <-g.openFailed:
		return
	}
	g.cancelStaleCalls()
	if address := g.otherLeader(); address != "" {
		g.peers.preconnect(address)
	}
	g.leaderNotifier.notify()
}

// awaitLeaderChange waits until changed is closed. It returns an error if ctx or the node ends
// first.
func (g *partition) awaitLeaderChange(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.closing:
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
func (g *partition) handOver(ctx context.Context) error {
	if !g.isLeader() || len(g.journal.Members()) == 1 {
		return nil
	}
	g.journal.AwaitSuccessors(ctx)
	return g.transferAndWait(ctx, g.journal.TransferLeadership)
}

// transferAndWait transfers leadership and returns after another node serves calls. Meanwhile this
// node holds its calls, so that no new entries delay the next leader.
func (g *partition) transferAndWait(ctx context.Context, transfer func(context.Context) error) error {
	g.handingOver.Store(true)
	defer g.handingOver.Store(false)
	epoch := g.journal.Epoch()
	if err := transfer(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	return g.poll(ctx, func() bool { return g.journal.Epoch() > epoch && g.otherLeader() != "" })
}

// handOverTimeout bounds how long a node waits for the next leader to serve.
const handOverTimeout = 2 * time.Second
