package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/bench/cases"
	"github.com/tenuto-dev/tenuto/bench/report"
)

// TestMain also runs nodes in their own processes.
func TestMain(m *testing.M) {
	wasNode, err := cases.RunAsNode()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if !wasNode {
		os.Exit(m.Run())
	}
}

func TestFlags_Validated(t *testing.T) {
	for arguments, want := range map[string]string{
		"-nodes 2":                   "-nodes 2",
		"-store paper":               "-store paper",
		"-repeat 0":                  "-repeat 0",
		"-n -1":                      "must not be negative",
		"-c -1":                      "must not be negative",
		"-procs -1":                  "must not be negative",
		"-cases hello5,hello6":       `no case "hello6"`,
		"-cases failover":            "failover cannot run with -nodes 1",
		"-cases idle -nodes 3":       "idle cannot run with -nodes 3",
		"-cases hello5 -repeat 2 x ": "unexpected argument",
		"-n many":                    "invalid value",
		"-partitions 0":              "-partitions 0",
		"-nodes 3p -partitions 2":    "1 with -nodes 3p",
	} {
		if _, err := parse(strings.Fields(arguments), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error with %q", arguments, err, want)
		}
	}
}

func TestHelp_ListsCases(t *testing.T) {
	var help strings.Builder
	if _, err := parse([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("error %v", err)
	}
	for _, c := range cases.All() {
		if !strings.Contains(help.String(), c.Description) {
			t.Errorf("the help does not have case %s", c.Name)
		}
	}
}

func TestCases_UnfitAreSkippedUnlessNamed(t *testing.T) {
	for nodes, unfit := range map[cases.Nodes][]string{
		cases.OneNode: {"failover", "compare"}, cases.ThreeNodes: {"idle", "list", "dashboard", "workers", "backup"}, cases.ThreeProcesses: {"idle", "list", "dashboard", "workers", "backup"},
	} {
		o, err := parse([]string{"-nodes", string(nodes)}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.cases) != len(cases.All())-len(unfit) {
			t.Errorf("with %s nodes: %d cases", nodes, len(o.cases))
		}
		for _, c := range o.cases {
			if slices.Contains(unfit, c.Name) {
				t.Errorf("with %s nodes: %s", nodes, c.Name)
			}
		}
	}
}

func TestRun_WritesReports(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Mkdir(file("data"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out, progress strings.Builder
	err := run(ctx, []string{"-cases", "start", "-n", "20", "-repeat", "2", "-dir", file("data"), "-json", file("run.json"), "-html", file("run.html"),
		"-cpuprofile", file("cpu"), "-allocprofile", file("allocs")}, &out, &progress)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| start acknowledged, p50 ÷ commit p50 |", "### baseline: commit", "### start"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if !strings.Contains(progress.String(), "round 1 of 2") {
		t.Errorf("the progress is %q", progress.String())
	}
	for _, name := range []string{"run.html", "cpu", "allocs"} {
		if info, err := os.Stat(file(name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if left, err := os.ReadDir(file("data")); err != nil || len(left) > 0 {
		t.Errorf("left of the data: %v, %v", left, err)
	}
	checkJSON(t, file("run.json"))
}

func checkJSON(t *testing.T, name string) {
	t.Helper()
	content, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	r, err := report.ReadJSON(content)
	if err != nil {
		t.Fatal(err)
	}
	last := r.Results[len(r.Results)-1]
	if last.Name != "start" || len(last.Results) != 2 || last.Results[0].Distributions[0].Histogram.Count() != 20 {
		t.Errorf("read back: %+v", last)
	}
}
