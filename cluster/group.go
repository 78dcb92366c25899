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

// A group is this node's part in one of the Raft groups that keep the instances of
// the cluster between them. Every node takes part in all of them.
type group struct {
	*Node
	number  int
	journal *journal.Journal
	// How it is made sure that this node leads the group; tests put themselves in
	// between.
	barrier func(ctx context.Context) error
	// The live side of the group's partition, while this node leads it.
	partition atomic.Pointer[actors.Partition]
	handing   atomic.Bool // while leadership is handed over
	moved     bell        // rings when another node leads, or this one begins to serve
	attempts  attempts    // on their way to its leader
	forwarder *forwarder
	throttle  throttle
	gate      callGate
	seen      horizon // by calls through this node
}

// of returns the group of an instance.
func (n *Node) of(instance string) *group { return n.groups[slots.Group(instance, len(n.groups))] }

// groupFor returns the group that a request concerns; the first, if it concerns all.
func (n *Node) groupFor(request *clusterpb.Request) *group {
	switch {
	case request.Instance != "":
		return n.of(request.Instance)
	case request.Group > 0:
		return n.groups[request.Group-1]
	}
	return n.groups[0]
}

// Memory of the state of all groups together, as that of one has by default.
const (
	stateMemoryBytes = 128 << 20
	stateCacheBytes  = 64 << 20
)

// dirOf returns where a group keeps what it has: the first in Dir itself, as if
// there was no other.
func (c Config) dirOf(group int) string {
	if c.Dir == "" || group == 0 {
		return c.Dir
	}
	return filepath.Join(c.Dir, fmt.Sprintf("group-%03d", group))
}

// openGroups opens the journals of all groups, and closes them again on error.
func (n *Node) openGroups(ctx context.Context) (err error) {
	defer func() {
		if journal.IsDiskFull(err) {
			err = fmt.Errorf("%w: %w", ErrDiskFull, err)
		}
	}()
	if err := n.config.createGroups(); err != nil {
		close(n.unopened)
		return err
	}
	for i := range n.config.Groups {
		if err := n.openGroup(ctx, i); err != nil {
			close(n.unopened)
			return errors.Join(err, n.closeGroups())
		}
	}
	return nil
}

func (n *Node) openGroup(ctx context.Context, i int) error {
	g := &group{Node: n, number: i, gate: newCallGate()}
	g.forwarder = newForwarder(g)
	opened, err := journal.Open(ctx, n.journalConfig(g))
	if err != nil {
		return err
	}
	g.journal, g.barrier = opened, opened.Barrier
	n.groups = append(n.groups, g)
	return nil
}

// createGroups creates the directories of all groups before the node takes part in any.
func (c Config) createGroups() error {
	dirs := make([]string, c.Groups)
	for i := range dirs {
		dirs[i] = c.dirOf(i)
	}
	return journal.CreateGroups(journal.Config{Node: c.NodeID, Cluster: c.ClusterID}, dirs)
}

func (n *Node) journalConfig(g *group) journal.Config {
	config := journal.Config{
		Node:              n.config.NodeID,
		Identity:          n.identity(),
		Cluster:           n.config.ClusterID,
		Groups:            n.config.Groups,
		Group:             g.number,
		Address:           n.config.address(),
		Peers:             n.config.journalPeers(),
		Join:              n.config.Join != nil,
		Seeds:             n.config.Join,
		Protocol:          n.config.protocol,
		WallClock:         n.config.rig.WallClock,
		Dir:               n.config.dirOf(g.number),
		Lead:              g.lead,
		LeaderChanged:     g.leaderChanged,
		Vouched:           n.isVouched,
		Logger:            n.config.journalLogger,
		StateMemoryBytes:  stateMemoryBytes / n.config.Groups,
		StateCacheBytes:   stateCacheBytes / n.config.Groups,
		SnapshotThreshold: n.config.rig.SnapshotThreshold,
		SnapshotInterval:  n.config.rig.SnapshotInterval,
		TrailingLogs:      n.config.rig.TrailingLogs,
	}
	if n.port != nil {
		config.Network = n.port.networkOf(g.number)
	}
	if g.number > 0 {
		// The first group knows the members and the time.
		config.Vouched, config.WallClock = n.isInFirst, n.firstClock
	}
	if n.config.Groups > 1 {
		config.Logger = config.Logger.With("partition", g.number)
	}
	return config
}

// identity returns that of the first group's directory, "" before that is open: the
// directories of all groups have the same.
func (n *Node) identity() string {
	if len(n.groups) == 0 {
		return ""
	}
	return n.groups[0].journal.Identity()
}

// firstClock returns the cluster time of the first group, when that is known: the
// others begin with it, so that one wall clock is believed and not several. To them it
// is a wall clock, and so it becomes a time of the machine here.
func (n *Node) firstClock() time.Time {
	select {
	case <-n.opened:
		first := n.groups[0].journal
		if n.poll(context.Background(), first.ClockKept) == nil {
			return first.Now().Shown()
		}
	case <-n.unopened:
	}
	return time.Unix(0, 0) // the node closes, and leads nothing any more
}

// closeGroups closes all journals at once: each hands in what it has in flight.
func (n *Node) closeGroups() error {
	errs := make([]error, len(n.groups))
	var closing sync.WaitGroup
	for i, g := range n.groups {
		closing.Go(func() { errs[i] = g.journal.Close() })
	}
	closing.Wait()
	return errors.Join(errs...)
}

// lead is called by the journal for each epoch in which this node leads the group,
// and returns when the epoch is over.
func (g *group) lead(ctx context.Context, epoch uint64) {
	select {
	case <-g.opened:
	case <-ctx.Done():
		return // another group could not be opened
	}
	place := actors.Place{
		Group: g.number, Now: g.journal.Now, Incarnations: g.incarnations, AppliedIndex: g.journal.AppliedIndex,
		Superseded: meansAnotherLeads,
	}
	var keeping sync.WaitGroup
	if len(g.groups) > 1 {
		reign := newReign(g, epoch)
		place.Elsewhere = reign
		keeping.Go(func() { reign.keep(ctx) })
	}
	partition := g.system.LeadAt(ctx, place, g.journal, epoch)
	g.partition.Store(partition)
	g.moved.ring()
	keeping.Go(func() { g.raise(ctx) })
	keeping.Go(func() { newKeeper(g, epoch).keep(ctx) })
	<-ctx.Done()
	g.partition.Store(nil)
	partition.Close()
	keeping.Wait()
}

// leads tells whether this node leads the group.
func (g *group) leads() bool { return g.partition.Load() != nil }

// led returns the groups that this node leads.
func (n *Node) led() (led []*group) {
	for _, g := range n.groups {
		if g.leads() {
			led = append(led, g)
		}
	}
	return led
}

// guard has the node step aside from all groups when it has to from one: they share
// the disk. Only a node that was removed is removed from each by itself: until then
// the group may need its vote for that.
func (g *group) guard() {
	select {
	case <-g.journal.Failed():
	case <-g.closing:
		return
	}
	all := true
	for _, other := range g.groups {
		if !errors.Is(g.journal.Err(), ErrRemoved) {
			other.journal.Retire(g.journal.Err())
		}
		all = all && other.journal.Err() != nil
	}
	if all {
		g.failOnce.Do(func() { close(g.failed) })
	}
}
