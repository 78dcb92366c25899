package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/internal/chaos/judge"
	"github.com/tenuto-dev/tenuto/replay"
)

// What a run has to have done for its verdict to count.
const (
	injectedShare = 0.95 // of the faults that were drawn and can be made here
	inFlightShare = 0.5  // of those, that met calls in flight
)

// notMade lists what belongs to the contract and is made by no fault here, and
// why.
var notMade = []string{
	"kills between two given instructions: a process is killed from outside; journal and actors enumerate the points",
}

// conclude runs a campaign, judges and reports it, and clears away after it,
// unless there is something to be looked at.
func conclude(ctx context.Context, o options, again string, keep bool) error {
	record, shortcomings, err := wage(ctx, o)
	if err == nil {
		err = report(o.out, record, shortcomings, o.dir)
	}
	if err != nil || keep {
		evidenceDir := filepath.Join(o.dir, "evidence")
		repro := fmt.Sprintf("#!/bin/sh\n# Judges this very evidence again:\n#   go run ./internal/chaos -judge %s\n%s\n", evidenceDir, again)
		err = errors.Join(err, record.Save(evidenceDir), os.WriteFile(filepath.Join(o.dir, "repro.sh"), []byte(repro), 0o755))
		fmt.Fprintf(o.out, "evidence is in %s; the same again: %s\n", o.dir, again)
		return err
	}
	return os.RemoveAll(o.dir)
}

func judgeAgain(dir string) error {
	record, err := evidence.Load(dir)
	if err != nil {
		return err
	}
	return report(os.Stdout, record, nil, dir)
}

// report says what a run has shown. The error says that it has not shown that
// all is well.
func report(w io.Writer, record *evidence.Record, shortcomings []string, dir string) error {
	registry, err := replay.NewRegistry(host.Orchestrations()...)
	if err != nil {
		return err
	}
	verdict := judge.Judge(record, registry)
	reportFaults(w, record.Faults)
	reportReigns(w, record.Reigns)
	for _, what := range notMade {
		fmt.Fprintln(w, "not made:", what)
	}
	verdict.Report(w)
	shortcomings = append(slices.Clone(shortcomings), floors(record, verdict)...)
	for _, shortcoming := range shortcomings {
		fmt.Fprintln(w, "TOO LITTLE:", shortcoming)
	}
	switch {
	case len(verdict.Violations) > 0:
		if err := verdict.Draw(dir); err != nil {
			return err
		}
		return fmt.Errorf("%d violations", len(verdict.Violations))
	case len(shortcomings) > 0:
		return errTooLittle
	}
	fmt.Fprintln(w, "all that was judged holds")
	return nil
}

// reportFaults writes a table: how often each fault was injected, how many of
// these met calls in flight, and what clients saw of it.
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

// quantile returns the nearest-rank quantile, 0 of nothing.
func quantile(durations []time.Duration, q float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	slices.Sort(durations)
	return durations[min(len(durations)-1, int(q*float64(len(durations))))].Round(time.Millisecond)
}

// floors lists what the run has not done, so that its verdict would say little.
func floors(record *evidence.Record, verdict *judge.Verdict) []string {
	var under []string
	injected, met, drawn := 0, 0, 0
	for _, f := range record.Faults {
		if f.Skipped != "" {
			continue
		}
		drawn++
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
	return append(under, verdict.Idle()...)
}
