package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A Node is Tenuto inside an application. Its methods may be called
// concurrently.
type Node struct {
	config   Config
	registry *replay.Registry
	port     *port // nil without Listen
	system   *actors.System
	journal  *journal.Journal
	calls    *callServer
	peers    *callPool

	// How a call is tried once, and how it is made sure that this node leads;
	// tests put themselves in between.
	ask     func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
	barrier func(ctx context.Context) error

	// The live side of the partition, while this node leads it.
	partition atomic.Pointer[actors.Partition]

	opened  chan struct{} // closed when journal is set
	closing chan struct{} // closed when the node begins to close
	watched chan struct{} // closed when the context given to Start is not watched any more

	stopOnce  sync.Once
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// Start starts a node and returns when it can take calls. Without peers that is
// when it leads itself; with peers, when it has opened its journal, whether the
// others are there or not.
//
// ctx bounds the start. When it ends later, the node begins to stop as if by
// [Node.Stop]. The error is a [*ConfigError] for a field that cannot be used,
// or says what could not be opened; then nothing is left running.
func Start(ctx context.Context, config Config) (*Node, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	registry, err := replay.NewRegistry(config.Definitions...)
	if err != nil {
		return nil, &ConfigError{"Definitions", err.Error()}
	}
	n := &Node{
		config:   config,
		registry: registry,
		peers:    newCallPool(),
		opened:   make(chan struct{}),
		closing:  make(chan struct{}),
		watched:  make(chan struct{}),
		closed:   make(chan struct{}),
	}
	n.ask = n.attempt
	if err := n.open(ctx); err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	go n.watch(ctx)
	return n, nil
}

// watch stops the node when the context given to Start ends.
func (n *Node) watch(ctx context.Context) {
	ended := false
	select {
	case <-ctx.Done():
		ended = true
	case <-n.closing:
	}
	close(n.watched)
	if ended {
		_ = n.Stop(context.WithoutCancel(ctx))
	}
}

// open opens the parts, from the outside in, and closes them again on error.
func (n *Node) open(ctx context.Context) error {
	var network journal.Network
	if n.config.Listen != "" {
		port, err := listen(n.config.Listen)
		if err != nil {
			return err
		}
		n.port = port
		network = port.raft
	}
	n.system = actors.NewSystem(actors.Config{
		Registry:      n.registry,
		Logger:        n.config.Logger,
		ActivitiesMax: n.config.ActivitiesMax,
		Tags:          n.config.Tags,
		ResidentMax:   n.config.ResidentMax,
		Grace:         n.config.StopGrace,
	})
	opened, err := journal.Open(ctx, journal.Config{
		Node:             n.config.NodeID,
		Address:          n.config.address(),
		Peers:            n.config.journalPeers(),
		Dir:              n.config.Dir,
		Network:          network,
		Lead:             n.lead,
		Logger:           n.config.journalLogger,
		HeartbeatTimeout: n.config.heartbeatTimeout(),
	})
	if err != nil {
		n.system.Close()
		if n.port != nil {
			n.port.close()
		}
		return err
	}
	n.journal, n.barrier = opened, opened.Barrier
	close(n.opened)
	if n.port != nil {
		n.calls = serveCalls(n, n.port.calls)
	}
	if err := n.awaitOwnLead(ctx); err != nil {
		n.shut()
		return err
	}
	return nil
}

// awaitOwnLead waits until a node without peers leads itself.
func (n *Node) awaitOwnLead(ctx context.Context) error {
	if len(n.config.Peers) > 1 {
		return nil
	}
	return n.poll(ctx, func() bool { return n.partition.Load() != nil })
}

// lead is called by the journal for each epoch in which this node leads, and
// returns when the epoch is over.
func (n *Node) lead(ctx context.Context, epoch uint64) {
	<-n.opened
	partition := n.system.Lead(ctx, n.journal, epoch)
	n.partition.Store(partition)
	var keeping sync.WaitGroup
	keeping.Go(func() { newKeeper(n, epoch).keep(ctx) })
	<-ctx.Done()
	n.partition.Store(nil)
	partition.Close()
	keeping.Wait()
}

// ID returns the node's name.
func (n *Node) ID() string { return n.config.NodeID }

// Leader returns the ID of the node that leads, as far as this one knows; ""
// if it knows of none.
func (n *Node) Leader() string {
	id, _ := n.journal.Leader()
	return id
}

// Leading tells whether this node leads.
func (n *Node) Leading() bool { return n.partition.Load() != nil }

// Client returns a client that calls through this node.
func (n *Node) Client() *Client { return &Client{node: n} }

// Failed returns a channel that is closed when the node has met damage or an
// error of its disk and takes no further part in the cluster; Err then says
// why. The process and other nodes are not touched by it.
func (n *Node) Failed() <-chan struct{} { return n.journal.Failed() }

// Err returns why the node has stepped aside, nil if it has not.
func (n *Node) Err() error { return n.journal.Err() }

// Stop stops the node gently: it hands leadership to another node first, if
// there is one, and lets activities finish within Config.StopGrace. ctx bounds
// the handing over. Calls that wait get [ErrClosed]. It may be called twice; both
// calls return when the node is closed.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		if n.Leading() && len(n.config.Peers) > 1 {
			if err := n.journal.TransferLeadership(ctx); err != nil {
				n.config.Logger.Warn("hand leadership over", "error", err)
			}
		}
	})
	return n.Close()
}

// Close stops the node where it is: nothing that was acknowledged is lost, and
// what was running goes on at the next leader, or when the node is started
// again. It may be called twice.
func (n *Node) Close() error {
	n.closeOnce.Do(func() {
		n.shut()
		<-n.watched
		close(n.closed)
	})
	<-n.closed
	return n.closeErr
}

// shut closes the parts. The order matters.
func (n *Node) shut() {
	// No new calls, and those that wait return, before what they wait for goes.
	close(n.closing)
	if n.calls != nil {
		n.calls.close()
	}
	// Ends leadership, and with it the partition; then nothing appends any more.
	n.closeErr = n.journal.Close()
	// Activities know since the end of the partition that they are to stop.
	n.system.Close()
	n.peers.close()
	// Last, because the journal's connections came through it.
	if n.port != nil {
		n.port.close()
	}
}
