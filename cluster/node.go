package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/detour"
	"github.com/tenuto-dev/tenuto/internal/rig"
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
	dialer   *dialer
	vouched  atomic.Pointer[vouching]
	calls    *callServer
	peers    *callPool
	attempts attempts
	running  sync.WaitGroup // goroutines of the node itself

	budget   budget
	throttle throttle
	gate     callGate
	// How a call is tried once, and how it is made sure that this node leads;
	// tests put themselves in between.
	ask     func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
	barrier func(ctx context.Context) error

	// The streams of workers, this node's own among them.
	working sync.WaitGroup

	metrics *metrics
	tracing *tracing // nil: off

	// The live side of the partition, while this node leads it.
	partition atomic.Pointer[actors.Partition]
	handing   atomic.Bool // while leadership is handed over
	leads     bell        // rings when another node leads, or this one begins to serve

	opened  chan struct{} // closed when journal is set
	closing chan struct{} // closed when the node begins to close
	watched chan struct{} // closed when the context given to Start is not watched any more

	stopping  atomic.Bool // set when the node begins to stop
	stopOnce  sync.Once
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// Start starts a node and returns when it can take calls. Without peers that is
// when it leads itself; with peers, when it has opened its journal, whether the
// others are there or not; one that joins a cluster, when it was added. One whose
// state is damaged fetches it from another node first, and asks for up to a minute.
//
// ctx bounds the start. When it ends later, the node begins to stop as if by
// [Node.Stop]. The error is a [*ConfigError] for a field that cannot be used,
// or says what could not be opened, or why the node was not added ([ErrMember],
// [ErrRemoved], [ErrAddressTaken], [ErrTokenRequired] and its kin, [*VersionError],
// [*UnavailableError]); then nothing is left running.
func Start(ctx context.Context, config Config) (*Node, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	config.rig = rig.Of(ctx)
	registry, err := replay.NewRegistry(config.Definitions...)
	if err != nil {
		return nil, &ConfigError{"Definitions", err.Error()}
	}
	n := &Node{
		config:   config,
		registry: registry.WithPayloads(warnedIn(config.Payloads, config.Logger)),
		opened:   make(chan struct{}),
		closing:  make(chan struct{}),
		watched:  make(chan struct{}),
		closed:   make(chan struct{}),
	}
	n.ask, n.gate = n.attempt, newCallGate()
	n.metrics, n.tracing = newMetrics(n), newTracing(n, n.config.TracerProvider)
	n.dialer = &dialer{links: newLinks(n.isMember), nodeAt: n.nodeAt, route: detour.Of(ctx)}
	n.peers = newCallPool(n.dialer)
	if err := n.takeKeys(); err != nil {
		return nil, err
	}
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
		port, err := listen(n.config.Listen, n.dialer, n.config.Logger)
		if err != nil {
			return err
		}
		n.port = port
		network = port.raft
	}
	n.system = actors.NewSystem(actors.Config{
		Registry:       n.registry,
		Logger:         n.config.Logger,
		Now:            n.now,
		ActivitiesMax:  n.config.ActivitiesMax,
		ActivityLimits: n.config.ActivityLimits,
		ActivityRates:  n.config.ActivityRates,
		Tags:           n.config.Tags,
		Others:         n.otherMembers,
		ResidentMax:    n.config.ResidentMax,
		Limits:         n.config.Limits,
		Grace:          n.config.StopGrace,
		Observer:       &observer{n.metrics, n.tracing},
		Tracer:         n.tracing.tracerOrNil(),
	})
	config := n.config.journalConfig(network)
	config.Lead, config.LeaderChanged, config.Vouched = n.lead, n.leaderChanged, n.isVouched
	opened, err := journal.Open(ctx, config)
	if err != nil {
		n.system.Close()
		if n.port != nil {
			n.port.close()
		}
		return err
	}
	n.journal, n.barrier = opened, opened.Barrier
	close(n.opened)
	n.journal.Tap(n.metrics.taps())
	if err := n.metrics.attach(n.config.MeterProvider); err != nil {
		n.config.Logger.Warn("no metrics", "error", err)
	}
	if n.port != nil {
		n.running.Go(n.abandonLate)
		n.running.Go(n.attend)
		n.calls = serveCalls(&gate{n}, n.port.calls)
		n.working.Go(n.work)
	}
	if err := firstOf(ctx, n.join, n.awaitOwnLead); err != nil {
		n.shut()
		return err
	}
	return nil
}

// now returns the cluster time. It is asked for only where this node leads.
func (n *Node) now() time.Time {
	<-n.opened
	return n.journal.Now()
}

// takeKeys makes sure that the node has keys of its own, if it is to have any.
func (n *Node) takeKeys() error {
	if n.config.TLS == nil {
		return nil
	}
	self := Principal{RoleNode, n.config.NodeID}
	ring, err := newKeyring(n.config.TLS, n.config.ClusterID, func(owner Principal) error {
		if owner != self {
			return fmt.Errorf("the certificate is of %s, not of %s", owner, self)
		}
		return nil
	}, n.config.Logger)
	if err != nil {
		return &ConfigError{"TLS", "has no keys that can be used: " + err.Error()}
	}
	n.dialer.ring = ring
	return nil
}

// firstOf does one thing after the other, up to the first error.
func firstOf(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitOwnLead waits until a node that is the only one leads itself.
func (n *Node) awaitOwnLead(ctx context.Context) error {
	if n.self() == nil || len(n.journal.Members()) > 1 {
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
	n.leads.ring()
	var keeping sync.WaitGroup
	keeping.Go(func() { newKeeper(n, epoch).keep(ctx) })
	keeping.Go(func() { n.raise(ctx) })
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
func (n *Node) Client() *Client { return &Client{access: n, payloads: n.registry.Payloads()} }

// release leaves the node as it is: its client has nothing of its own.
func (*Node) release() error { return nil }

// Failed returns a channel that is closed when the node has met damage or an
// error of its disk, or has learned that it was removed ([ErrRemoved]), and takes
// no further part in the cluster; Err then says why. The process and other nodes are not touched by it.
func (n *Node) Failed() <-chan struct{} { return n.journal.Failed() }

// Err returns why the node has stepped aside, nil if it has not.
func (n *Node) Err() error { return n.journal.Err() }

// Stop stops the node gently: it hands leadership to another node first, if
// there is one, and lets activities finish within Config.StopGrace. ctx bounds
// the handing over. Calls that wait get [ErrClosed]. It may be called twice; both
// calls return when the node is closed.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		n.stopping.Store(true)
		if err := n.handOver(ctx); err != nil {
			n.config.Logger.Warn("hand leadership over", "error", err)
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
	n.stopping.Store(true)
	n.metrics.close() // no figure is read of what is being closed
	close(n.closing)
	if n.calls != nil {
		n.calls.close()
	}
	n.running.Wait()
	// Their streams have ended: this node's own with closing, others' with the calls.
	n.working.Wait()
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
