package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

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
	read        func(s *Sample, report func(value float64, attributes ...attribute.KeyValue))
}

// readOne makes the read function of an observable with one value.
func readOne[N ~int | ~uint64 | ~float64](of func(*Sample) N) func(*Sample, func(float64, ...attribute.KeyValue)) {
	return func(s *Sample, report func(float64, ...attribute.KeyValue)) { report(float64(of(s))) }
}

// readEach makes the read function of an observable with one value for each partition.
func readEach[N ~int | ~uint64 | ~float64](of func(*PartitionSample) N) func(*Sample, func(float64, ...attribute.KeyValue)) {
	return func(s *Sample, report func(float64, ...attribute.KeyValue)) {
		for i := range s.Partitions {
			report(float64(of(&s.Partitions[i])), s.Partitions[i].attributes...)
		}
	}
}

// attributesWith returns the partition's attributes and one more.
func (p *PartitionSample) attributesWith(a attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{a}, p.attributes...)
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
	{"tenuto.instances.live", "{instance}", observableGauge, "Instances in memory.", readOne(func(s *Sample) int { return s.Actors.Live })},
	{"tenuto.instances.idle", "{instance}", observableGauge, "Instances in memory that are idle.", readOne(func(s *Sample) int { return s.Actors.Idle })},
	{"tenuto.instances.activations", "{instance}", observableCounter, "Instances loaded into memory by replaying their history.", readOne(func(s *Sample) uint64 { return s.Actors.Activations })},
	{"tenuto.instances.evictions", "{instance}", observableCounter, "Idle instances evicted from memory.", readOne(func(s *Sample) uint64 { return s.Actors.Evictions })},
	{"tenuto.instances.stalls", "{instance}", observableCounter, "How often an instance stalled because its code did not fit its history or was missing.", readOne(func(s *Sample) uint64 { return s.Actors.Stalls })},
	{"tenuto.instances.faults", "{instance}", observableCounter, "Panics of the engine, each contained in one instance.", readOne(func(s *Sample) uint64 { return s.Actors.Faults })},
	{"tenuto.instances.hung", "{instance}", observableGauge, "Instances whose code has run for longer than Config.HungAfter without reaching a durable call.", readOne(func(s *Sample) int { return s.Actors.Blocked })},
	{"tenuto.instances.abandoned", "{call}", observableGauge, "Calls of blocked code that this node has abandoned and that have not returned.", readOne(func(s *Sample) int { return s.Actors.AbandonedCode })},
	{"tenuto.turns", "{turn}", observableCounter, "Committed turns.", readOne(func(s *Sample) uint64 { return s.Actors.Turns })},
	{"tenuto.turn.events", "{event}", observableCounter, "Events of committed turns.", readOne(func(s *Sample) uint64 { return s.Actors.Events })},
	{"tenuto.turn.messages", "{message}", observableCounter, "Messages delivered in turns.", readOne(func(s *Sample) uint64 { return s.Actors.Messages })},
	{"tenuto.inbox.rejected", "{message}", observableCounter, "Messages shed under overload, by the bound that was reached.", readRejections},
	{"tenuto.inbox.messages", "{message}", observableGauge, "Messages from outside that wait for their turn or its commit.", readOne(func(s *Sample) int { return s.Actors.MessagesInFlight })},
	{"tenuto.starts.shed", "{start}", observableCounter, "Starts shed by this node, without asking the leader, while the leader sheds starts.", readOne(func(s *Sample) uint64 { return s.StartsShed })},
	{"tenuto.starts.waiting", "{start}", observableGauge, "Starts that wait here until the leader accepts more.", readOne(func(s *Sample) int { return s.StartsWaiting })},
	{"tenuto.turns.in_flight", "{turn}", observableGauge, "Turns in flight: their appends are not decided.", readOne(func(s *Sample) int { return s.Actors.TurnsInFlight })},
	{"tenuto.turns.waiting", "{instance}", observableGauge, "Instances that wait for the turn limiter.", readOne(func(s *Sample) int { return s.Actors.TurnsWaiting })},
	{"tenuto.timers.deferred", "{partition}", observableGauge, "Partitions whose due timers are deferred, because too many instances have work.", readOne(func(s *Sample) int { return s.Actors.TimersDeferred })},
	{"tenuto.appends.rejected", "{append}", observableCounter, "Appends that the journal rejected.", readOne(func(s *Sample) uint64 { return s.Actors.AppendsRejected })},

	{"tenuto.activities.open", "{activity}", observableGauge, "Activities scheduled and not ended.", readOne(func(s *Sample) int { return s.Actors.ActivitiesOpen })},
	{"tenuto.activities.waiting", "{activity}", observableGauge, "Open activities that wait for a worker.", readOne(func(s *Sample) int { return s.Actors.ActivitiesWaiting })},
	{"tenuto.activity.attempts", "{attempt}", observableCounter, "Attempts started, by where they run.", readAttempts},
	{"tenuto.activity.attempts.reassigned", "{attempt}", observableCounter, "Attempts started again because their worker was lost.", readOne(func(s *Sample) uint64 { return s.Attempts.Reassigned })},

	{"tenuto.node.ready", "{node}", observableGauge, "Whether the node is ready.", readOne(func(s *Sample) float64 { return boolToFloat(s.Ready) })},
	{"tenuto.members", "{member}", observableGauge, "Members with a vote and without, by whether they answer, on the leader of the first partition.", readVotes},
	{"tenuto.protocol", "{protocol}", observableGauge, "The protocol that the cluster uses.", readOne(func(s *Sample) uint64 { return uint64(s.Protocol) })},
	{"tenuto.protocol.next", "{protocol}", observableGauge, "A newer protocol that all members speak and the cluster does not use yet; 0 if there is none.", readOne(func(s *Sample) uint64 { return uint64(s.NextProtocol) })},
	{"tenuto.voters.wanted", "{member}", observableGauge, "Members that are to vote, on the leader of the first partition.", readVotersWanted},
	{"tenuto.roles.changes", "{change}", observableCounter, "How often this node, as leader of the first partition, changed which members vote.", readOne(func(s *Sample) uint64 { return s.RoleChanges })},
	{"tenuto.certificate.remaining", "s", observableGauge, "Time until the node's certificate expires, negative afterwards.", readCertificate},
	{"tenuto.clock.offset", "s", observableGauge, "The node's wall clock minus the cluster time.", readClockOffset},
	{"tenuto.raft.role", "{node}", observableGauge, "1 for the node's role, 0 for the others.", readRole},
	{"tenuto.raft.term", "{term}", observableGauge, "The node's current term.", readEach(func(g *PartitionSample) uint64 { return g.Term })},
	{"tenuto.raft.applied", "{entry}", observableGauge, "Index of the last entry applied.", readEach(func(g *PartitionSample) uint64 { return g.Applied })},
	{"tenuto.raft.behind", "{entry}", observableGauge, "Entries that this node or its leader knows to be committed, and that are not applied here.", readEach(func(g *PartitionSample) uint64 { return g.Behind })},
	{"tenuto.raft.since_contact", "s", observableGauge, "Time since the last message from the leader.", readEach(func(g *PartitionSample) float64 { return max(g.SinceContact, 0).Seconds() })},
	{"tenuto.raft.member.behind", "{entry}", observableGauge, "Committed entries that another member has not acknowledged, on the leader.", readMembers},
	{"tenuto.raft.messages.rejected", "{message}", observableCounter, "Raft messages rejected because of their sender or content.", readEach(func(g *PartitionSample) uint64 { return g.Journal.MessagesRejected })},

	{"tenuto.journal.queue.records", "{record}", observableGauge, "Records that wait to be put into an entry.", readEach(func(g *PartitionSample) int { return g.Journal.QueueRecords })},
	{"tenuto.journal.queue.size", "By", observableGauge, "Bytes that wait to be put into an entry.", readEach(func(g *PartitionSample) int { return g.Journal.QueueBytes })},
	{"tenuto.journal.entries.in_flight", "{entry}", observableGauge, "Raft entries proposed and not applied yet.", readEach(func(g *PartitionSample) int { return g.Journal.InFlight })},
	{"tenuto.journal.log.written", "By", observableCounter, "Bytes written to the log.", readEach(func(g *PartitionSample) uint64 { return g.Journal.LogBytes })},
	{"tenuto.journal.log.entries", "{entry}", observableGauge, "Entries in the log.", readEach(func(g *PartitionSample) int { return g.Journal.LogEntries })},
	{"tenuto.journal.log.tail", "By", observableGauge, "Bytes of the log since the newest snapshot.", readEach(func(g *PartitionSample) uint64 { return g.Journal.LogSinceSnapshot })},
	{"tenuto.journal.log.stalls", "{stall}", observableCounter, "Log writes that took too long.", readEach(func(g *PartitionSample) uint64 { return g.Journal.LogStalls })},
	{"tenuto.journal.log.stalled", "s", observableGauge, "How long a log write that takes too long has been pending.", readEach(func(g *PartitionSample) float64 { return g.Journal.LogStalled.Seconds() })},
	{"tenuto.journal.snapshots", "{snapshot}", observableCounter, "Snapshots written.", readEach(func(g *PartitionSample) uint64 { return g.Journal.Snapshots })},
	{"tenuto.journal.snapshots.failed", "{snapshot}", observableCounter, "Snapshots that failed.", readEach(func(g *PartitionSample) uint64 { return g.Journal.SnapshotFailures })},
	{"tenuto.journal.state.rebuilds", "{rebuild}", observableCounter, "Damaged or outdated states rebuilt from a snapshot at the start.", readEach(func(g *PartitionSample) uint64 { return g.Journal.StateRebuilds })},
	{"tenuto.journal.state.fetches", "{snapshot}", observableCounter, "Snapshots fetched from another node because no local one was usable.", readEach(func(g *PartitionSample) uint64 { return g.Journal.StateFetches })},
	{"tenuto.comparison.quarantined", "{instance}", observableGauge, "Replicas of instances in quarantine on this node.", readEach(func(g *PartitionSample) uint64 { return g.Quarantined })},
	{"tenuto.comparison.stopped", "{instance}", observableGauge, "Instances that are stopped because no majority of their replicas agrees.", readEach(func(g *PartitionSample) uint64 { return g.Stopped })},
	{"tenuto.comparison.differences", "{difference}", observableCounter, "Differences between replicas that this node has found as leader.", readEach(func(g *PartitionSample) uint64 { return g.Differences })},
	{"tenuto.comparison.age", "s", observableGauge, "Time since all replicas were last compared, or since this node leads; 0 where it does not lead.", readEach(func(g *PartitionSample) float64 { return g.ComparisonAge.Seconds() })},
	{"tenuto.comparison.duration", "s", observableGauge, "How long the last complete comparison by this node took.", readEach(func(g *PartitionSample) float64 { return g.ComparisonTook.Seconds() })},
	{"tenuto.backup.age", "s", observableGauge, "Time since the latest scheduled backup that succeeded, or since the node's start if none has.", readBackupAge},
	{"tenuto.backup.interval", "s", observableGauge, "Time from one scheduled backup to the next.", readPlan(func(r *clusterpb.BackupReport) float64 { return time.Duration(r.GetInterval()).Seconds() })},
	{"tenuto.backup.duration", "s", observableGauge, "How long the latest scheduled backup took that succeeded.", readPlan(func(r *clusterpb.BackupReport) float64 { return time.Duration(r.GetRecord().GetDuration()).Seconds() })},
	{"tenuto.backup.size", "By", observableGauge, "Bytes of the latest scheduled backup that succeeded.", readPlan(func(r *clusterpb.BackupReport) float64 { return float64(r.GetRecord().GetBytes()) })},
	{"tenuto.backup.written", "By", observableGauge, "Bytes written of the scheduled backup that this node makes.", readPlan(func(r *clusterpb.BackupReport) float64 { return float64(r.GetWritten()) })},
	{"tenuto.backups", "{backup}", observableCounter, "Scheduled backups of the cluster that succeeded.", readPlan(func(r *clusterpb.BackupReport) float64 { return float64(r.GetRecord().GetSucceeded()) })},
	{"tenuto.backups.failed", "{backup}", observableCounter, "Scheduled backups of the cluster that failed.", readPlan(func(r *clusterpb.BackupReport) float64 { return float64(r.GetRecord().GetFailed()) })},
	{"tenuto.journal.snapshots.served", "{snapshot}", observableCounter, "Snapshots served to nodes that had lost theirs.", readEach(func(g *PartitionSample) uint64 { return g.Journal.SnapshotsServed })},
}

