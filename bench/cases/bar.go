package cases

import (
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/bench/report"
)

// oneNodeBars are what one node of two cores should come to.
var oneNodeBars = []report.Bar{
	{Text: "hello5, orchestrations", Subject: "hello5", Figure: measure.Key{Name: "orchestrations"}, Limit: 10_000},
	{Text: "hello5, records ÷ packed Raft records", Subject: "hello5", Figure: measure.Key{Name: "records"}, OfRatio: true, Limit: 0.35},
	{Text: "hello3 alone, p50 ÷ commit p50", Subject: "hello3", Figure: measure.Key{Name: "alone p50"}, OfRatio: true, AtMost: true, Limit: 5},
	{Text: "fanout of 10,000 in one instance", Subject: "fanout", Figure: measure.Key{Name: "activities, one instance", At: 10_000}, Limit: 50_000},
	{Text: "fanout, cost of an activity, 10,000 ÷ 100", Subject: "fanout", Figure: measure.Key{Name: "cost of an activity, the largest ÷ the smallest"}, AtMost: true, Limit: 1.1},
	{Text: "sequence, step 50,000 ÷ step 50", Subject: "sequence", Figure: measure.Key{Name: "step of the oldest ÷ step of the youngest"}, AtMost: true, Limit: 1.1},
	{Text: "events into one instance", Subject: "events", Figure: measure.Key{Name: "events, by instances", At: 1}, Limit: 20_000},
	{Text: "events into ten thousand", Subject: "events", Figure: measure.Key{Name: "events, by instances", At: 10_000}, Limit: 60_000},
	{Text: "timers, 100,000 in a second, late p99", Subject: "timers", Figure: measure.Key{Name: "late, as its waiter sees p99"}, AtMost: true, Limit: float64(time.Second)},
	{Text: "timers, early", Subject: "timers", Figure: measure.Key{Name: "early"}, AtMost: true, Limit: 0},
	{Text: "replay, the turn alone, 50,000 events", Subject: "replay", Figure: measure.Key{Name: "events, by the turn alone", At: 50_000}, Limit: 1_500_000},
	{Text: "idle, resident", Subject: "idle", Figure: measure.Key{Name: "resident, memory each", At: 100_000}, AtMost: true, Limit: 4 << 10},
	{Text: "idle, evicted", Subject: "idle", Figure: measure.Key{Name: "evicted, memory each", At: 1_000_000}, AtMost: true, Limit: 256},
	{Text: "start acknowledged, p50 ÷ commit p50", Subject: "start", Figure: measure.Key{Name: "acknowledged p50"}, OfRatio: true, AtMost: true, Limit: 1.5},
}

// threeNodesBars are what three nodes in one process should come to.
var threeNodesBars = []report.Bar{
	{Text: "hello5, orchestrations", Subject: "hello5", Figure: measure.Key{Name: "orchestrations"}, Limit: 4_000},
}

// Bars returns what the cases should come to on so many nodes, with the amounts
// that they have themselves. That of the records is for any machine; the others
// are for two cores and a disk that syncs in a quarter of a millisecond.
func Bars(nodes Nodes) []report.Bar {
	switch nodes {
	case OneNode:
		return oneNodeBars
	case ThreeNodes:
		return threeNodesBars
	}
	return nil
}
