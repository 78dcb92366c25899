package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/backup"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/cluster/internal/detour"
	"github.com/tenuto-dev/tenuto/cluster/internal/membership"
	"github.com/tenuto-dev/tenuto/cluster/internal/report"
	"github.com/tenuto-dev/tenuto/cluster/internal/roles"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/cluster/internal/server"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/internal/lineage"
	"github.com/tenuto-dev/tenuto/internal/logqueue"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Node runs Tenuto inside an application. Its methods may be called concurrently.
type Node struct {
	config     Config
	settings   clusterSettings
	tokens     completionTokens
	registry   *engine.Registry
	mux        *transport.Mux // nil without Listen
	system     *actors.System
	partitions []*partition // set by open
	dialer     *transport.Dialer
	calls      *server.Server
	peers      callPool
	recoverer  server.Recoverer
	running    sync.WaitGroup // the node's own goroutines

	opener         partitionOpener
	directory      membership.Directory
	introducer     membership.Introducer
	discoverer     membership.Discoverer
	acquaintance   callPool // for introductions and lineages: at their addresses there may be any node
	announcer      announcer
	router         router
	client         Client // must not be used before the partitions are open
	dispatcher     dispatcher
	replicaCalls   replicaCalls
	scatter        scatterGather
	roles          *roles.Keeper
	backups        *backup.Server                 // set when the partitions are open
	backupProgress atomic.Pointer[backupProgress] // of a scheduled backup; nil before the first

	retryBudget   admission.RetryBudget
	answerLimiter admission.AnswerLimiter
	// ask makes one attempt of a call; tests replace it.
	ask func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response

	// Goroutines of worker streams, including the streams that this node opens.
	workerStreams sync.WaitGroup

	rates   *telemetry.Rates
	metrics *telemetry.Metrics
	tracing *telemetry.Tracing // nil: off

	failed   chan struct{} // closed when all partitions have failed
	failOnce sync.Once

	opened     chan struct{} // closed when all partitions are open
	openFailed chan struct{} // closed when one cannot be opened
	closing    chan struct{} // closed when the node begins to close
	// ctx ends when the node begins to close. It is for work that must not delay that.
	ctx       context.Context
	cancel    context.CancelFunc
	watchDone chan struct{} // closed when the context given to Start is no longer watched

	startedAt time.Time

	stopping  atomic.Bool // set when the node begins to stop
	stopOnce  sync.Once
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// Start starts a node and returns when the node can take calls. A node without peers can do so when
// it leads. A node with peers can do so when it has opened its journal, even if no other node is
// up. A node that joins a cluster can do so when the cluster has added it. A node whose state is
// damaged first fetches the state from another node, trying for up to a minute.
//
// ctx bounds the start. If it ends later, the node begins to stop as if by [Node.Stop]. The error
// is a [*replay.InvalidError] for an invalid field, [ErrDiskFull], or says what could not be
// opened. For a node that was not added, it is [ErrMemberExists], [ErrRemoved], [ErrAddressTaken],
// [ErrOtherDirectory], [ErrDirectoryCopied], [ErrPartitionCount], [ErrOtherCluster],
// [ErrNotAuthorized], [ErrTokenRequired] or another token error, [*VersionError] or
// [*UnavailableError]. For a Dir of the time before the cluster was restored or recovered, it is
// journal.ErrOtherLineage. After an error nothing is left running.
func Start(ctx context.Context, config Config) (*Node, error) {
	if ctx == nil {
		return nil, invalidArgument("context", "is nil")
	}
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	if overrides, ok := harness.FromContext(ctx); ok {
		config.harness = overrides
		config.protocol = cmp.Or(overrides.Protocol, config.protocol)
	}
	definitions := slices.Concat(ownDefinitions(), config.Definitions)
	registry, err := engine.NewRegistry(definitions...)
	if err != nil {
		return nil, invalidConfig("Definitions", wire.TrimPrefix(err.Error()))
	}
	n := &Node{
		config:     config,
		startedAt:  time.Now(),
		failed:     make(chan struct{}),
		opened:     make(chan struct{}),
		openFailed: make(chan struct{}),
		closing:    make(chan struct{}),
		watchDone:  make(chan struct{}),
		closed:     make(chan struct{}),
	}
	n.attachParts()
	settings := config.Settings.withDefaults()
	n.settings.current.Store(&settings)
	n.registry = registry.WithStrict(config.Strict).
		WithInterceptors(config.OrchestrationInterceptors, telemetry.WithBaggage(config.BaggageHeaders, config.ActivityInterceptors)).
		WithPayloadConverter(withPayloadWarnings(config.PayloadConverter, config.Logger, n.settings.payloadMax))
	n.ask = n.router.callLeader
	n.client = Client{&n.router, n.registry.PayloadConverter(), callOptions{config.ClientInterceptors, config.BaggageHeaders}}
	n.recoverer = server.Recoverer{Logger: config.Logger, Node: config.NodeID}
	n.answerLimiter = admission.NewAnswerLimiter(admission.AnswersInFlightBytesMax)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.rates = telemetry.NewRates(time.Now)
	n.metrics = telemetry.NewMetrics(telemetry.Config{
		Node: config.NodeID, Partitions: config.Partitions, Definitions: definitions, Closed: ErrClosed, Rates: n.rates,
	}, telemetrySource{n})
	n.tracing = telemetry.NewTracing(config.NodeID, config.TracerProvider, telemetrySource{n}.readEvent)
	n.dialer = &transport.Dialer{
		Links: transport.NewLinks(n.directory.IsMember, n.config.Partitions), NodeAt: n.directory.NodeAt, Route: detour.Of(ctx), Context: n.ctx,
	}
	n.peers = newCallPool(n.dialer)
	if err := n.openTLSSource(); err != nil {
		n.cancel()
		return nil, err
	}
	anyNode := *n.dialer
	anyNode.NodeAt = func(string) string { return "" }
	n.acquaintance = newCallPool(&anyNode)
	if err := runSteps(ctx, n.announcer.checkJoinTarget, n.open); err != nil {
		n.cancel()
		n.peers.Close()
		n.acquaintance.Close()
		return nil, fmt.Errorf("start node: %w", err)
	}
	logStarted(n)
	n.running.Go(n.logReady)
	go n.stopWhenDone(ctx)
	return n, nil
}

// ownDefinitions returns what every node registers by itself: the code of schedules and of bulk
// jobs.
func ownDefinitions() []replay.Definition {
	return slices.Concat(bulk.Definitions(bulkControl), schedules.Definitions(schedules.Control{
		Parent: func(ctx context.Context, id string) (string, error) {
			client, _ := ClientFrom(ctx)
			status, err := client.Get(ctx, id)
			if err != nil {
				return "", err
			}
			return status.ParentID, nil
		},
		Cancel: func(ctx context.Context, id, reason string) error {
			client, _ := ClientFrom(ctx)
			return client.Cancel(ctx, id, reason)
		},
		Terminate: func(ctx context.Context, id, reason string) error {
			client, _ := ClientFrom(ctx)
			return client.Terminate(ctx, id, reason)
		},
	}))
}

// attachParts gives the parts of the node access to it.
func (n *Node) attachParts() {
	n.opener, n.announcer = partitionOpener{n}, announcer{n}
	n.directory.Opened, n.directory.Replicas = n.opened, n.announcer.replicas
	n.announcer.attachDiscovery()
	n.router, n.dispatcher = router{n}, dispatcher{n}
	n.replicaCalls, n.scatter = replicaCalls{n}, scatterGather{n}
	n.settings.node, n.tokens.node = n, n
	n.roles = newRoleKeeper(n)
}

// logStarted logs which node has started. It is the only line of a start at INFO: a start that
// succeeds within readyLogAfter says nothing more.
func logStarted(n *Node) {
	c, latest := n.config, lineage.Latest(n.partitions[0].journal.Lineages())
	c.Logger.Info("node started", "version", moduleVersion(), "revision", report.Revision(), "protocol", c.protocol, "address", c.address(), "role", startRole(n),
		"cluster", c.ClusterID, "lineage", latest.GetId(), "identity", n.identity(), "partitions", c.Partitions, "tls", c.TLS != nil, "dir", c.Dir)
}

// startRole returns the role of a node that has just started, as its replica shows it. The decision
// about a new member may not be applied there yet.
func startRole(n *Node) string {
	recorded, _ := n.roles.Latest()
	switch self, decided := n.self(), roles.Find(recorded, n.config.NodeID); {
	case self == nil && len(n.partitions[0].journal.Members()) == 0:
		return "founder" // waits until all founders run
	case self != nil && decided != nil && !decided.Voter:
		return roles.Standby
	case self != nil && (decided != nil || self.Voter):
		return roles.Voter
	}
	return "unknown"
}

const (
	// readyInterval is how often a starting node checks whether it is ready.
	readyInterval = 50 * time.Millisecond
	// readyLogAfter is how long a start may take without a further line in the log.
	readyLogAfter = 10 * time.Second
)

// logReady waits until the node is ready. It logs that at INFO if it took long.
func (n *Node) logReady() {
	level := slog.LevelDebug
	for n.Health().Ready() != nil {
		if n.sleep(n.ctx, readyInterval) != nil {
			return // the node closes
		}
	}
	took := time.Since(n.startedAt)
	if took >= readyLogAfter {
		level = slog.LevelInfo
	}
	n.config.Logger.Log(n.ctx, level, "node ready", "leader", n.Leader(), "after", took.Round(time.Millisecond))
}

// stopWhenDone stops the node when the context given to Start ends.
func (n *Node) stopWhenDone(ctx context.Context) {
	ended := false
	select {
	case <-ctx.Done():
		ended = true
	case <-n.closing:
	}
	close(n.watchDone)
	if ended {
		_ = n.Stop(context.WithoutCancel(ctx))
	}
}

// open opens the port, the actors and the partitions, in that order. On error it closes them again.
func (n *Node) open(ctx context.Context) error {
	if n.config.Listen != "" {
		mux, err := transport.Listen(n.config.Listen, n.dialer, n.opened, n.config.Logger)
		if err != nil {
			return err
		}
		n.mux = mux
		mux.SplitByPartition(n.config.Partitions)
	}
	n.system = actors.NewSystem(n.actorsConfig())
	n.system.SetActivityPlacement(placements[n.settings.current.Load().ActivityPlacement])
	if err := n.opener.openPartitions(ctx); err != nil {
		n.system.Close()
		if n.mux != nil {
			n.mux.Close()
		}
		return err
	}
	n.backups = backup.NewServer(backupPartitions(n), n.config.Logger)
	n.settings.apply() // before this node leads a partition
	close(n.opened)
	n.running.Go(n.settings.follow)
	for _, g := range n.partitions {
		g.journal.SetObservers(n.metrics.JournalObservers(g.number))
		n.running.Go(g.watchFailure)
	}
	if err := n.metrics.Attach(n.config.MeterProvider); err != nil {
		n.config.Logger.Warn("cannot record metrics", "error", err)
	}
	if n.mux != nil {
		n.servePeers()
	}
	if err := runSteps(ctx, n.announcer.join, n.awaitOwnLeadership); err != nil {
		n.closeParts()
		return err
	}
	if n.config.Backups != nil {
		n.running.Go(func() { runBackups(n) })
	}
	return nil
}

// servePeers starts the goroutines that only a node with a listener needs.
func (n *Node) servePeers() {
	n.running.Go(func() { n.peers.CloseUnusedUntil(n.closing) })
	n.running.Go(func() { n.acquaintance.CloseUnusedUntil(n.closing) })
	n.running.Go(n.announcer.maintainMembership)
	if n.config.Discover != nil {
		n.running.Go(func() { n.discoverer.Run(n.ctx) })
	}
	n.calls = serveCalls(&nodeService{n}, n.mux)
	for _, g := range n.partitions {
		n.workerStreams.Go(g.workerLoop.work)
		n.running.Go(g.runForwarder)
	}
	n.running.Go(newLeaderBalancer(n).run)
}

// actorsConfig returns the configuration of the actors. It divides bounds that each partition
// applies by the number of partitions.
func (n *Node) actorsConfig() actors.Config {
	partitions := n.config.Partitions
	settings := n.settings.current.Load()
	return actors.Config{
		Registry:         n.registry,
		Logger:           n.config.Logger,
		Partitions:       partitions,
		ActivitiesMax:    n.config.ActivitiesMax,
		ActivityLimits:   n.config.ActivityLimits,
		ActivityRates:    settings.activityRates(partitions),
		Tags:             n.config.Tags,
		LeaderExempt:     n.config.LeaderExempt,
		OtherNodes:       n.otherWorkerCount,
		ResidentMax:      partitionShare(n.config.ResidentMax, residentMaxDefault, partitions),
		InFlightMax:      partitionShare(0, inFlightMax, partitions),
		InFlightBytesMax: partitionShare(0, inFlightBytesMax, partitions),
		Limits:           actors.Limits(settings.Limits),
		AttemptContext:   n.tokens.signer().WithContext(context.WithValue(context.Background(), clientKey{}, &n.client)),
		HungAfter:        n.config.HungAfter,
		GracePeriod:      n.config.StopGrace,
		Observer:         telemetry.NewObserver(n.metrics, n.tracing),
		Tracer:           n.tracing.Tracer(),
	}
}

// Defaults and bounds for one node.
const (
	residentMaxDefault = 10_000
	inFlightMax        = 100_000
	inFlightBytesMax   = 256 << 20
)

// partitionShare returns a partition's share of a bound, at least 1.
func partitionShare(bound, byDefault, partitions int) int {
	if bound <= 0 {
		bound = byDefault
	}
	return max(bound/partitions, 1)
}

// openTLSSource sets the TLS source of the dialer. The configured keys must belong to this node.
func (n *Node) openTLSSource() error {
	if n.config.TLS == nil {
		return nil
	}
	self := Principal{PrincipalNode, n.config.NodeID}
	tlsSource, err := newTLSSource(n.config.TLS, n.config.ClusterID, func(owner Principal) error {
		if owner != self {
			return fmt.Errorf("the certificate belongs to %s, not to %s", owner, self)
		}
		return nil
	}, n.config.Logger)
	if err != nil {
		return invalidConfig("TLS", "has no usable keys: "+err.Error())
	}
	n.dialer.TLSSource = tlsSource
	context.AfterFunc(n.ctx, tlsSource.Close)
	return nil
}

// runSteps runs the steps in order, up to the first error.
func runSteps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// awaitOwnLeadership waits until this node leads every partition, if it is the only member.
func (n *Node) awaitOwnLeadership(ctx context.Context) error {
	if n.self() == nil || len(n.partitions[0].journal.Members()) > 1 {
		return nil
	}
	return n.poll(ctx, func() bool { return len(n.ledPartitions()) == len(n.partitions) })
}

// check returns an error for a node that [Start] has not returned.
func (n *Node) check() error {
	if n == nil || len(n.partitions) == 0 {
		return invalidArgument("node", "is nil or was not started: use Start")
	}
	return nil
}

// ID returns the node's ID, "" for a nil node.
func (n *Node) ID() string {
	if n == nil {
		return ""
	}
	return n.config.NodeID
}

// Leader returns the ID of the leader according to this node, "" if it is unknown. With several
// partitions it is the leader of the first; see [Node.LeaderOf].
func (n *Node) Leader() string {
	if n.check() != nil {
		return ""
	}
	return n.partitions[0].leader()
}

// LeaderOf returns the ID of the leader of an instance's partition according to this node, "" if it
// is unknown.
func (n *Node) LeaderOf(instanceID string) string {
	if n.check() != nil {
		return ""
	}
	return n.partitionOf(instanceID).leader()
}

func (pa *partition) leader() string {
	id, _ := pa.journal.Leader()
	return id
}

// IsLeader reports whether this node leads; with several partitions, whether it leads the first.
func (n *Node) IsLeader() bool { return n.check() == nil && n.partitions[0].isLeader() }

// Client returns a client that calls through this node. The client of a nil node rejects every
// call.
func (n *Node) Client() *Client {
	if n.check() != nil {
		return new(Client)
	}
	return &n.client
}

// release does nothing: a node's client holds no resources of its own.
func (r *router) release() error { return nil }

// Failed returns a channel that is closed when the node has failed. A node fails when it finds
// damage or a disk error, or learns that the cluster was restored or recovered without it
// (journal.ErrOtherLineage), that it was removed ([ErrRemoved]) or runs with a copied Dir
// ([ErrDirectoryCopied]). It then takes no further part in the cluster, and Err returns the reason.
// A node that is being removed takes part until all partitions have removed it, but rejects its
// clients' calls. Neither the process nor other nodes are affected.
func (n *Node) Failed() <-chan struct{} {
	if n == nil {
		return nil
	}
	return n.failed
}

// Err returns why the node has failed, nil if it has not.
func (n *Node) Err() error {
	if err := n.check(); err != nil {
		return err
	}
	for _, g := range n.partitions {
		if err := g.journal.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops the node gracefully: it transfers leadership to another node, if there is one, and
// then closes the node. If the others need a member for a majority that is still catching up, the
// node first keeps running for up to 5 s. ctx bounds that wait and the transfer. Stop ends the
// contexts of activities and waits up to Config.StopGrace for their functions to return. Other
// nodes start these activities again. Waiting calls get [ErrClosed]. Stop may be called twice; both
// calls return when the node is closed.
func (n *Node) Stop(ctx context.Context) error {
	if err := n.check(); err != nil {
		return err
	}
	if ctx == nil {
		return invalidArgument("context", "is nil")
	}
	n.stopOnce.Do(func() {
		n.stopping.Store(true)
		if err := n.handOver(ctx); err != nil {
			n.config.Logger.Warn("cannot transfer leadership, closing anyway", "error", err)
		}
	})
	return n.Close()
}

// Close stops the node without transferring leadership. Nothing acknowledged is lost, and running
// work continues at the next leader, or when the node is started again. Close may be called twice.
func (n *Node) Close() error {
	if err := n.check(); err != nil {
		return err
	}
	n.closeOnce.Do(func() {
		n.closeParts()
		n.config.Logger.Info("node stopped", "uptime", time.Since(n.startedAt).Round(time.Millisecond))
		logqueue.Flush(n.config.Logger, failureLogTimeout) // the process may exit next
		<-n.watchDone
		close(n.closed)
	})
	<-n.closed
	return n.closeErr
}

// closeParts closes the parts. The order matters.
func (n *Node) closeParts() {
	// First end new and waiting calls, before closing what they wait for.
	n.stopping.Store(true)
	n.metrics.Close() // metrics must not read parts that are being closed
	// Before calls of activities end with ErrClosed, which must not count as the activities'
	// errors.
	n.system.StopAttempts()
	close(n.closing)
	n.cancel() // so that nothing waits for an unresponsive peer, or for keys
	if n.calls != nil {
		n.calls.Close()
	}
	n.running.Wait()
	// This node's own worker streams end because of n.closing, the others because of n.calls.Close.
	n.workerStreams.Wait()
	// While the journals are open: a checkpoint that is being made waits for them.
	backupErr := n.backups.Close()
	for _, g := range n.partitions {
		g.views.Close()
	}
	// This ends leadership and the partitions with it; after that nothing appends.
	n.closeErr = errors.Join(n.opener.closePartitions(), backupErr)
	n.system.Close()
	n.peers.Close()
	n.acquaintance.Close()
	// Last, because the journals' connections come through the mux.
	if n.mux != nil {
		n.mux.Close()
	}
}
