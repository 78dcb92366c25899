package cluster

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
)

// A sample is what the node counts anyway, at one moment.
type sample struct {
	health   Health
	actors   actors.Stats
	attempts actors.ActivityCounts
	withheld uint64
	waiting  int // starts, before the leader is asked
	groups   []groupSample
}

// A groupSample is the part of a sample that each group has of its own.
type groupSample struct {
	attributes []attribute.KeyValue // which one, if there are several
	node       string
	health     GroupHealth
	journal    journal.Stats
	members    []journal.Member
	instances  map[State]int // nil where the node does not lead
}

// sample takes one, unless the node is closed.
func (m *metrics) sample(ctx context.Context) (*sample, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, false
	}
	n := m.node
	var led []*actors.Partition
	for _, g := range n.led() {
		led = append(led, g.partition.Load())
	}
	s := &sample{health: n.Health(), actors: n.system.Stats(led...), attempts: n.system.ActivityCounts()}
	for _, g := range n.groups {
		s.withheld += g.throttle.withheld.Load()
		s.waiting += int(g.throttle.waiting.Load())
		s.groups = append(s.groups, groupSample{
			attributes: g.attributes(),
			node:       n.config.NodeID,
			health:     g.health(),
			journal:    g.journal.Stats(),
			members:    g.journal.Members(),
			instances:  m.censusOf(g).take(ctx, g),
		})
	}
	return s, true
}

// attributes returns what tells the group's figures from those of others, nothing if
// it is the only one.
func (g *group) attributes() []attribute.KeyValue {
	if g.config.Groups == 1 {
		return nil
	}
	return []attribute.KeyValue{partitionKey.Int(g.number)}
}

// A census is how many instances were in which state when they were counted last.
type census struct {
	counts map[State]int
	due    time.Time
}

// censusOf returns that of a group. m.mu is held.
func (m *metrics) censusOf(g *group) *census {
	for len(m.census) <= g.number {
		m.census = append(m.census, new(census))
	}
	return m.census[g.number]
}

// Instances are counted at most once in censusEvery, and for no more than a share
// of 1/censusShare of the time, because that looks at each of them.
const (
	censusEvery = time.Minute
	censusShare = 50
)

// take returns the latest census, after a new one if that is due; nil if the node
// does not lead.
func (c *census) take(ctx context.Context, g *group) map[State]int {
	p := g.partition.Load()
	if p == nil {
		*c = census{}
		return nil
	}
	if time.Now().Before(c.due) {
		return c.counts
	}
	begun := time.Now()
	counts := map[State]int{Running: 0, Stalled: 0, Suspended: 0, WaitingForCode: 0, Completed: 0, Failed: 0, Cancelled: 0, Terminated: 0}
	for known := range g.journal.Instances() {
		if ctx.Err() != nil || g.stopping.Load() {
			return c.counts
		}
		counts[g.stateOf(p, known)]++
	}
	c.counts, c.due = counts, time.Now().Add(max(censusEvery, censusShare*time.Since(begun)))
	return counts
}

// A figureKind says how a figure changes.
type figureKind uint8

const (
	counted figureKind = iota // only grows
	level                     // goes up and down
)

// A figure is read when somebody collects. read reports it, once for each set of
// attributes.
type figure struct {
	name, unit string
	kind       figureKind
	what       string
	read       func(s *sample, report func(value float64, attributes ...attribute.KeyValue))
}

// one makes the read of a figure with one value.
func one[N ~int | ~uint64 | ~float64](of func(*sample) N) func(*sample, func(float64, ...attribute.KeyValue)) {
	return func(s *sample, report func(float64, ...attribute.KeyValue)) { report(float64(of(s))) }
}

// each makes the read of a figure with one value for each group.
func each[N ~int | ~uint64 | ~float64](of func(*groupSample) N) func(*sample, func(float64, ...attribute.KeyValue)) {
	return func(s *sample, report func(float64, ...attribute.KeyValue)) {
		for i := range s.groups {
			report(float64(of(&s.groups[i])), s.groups[i].attributes...)
		}
	}
}

// with returns the group's attributes and one more.
func (g *groupSample) with(a attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{a}, g.attributes...)
}

