package cases

import (
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/bench/report"
)

// oneNodeTargets are the targets of one node with two cores.
var oneNodeTargets = []report.Target{
	{Text: "hello5, orchestrations", Subject: "hello5", Metric: measure.MetricKey{Name: "orchestrations"}, Limit: 10_000},
	{Text: "hello5, records ÷ packed Raft records", Subject: "hello5", Metric: measure.MetricKey{Name: "records"}, OfRatio: true, Limit: 0.35},
	{Text: "hello3 alone, p50 ÷ commit p50", Subject: "hello3", Metric: measure.MetricKey{Name: "alone p50"}, OfRatio: true, AtMost: true, Limit: 5},
	{Text: "fanout of 10,000 in one instance", Subject: "fanout", Metric: measure.MetricKey{Name: "activities, one instance", At: 10_000}, Limit: 50_000},
	{Text: "fanout, cost of an activity, 10,000 ÷ 100", Subject: "fanout", Metric: measure.MetricKey{Name: "cost of an activity, the largest ÷ the smallest"}, AtMost: true, Limit: 1.1},
	{Text: "sequence, step 50,000 ÷ step 50", Subject: "sequence", Metric: measure.MetricKey{Name: "step of the oldest ÷ step of the youngest"}, AtMost: true, Limit: 1.1},
	{Text: "events to one instance", Subject: "events", Metric: measure.MetricKey{Name: "events, by instances", At: 1}, Limit: 20_000},
	{Text: "events to ten thousand", Subject: "events", Metric: measure.MetricKey{Name: "events, by instances", At: 10_000}, Limit: 60_000},
	{Text: "timers, 100,000 in a second, late p99", Subject: "timers", Metric: measure.MetricKey{Name: "late, as its waiter sees p99"}, AtMost: true, Limit: float64(time.Second)},
	{Text: "timers, early", Subject: "timers", Metric: measure.MetricKey{Name: "early"}, AtMost: true, Limit: 0},
	{Text: "replay, the turn alone, 50,000 events", Subject: "replay", Metric: measure.MetricKey{Name: "events, by the turn alone", At: 50_000}, Limit: 1_500_000},
	{Text: "idle, resident", Subject: "idle", Metric: measure.MetricKey{Name: "resident, memory each", At: 100_000}, AtMost: true, Limit: 4 << 10},
	{Text: "idle, evicted", Subject: "idle", Metric: measure.MetricKey{Name: "evicted, memory each", At: 1_000_000}, AtMost: true, Limit: 256},
	{Text: "dashboard, overview p99", Subject: "dashboard", Metric: measure.MetricKey{Name: "overview p99"}, AtMost: true, Limit: float64(50 * time.Millisecond)},
	{Text: "dashboard, slowest list p99", Subject: "dashboard", Metric: measure.MetricKey{Name: "slowest list p99"}, AtMost: true, Limit: float64(100 * time.Millisecond)},
	{Text: "dashboard, first screen of 50,000 events", Subject: "dashboard", Metric: measure.MetricKey{Name: "long instance, first screen max"}, AtMost: true, Limit: float64(time.Second)},
	{Text: "hello5 with 100 pages ÷ without", Subject: "dashboard", Metric: measure.MetricKey{Name: "hello5 with pages ÷ without: rate"}, Limit: 0.95},
	{Text: "backup to nowhere ÷ reads of the disk", Subject: "backup", Metric: measure.MetricKey{Name: "backup to nowhere ÷ disk"}, Limit: 0.5},
	{Text: "backup to a directory ÷ copies of a file", Subject: "backup", Metric: measure.MetricKey{Name: "backup to a directory ÷ disk, copy"}, Limit: 0.5},
	{Text: "hello5 with backups ÷ without", Subject: "backup", Metric: measure.MetricKey{Name: "hello5 with backups ÷ without: rate"}, Limit: 0.8},
	{Text: "start acknowledged, p50 ÷ commit p50", Subject: "start", Metric: measure.MetricKey{Name: "acknowledged p50"}, OfRatio: true, AtMost: true, Limit: 1.5},
}

// threeNodesTargets are the targets of three nodes in one process.
var threeNodesTargets = []report.Target{
	{Text: "hello5, orchestrations", Subject: "hello5", Metric: measure.MetricKey{Name: "orchestrations"}, Limit: 4_000},
}

// Targets returns the targets for the default amounts on the given nodes. The ratio of records
// applies to any machine. The others apply to two cores and a disk that syncs in 0.25 ms.
func Targets(nodes Nodes) []report.Target {
	switch nodes {
	case OneNode:
		return oneNodeTargets
	case ThreeNodes:
		return threeNodesTargets
	}
	return nil
}
