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
	groups   []*group // all of them, from open on
	dialer   *dialer
	vouched  atomic.Pointer[vouching]
	calls    *callServer
	peers    *callPool
	running  sync.WaitGroup // goroutines of the node itself

	budget  budget
	answers answerBound
	// How a call is tried once; tests put themselves in between.
	ask func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response

	// The streams of workers, this node's own among them.
	working sync.WaitGroup

	metrics *metrics
	tracing *tracing // nil: off

	failed   chan struct{} // closed when a group has failed
	failOnce sync.Once

	opened   chan struct{} // closed when all groups are open
	unopened chan struct{} // closed when one cannot be opened
	closing  chan struct{} // closed when the node begins to close
	// Ends with closing: for what must not keep the node from closing.
	life    context.Context
	endLife context.CancelFunc
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
// [*UnavailableError]), or is [ErrDiskFull]; then nothing is left running.
func Start(ctx context.Context, config Config) (*Node, error) {
	if ctx == nil {
		return nil, &InputError{"context", "is nil"}
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	config.rig = rig.Of(ctx)
	registry, err := replay.NewRegistry(config.Definitions...)
	if err != nil {
		return nil, &ConfigError{"Definitions", unprefixed(err.Error())}
	}
	n := &Node{
		config:   config,
		registry: registry.WithPayloads(warnedIn(config.Payloads, config.Logger)),
		failed:   make(chan struct{}),
		opened:   make(chan struct{}),
		unopened: make(chan struct{}),
		closing:  make(chan struct{}),
		watched:  make(chan struct{}),
		closed:   make(chan struct{}),
	}
	n.ask = n.attempt
	n.answers = newAnswerBound(answersBytesMax)
	n.life, n.endLife = context.WithCancel(context.Background())
	n.metrics, n.tracing = newMetrics(n), newTracing(n, n.config.TracerProvider)
	n.dialer = &dialer{links: newLinks(n.isMember), nodeAt: n.nodeAt, route: detour.Of(ctx), life: n.life}
	n.dialer.links.groups = n.config.Groups
	n.peers = newCallPool(n.dialer)
	if err := n.takeKeys(); err != nil {
		n.endLife()
		return nil, err
	}
	n.logStart()
	if err := firstOf(ctx, n.checkGroups, n.open); err != nil {
		n.endLife()
		n.peers.close()
		return nil, fmt.Errorf("start node: %w", err)
	}
	n.running.Go(n.logReady)
	go n.watch(ctx)
	return n, nil
}

// logStart says which node starts, and with what.
func (n *Node) logStart() {
	c := n.config
	n.config.Logger.Info("node starts", "cluster", c.ClusterID, "dir", c.Dir, "in_memory", c.InMemory, "listen", c.Listen,
		"address", c.address(), "tls", c.TLS != nil, "version", moduleVersion(), "protocol", c.protocol, "partitions", c.Groups)
}

// readyEvery is how often a node that starts looks whether it is ready.
const readyEvery = 50 * time.Millisecond

// logReady says once that the node is ready, when it is.
func (n *Node) logReady() {
	began := time.Now()
	for n.Health().Ready() != nil {
		if n.rest(n.life, readyEvery) != nil {
			return // it stops
		}
	}
	n.config.Logger.Info("node ready", "leader", n.Leader(), "identity", n.identity(), "after", time.Since(began).Round(time.Millisecond))
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
	if n.config.Listen != "" {
		port, err := listen(n.config.Listen, n.dialer, n.opened, n.config.Logger)
		if err != nil {
			return err
		}
		n.port = port
		port.switchTo(n.config.Groups)
	}
	n.system = actors.NewSystem(n.actorsConfig())
	if err := n.openGroups(ctx); err != nil {
		n.system.Close()
		if n.port != nil {
			n.port.close()
		}
		return err
	}
	close(n.opened)
	for _, g := range n.groups {
		g.journal.Tap(n.metrics.taps(g))
		n.running.Go(g.guard)
	}
	if err := n.metrics.attach(n.config.MeterProvider); err != nil {
		n.config.Logger.Warn("no metrics", "error", err)
	}
	if n.port != nil {
		n.serveOthers()
	}
	if err := firstOf(ctx, n.join, n.awaitOwnLead); err != nil {
		n.shut()
		return err
	}
	return nil
}

// serveOthers begins what only a node with others around it does.
func (n *Node) serveOthers() {
	n.running.Go(func() { n.peers.forgetUntil(n.closing) })
	n.running.Go(n.attend)
	n.calls = serveCalls(&gate{n}, n.port.calls)
	for _, g := range n.groups {
		n.working.Go(g.work)
		n.running.Go(g.forward)
	}
	n.running.Go(n.spread)
}

// actorsConfig returns the configuration of the actors. What they bound for each
// partition, the groups share.
func (n *Node) actorsConfig() actors.Config {
	groups := n.config.Groups
	rates := make(map[string]actors.Rate, len(n.config.ActivityRates))
	for name, rate := range n.config.ActivityRates {
		rates[name] = actors.Rate{PerSecond: rate.PerSecond / float64(groups), Burst: (rate.Burst + groups - 1) / groups}
	}
	return actors.Config{
		Registry:       n.registry,
		Logger:         n.config.Logger,
		Groups:         groups,
		ActivitiesMax:  n.config.ActivitiesMax,
		ActivityLimits: n.config.ActivityLimits,
		ActivityRates:  rates,
		Tags:           n.config.Tags,
		Others:         n.otherMembers,
		ResidentMax:    shared(n.config.ResidentMax, residentMaxDefault, groups),
		WindowMax:      shared(0, windowMax, groups),
		WindowBytesMax: shared(0, windowBytesMax, groups),
		Limits:         actors.Limits(n.config.Limits),
		Grace:          n.config.StopGrace,
		Observer:       &observer{n.metrics, n.tracing},
		Tracer:         n.tracing.tracerOrNil(),
	}
}

// What may be in memory, and on its way, on one node.
const (
	residentMaxDefault = 10_000
	windowMax          = 100_000
	windowBytesMax     = 256 << 20
)

// shared returns a group's share of a bound, at least 1.
func shared(bound, byDefault, groups int) int {
	if bound <= 0 {
		bound = byDefault
	}
	return max(bound/groups, 1)
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
	if n.self() == nil || len(n.groups[0].journal.Members()) > 1 {
		return nil
	}
	return n.poll(ctx, func() bool { return len(n.led()) == len(n.groups) })
}

// check refuses a call of a node that [Start] has not returned.
func (n *Node) check() error {
	if n == nil || len(n.groups) == 0 {
		return &InputError{"node", "is nil or was not started: use Start"}
	}
	return nil
}

// ID returns the node's name, "" of one that is nil.
func (n *Node) ID() string {
	if n == nil {
		return ""
	}
	return n.config.NodeID
}

// Leader returns the ID of the node that leads, as far as this one knows; ""
// if it knows of none. Of several groups it is that of the first; see
// [Node.LeaderOf].
func (n *Node) Leader() string {
	if n.check() != nil {
		return ""
	}
	return n.groups[0].leader()
}

// LeaderOf returns the ID of the node that leads the group of an instance, as far as
// this one knows; "" if it knows of none.
func (n *Node) LeaderOf(instanceID string) string {
	if n.check() != nil {
		return ""
	}
	return n.of(instanceID).leader()
}

func (g *group) leader() string {
	id, _ := g.journal.Leader()
	return id
}

// Leading tells whether this node leads; of several groups, whether it leads the
// first.
func (n *Node) Leading() bool { return n.check() == nil && n.groups[0].leads() }

// Client returns a client that calls through this node. One of a node that is nil refuses
// every call.
func (n *Node) Client() *Client {
	if n.check() != nil {
		return new(Client)
	}
	return &Client{access: n, payloads: n.registry.Payloads()}
}

// release leaves the node as it is: its client has nothing of its own.
func (*Node) release() error { return nil }

// Failed returns a channel that is closed when the node has met damage or an
// error of its disk, or has learned that it was removed ([ErrRemoved]), and takes
// no further part in the cluster; Err then says why. One that is removed takes part
// until all groups have removed it, but no calls of its clients. The process and other
// nodes are not touched by it.
func (n *Node) Failed() <-chan struct{} {
	if n == nil {
		return nil
	}
	return n.failed
}

// Err returns why the node has stepped aside, nil if it has not.
func (n *Node) Err() error {
	if err := n.check(); err != nil {
		return err
	}
	for _, g := range n.groups {
		if err := g.journal.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops the node gently: it hands leadership to another node first, if there is
// one, and then closes the node. Before that it goes on for up to 5 s while another, that
// the rest need once this one is gone, is catching up. ctx bounds both. It ends the contexts
// of activities and waits up to Config.StopGrace for their bodies to return; other nodes
// begin them again. Calls that wait get [ErrClosed]. It may be called twice; both calls
// return when the node is closed.
func (n *Node) Stop(ctx context.Context) error {
	if err := n.check(); err != nil {
		return err
	}
	if ctx == nil {
		return &InputError{"context", "is nil"}
	}
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
	if err := n.check(); err != nil {
		return err
	}
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
	n.endLife() // nobody waits for a peer that says nothing
	if n.calls != nil {
		n.calls.close()
	}
	n.running.Wait()
	// Their streams have ended: this node's own with closing, others' with the calls.
	n.working.Wait()
	// Ends leadership, and with it the partition; then nothing appends any more.
	n.closeErr = n.closeGroups()
	// Activities know since the end of the partition that they are to stop.
	n.system.Close()
	n.peers.close()
	// Last, because the journal's connections came through it.
	if n.port != nil {
		n.port.close()
	}
}
