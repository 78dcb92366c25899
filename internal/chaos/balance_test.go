package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

func TestLeadersAreSpreadWhenNobodyLeadsTwoMore(t *testing.T) {
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
		if got := isSpread(c.leaders, nodes); got != c.want {
			t.Errorf("%v: %v", c.leaders, got)
		}
	}
}

func TestItIsToldHowSoonLeadersWereSpread(t *testing.T) {
	b := &balance{fleet: &fleet{log: evidence.NewLog(2)}}
	b.spread() // there was no fault
	b.healed()
	b.begun() // at once
	b.healed()
	b.spread()
	b.spread()
	b.took[0] = 3 * time.Second
	var out bytes.Buffer
	b.tell(&out, []string{"n1", "n3"})
	const want = "the leaders were spread within 3s (p50), 3s (p99), 3s at most after 1 faults; 1 times another fault came before\n" +
		"in the end group 0 was led by n1\nin the end group 1 was led by n3\n"
	if out.String() != want {
		t.Errorf("got %s", &out)
	}
}

func TestItIsToldHowOftenLeadershipMoved(t *testing.T) {
	var out bytes.Buffer
	reportReigns(&out, []evidence.Reign{
		{Node: "n2", Epoch: 3}, {Node: "n1", Epoch: 1}, {Node: "n1", Epoch: 2}, {Node: "n3", Group: 1, Epoch: 1},
	})
	const want = "group 0: 3 reigns (n1 2, n2 1), 1 times another node's than the one before\n" +
		"group 1: 1 reigns (n3 1), 0 times another node's than the one before\n"
	if out.String() != want {
		t.Errorf("got %s", &out)
	}
}
