package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/check"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// What a run must have covered for its result to count.
const (
	injectedShare = 0.95 // of the chosen faults of the kinds that this machine can have
	inFlightShare = 0.5  // of the injected faults, with calls in flight
)

// notInjected lists the failures that no fault of this command injects, and why.
var notInjected = []string{
	"kills between two given instructions: a process is killed from outside; journal and actors enumerate the crash points",
}

// runAndReport runs a campaign, checks it and reports the result. It deletes the run's directory
// unless the run failed or keep is set. It returns the faults also with an error.
func runAndReport(ctx context.Context, o options, again string, keep bool) ([]evidence.Fault, error) {
	record, shortcomings, err := runCampaign(ctx, o)
	if err == nil {
		err = report(o.out, record, shortcomings, o.dir)
	}
	if err != nil || keep {
		evidenceDir := filepath.Join(o.dir, "evidence")
		repro := fmt.Sprintf("#!/bin/sh\n# To check this evidence again:\n#   go run ./internal/chaos -check %s\n%s\n", evidenceDir, again)
		err = errors.Join(err, record.Save(evidenceDir), os.WriteFile(filepath.Join(o.dir, "repro.sh"), []byte(repro), 0o755))
		fmt.Fprintf(o.out, "evidence is in %s; run again with: %s\n", o.dir, again)
		return record.Faults, err
	}
	return record.Faults, os.RemoveAll(o.dir)
}

func recheck(dir string) error {
	record, err := evidence.Load(dir)
	if err != nil {
		return err
	}
	return report(os.Stdout, record, nil, dir)
}

// report writes the result of a run. It returns an error unless all invariants hold and the run
// covered enough.
func report(w io.Writer, record *evidence.Record, shortcomings []string, dir string) error {
	registry, err := engine.NewRegistry(host.Orchestrations()...)
	if err != nil {
		return err
	}
	result := check.Run(record, registry)
	reportFaults(w, record.Faults)
	reportLeaderships(w, record.Leaderships)
	for _, what := range notInjected {
		fmt.Fprintln(w, "not covered:", what)
	}
	result.Report(w)
	shortcomings = append(slices.Clone(shortcomings), coverageShortfalls(record, result)...)
	for _, shortcoming := range shortcomings {
		fmt.Fprintln(w, "insufficient:", shortcoming)
	}
	switch {
	case len(result.Violations) > 0:
		if err := result.Visualize(dir); err != nil {
			return err
		}
		return fmt.Errorf("%d violations", len(result.Violations))
	case len(shortcomings) > 0:
		return errInsufficientCoverage
	}
	fmt.Fprintln(w, "all invariants that were checked hold")
	return nil
}

// reportFaults writes a table of the faults: how often each was injected, how often with calls in
// flight, and the gaps that clients saw.
func reportFaults(w io.Writer, faults []evidence.Fault) {
	byName := make(map[string][]evidence.Fault)
	var names []string
	for _, f := range faults {
		if byName[f.Name] == nil {
			names = append(names, f.Name)
		}
		byName[f.Name] = append(byName[f.Name], f)
	}
	slices.Sort(names)
	fmt.Fprintf(w, "%-16s %8s %8s %9s %9s %9s %9s %9s %9s\n", "fault", "injected", "skipped", "in flight", "gap p50", "gap p99", "gap max", "back p50", "back p99")
	for _, name := range names {
		var gaps, backs []time.Duration
		skipped, met := 0, 0
		for _, f := range byName[name] {
			if f.Skipped != "" {
				skipped++
				continue
			}
			gaps, backs = append(gaps, f.Gap), append(backs, f.Recovery)
			if f.InFlight > 0 {
				met++
			}
		}
		fmt.Fprintf(w, "%-16s %8d %8d %9d %9v %9v %9v %9v %9v\n", name, len(gaps), skipped, met,
			quantile(gaps, 0.5), quantile(gaps, 0.99), quantile(gaps, 1), quantile(backs, 0.5), quantile(backs, 0.99))
	}
}

// reportRepetitions writes how many faults a campaign has injected that was to inject each kind so
// many times, and which kinds it has injected less often.
func reportRepetitions(w io.Writer, kinds []fault, each int, faults []evidence.Fault) {
	total, least := 0, each
	for _, kind := range kinds {
		injected, skipped := 0, make(map[string]int) // by the reason
		for _, f := range faults {
			switch {
			case f.Name != kind.name:
			case f.Skipped != "":
				skipped[f.Skipped]++
			default:
				injected++
			}
		}
		total, least = total+injected, min(least, injected)
		if injected >= each {
			continue
		}
		fmt.Fprintf(w, "too few: %s was injected %d of %d times", kind.name, injected, each)
		missing := each - injected
		for _, why := range slices.Sorted(maps.Keys(skipped)) {
			fmt.Fprintf(w, "; skipped %d times: %s", skipped[why], why)
			missing -= skipped[why]
		}
		if missing > 0 {
			fmt.Fprintf(w, "; not reached %d times", missing)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d faults of %d kinds were injected, each kind at least %d times\n", total, len(kinds), least)
}

// quantile returns the nearest-rank quantile, or 0 for an empty slice.
func quantile(durations []time.Duration, q float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	slices.Sort(durations)
	return durations[min(len(durations)-1, int(q*float64(len(durations))))].Round(time.Millisecond)
}

// coverageShortfalls lists what the run did not cover.
func coverageShortfalls(record *evidence.Record, result *check.Result) []string {
	var under []string
	possible := make(map[string]bool) // kinds of which at least one was not skipped
	for _, f := range record.Faults {
		possible[f.Name] = possible[f.Name] || f.Skipped == ""
	}
	injected, met, drawn := 0, 0, 0
	for _, f := range record.Faults {
		if !possible[f.Name] {
			continue
		}
		drawn++
		if f.Skipped != "" {
			continue
		}
		if f.End > 0 {
			injected++
		}
		if f.InFlight > 0 {
			met++
		}
	}
	if float64(injected) < injectedShare*float64(drawn) {
		under = append(under, fmt.Sprintf("%d of %d faults were injected", injected, drawn))
	}
	if float64(met) < inFlightShare*float64(injected) {
		under = append(under, fmt.Sprintf("%d of %d faults met calls in flight", met, injected))
	}
	return append(under, result.Uncovered()...)
}
