package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

func TestIsBalanced(t *testing.T) {
	nodes := []string{"n1", "n2", "n3"}
	for _, c := range []struct {
		leaders []string
		want    bool
	}{
		{[]string{"n1", "n2", "n3", "n1"}, true},
		{[]string{"n1", "n2", "n1", "n2"}, false},
		{[]string{"n1", "n2", "n3", ""}, false},
		{[]string{"n3"}, true},
		{[]string{""}, false},
	} {
		if got := isBalanced(c.leaders, nodes); got != c.want {
			t.Errorf("%v: %v", c.leaders, got)
		}
	}
}

func TestLeaderBalance_ReportsDurations(t *testing.T) {
	b := &leaderBalance{fleet: &fleet{log: evidence.NewLog(2)}}
	b.recordBalanced() // no fault yet
	b.faultHealed()
	b.faultBegan() // immediately
	b.faultHealed()
	b.recordBalanced()
	b.recordBalanced()
	b.durations[0] = 3 * time.Second
	var out bytes.Buffer
	b.report(&out, []string{"n1", "n3"})
	const want = "leaders balanced within 3s (p50), 3s (p99), 3s (max) after 1 faults; 1 times another fault came first\n" +
		"final leader of partition 0: n1\nfinal leader of partition 1: n3\n"
	if out.String() != want {
		t.Errorf("got %s", &out)
	}
}

func TestReportLeaderships_CountsMoves(t *testing.T) {
	var out bytes.Buffer
	reportLeaderships(&out, []evidence.Leadership{
		{Node: "n2", Epoch: 3}, {Node: "n1", Epoch: 1}, {Node: "n1", Epoch: 2}, {Node: "n3", Partition: 1, Epoch: 1},
	})
	const want = "partition 0: 3 leaderships (n1 2, n2 1), 1 changes to another node\n" +
		"partition 1: 1 leaderships (n3 1), 0 changes to another node\n"
	if out.String() != want {
		t.Errorf("got %s", &out)
	}
}
