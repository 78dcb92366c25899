package cases

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// testTimeout ends a test that hangs.
const testTimeout = 3 * time.Minute

// TestMain also runs nodes in their own processes.
func TestMain(m *testing.M) {
	wasNode, err := RunAsNode()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if !wasNode {
		os.Exit(m.Run())
	}
}

// tiny has small amounts with which each case still does everything.
var tiny = map[string]int{"tree": 2, "failover": 1, "replay": 300, "quiet": 1, "workers": 2, "backup": 4}

const tinyDefault = 20

func tinyEnv(t *testing.T, c *Case, nodes Nodes) *Env {
	n, ok := tiny[c.Name]
	if !ok {
		n = tinyDefault
	}
	return &Env{Dir: t.TempDir(), Nodes: nodes, N: n, C: 4, Progress: func(string) {}, Logger: slog.New(slog.DiscardHandler)}
}

func TestCases_OneNode(t *testing.T) { testCases(t, OneNode, All()) }

// Only the deployment depends on the number of nodes, and it is the same for all cases.
func TestCases_ThreeNodes(t *testing.T) { testCases(t, ThreeNodes, selected(t)) }

func TestCases_ThreeProcesses(t *testing.T) { testCases(t, ThreeProcesses, selected(t)) }

func selected(t *testing.T) []*Case {
	cases, err := Select([]string{"hello3", "events", "failover", "restart", "compare"})
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

func testCases(t *testing.T, nodes Nodes, cases []*Case) {
	for _, c := range cases {
		if !c.Fits(nodes) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			result, err := c.run(ctx, tinyEnv(t, c, nodes))
			if err != nil {
				t.Fatal(err)
			}
			checkResult(t, c, result)
			checkTargets(t, c, nodes, result)
		})
	}
}

// checkResult checks that metrics are numbers with unique names, and compared only with
// baselines that the case requests.
func checkResult(t *testing.T, c *Case, result *measure.Result) {
	t.Helper()
	if len(result.Metrics) == 0 {
		t.Error("no metrics")
	}
	seen := map[measure.MetricKey]bool{}
	for _, f := range result.Metrics {
		if seen[f.Key()] {
			t.Errorf("two metrics are called %+v", f.Key())
		}
		seen[f.Key()] = true
		if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) || (f.Unit == measure.PerSecond && f.Value <= 0) {
			t.Errorf("%s: %v %s", f.Name, f.Value, f.Unit)
		}
		if strings.HasPrefix(f.Baseline, "commit") && !c.Commit || strings.HasPrefix(f.Baseline, "packed") && !c.Packed {
			t.Errorf("%s is compared with %q, which is not measured", f.Name, f.Baseline)
		}
	}
}

// checkTargets checks that targets name existing metrics, regardless of their size here.
func checkTargets(t *testing.T, c *Case, nodes Nodes, result *measure.Result) {
	t.Helper()
	for _, target := range Targets(nodes) {
		named := func(f measure.Metric) bool {
			return f.Name == target.Metric.Name && (f.Baseline != "" || !target.OfRatio)
		}
		if target.Subject == c.Name && !slices.ContainsFunc(result.Metrics, named) {
			t.Errorf("no metric is called %q, or it is not compared", target.Metric.Name)
		}
	}
}

func TestSubjects_HaveBaselines(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cases, err := Select([]string{"hello3"})
	if err != nil {
		t.Fatal(err)
	}
	e := Env{Nodes: OneNode, N: tinyDefault, C: 2, Logger: slog.New(slog.DiscardHandler)}
	plan := measure.Plan{Subjects: Subjects(cases, e, 100, 0.01), Repeat: 2, Dir: t.TempDir()}
	measured, err := plan.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hello := measured[len(measured)-1]
	for _, metric := range hello.Results[1].Metrics {
		if metric.Baseline != "" && hello.Baselines[1][metric.Baseline] <= 0 {
			t.Errorf("%s is compared with %q, which was not measured", metric.Name, metric.Baseline)
		}
	}
	if left, err := os.ReadDir(plan.Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestSelect(t *testing.T) {
	all, err := Select(nil)
	if err != nil || len(all) != len(All()) {
		t.Errorf("without names: %d cases, %v", len(all), err)
	}
	if _, err := Select([]string{"hello5", "nonsense"}); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("of an unknown one: %v", err)
	}
}

func TestRecordBytes(t *testing.T) {
	size, err := RecordBytes(t.Context())
	if err != nil || size < 60 || size > 400 {
		t.Errorf("%d bytes, %v", size, err)
	}
	t.Log(size)
}