// readPlan makes the read function of a value that only a node with a plan for backups has.
func readPlan(of func(*clusterpb.BackupReport) float64) func(*Sample, func(float64, ...attribute.KeyValue)) {
	return func(s *Sample, report func(float64, ...attribute.KeyValue)) {
		if s.Backups.GetInterval() > 0 {
			report(of(s.Backups))
		}
	}
}

func readBackupAge(s *Sample, report func(float64, ...attribute.KeyValue)) {
	switch latest := s.Backups.GetRecord().GetTime(); {
	case s.Backups.GetInterval() == 0:
	case latest == 0:
		report(s.SinceStart.Seconds())
	default:
		report(max(time.Since(time.Unix(0, latest)), 0).Seconds())
	}
}

func readInstances(s *Sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.Partitions {
		for state, count := range s.Partitions[i].instances {
			report(float64(count), s.Partitions[i].attributesWith(stateKey.String(string(state)))...)
		}
	}
}

func readRejections(s *Sample, report func(float64, ...attribute.KeyValue)) {
	report(float64(s.Actors.Rejections.Instance), boundKey.String(string(actors.BoundInstance)))
	report(float64(s.Actors.Rejections.InFlight), boundKey.String(string(actors.BoundInFlight)))
	report(float64(s.Actors.Rejections.Delay), boundKey.String(string(actors.BoundDelay)))
}

