package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A Sample holds the values of all observables at one moment.
type Sample struct {
	Ready         bool
	Actors        actors.Stats
	Attempts      actors.ActivityCounts
	StartsShed    uint64
	StartsWaiting int // in the start queue
	Partitions    []PartitionSample
	// Protocol is that of the cluster, NextProtocol one that all members speak and the cluster does
	// not use yet, 0 if there is none.
	Protocol, NextProtocol uint32
	// VotersWanted is how many members are to vote, RoleChanges how often this node has changed
	// which.
	VotersWanted int
	RoleChanges  uint64
	// CertificateExpires is when the node's certificate expires, the zero time if it has none.
	CertificateExpires time.Time
	// Backups is what the node knows of scheduled backups, nil if there is nothing to know.
	Backups *clusterpb.BackupReport
	// SinceStart is the time since the start of the node.
	SinceStart time.Duration
}

// A PartitionSample is the part of a sample that belongs to one partition.
type PartitionSample struct {
	Leads        bool
	Role         string
	Term         uint64
	Applied      uint64
	Behind       uint64
	SinceContact time.Duration
	Journal      journal.Stats
	Members      []journal.Member
	// Of comparisons: how many replicas of instances are in quarantine on this node, and how many
	// instances are stopped; see comparison.Stats for the rest.
	Quarantined, Stopped, Differences uint64
	ComparisonAge, ComparisonTook     time.Duration

	attributes []attribute.KeyValue // the partition, if there are several
	node       string
	instances  map[actors.State]int // nil where the node does not lead
}

// sample takes a sample, unless the node is closed.
func (m *Metrics) sample(ctx context.Context) (*Sample, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false
	}
	s := m.source.Sample()
	for i := range s.Partitions {
		g := &s.Partitions[i]
		g.attributes, g.node = m.attributesOf(i), m.config.Node
		g.instances = m.refreshCounts(ctx, i, g.Leads)
	}
	return s, true
}

// attributesOf returns a partition's attribute, none if it is the only partition.
func (m *Metrics) attributesOf(partition int) []attribute.KeyValue {
	if m.config.Partitions == 1 {
		return nil
	}
	return []attribute.KeyValue{partitionKey.Int(partition)}
}

// instanceCounts are the latest counts of instances by state.
type instanceCounts struct {
	counts    map[actors.State]int
	nextCount time.Time
}

// instanceCountsOf returns the counts of a partition. m.mu must be held.
func (m *Metrics) instanceCountsOf(partition int) *instanceCounts {
	for len(m.instanceCounts) <= partition {
		m.instanceCounts = append(m.instanceCounts, new(instanceCounts))
	}
	return m.instanceCounts[partition]
}

// Counting reads every instance. It happens at most once per instanceCountInterval, and takes at
// most 1/instanceCountShare of the time.
const (
	instanceCountInterval = time.Minute
	instanceCountShare    = 50
)

// refreshCounts returns the latest counts of a partition and counts again if that is due. It
// returns nil if the node does not lead. m.mu must be held.
func (m *Metrics) refreshCounts(ctx context.Context, partition int, leads bool) map[actors.State]int {
	c := m.instanceCountsOf(partition)
	if !leads {
		*c = instanceCounts{}
		return nil
	}
	if time.Now().Before(c.nextCount) {
		return c.counts
	}
	begun := time.Now()
	counts, complete := m.source.CountInstances(ctx, partition)
	if !complete {
		return c.counts
	}
	c.counts, c.nextCount = counts, time.Now().Add(max(instanceCountInterval, instanceCountShare*time.Since(begun)))
	return counts
}
