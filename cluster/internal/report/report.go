package report

import (
	"cmp"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Bounds of the lists in a report, in bytes of their names and entryBytes for each entry. With them
// a report has at most 256 KiB.
const (
	codeBytesMax       = 112 << 10
	activitiesBytesMax = 112 << 10
	entryBytes         = 32
	// queuesMax bounds the queues of one activity in a report.
	queuesMax = 20
)

// SetCode sets the orchestrations that a node has code for.
func SetCode(report *clusterpb.NodeReport, code []*clusterpb.OrchestrationCode) {
	code = slices.Clone(code)
	slices.SortFunc(code, func(a, b *clusterpb.OrchestrationCode) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	fits := fitting(code, codeBytesMax, func(c *clusterpb.OrchestrationCode) int { return len(c.Name) + len(c.Version) })
	report.Orchestrations, report.OrchestrationsOmitted = code[:fits], uint32(len(code)-fits)
}

// A Rate is a rate of the whole cluster.
type Rate struct {
	PerSecond float64
	Burst     int
}

// SetActivities sets the activities that a node has code for, those that are open in the partitions
// that it leads, and those with a rate or a limit.
func SetActivities(report *clusterpb.NodeReport, code []string, use actors.ActivityUse, rates map[string]Rate) {
	byName := make(map[string]*clusterpb.ActivityReport)
	of := func(name string) *clusterpb.ActivityReport {
		if byName[name] == nil {
			byName[name] = &clusterpb.ActivityReport{Name: name}
		}
		return byName[name]
	}
	for _, name := range code {
		of(name).HasCode = true
	}
	for name, counts := range use.Counts {
		a := of(name)
		a.Open, a.Queued, a.Running = uint32(counts.Open), uint32(counts.Queued), uint32(counts.Running)
		a.Queues = queuesOf(counts.QueuedByTag)
	}
	for name, rate := range rates {
		a := of(name)
		a.Rate, a.Burst = rate.PerSecond, uint32(rate.Burst)
	}
	for name, limit := range use.Limits {
		of(name).Limit = uint32(limit)
	}
	for name := range use.Paused {
		of(name).Paused = true
	}
	all := slices.SortedFunc(maps.Values(byName), func(a, b *clusterpb.ActivityReport) int { return cmp.Compare(a.Name, b.Name) })
	fits := fitting(all, activitiesBytesMax, activityBytes)
	report.Activities, report.ActivitiesOmitted = all[:fits], uint32(len(all)-fits)
	report.Slots, report.FreeSlots = uint32(use.Slots), uint32(use.FreeSlots)
}

// queuesOf returns the longest queues, in order of tags.
func queuesOf(queued map[string]int) (queues []*clusterpb.TagQueue) {
	for tag, n := range queued {
		queues = append(queues, &clusterpb.TagQueue{Tag: tag, Queued: uint32(n)})
	}
	slices.SortFunc(queues, func(a, b *clusterpb.TagQueue) int {
		return cmp.Or(cmp.Compare(b.Queued, a.Queued), cmp.Compare(a.Tag, b.Tag))
	})
	queues = queues[:min(len(queues), queuesMax)]
	slices.SortFunc(queues, func(a, b *clusterpb.TagQueue) int { return cmp.Compare(a.Tag, b.Tag) })
	return queues
}

// activityBytes bounds the size of an activity in a report, in addition to the entryBytes that
// fitting adds for each entry.
func activityBytes(a *clusterpb.ActivityReport) int {
	size := len(a.Name) + entryBytes
	for _, q := range a.Queues {
		size += len(q.Tag) + entryBytes
	}
	return size
}

// fitting returns how many of the first entries fit into a number of bytes.
func fitting[E any](entries []E, bytesMax int, size func(E) int) int {
	for i, entry := range entries {
		if bytesMax -= size(entry) + entryBytes; bytesMax < 0 {
			return i
		}
	}
	return len(entries)
}

// SetStats sets what the journal of a partition counts.
func SetStats(report *clusterpb.PartitionReport, s *journal.Stats) {
	report.DiskWrites, report.DiskStalls = s.LogWrite.Count, s.LogStalls
	report.DiskWriteP50, report.DiskWriteP99 = int64(s.LogWrite.Quantile(0.5)), int64(s.LogWrite.Quantile(0.99))
	report.DiskHangs = int64(s.LogStalled)
	report.SnapshotIndex, report.SnapshotBytes, report.SnapshotFailures = s.SnapshotIndex, s.SnapshotBytes, s.SnapshotFailures
	report.SnapshotTime = nanos(s.SnapshotAt)
	if s.ClockKnown {
		offset := int64(s.ClockOffset)
		report.ClockOffset = &offset
	}
}

// nanos returns a time in Unix nanoseconds, 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// SetExpiry sets when the certificate of a node expires; the zero time means that it has none.
func SetExpiry(report *clusterpb.NodeReport, expires time.Time) {
	report.CertificateExpires = nanos(expires)
}

// Overload returns the use of the bounds of a node that leads a number of partitions.
func Overload(s *telemetry.Sample, perPartition actors.Bounds, led int) *clusterpb.OverloadReport {
	return &clusterpb.OverloadReport{
		Messages: uint32(s.Actors.MessagesInFlight), MessagesMax: uint32(led * perPartition.InFlight),
		MessageBytes: uint64(s.Actors.MessageBytesInFlight), MessageBytesMax: uint64(led) * uint64(perPartition.InFlightBytes),
		Turns: uint32(s.Actors.TurnsInFlight), TurnsMax: uint32(led * perPartition.Turns), TurnsWaiting: uint32(s.Actors.TurnsWaiting),
		Live: uint32(s.Actors.Live), Idle: uint32(s.Actors.Idle), IdleMax: uint32(led * perPartition.Resident),
		StartsWaiting: uint32(s.StartsWaiting), StartsShed: s.StartsShed,
		RejectedInstance: s.Actors.Rejections.Instance, RejectedInFlight: s.Actors.Rejections.InFlight, RejectedDelay: s.Actors.Rejections.Delay,
		Hung: uint32(s.Actors.Blocked),
	}
}

// Rates returns the counts of the last hour.
func Rates(counts *telemetry.RateCounts) *clusterpb.RateReport {
	return &clusterpb.RateReport{
		End: counts.End.UnixNano(), Step: int64(telemetry.RateStep), Started: counts.Started[:], Ended: counts.Ended[:], Failed: counts.Failed[:],
	}
}

// Revision returns the commit that the program was built from, with "+modified" if its source was
// changed since; "" if the program does not state it.
var Revision = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision != "" && settings["vcs.modified"] == "true" {
		revision += "+modified"
	}
	return revision
})
