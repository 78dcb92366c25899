package cluster

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
)

// A sample holds the values of all observables at one moment.
type sample struct {
	health        Health
	actors        actors.Stats
	attempts      actors.ActivityCounts
	startsShed    uint64
	startsWaiting int // in the start queue
	partitions    []partitionSample
}

// A partitionSample is the part of a sample that belongs to one partition.
type partitionSample struct {
	attributes []attribute.KeyValue // the partition, if there are several
	node       string
	health     PartitionHealth
	journal    journal.Stats
	members    []journal.Member
	instances  map[State]int // nil where the node does not lead
}

// sample takes a sample, unless the node is closed.
func (m *metrics) sample(ctx context.Context) (*sample, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false
	}
	n := m.node
	var led []*actors.Partition
	for _, g := range n.ledPartitions() {
		led = append(led, g.actorPartition.Load())
	}
	s := &sample{health: n.Health(), actors: n.system.Stats(led...), attempts: n.system.ActivityCounts()}
	for _, g := range n.partitions {
		s.startsShed += g.startLimiter.rejected.Load()
		s.startsWaiting += int(g.startLimiter.queued.Load())
		s.partitions = append(s.partitions, partitionSample{
			attributes: g.attributes(),
			node:       n.config.NodeID,
			health:     g.health(),
			journal:    g.journal.Stats(),
			members:    g.journal.Members(),
			instances:  m.instanceCountsOf(g).refresh(ctx, g),
		})
	}
	return s, true
}

// attributes returns the partition's attribute, none if it is the only partition.
func (g *partition) attributes() []attribute.KeyValue {
	if g.config.Partitions == 1 {
		return nil
	}
	return []attribute.KeyValue{partitionKey.Int(g.number)}
}

// instanceCounts are the latest counts of instances by state.
type instanceCounts struct {
	counts    map[State]int
	nextCount time.Time
}

// instanceCountsOf returns the counts of a partition. m.mu must be held.
func (m *metrics) instanceCountsOf(g *partition) *instanceCounts {
	for len(m.instanceCounts) <= g.number {
		m.instanceCounts = append(m.instanceCounts, new(instanceCounts))
	}
	return m.instanceCounts[g.number]
}

// Counting reads every instance. It happens at most once per instanceCountInterval, and takes at
// most 1/instanceCountShare of the time.
const (
	instanceCountInterval = time.Minute
	instanceCountShare    = 50
)

// refresh returns the latest counts and counts again if that is due. It returns nil if the node
// does not lead.
func (c *instanceCounts) refresh(ctx context.Context, g *partition) map[State]int {
	p := g.actorPartition.Load()
	if p == nil {
		*c = instanceCounts{}
		return nil
	}
	if time.Now().Before(c.nextCount) {
		return c.counts
	}
	begun := time.Now()
	counts := map[State]int{Running: 0, Stalled: 0, Suspended: 0, WaitingForCode: 0, Completed: 0, Failed: 0, Canceled: 0, Terminated: 0}
	for known := range g.journal.Instances() {
		if ctx.Err() != nil || g.stopping.Load() {
			return c.counts
		}
		counts[g.stateOf(p, known)]++
	}
	c.counts, c.nextCount = counts, time.Now().Add(max(instanceCountInterval, instanceCountShare*time.Since(begun)))
	return counts
}

// An observableKind says how an observable changes.
type observableKind uint8

const (
	observableCounter observableKind = iota // only grows
	observableGauge                         // goes up and down
)

// An observable is read when a provider collects. read reports its value once for each set of
// attributes.
type observable struct {
	name, unit  string
	kind        observableKind
	description string
	read        func(s *sample, report func(value float64, attributes ...attribute.KeyValue))
}

// readOne makes the read function of an observable with one value.
func readOne[N ~int | ~uint64 | ~float64](of func(*sample) N) func(*sample, func(float64, ...attribute.KeyValue)) {
	return func(s *sample, report func(float64, ...attribute.KeyValue)) { report(float64(of(s))) }
}

// readEach makes the read function of an observable with one value for each partition.
func readEach[N ~int | ~uint64 | ~float64](of func(*partitionSample) N) func(*sample, func(float64, ...attribute.KeyValue)) {
	return func(s *sample, report func(float64, ...attribute.KeyValue)) {
		for i := range s.partitions {
			report(float64(of(&s.partitions[i])), s.partitions[i].attributes...)
		}
	}
}

// attributesWith returns the partition's attributes and one more.
func (g *partitionSample) attributesWith(a attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{a}, g.attributes...)
}

