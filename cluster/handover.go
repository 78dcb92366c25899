package cluster

import (
	"context"
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
func (n *Node) serving() *actors.Partition {
	if n.handing.Load() {
		return nil
	}
	return n.partition.Load()
}

// otherLeader returns the address of the node that leads, "" if none is known or it
// is this one.
func (n *Node) otherLeader() string {
	if leader, address := n.journal.Leader(); leader != "" && leader != n.config.NodeID {
		return address
	}
	return ""
}

// hold waits until this node serves calls, or another is known to lead, for holdMax
// at most.
func (n *Node) hold(ctx context.Context) {
	limit := time.NewTimer(holdMax)
	defer limit.Stop()
	for {
		changed := n.leads.next()
		if n.serving() != nil || n.otherLeader() != "" || n.journal.Err() != nil {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		case <-n.closing:
			return
		}
	}
}

// leaderChanged is called by the journal.
func (n *Node) leaderChanged() {
	<-n.opened
	if address := n.otherLeader(); address != "" {
		n.attempts.abandon(address)
		n.peers.hurry(address)
	}
	n.leads.ring()
}

// handOver gives leadership to another node, if there is one, and returns when that
// serves calls. From here on they are held, so that nothing new keeps the others from
// catching up, and then sent there. To leave earlier would take a vote away that the
// next leader needs to begin.
func (n *Node) handOver(ctx context.Context) error {
	if !n.Leading() || len(n.journal.Members()) == 1 {
		return nil
	}
	n.handing.Store(true)
	defer n.handing.Store(false)
	epoch := n.journal.Epoch()
	if err := n.journal.TransferLeadership(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, handOverMax)
	defer cancel()
	return n.poll(ctx, func() bool { return n.journal.Epoch() > epoch && n.otherLeader() != "" })
}

// handOverMax bounds how long a node that stops waits for the next leader to begin.
const handOverMax = 2 * time.Second
