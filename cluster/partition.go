package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A partition is this node's part in one Raft group. Each instance belongs to one partition, and
// every node takes part in all partitions.
type partition struct {
	*Node
	number  int
	journal *journal.Journal
	// barrier returns nil when a majority has confirmed that this node leads; tests replace it.
	barrier func(ctx context.Context) error
	// actorPartition is set while this node leads the partition.
	actorPartition atomic.Pointer[actors.Partition]
	handingOver    atomic.Bool   // during a leadership transfer
	leaderNotifier notifier      // notified when another node leads, or this one begins to serve
	leaderCalls    inFlightCalls // calls in flight to its leader
	forwarder      *forwarder
	startLimiter   startLimiter
	callLimiter    callLimiter
	seenIndex      maxIndex // highest journal index that calls through this node have seen
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

// partitionDir returns a partition's directory. The first partition uses Dir itself, with one
// partition or several.
func (c Config) partitionDir(partition int) string {
	if c.Dir == "" || partition == 0 {
		return c.Dir
	}
	return filepath.Join(c.Dir, fmt.Sprintf("group-%03d", partition))
}

// openPartitions opens the journals of all partitions, and closes them again on error.
func (n *Node) openPartitions(ctx context.Context) (err error) {
	defer func() {
		if journal.IsDiskFull(err) {
			err = fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
	}()
	if err := n.config.createPartitionDirs(); err != nil {
		close(n.openFailed)
		return err
	}
	for i := range n.config.Partitions {
		if err := n.openPartition(ctx, i); err != nil {
			close(n.openFailed)
			return errors.Join(err, n.closePartitions())
		}
	}
	return nil
}

func (n *Node) openPartition(ctx context.Context, i int) error {
	g := &partition{Node: n, number: i, callLimiter: newCallLimiter()}
	g.forwarder = newForwarder(g)
	opened, err := journal.Open(ctx, n.journalConfig(g))
	if err != nil {
		return err
	}
	g.journal, g.barrier = opened, opened.Barrier
	n.partitions = append(n.partitions, g)
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

func (n *Node) journalConfig(g *partition) journal.Config {
	config := journal.Config{
		Node:              n.config.NodeID,
		Identity:          n.identity(),
		Cluster:           n.config.ClusterID,
		Partitions:        n.config.Partitions,
		Partition:         g.number,
		Address:           n.config.address(),
		Peers:             n.config.journalPeers(),
		Join:              n.config.Join != nil,
		Seeds:             n.config.Join,
		Protocol:          n.config.protocol,
		WallClock:         n.config.harness.WallClock,
		Dir:               n.config.partitionDir(g.number),
		Lead:              g.lead,
		LeaderChanged:     g.leaderChanged,
		MemberHint:        n.isHintedMember,
		Logger:            n.config.journalLogger,
		StateMemoryBytes:  stateMemoryBytes / n.config.Partitions,
		StateCacheBytes:   stateCacheBytes / n.config.Partitions,
		SnapshotThreshold: n.config.harness.SnapshotThreshold,
		SnapshotInterval:  n.config.harness.SnapshotInterval,
		TrailingLogs:      n.config.harness.TrailingLogs,
	}
	if n.mux != nil {
		config.Network = n.mux.networkOf(g.number)
	}
	if g.number > 0 {
		// The other partitions take the members and the time from the first.
		config.MemberHint, config.WallClock = n.isInFirstPartition, n.firstPartitionTime
	}
	if n.config.Partitions > 1 {
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
func (n *Node) firstPartitionTime() time.Time {
	select {
	case <-n.opened:
		first := n.partitions[0].journal
		if n.poll(context.Background(), first.IsClockCurrent) == nil {
			return first.Now().AsTime()
		}
	case <-n.openFailed:
	}
	return time.Unix(0, 0) // the node is closing and leads no partition
}

// closePartitions closes all journals concurrently; each waits for its entries in flight.
func (n *Node) closePartitions() error {
	errs := make([]error, len(n.partitions))
	var closing sync.WaitGroup
	for i, g := range n.partitions {
		closing.Go(func() { errs[i] = g.journal.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

// lead is called by the journal for each epoch in which this node leads the partition. It returns
// when the epoch ends.
func (g *partition) lead(ctx context.Context, epoch uint64) {
	select {
	case <-g.opened:
	case <-ctx.Done():
		return // another partition could not be opened
	}
	slot := actors.PartitionConfig{
		Partition: g.number, Now: g.journal.Now, HasIncarnations: g.hasIncarnations, AppliedIndex: g.journal.AppliedIndex,
		IsSuperseded: isLeadershipLost,
	}
	var background sync.WaitGroup
	if len(g.partitions) > 1 {
		leadership := newLeadership(g, epoch)
		slot.OtherPartitions = leadership
		background.Go(func() { leadership.run(ctx) })
	}
	p := g.system.LeadPartition(ctx, slot, g.journal, epoch)
	g.actorPartition.Store(p)
	g.leaderNotifier.notify()
	background.Go(func() { g.raiseProtocol(ctx) })
	background.Go(func() { newRetentionSweeper(g, epoch).run(ctx) })
	<-ctx.Done()
	g.actorPartition.Store(nil)
	p.Close()
	background.Wait()
}

// isLeader reports whether this node leads the partition.
func (g *partition) isLeader() bool { return g.actorPartition.Load() != nil }

// ledPartitions returns the partitions that this node leads.
func (n *Node) ledPartitions() (led []*partition) {
	for _, g := range n.partitions {
		if g.isLeader() {
			led = append(led, g)
		}
	}
	return led
}

// watchFailure fails all partitions of the node when this one fails, because they share the disk.
// Only a removal fails just this partition: the others may still need this node's vote to remove
// it.
func (g *partition) watchFailure() {
	select {
	case <-g.journal.Failed():
	case <-g.closing:
		return
	}
	all := true
	for _, other := range g.partitions {
		if !errors.Is(g.journal.Err(), ErrRemoved) {
			other.journal.Fail(g.journal.Err())
		}
		all = all && other.journal.Err() != nil
	}
	if all {
		g.failOnce.Do(func() { close(g.failed) })
	}
}
