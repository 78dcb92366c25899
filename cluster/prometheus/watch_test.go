package prometheus

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// An alert is a rule of alerts.yaml.
type alert struct{ name, text, expr string }

func readDocs(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	expr := regexp.MustCompile(`(?m)^        expr: (.+)$`)
	for _, text := range strings.Split(readDocs(t, "alerts.yaml"), "      - alert: ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		a := alert{name: name, text: rest}
		if found := expr.FindStringSubmatch(rest); found != nil {
			a.expr = found[1]
		}
		all = append(all, a)
	}
	if len(all) < 20 {
		t.Fatalf("%d alerts", len(all))
	}
	return all
}

// A panel is one of grafana.json.
type panel struct {
	Type, Title, Description string
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ Expr, LegendFormat string }
}

func panels(t *testing.T) (all []panel) {
	t.Helper()
	var board struct{ Panels []panel }
	if err := json.Unmarshal([]byte(readDocs(t, "grafana.json")), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		if p.Type != "row" {
			all = append(all, p)
		}
	}
	if len(all) < 15 {
		t.Fatalf("%d panels", len(all))
	}
	return all
}

func TestAlerts_SayWhatToDo(t *testing.T) {
	fields := []string{
		`        for: \d+[mh]`, `        labels: \{severity: (page|ticket)\}`,
		`          summary: '[^']+'`, `          description: '[^']+ See [a-z]+\.md#[a-z0-9-]+'`,
	}
	link := regexp.MustCompile(`See ([a-z]+\.md)#([a-z0-9-]+)`)
	for _, a := range alerts(t) {
		for _, field := range fields {
			if !regexp.MustCompile("(?m)^" + field + "$").MatchString(a.text) {
				t.Errorf("%s has no line %s", a.name, field)
			}
		}
		if to := link.FindStringSubmatch(a.text); to != nil && !slices.Contains(anchors(readDocs(t, to[1])), to[2]) {
			t.Errorf("%s: %s has no heading #%s", a.name, to[1], to[2])
		}
	}
}

// anchors returns what links to headings of a Markdown text end with.
func anchors(text string) (all []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		anchor := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, strings.ReplaceAll(anchor, " ", "-"))
	}
	return all
}

func TestGrafana_PanelsHaveUnitsAndDescriptions(t *testing.T) {
	for _, p := range panels(t) {
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %q lacks a description, a unit or a query", p.Title)
		}
		for _, target := range p.Targets {
			if target.LegendFormat == "" || !strings.Contains(target.Expr, `tenuto_node=~"$node"`) {
				t.Errorf("the panel %q: a query has no legend or does not select the nodes: %s", p.Title, target.Expr)
			}
		}
	}
}

// The metrics and labels of alerts and panels are those that a node exports, or, of things that
// have not happened on it, those that METRICS.md describes.
func TestWatched_MetricsExist(t *testing.T) {
	described := readDocs(t, "../METRICS.md")
	exported := familiesOf(t, runOnDisk(t))
	var expressions []string
	for _, a := range alerts(t) {
		expressions = append(expressions, a.expr)
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			expressions = append(expressions, target.Expr)
		}
	}
	name := regexp.MustCompile(`tenuto_[a-z_]+`)
	labels := regexp.MustCompile(`(tenuto_[a-z_]+)(?:=|!=)|by \(([a-z_, ]+)\)`)
	for _, expr := range expressions {
		allLabels := labelNames(labels, expr)
		if strings.Count(expr, "(") != strings.Count(expr, ")") || expr == "" {
			t.Errorf("not an expression: %q", expr)
		}
		for _, n := range name.FindAllString(expr, -1) {
			if slices.Contains(allLabels, n) {
				continue
			}
			if base := sourceOf(described, n); base == "" {
				t.Errorf("METRICS.md does not describe %s of %s", n, expr)
			} else if !exported[n] && hasPrefix(exported, base) {
				t.Errorf("a node exports %s under another name than %s", base, n)
			}
		}
		for _, l := range allLabels {
			if l != "le" && !strings.Contains(described, "`"+strings.TrimPrefix(l, "tenuto_")+"`") &&
				!strings.Contains(described, "`"+strings.Replace(l, "_", ".", 1)+"`") {
				t.Errorf("METRICS.md does not describe the attribute %s of %s", l, expr)
			}
		}
	}
	for _, must := range []string{"tenuto_raft_term", "tenuto_journal_log_write_duration_seconds_bucket", "tenuto_activity_attempt_duration_seconds_count"} {
		if !exported[must] {
			t.Errorf("the node of the test does not export %s", must)
		}
	}
}

// labelNames returns the labels that an expression selects or groups by.
func labelNames(pattern *regexp.Regexp, expr string) (names []string) {
	for _, found := range pattern.FindAllStringSubmatch(expr, -1) {
		if found[1] != "" {
			names = append(names, found[1])
		}
		for _, l := range strings.Split(found[2], ",") {
			if l = strings.TrimSpace(l); l != "" {
				names = append(names, l)
			}
		}
	}
	return names
}

// exportedSuffix is what the name of a metric ends with when it is exported.
var exportedSuffix = regexp.MustCompile(`^(_seconds|_bytes)?(_total|_bucket|_count|_sum)?$`)

// sourceOf returns the described metric that is exported under a name, with underscores; "" if
// there is none.
func sourceOf(described, name string) string {
	longest := ""
	for _, found := range regexp.MustCompile("(?m)^\\| `(tenuto[a-z._]+)`").FindAllStringSubmatch(described, -1) {
		base := strings.ReplaceAll(found[1], ".", "_")
		if rest, ok := strings.CutPrefix(name, base); ok && exportedSuffix.MatchString(rest) && len(base) > len(longest) {
			longest = base
		}
	}
	return longest
}

func hasPrefix(names map[string]bool, base string) bool {
	for n := range names {
		if rest, ok := strings.CutPrefix(n, base); ok && exportedSuffix.MatchString(rest) {
			return true
		}
	}
	return false
}

// runOnDisk returns what a node with a directory exports after a run.
func runOnDisk(t *testing.T) string {
	t.Helper()
	node := startNode(t, cluster.Config{Dir: t.TempDir()})
	handler, text := Handler(node), "" // before the run
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := cluster.Call(ctx, node.Client(), twice, "order-18", 1); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(text, "tenuto_orchestrations_ended_total") {
		if ctx.Err() != nil {
			t.Fatalf("the end was not counted:\n%s", text)
		}
		text = scrape(handler).Body.String()
	}
	return text
}

func familiesOf(t *testing.T, text string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^(tenuto_[a-z_]+)`).FindAllStringSubmatch(text, -1) {
		names[found[1]] = true
	}
	return names
}