func whether(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// figures are all of them. They are described in METRICS.md.
var figures = []figure{
	{"tenuto.instances", "{instance}", level, "Instances by state, on the node that leads; counted at most once a minute.", readInstances},
	{"tenuto.instances.live", "{instance}", level, "Instances in memory.", one(func(s *sample) int { return s.actors.Live })},
	{"tenuto.instances.idle", "{instance}", level, "Instances in memory with nothing to do.", one(func(s *sample) int { return s.actors.Idle })},
	{"tenuto.instances.activations", "{instance}", counted, "Instances brought into memory by replaying their history.", one(func(s *sample) uint64 { return s.actors.Activations })},
	{"tenuto.instances.dehydrations", "{instance}", counted, "Instances dropped from memory to make room.", one(func(s *sample) uint64 { return s.actors.Dehydrations })},
	{"tenuto.instances.stalls", "{instance}", counted, "How often an instance could not go on because its code did not fit or was missing.", one(func(s *sample) uint64 { return s.actors.Stalls })},
	{"tenuto.instances.faults", "{instance}", counted, "Panics of the engine, each contained in one instance.", one(func(s *sample) uint64 { return s.actors.Faults })},
	{"tenuto.instances.blocked", "{instance}", level, "Instances whose code has been blocked outside of durable calls for a second.", one(func(s *sample) int { return s.actors.Blocked })},
	{"tenuto.instances.left_behind", "{call}", level, "Calls of blocked code that were left behind on this node and have not returned.", one(func(s *sample) int { return s.actors.LeftBehind })},
	{"tenuto.turns", "{turn}", counted, "Turns that were committed.", one(func(s *sample) uint64 { return s.actors.Turns })},
	{"tenuto.turn.events", "{event}", counted, "Events of those turns.", one(func(s *sample) uint64 { return s.actors.Events })},
	{"tenuto.turn.messages", "{message}", counted, "Messages that turns took.", one(func(s *sample) uint64 { return s.actors.Messages })},
	{"tenuto.inbox.rejections", "{message}", counted, "Messages refused because there was too much to do, by the bound that they met.", readRejections},
	{"tenuto.inbox.held", "{message}", level, "Messages from outside that wait for their turn, or for its commit.", one(func(s *sample) int { return s.actors.MessagesHeld })},
	{"tenuto.starts.withheld", "{start}", counted, "Starts refused here because the leader refuses them, without asking it.", one(func(s *sample) uint64 { return s.withheld })},
	{"tenuto.starts.waiting", "{start}", level, "Starts that wait here until the leader takes more.", one(func(s *sample) int { return s.waiting })},
	{"tenuto.turns.on_their_way", "{turn}", level, "Turns whose appends are not decided.", one(func(s *sample) int { return s.actors.TurnsOnTheirWay })},
	{"tenuto.turns.waiting", "{instance}", level, "Instances that wait to begin a turn.", one(func(s *sample) int { return s.actors.TurnsWaiting })},
	{"tenuto.timers.kept", "{partition}", level, "Whether timers that are due are kept back, because too many instances have something to do.", one(func(s *sample) int { return s.actors.TimersKept })},
	{"tenuto.appends.refused", "{append}", counted, "Appends that the journal did not take.", one(func(s *sample) uint64 { return s.actors.Refusals })},

	{"tenuto.activities.open", "{activity}", level, "Activities that are scheduled and not ended.", one(func(s *sample) int { return s.actors.ActivitiesOpen })},
	{"tenuto.activities.waiting", "{activity}", level, "Those of them that wait for a node that can take them.", one(func(s *sample) int { return s.actors.ActivitiesWaiting })},
	{"tenuto.activity.attempts", "{attempt}", counted, "Attempts begun, by where they run.", readAttempts},
	{"tenuto.activity.attempts.again", "{attempt}", counted, "Attempts begun again because their worker was lost.", one(func(s *sample) uint64 { return s.attempts.Again })},

	{"tenuto.node.ready", "{node}", level, "Whether the node is ready.", one(func(s *sample) float64 { return whether(s.health.Ready() == nil) })},
	{"tenuto.raft.standing", "{node}", level, "1 for what the node is in the cluster.", readStanding},
	{"tenuto.raft.term", "{term}", level, "The term that the node is in.", each(func(g *groupSample) uint64 { return g.health.Term })},
	{"tenuto.raft.applied", "{entry}", level, "Index of the last entry applied.", each(func(g *groupSample) uint64 { return g.health.Applied })},
	{"tenuto.raft.lag", "{entry}", level, "Entries that are committed, by what this node or its leader knows, and not applied here.", each(func(g *groupSample) uint64 { return g.health.Behind })},
	{"tenuto.raft.silence", "s", level, "How long the leader has not been heard of.", each(func(g *groupSample) float64 { return max(g.health.Silence, 0).Seconds() })},
	{"tenuto.raft.member.lag", "{entry}", level, "Committed entries that another member has not acknowledged, on the node that leads.", readMembers},
	{"tenuto.raft.messages.refused", "{message}", counted, "Messages of Raft's that were not taken, because of who has sent them or what they say.", each(func(g *groupSample) uint64 { return g.journal.MessagesRefused })},

	{"tenuto.journal.queue.records", "{record}", level, "Records that wait to be packed.", each(func(g *groupSample) int { return g.journal.QueueRecords })},
	{"tenuto.journal.queue.size", "By", level, "Bytes that wait to be packed.", each(func(g *groupSample) int { return g.journal.QueueBytes })},
	{"tenuto.journal.entries.in_flight", "{entry}", level, "Raft entries proposed and not applied yet.", each(func(g *groupSample) int { return g.journal.InFlight })},
	{"tenuto.journal.log.written", "By", counted, "Bytes written to the log.", each(func(g *groupSample) uint64 { return g.journal.LogBytes })},
	{"tenuto.journal.log.entries", "{entry}", level, "Entries that the log holds.", each(func(g *groupSample) int { return g.journal.LogEntries })},
	{"tenuto.journal.log.tail", "By", level, "Bytes of the log that are newer than the newest snapshot.", each(func(g *groupSample) uint64 { return g.journal.LogSinceSnapshot })},
	{"tenuto.journal.log.stalls", "{stall}", counted, "How often a write took too long.", each(func(g *groupSample) uint64 { return g.journal.LogStalls })},
	{"tenuto.journal.log.stalled", "s", level, "For how long a write has been on its way that takes too long.", each(func(g *groupSample) float64 { return g.journal.LogStalled.Seconds() })},
	{"tenuto.journal.snapshots", "{snapshot}", counted, "Snapshots written.", each(func(g *groupSample) uint64 { return g.journal.Snapshots })},
	{"tenuto.journal.snapshots.failed", "{snapshot}", counted, "Snapshots that could not be taken.", each(func(g *groupSample) uint64 { return g.journal.SnapshotFailures })},
	{"tenuto.journal.state.rebuilds", "{rebuild}", counted, "States that were damaged or behind, and were rebuilt from a snapshot at the start.", each(func(g *groupSample) uint64 { return g.journal.StateRebuilds })},
	{"tenuto.journal.state.fetches", "{snapshot}", counted, "Snapshots fetched from another node because no own one could be believed.", each(func(g *groupSample) uint64 { return g.journal.StateFetches })},
	{"tenuto.journal.snapshots.handed_out", "{snapshot}", counted, "Snapshots given to nodes that had lost theirs.", each(func(g *groupSample) uint64 { return g.journal.SnapshotsHandedOut })},
}

func readInstances(s *sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.groups {
		for state, count := range s.groups[i].instances {
			report(float64(count), s.groups[i].with(stateKey.String(string(state)))...)
		}
	}
}

func readRejections(s *sample, report func(float64, ...attribute.KeyValue)) {
	report(float64(s.actors.Rejections.Instance), boundKey.String(string(actors.BoundInstance)))
	report(float64(s.actors.Rejections.Window), boundKey.String(string(actors.BoundWindow)))
	report(float64(s.actors.Rejections.Delay), boundKey.String(string(actors.BoundDelay)))
}

func readAttempts(s *sample, report func(float64, ...attribute.KeyValue)) {
	report(float64(s.attempts.Local), placeKey.String("here"))
	report(float64(s.attempts.Remote), placeKey.String("worker"))
	report(float64(s.attempts.Lent), placeKey.String("here for another"))
}

func readStanding(s *sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.groups {
		g := &s.groups[i]
		for _, standing := range []Standing{Leading, Following, Electing, Learning, Outside} {
			report(whether(g.health.Standing == standing), g.with(standingKey.String(string(standing)))...)
		}
	}
}

func readMembers(s *sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.groups {
		g := &s.groups[i]
		for _, member := range g.members {
			if member.BehindKnown && member.Node != g.node {
				report(float64(member.Behind), g.with(memberKey.String(member.Node))...)
			}
		}
	}
}
