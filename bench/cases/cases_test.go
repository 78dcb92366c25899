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

// patience ends a test that hangs; nothing is measured by it.
const patience = 3 * time.Minute

// TestMain is also the main of nodes in processes of their own.
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

// tiny is an amount at which every case still does all that it does.
var tiny = map[string]int{"tree": 2, "failover": 1, "replay": 300, "quiet": 1}

const tinyDefault = 20

func tinyEnv(t *testing.T, c *Case, nodes Nodes) *Env {
	n, ok := tiny[c.Name]
	if !ok {
		n = tinyDefault
	}
	return &Env{Dir: t.TempDir(), Nodes: nodes, N: n, C: 4, Progress: func(string) {}, Logger: slog.New(slog.DiscardHandler)}
}

func TestEveryCaseRunsOnOneNode(t *testing.T) { testCases(t, OneNode, All()) }

// What differs with the number of nodes is how they are deployed, and that is
// the same for all cases.
func TestCasesRunOnThreeNodes(t *testing.T) { testCases(t, ThreeNodes, selected(t)) }

func TestCasesRunOnThreeProcesses(t *testing.T) { testCases(t, ThreeProcesses, selected(t)) }

func selected(t *testing.T) []*Case {
	cases, err := Select([]string{"hello3", "events", "failover", "restart"})
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
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			result, err := c.run(ctx, tinyEnv(t, c, nodes))
			if err != nil {
				t.Fatal(err)
			}
			checkResult(t, c, result)
			checkBars(t, c, nodes, result)
		})
	}
}

// checkResult checks that figures are numbers, have one name each, and that each
// is compared only with a yardstick that the case asks for.
func checkResult(t *testing.T, c *Case, result *measure.Result) {
	t.Helper()
	if len(result.Figures) == 0 {
		t.Error("no figures")
	}
	seen := map[measure.Key]bool{}
	for _, f := range result.Figures {
		if seen[f.Key()] {
			t.Errorf("two figures are called %+v", f.Key())
		}
		seen[f.Key()] = true
		if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) || (f.Unit == measure.PerSecond && f.Value <= 0) {
			t.Errorf("%s: %v %s", f.Name, f.Value, f.Unit)
		}
		if strings.HasPrefix(f.Against, "commit") && !c.Commit || strings.HasPrefix(f.Against, "packed") && !c.Packed {
			t.Errorf("%s is compared with %q, which is not measured", f.Name, f.Against)
		}
	}
}

// checkBars checks that bars name figures that there are; how large what was
// measured was is another matter here.
func checkBars(t *testing.T, c *Case, nodes Nodes, result *measure.Result) {
	t.Helper()
	for _, bar := range Bars(nodes) {
		named := func(f measure.Figure) bool {
			return f.Name == bar.Figure.Name && (f.Against != "" || !bar.OfRatio)
		}
		if bar.Subject == c.Name && !slices.ContainsFunc(result.Figures, named) {
			t.Errorf("no figure is called %q, or it is not compared", bar.Figure.Name)
		}
	}
}

func TestSubjectsHaveTheirYardsticks(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cases, err := Select([]string{"hello3"})
	if err != nil {
		t.Fatal(err)
	}
	e := Env{Nodes: OneNode, N: tinyDefault, C: 2, Logger: slog.New(slog.DiscardHandler)}
	plan := measure.Plan{Subjects: Subjects(cases, e, 100, 0.01), Repeat: 2, Dir: t.TempDir()}
	measured, err := plan.Rounds(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hello := measured[len(measured)-1]
	for _, figure := range hello.Results[1].Figures {
		if figure.Against != "" && hello.Yardsticks[1][figure.Against] <= 0 {
			t.Errorf("%s is compared with %q, which was not measured", figure.Name, figure.Against)
		}
	}
	if left, err := os.ReadDir(plan.Dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestSelectKnowsItsCases(t *testing.T) {
	all, err := Select(nil)
	if err != nil || len(all) != len(All()) {
		t.Errorf("without names: %d cases, %v", len(all), err)
	}
	if _, err := Select([]string{"hello5", "nonsense"}); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("of an unknown one: %v", err)
	}
}

func TestRecordsAreOfTheSizeThatTheJournalWrites(t *testing.T) {
	size, err := RecordBytes(t.Context())
	if err != nil || size < 60 || size > 400 {
		t.Errorf("%d bytes, %v", size, err)
	}
	t.Log(size)
}