func readAttempts(s *Sample, report func(float64, ...attribute.KeyValue)) {
	report(float64(s.Attempts.Local), locationKey.String("here"))
	report(float64(s.Attempts.Remote), locationKey.String("worker"))
	report(float64(s.Attempts.AsWorker), locationKey.String("here for another"))
}

// readCertificate reports nothing of a node without a certificate.
func readCertificate(s *Sample, report func(float64, ...attribute.KeyValue)) {
	if !s.CertificateExpires.IsZero() {
		report(time.Until(s.CertificateExpires).Seconds())
	}
}

// readClockOffset reports nothing of partitions whose cluster time the node does not know yet.
func readClockOffset(s *Sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.Partitions {
		if g := &s.Partitions[i]; g.Journal.ClockKnown {
			report(g.Journal.ClockOffset.Seconds(), g.attributes...)
		}
	}
}

func readRole(s *Sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.Partitions {
		g := &s.Partitions[i]
		for _, role := range []string{"leader", "follower", "candidate", "learner", "none"} {
			report(boolToFloat(g.Role == role), g.attributesWith(roleKey.String(role))...)
		}
	}
}

func readMembers(s *Sample, report func(float64, ...attribute.KeyValue)) {
	for i := range s.Partitions {
		g := &s.Partitions[i]
		for _, member := range g.Members {
			if member.BehindKnown && member.Node != g.node {
				report(float64(member.Behind), g.attributesWith(memberKey.String(member.Node))...)
			}
		}
	}
}

// leadsFirst returns the first partition if this node leads it.
func (s *Sample) leadsFirst() (first *PartitionSample, ok bool) {
	if len(s.Partitions) == 0 || !s.Partitions[0].Leads {
		return nil, false
	}
	return &s.Partitions[0], true
}

func readVotes(s *Sample, report func(float64, ...attribute.KeyValue)) {
	first, ok := s.leadsFirst()
	if !ok {
		return
	}
	type kind struct{ voter, unreachable bool }
	counts := make(map[kind]int)
	for _, m := range first.Members {
		counts[kind{m.Voter, m.Unreachable}]++
	}
	for _, role := range []string{"voter", "standby"} {
		for _, liveness := range []string{"alive", "unreachable"} {
			count := counts[kind{role == "voter", liveness == "unreachable"}]
			report(float64(count), roleKey.String(role), livenessKey.String(liveness))
		}
	}
}

func readVotersWanted(s *Sample, report func(float64, ...attribute.KeyValue)) {
	if first, ok := s.leadsFirst(); ok {
		report(float64(min(s.VotersWanted, len(first.Members))))
	}
}
