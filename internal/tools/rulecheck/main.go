// Rulecheck fails if Prometheus would not load a file of alerting rules, or would not parse a query
// of a Grafana dashboard. It is a module of its own: the parser of Prometheus requires versions of
// dependencies that the other modules do not.
//
//	rulecheck rules.yaml dashboard.json
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: rulecheck rules.yaml dashboard.json")
	}
	promql := parser.NewParser(parser.Options{})
	rules, errs := checkRules(promql, os.Args[1])
	queries, err := checkDashboard(promql, os.Args[2])
	if err != nil {
		errs = append(errs, err)
	}
	for _, err := range errs {
		log.Print(err)
	}
	if len(errs) > 0 {
		os.Exit(1)
	}
	log.Printf("%d rules, %d queries", rules, queries)
}

// checkRules parses a file of rules and their templates as Prometheus does. It returns how many
// rules there are.
func checkRules(promql parser.Parser, path string) (count int, errs []error) {
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, promql, slog.Default())
	if len(errs) > 0 {
		return 0, errs
	}
	for _, group := range groups.Groups {
		count += len(group.Rules)
	}
	if count == 0 {
		return 0, []error{fmt.Errorf("%s has no rules", path)}
	}
	return count, nil
}

// grafanaVariables replaces the variables that Grafana replaces before it sends a query.
var grafanaVariables = strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m", "$__range", "1h")

// checkDashboard parses the queries of all panels and returns how many there are.
func checkDashboard(promql parser.Parser, path string) (count int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			if _, err := promql.ParseExpr(grafanaVariables.Replace(target.Expr)); err != nil {
				return 0, fmt.Errorf("%s: panel %q: %w", path, panel.Title, err)
			}
			count++
		}
	}
	if count == 0 {
		return 0, fmt.Errorf("%s has no queries", path)
	}
	return count, nil
}
