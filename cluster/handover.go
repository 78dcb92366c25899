package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
)

// While leadership changes hands, calls are held where they are until somebody
// serves them, or it is known who will. To refuse them would cost each a pause that
// grows, and the last to come back would be late by more than the change took.

// holdMax bounds that. A call that is refused then is repeated like any other.
const holdMax = 500 * time.Millisecond

// A bell wakes those who wait for something to change. The zero value is ready.
type bell struct {
	mu   sync.Mutex
	rung chan struct{}
}

// next returns a channel that is closed when the bell rings next. Whoever looks at
// what changes has to have it before.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rung == nil {
		b.rung = make(chan struct{})
	}
	return b.rung
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rung != nil {
		close(b.rung)
		b.rung = nil
	}
}

// serving returns the live side of the partition if this node leads it, and is not
// about to hand it over.
func (g *group) serving() *actors.Partition {
	if g.handing.Load() {
		return nil
	}
	return g.partition.Load()
}

// otherLeader returns the address of the node that leads, "" if none is known or it
// is this one.
func (g *group) otherLeader() string {
	if leader, address := g.journal.Leader(); leader != "" && leader != g.config.NodeID {
		return address
	}
	return ""
}

// hold waits until this node serves calls, or another is known to lead, for holdMax
// at most.
func (g *group) hold(ctx context.Context) {
	limit := time.NewTimer(holdMax)
	defer limit.Stop()
	for {
		changed := g.moved.next()
		if g.serving() != nil || g.otherLeader() != "" || g.journal.Err() != nil {
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

// leaderChanged is called by the journal.
func (g *group) leaderChanged() {
	select {
	case <-g.opened:
	case <-g.unopened:
		return
	}
	g.abandonLate()
	if address := g.otherLeader(); address != "" {
		g.peers.hurry(address)
	}
	g.moved.ring()
}

// awaitMove waits until the bell rings whose next ring was asked for, unless ctx or the
// node ends first.
func (g *group) awaitMove(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-g.closing:
		return ErrClosed
	}
}

// handOver gives leadership of all groups to other nodes; see group.handOver.
func (n *Node) handOver(ctx context.Context) error {
	errs := make([]error, len(n.groups))
	var handing sync.WaitGroup
	for i, g := range n.groups {
		handing.Go(func() { errs[i] = g.handOver(ctx) })
	}
	handing.Wait()
	return errors.Join(errs...)
}

// handOver gives leadership to another node, if there is one, and returns when that
// serves calls. To leave earlier would take a vote away that the next leader needs to
// begin; and before, one that the group cannot do without yet.
func (g *group) handOver(ctx context.Context) error {
	if !g.leads() || len(g.journal.Members()) == 1 {
		return nil
	}
	g.journal.AwaitSuccessors(ctx)
	return g.yield(ctx, g.journal.TransferLeadership)
}

// yield has leadership transferred and returns when another node serves calls. From
// here on they are held, so that nothing new keeps the others from catching up, and
// then sent there.
func (g *group) yield(ctx context.Context, transfer func(context.Context) error) error {
	g.handing.Store(true)
	defer g.handing.Store(false)
	epoch := g.journal.Epoch()
	if err := transfer(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handOverMax)
	defer cancel()
	return g.poll(ctx, func() bool { return g.journal.Epoch() > epoch && g.otherLeader() != "" })
}

// handOverMax bounds how long a node waits for the next leader to begin.
const handOverMax = 2 * time.Second
