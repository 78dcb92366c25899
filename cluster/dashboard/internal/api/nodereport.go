package api

import (
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// nodeReport is what a node reports of itself.
type nodeReport struct {
	Version            string          `json:"version,omitempty"`
	Revision           string          `json:"revision,omitempty"`
	Protocol           uint32          `json:"protocol,omitempty"`         // the newest that it speaks
	UsedProtocol       uint32          `json:"used_protocol,omitempty"`    // that the cluster uses
	NextProtocol       uint32          `json:"next_protocol,omitempty"`    // that it uses next
	NextProtocolAt     *time.Time      `json:"next_protocol_at,omitempty"` // by itself, in cluster time
	UptimeSeconds      float64         `json:"uptime_seconds,omitempty"`
	NotReady           string          `json:"not_ready,omitempty"` // why
	Partitions         []partitionView `json:"partitions,omitempty"`
	CertificateExpires *time.Time      `json:"certificate_expires,omitempty"`
	Overload           *overloadView   `json:"overload,omitempty"`
	Slots              uint32          `json:"slots,omitempty"`
	FreeSlots          *uint32         `json:"free_slots,omitempty"`
	Tags               []string        `json:"tags,omitempty"`
	Backups            *backupsView    `json:"backups,omitempty"`
	Lineage            *lineageView    `json:"lineage,omitempty"`
}

// lineageView says that the cluster was restored from a backup, or recovered after the loss of a
// majority.
type lineageView struct {
	ID     string     `json:"id"`
	How    string     `json:"how"`    // restored or recovered
	Source string     `json:"source"` // the backup, or the node
	Since  *time.Time `json:"since,omitempty"`
}

// backupsView is what a node knows of the scheduled backups of the cluster.
type backupsView struct {
	IntervalSeconds float64    `json:"interval_seconds,omitempty"` // 0: the node has no plan
	Latest          *time.Time `json:"latest,omitempty"`           // of those that succeeded
	DurationSeconds float64    `json:"duration_seconds,omitempty"` // of the latest
	Bytes           uint64     `json:"bytes,omitempty"`            // of the latest
	StateBytes      uint64     `json:"state_bytes,omitempty"`      // that it restores
	Failures        uint64     `json:"failures,omitempty"`         // since the latest
	Error           string     `json:"error,omitempty"`            // of the latest failure
	Written         uint64     `json:"written,omitempty"`          // of the one that this node makes
	Total           uint64     `json:"total,omitempty"`
}

// partitionView is the state of a node in a partition.
type partitionView struct {
	Partition          int           `json:"partition"` // from 0
	Role               string        `json:"role"`
	Leader             string        `json:"leader,omitempty"` // that the node knows
	Term               uint64        `json:"term"`
	Applied            uint64        `json:"applied"`
	Behind             uint64        `json:"behind"`
	LagSeconds         *float64      `json:"lag_seconds,omitempty"`
	Disk               diskView      `json:"disk"`
	ClockOffsetSeconds *float64      `json:"clock_offset_seconds,omitempty"`
	Snapshot           *snapshotView `json:"snapshot,omitempty"`
	SnapshotFailures   uint64        `json:"snapshot_failures,omitempty"`
	OtherDirectory     bool          `json:"other_directory,omitempty"`
}

type diskView struct {
	WriteP50Seconds float64 `json:"write_p50_seconds"`
	WriteP99Seconds float64 `json:"write_p99_seconds"`
	Stalls          uint64  `json:"stalls"`
	HangsSeconds    float64 `json:"hangs_seconds,omitempty"`
	Full            bool    `json:"full,omitempty"`
}

type snapshotView struct {
	Index uint64     `json:"index"`
	Time  *time.Time `json:"time,omitempty"`
	Bytes int64      `json:"bytes,omitempty"`
}

// overloadView is the use of what bounds the load. It has a bound for each field with the suffix
// _max.
type overloadView struct {
	Messages         uint32 `json:"messages"`
	MessagesMax      uint32 `json:"messages_max"`
	MessageBytes     uint64 `json:"message_bytes"`
	MessageBytesMax  uint64 `json:"message_bytes_max"`
	Turns            uint32 `json:"turns"`
	TurnsMax         uint32 `json:"turns_max"`
	TurnsWaiting     uint32 `json:"turns_waiting"`
	Live             uint32 `json:"live"`       // instances in memory
	Idle             uint32 `json:"idle"`       // of them
	IdleLimit        uint32 `json:"idle_limit"` // of those that stay in memory
	StartsWaiting    uint32 `json:"starts_waiting"`
	StartsShed       uint64 `json:"starts_shed"`
	RejectedInstance uint64 `json:"rejected_instance"`
	RejectedInFlight uint64 `json:"rejected_in_flight"`
	RejectedDelay    uint64 `json:"rejected_delay"`
	Hung             uint32 `json:"hung"`
}

// uptimeStep is how exactly an uptime is shown. A page that follows the cluster is sent what has
// changed, and a time that always grows has not.
const uptimeStep = time.Minute

func nodeReportOf(r *clusterpb.NodeReport) nodeReport {
	v := nodeReport{
		Version: r.Version, Revision: r.Revision, Protocol: r.Protocol, NotReady: r.NotReady,
		UsedProtocol: r.UsedProtocol, NextProtocol: r.NextProtocol, NextProtocolAt: timeOfNanos(r.NextProtocolAt),
		CertificateExpires: timeOfNanos(r.CertificateExpires), Slots: r.Slots, FreeSlots: &r.FreeSlots, Tags: r.Tags,
	}
	if l := r.Lineage; l != nil {
		v.Lineage = &lineageView{l.Id, instances.Continued(l), l.Source, timeOfNanos(l.Time)}
	}
	if b := r.Backup; b != nil {
		of := b.GetRecord()
		v.Backups = &backupsView{
			time.Duration(b.Interval).Seconds(), timeOfNanos(of.GetTime()), rounded(of.GetDuration(), time.Millisecond),
			of.GetBytes(), of.GetStateBytes(), of.GetFailures(), of.GetError(), b.Written, b.Total,
		}
	}
	uptime := time.Duration(r.Uptime)
	v.UptimeSeconds = max(uptime.Truncate(uptimeStep), min(uptime.Truncate(time.Second), uptimeStep)).Seconds()
	for i, p := range r.Partitions {
		v.Partitions = append(v.Partitions, partitionViewOf(i, p))
	}
	if o := r.Overload; o != nil {
		v.Overload = &overloadView{
			o.Messages, o.MessagesMax, o.MessageBytes, o.MessageBytesMax, o.Turns, o.TurnsMax, o.TurnsWaiting,
			o.Live, o.Idle, o.IdleMax, o.StartsWaiting, o.StartsShed, o.RejectedInstance, o.RejectedInFlight, o.RejectedDelay, o.Hung,
		}
	}
	return v
}

func partitionViewOf(number int, p *clusterpb.PartitionReport) partitionView {
	v := partitionView{
		Partition: number, Role: p.Role, Leader: p.Leader, Term: p.Term, Applied: p.Applied, Behind: p.Behind,
		Disk: diskView{
			rounded(p.DiskWriteP50, time.Microsecond), rounded(p.DiskWriteP99, time.Microsecond), p.DiskStalls,
			rounded(p.DiskHangs, 100*time.Millisecond), p.DiskFull,
		},
		SnapshotFailures: p.SnapshotFailures, OtherDirectory: p.OtherDirectory,
	}
	if p.Lag >= 0 {
		lag := rounded(p.Lag, time.Second)
		v.LagSeconds = &lag
	}
	if p.ClockOffset != nil {
		offset := rounded(*p.ClockOffset, 10*time.Millisecond)
		v.ClockOffsetSeconds = &offset
	}
	if p.SnapshotIndex > 0 {
		v.Snapshot = &snapshotView{p.SnapshotIndex, timeOfNanos(p.SnapshotTime), p.SnapshotBytes}
	}
	return v
}

// rounded returns a duration in seconds, rounded.
func rounded(nanos int64, to time.Duration) float64 { return time.Duration(nanos).Round(to).Seconds() }

// timeOfNanos returns a time in Unix nanoseconds as answers have it, nil for 0.
func timeOfNanos(nanos int64) *time.Time {
	if nanos == 0 {
		return nil
	}
	return timeOf(time.Unix(0, nanos))
}

// ratesView are the starts, ends and failures of the last hour, oldest first. The last step is in
// progress.
type ratesView struct {
	StepSeconds float64   `json:"step_seconds"`
	End         time.Time `json:"end"` // of the last step
	Started     []uint64  `json:"started"`
	Ended       []uint64  `json:"ended"`
	Failed      []uint64  `json:"failed"`
}

// sumRates adds the rates of all nodes, nil if there are none. Nodes whose wall clocks differ are
// in different steps: each is added to the step with the same end.
func sumRates(reports []access.NodeReport) *ratesView {
	var newest *clusterpb.RateReport
	for _, r := range reports {
		if rates := r.Report.GetRates(); rates != nil && rates.Step > 0 && (newest == nil || rates.End > newest.End) {
			newest = rates
		}
	}
	if newest == nil {
		return nil
	}
	steps := len(newest.Started)
	sum := &ratesView{
		time.Duration(newest.Step).Seconds(), time.Unix(0, newest.End).UTC(),
		make([]uint64, steps), make([]uint64, steps), make([]uint64, steps),
	}
	for _, r := range reports {
		if rates := r.Report.GetRates(); rates != nil && rates.Step == newest.Step {
			shift := int((newest.End - rates.End) / newest.Step)
			addShifted(sum.Started, rates.Started, shift)
			addShifted(sum.Ended, rates.Ended, shift)
			addShifted(sum.Failed, rates.Failed, shift)
		}
	}
	return sum
}

// addShifted adds counts whose last element belongs shift elements before the last of sum.
func addShifted(sum []uint64, counts []uint32, shift int) {
	offset := len(sum) - len(counts) - shift
	for i, n := range counts {
		if at := offset + i; at >= 0 && at < len(sum) {
			sum[at] += uint64(n)
		}
	}
}