func boolToFloat(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// observables lists all observables. METRICS.md describes each.
var observables = []observable{
	{"tenuto.instances", "{instance}", observableGauge, "Instances by state, on the leader; counted at most once a minute.", readInstances},
	{"tenuto.instances.live", "{instance}", observableGauge, "Instances in memory.", readOne(func(s *sample) int { return s.actors.Live })},
	{"tenuto.instances.idle", "{instance}", observableGauge, "Instances in memory that are idle.", readOne(func(s *sample) int { return s.actors.Idle })},
	{"tenuto.instances.activations", "{instance}", observableCounter, "Instances loaded into memory by replaying their history.", readOne(func(s *sample) uint64 { return s.actors.Activations })},
	{"tenuto.instances.evictions", "{instance}", observableCounter, "Idle instances evicted from memory.", readOne(func(s *sample) uint64 { return s.actors.Evictions })},
	{"tenuto.instances.stalls", "{instance}", observableCounter, "How often an instance stalled because its code did not fit its history or was missing.", readOne(func(s *sample) uint64 { return s.actors.Stalls })},
	{"tenuto.instances.faults", "{instance}", observableCounter, "Panics of the engine, each contained in one instance.", readOne(func(s *sample) uint64 { return s.actors.Faults })},
	{"tenuto.instances.blocked", "{instance}", observableGauge, "Instances whose code has been blocked outside durable calls for at least 1 s.", readOne(func(s *sample) int { return s.actors.Blocked })},
	{"tenuto.instances.abandoned", "{call}", observableGauge, "Calls of blocked code that this node has abandoned and that have not returned.", readOne(func(s *sample) int { return s.actors.AbandonedCode })},
	{"tenuto.turns", "{turn}", observableCounter, "Committed turns.", readOne(func(s *sample) uint64 { return s.actors.Turns })},
	{"tenuto.turn.events", "{event}", observableCounter, "Events of committed turns.", readOne(func(s *sample) uint64 { return s.actors.Events })},
	{"tenuto.turn.messages", "{message}", observableCounter, "Messages delivered in turns.", readOne(func(s *sample) uint64 { return s.actors.Messages })},
	{"tenuto.inbox.rejections", "{message}", observableCounter, "Messages shed under overload, by the bound that was reached.", readRejections},
	{"tenuto.inbox.messages", "{message}", observableGauge, "Messages from outside that wait for their turn or its commit.", readOne(func(s *sample) int { return s.actors.MessagesInFlight })},
	{"tenuto.starts.shed", "{start}", observableCounter, "Starts shed here without asking the leader, because it sheds starts.", readOne(func(s *sample) uint64 { return s.startsShed })},
	{"tenuto.starts.waiting", "{start}", observableGauge, "Starts that wait here until the leader accepts more.", readOne(func(s *sample) int { return s.startsWaiting })},
	{"tenuto.turns.in_flight", "{turn}", observableGauge, "Turns in flight: their appends are not decided.", readOne(func(s *sample) int { return s.actors.TurnsInFlight })},
	{"tenuto.turns.waiting", "{instance}", observableGauge, "Instances that wait for the turn limiter.", readOne(func(s *sample) int { return s.actors.TurnsWaiting })},
	{"tenuto.timers.deferred", "{partition}", observableGauge, "Partitions whose due timers are deferred, because too many instances have work.", readOne(func(s *sample) int { return s.actors.TimersDeferred })},
	{"tenuto.appends.rejected", "{append}", observableCounter, "Appends that the journal rejected.", readOne(func(s *sample) uint64 { return s.actors.AppendsRefused })},

	{"tenuto.activities.open", "{activity}", observableGauge, "Activities scheduled and not ended.", readOne(func(s *sample) int { return s.actors.ActivitiesOpen })},
	{"tenuto.activities.waiting", "{activity}", observableGauge, "Open activities that wait for a worker.", readOne(func(s *sample) int { return s.actors.ActivitiesWaiting })},
	{"tenuto.activity.attempts", "{attempt}", observableCounter, "Attempts started, by where they run.", readAttempts},
	{"tenuto.activity.attempts.reassigned", "{attempt}", observableCounter, "Attempts started again because their worker was lost.", readOne(func(s *sample) uint64 { return s.attempts.Reassigned })},

	{"tenuto.node.ready", "{node}", observableGauge, "Whether the node is ready.", readOne(func(s *sample) float64 { return boolToFloat(s.health.Ready() == nil) })},
	{"tenuto.raft.role", "{node}", observableGauge, "1 for the node's role, 0 for the others.", readRole},
	{"tenuto.raft.term", "{term}", observableGauge, "The node's current term.", readEach(func(g *partitionSample) uint64 { return g.health.Term })},
	{"tenuto.raft.applied", "{entry}", observableGauge, "Index of the last entry applied.", readEach(func(g *partitionSample) uint64 { return g.health.Applied })},
	{"tenuto.raft.lag", "{entry}", observableGauge, "Entries that this node or its leader knows to be committed, and that are not applied here.", readEach(func(g *partitionSample) uint64 { return g.health.Behind })},
	{"tenuto.raft.since_contact", "s", observableGauge, "Time since the last sign of the leader.", readEach(func(g *partitionSample) float64 { return max(g.health.SinceContact, 0).Seconds() })},
	{"tenuto.raft.member.lag", "{entry}", observableGauge, "Committed entries that another member has not acknowledged, on the leader.", readMembers},
	{"tenuto.raft.messages.rejected", "{message}", observableCounter, "Raft messages rejected because of their sender or content.", readEach(func(g *partitionSample) uint64 { return g.journal.MessagesRefused })},

	{"tenuto.journal.queue.records", "{record}", observableGauge, "Records that wait to be put into an entry.", readEach(func(g *partitionSample) int { return g.journal.QueueRecords })},
	{"tenuto.journal.queue.size", "By", observableGauge, "Bytes that wait to be put into an entry.", readEach(func(g *partitionSample) int { return g.journal.QueueBytes })},
	{"tenuto.journal.entries.in_flight", "{entry}", observableGauge, "Raft entries proposed and not applied yet.", readEach(func(g *partitionSample) int { return g.journal.InFlight })},
	{"tenuto.journal.log.written", "By", observableCounter, "Bytes written to the log.", readEach(func(g *partitionSample) uint64 { return g.journal.LogBytes })},
	{"tenuto.journal.log.entries", "{entry}", observableGauge, "Entries in the log.", readEach(func(g *partitionSample) int { return g.journal.LogEntries })},
	{"tenuto.journal.log.tail", "By", observableGauge, "Bytes of the log since the newest snapshot.", readEach(func(g *partitionSample) uint64 { return g.journal.LogSinceSnapshot })},
	{"tenuto.journal.log.stalls", "{stall}", observableCounter, "Log writes that took too long.", readEach(func(g *partitionSample) uint64 { return g.journal.LogStalls })},
	{"tenuto.journal.log.stalled", "s", observableGauge, "How long a log write that takes too long has been pending.", readEach(func(g *partitionSample) float64 { return g.journal.LogStalled.Seconds() })},
	{"tenuto.journal.snapshots", "{snapshot}", observableCounter, "Snapshots written.", readEach(func(g *partitionSample) uint64 { return g.journal.Snapshots })},
	{"tenuto.journal.snapshots.failed", "{snapshot}", observableCounter, "Snapshots that failed.", readEach(func(g *partitionSample) uint64 { return g.journal.SnapshotFailures })},
	{"tenuto.journal.state.rebuilds", "{rebuild}", observableCounter, "Damaged or outdated states rebuilt from a snapshot at the start.", readEach(func(g *partitionSample) uint64 { return g.journal.StateRebuilds })},
	{"tenuto.journal.state.fetches", "{snapshot}", observableCounter, "Snapshots fetched from another node because no local one was usable.", readEach(func(g *partitionSample) uint64 { return g.journal.StateFetches })},
	{"tenuto.journal.snapshots.served", "{snapshot}", observableCounter, "Snapshots served to nodes that had lost theirs.", readEach(func(g *partitionSample) uint64 { return g.journal.SnapshotsServed })},
}

func readInstances(s *sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.partitions {
		for state, count := range s.partitions[i].instances {
			report(float64(count), s.partitions[i].attributesWith(stateKey.String(string(state)))...)
		}
	}
}

func readRejections(s *sample, report func(float64, ...attribute.KeyValue)) {
	report(float64(s.actors.Rejections.Instance), boundKey.String(string(actors.BoundInstance)))
	report(float64(s.actors.Rejections.InFlight), boundKey.String(string(actors.BoundInFlight)))
	report(float64(s.actors.Rejections.Delay), boundKey.String(string(actors.BoundDelay)))
}

func readAttempts(s *sample, report func(float64, ...attribute.KeyValue)) {
	report(float64(s.attempts.Local), locationKey.String("here"))
	report(float64(s.attempts.Remote), locationKey.String("worker"))
	report(float64(s.attempts.AsWorker), locationKey.String("here for another"))
}

func readRole(s *sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.partitions {
		g := &s.partitions[i]
		for _, role := range []Role{RoleLeader, RoleFollower, RoleCandidate, RoleLearner, RoleNone} {
			report(boolToFloat(g.health.Role == role), g.attributesWith(roleKey.String(string(role)))...)
		}
	}
}

func readMembers(s *sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.partitions {
		g := &s.partitions[i]
		for _, member := range g.members {
			if member.BehindKnown && member.Node != g.node {
				report(float64(member.Behind), g.attributesWith(memberKey.String(member.Node))...)
			}
		}
	}
}
