package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/comparison"
	"github.com/tenuto-dev/tenuto/cluster/internal/crosspartition"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/retention"
	"github.com/tenuto-dev/tenuto/cluster/internal/routing"
	"github.com/tenuto-dev/tenuto/cluster/internal/worker"
	"github.com/tenuto-dev/tenuto/internal/logqueue"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A partition is this node's part in one Raft group. Each instance belongs to one partition, and
// every node takes part in all partitions.
type partition struct {
	awaitedFounders atomic.Bool // see protocolKeeper.raiseFirst
	node            *Node
	number          int
	journal         *journal.Journal
	// barrier returns nil when a majority has confirmed that this node leads; tests replace it.
	barrier func(ctx context.Context) error
	// actorPartition is set while this node leads the partition.
	actorPartition atomic.Pointer[actors.Partition]
	handingOver    atomic.Int32       // leadership transfers in progress
	leaderNotifier admission.Notifier // notified when another node leads, or this one begins to serve
	leaderCalls    routing.InFlight   // calls in flight to its leader
	forwarder      *routing.Forwarder
	startLimiter   admission.StartLimiter
	callLimiter    admission.CallLimiter
	seenIndex      routing.MaxIndex // highest journal index that calls through this node have seen

	views           *comparison.Server                // set with journal
	comparing       atomic.Pointer[comparison.Leader] // set while this node leads the partition
	comparisonStats comparison.Stats

	inputs     *instances.Inputs
	reads      *instances.Reads
	waits      runWaiter
	members    memberHandler
	workerLoop workerLoop
	workers    worker.Connected // that are no nodes, while this node leads
}

// setJournal sets the partition's journal, which its parts share.
func (pa *partition) setJournal(opened *journal.Journal) {
	pa.journal, pa.barrier = opened, opened.Barrier
	shared := instances.Partition{
		Journal:     opened,
		Registry:    pa.node.registry,
		Barrier:     func(ctx context.Context) error { return pa.barrier(ctx) },
		Leads:       func(p *actors.Partition) bool { return pa.actorPartition.Load() == p },
		VerifyToken: pa.node.tokens.verify,
		Answers:     &pa.node.answerLimiter,
		Owns:        func(instance string) bool { return pa.node.partitionOf(instance) == pa },
		ParentWaits: func(ctx context.Context, child *journalpb.Instance) (bool, error) {
			return retention.ParentWaits(ctx, opened, otherPartitionsOf(pa), child)
		},
		PauseOf: func(name string) *journalpb.PausedActivity { return pa.node.settings.pauseOf(name) },
	}
	pa.inputs, pa.reads = instances.NewInputs(shared), instances.NewReads(shared)
	pa.views = &comparison.Server{Journal: opened, Ask: askInPartition(pa), Step: pa.node.config.harness.RepairStep}
	pa.waits, pa.members, pa.workerLoop = runWaiter{pa, opened}, memberHandler{pa, opened}, workerLoop{pa, opened}
}

// partitionOf returns the partition of an instance.
func (n *Node) partitionOf(instance string) *partition {
	return n.partitions[slots.Partition(instance, len(n.partitions))]
}

// partitionFor returns the partition that a request is for, or the first if the request is for all.
func (n *Node) partitionFor(request *clusterpb.Request) *partition {
	switch {
	case request.Instance != "":
		return n.partitionOf(request.Instance)
	case request.Partition > 0:
		return n.partitions[request.Partition-1]
	}
	return n.partitions[0]
}

// Memory for the journals' state, of all partitions together. These are also the journal's
// defaults.
const (
	stateMemoryBytes = 128 << 20
	stateCacheBytes  = 64 << 20
)

// partitionDir returns a partition's directory.
func (c Config) partitionDir(partition int) string {
	return journal.PartitionDir(c.Dir, partition)
}

// A partitionOpener opens and closes the partitions of a node.
type partitionOpener struct{ node *Node }

