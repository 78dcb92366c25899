package main

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

func TestMixFaults_CountsEachFault(t *testing.T) {
	for _, each := range []int{1, 3} {
		made := make(map[string]int)
		for _, leg := range mixFaults(faults, each, 7) {
			if len(leg.faults) == 0 {
				t.Errorf("no faults for %d nodes with %d partitions", leg.nodes, leg.partitions)
			}
			for _, f := range leg.faults {
				made[f.name]++
			}
		}
		for _, f := range faults {
			if made[f.name] != each {
				t.Errorf("%s is injected %d times; want %d", f.name, made[f.name], each)
			}
		}
	}
}

// "make campaign" injects a thousand faults, each kind twenty times or more.
func TestCampaign_ThousandFaults(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^TIMES \?= (\d+)$`).FindSubmatch(makefile)
	if found == nil {
		t.Fatal("the Makefile has no TIMES")
	}
	kinds, err := selectFaults("")
	if err != nil {
		t.Fatal(err)
	}
	if times, err := strconv.Atoi(string(found[1])); err != nil || times < 20 || times*len(kinds) < 1000 {
		t.Errorf("%d kinds, each %d times, %v", len(kinds), times, err)
	}
}

// A kind that was injected less often than asked for is named, with the reasons.
func TestReportRepetitions(t *testing.T) {
	kinds := []fault{{name: "kill-leader"}, {name: "slow-sync"}, {name: "full-disk"}}
	killed, slow := evidence.Fault{Name: "kill-leader", End: time.Second}, evidence.Fault{Name: "slow-sync", End: time.Second}
	untraced := evidence.Fault{Name: "slow-sync", Skipped: "strace cannot attach"}
	noDisk := evidence.Fault{Name: "full-disk", Skipped: "no root"}
	for want, faults := range map[string][]evidence.Fault{
		"too few: slow-sync was injected 1 of 2 times; skipped 1 times: strace cannot attach\n" +
			"too few: full-disk was injected 0 of 2 times; skipped 2 times: no root\n" +
			"3 faults of 3 kinds were injected, each kind at least 0 times\n": {killed, slow, noDisk, untraced, killed, noDisk},
		"too few: slow-sync was injected 0 of 2 times; not reached 2 times\n" +
			"too few: full-disk was injected 0 of 2 times; skipped 1 times: no root; not reached 1 times\n" +
			"2 faults of 3 kinds were injected, each kind at least 0 times\n": {killed, killed, noDisk},
	} {
		var out bytes.Buffer
		if reportRepetitions(&out, kinds, 2, faults); out.String() != want {
			t.Errorf("%s\nwant\n%s", &out, want)
		}
	}
	var out bytes.Buffer
	if reportRepetitions(&out, kinds[:2], 1, []evidence.Fault{slow, killed}); out.String() != "2 faults of 2 kinds were injected, each kind at least 1 times\n" {
		t.Error(out.String())
	}
}