// openPartitions opens the journals of all partitions, and closes them again on error.
func (o *partitionOpener) openPartitions(ctx context.Context) (err error) {
	defer func() {
		if journal.IsDiskFull(err) {
			err = fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
	}()
	if err := o.node.config.createPartitionDirs(); err != nil {
		close(o.node.openFailed)
		return err
	}
	for i := range o.node.config.Partitions {
		if err := o.openPartition(ctx, i); err != nil {
			close(o.node.openFailed)
			return errors.Join(err, o.closePartitions())
		}
	}
	return nil
}

func (o *partitionOpener) openPartition(ctx context.Context, i int) error {
	g := &partition{node: o.node, number: i, callLimiter: admission.NewCallLimiter()}
	g.forwarder = routing.NewForwarder(g.forwarderConfig())
	opened, err := journal.Open(ctx, o.journalConfig(g))
	if err != nil {
		return err
	}
	g.setJournal(opened)
	o.node.partitions = append(o.node.partitions, g)
	return nil
}

// createPartitionDirs creates the directories of all partitions before the node takes part in any.
func (c Config) createPartitionDirs() error {
	dirs := make([]string, c.Partitions)
	for i := range dirs {
		dirs[i] = c.partitionDir(i)
	}
	return journal.CreatePartitions(journal.Config{Node: c.NodeID, Cluster: c.ClusterID}, dirs)
}

func (o *partitionOpener) journalConfig(g *partition) journal.Config {
	config := journal.Config{
		Node:              o.node.config.NodeID,
		Identity:          o.node.identity(),
		Cluster:           o.node.config.ClusterID,
		Partitions:        o.node.config.Partitions,
		Partition:         g.number,
		Address:           o.node.config.address(),
		Peers:             o.node.config.journalPeers(),
		Join:              o.node.config.joins,
		AddressBook:       &o.node.directory.Book,
		Seeds:             o.node.config.Join,
		Protocol:          o.node.config.protocol,
		WallClock:         o.node.config.harness.WallClock,
		Dir:               o.node.config.partitionDir(g.number),
		Lead:              g.lead,
		LeaderChanged:     g.leaderChanged,
		MemberHint:        o.node.directory.IsHintedMember,
		Voters:            o.node.roles.VotersOf,
		Logger:            o.node.config.journalLogger,
		StateMemoryBytes:  stateMemoryBytes / o.node.config.Partitions,
		StateCacheBytes:   stateCacheBytes / o.node.config.Partitions,
		HeartbeatTimeout:  o.node.config.harness.HeartbeatTimeout,
		SnapshotThreshold: o.node.config.harness.SnapshotThreshold,
		SnapshotInterval:  o.node.config.harness.SnapshotInterval,
		TrailingLogs:      o.node.config.harness.TrailingLogs,
	}
	if o.node.config.Discover != nil && len(config.Peers) > 0 {
		config.Founders = func() ([]journal.Peer, error) { return o.node.introducer.Founders(o.node.config.journalPeers()) }
	}
	if o.node.mux != nil {
		config.Network = o.node.mux.NetworkOf(g.number)
	}
	if g.number == 0 {
		config.AskLineages = o.node.announcer.askLineages
	}
	if g.number > 0 {
		// The other partitions take the members and the time from the first.
		config.MemberHint, config.WallClock = o.node.directory.IsInFirstPartition, o.firstPartitionTime
	}
	if o.node.config.Partitions > 1 {
		config.Logger = config.Logger.With("partition", g.number)
	}
	return config
}

// identity returns the identity of the first partition's directory, "" before it is open. All
// partitions have the same.
func (n *Node) identity() string {
	if len(n.partitions) == 0 {
		return ""
	}
	return n.partitions[0].journal.Identity()
}

// firstPartitionTime returns the cluster time of the first partition, once it is known. The others
// use it as their wall clock, so that the cluster depends on one wall clock only.
func (o *partitionOpener) firstPartitionTime() time.Time {
	select {
	case <-o.node.opened:
		first := o.node.partitions[0].journal
		if o.node.poll(context.Background(), first.IsClockCurrent) == nil {
			return first.Now().AsTime()
		}
	case <-o.node.openFailed:
	}
	return time.Unix(0, 0) // the node is closing and leads no partition
}

// closePartitions closes all journals concurrently; each waits for its entries in flight.
func (o *partitionOpener) closePartitions() error {
	errs := make([]error, len(o.node.partitions))
	var closing sync.WaitGroup
	for i, g := range o.node.partitions {
		closing.Go(func() { errs[i] = g.journal.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

// lead is called by the journal for each epoch in which this node leads the partition. It returns
// when the epoch ends.
func (pa *partition) lead(ctx context.Context, epoch uint64) {
	select {
	case <-pa.node.opened:
	case <-ctx.Done():
		return // another partition could not be opened
	}
	if pa.node.settings.await(ctx, pa) != nil {
		return // the epoch has ended, or the node closes
	}
	protocolKeeper{pa}.raiseFirst(ctx)
	slot := actors.PartitionConfig{
		Partition: pa.number, Now: pa.journal.Now, HasIncarnations: pa.hasIncarnations, AppliedIndex: pa.journal.AppliedIndex,
		IsSuperseded: isSuperseded, SendMessage: pa.node.router.sendMessage, AppliedIndexOf: pa.node.router.appliedIndexOf,
		CheckRunOptions: pa.inputs.CheckRunOptions,
	}
	var background sync.WaitGroup
	if len(pa.node.partitions) > 1 {
		leader := crosspartition.NewLeader(pa.crossPartitions(), epoch)
		slot.OtherPartitions = leader
		background.Go(func() { leader.Run(ctx) })
	}
	if pa.number == 0 {
		background.Go(func() { pa.node.roles.Run(ctx) })
	}
	p := pa.node.system.LeadPartition(ctx, slot, actorsJournal{pa.journal}, epoch)
	pa.actorPartition.Store(p)
	pa.leaderNotifier.Notify()
	background.Go(func() { protocolKeeper{pa}.run(ctx) })
	background.Go(func() {
		if err := recordMissingCode(ctx, pa, epoch); err != nil && ctx.Err() == nil {
			pa.node.config.Logger.Warn("instances that wait for code are not all shown as such before their next input", "partition", pa.number, "error", err)
		}
	})
	sweeper := &retention.Sweeper{
		Store: pa.journal, Periods: pa.node.settings.retentionPeriods, Changed: pa.node.settings.changed.Next, Epoch: epoch, Now: pa.journal.Now,
		Logger: pa.node.config.Logger, OtherPartitions: otherPartitionsOf(pa),
	}
	background.Go(func() { sweeper.Run(ctx) })
	if !pa.node.config.InMemory {
		comparing := comparison.NewLeader(comparisonConfig(pa, p, epoch))
		pa.comparing.Store(comparing)
		background.Go(func() { comparing.Run(ctx) })
	}
	<-ctx.Done()
	pa.actorPartition.Store(nil)
	pa.comparing.Store(nil)
	p.Close()
	background.Wait()
}

// isLeader reports whether this node leads the partition.
func (pa *partition) isLeader() bool { return pa.actorPartition.Load() != nil }

// ledPartitions returns the partitions that this node leads.
func (n *Node) ledPartitions() (led []*partition) {
	for _, g := range n.partitions {
		if g.isLeader() {
			led = append(led, g)
		}
	}
	return led
}

// failureLogTimeout bounds how long Node.Failed and Node.Close wait until the handler has logged
// the failure or the stop: the program may exit at once.
const failureLogTimeout = time.Second

// watchFailure fails all partitions of the node when this one fails, because they share the disk.
// Only a removal fails just this partition: the others may still need this node's vote to remove
// it.
func (pa *partition) watchFailure() {
	select {
	case <-pa.journal.Failed():
	case <-pa.node.closing:
		return
	}
	all := true
	for _, other := range pa.node.partitions {
		if !errors.Is(pa.journal.Err(), ErrRemoved) {
			other.journal.Fail(pa.journal.Err())
		}
		all = all && other.journal.Err() != nil
	}
	if all {
		pa.node.failOnce.Do(func() {
			logqueue.Flush(pa.node.config.Logger, failureLogTimeout)
			close(pa.node.failed)
		})
	}
}
