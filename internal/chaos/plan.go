package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A campaignPart is one of the runs of a campaign, on its own cluster.
type campaignPart struct {
	nodes, partitions int
	faults            []fault
}

// clusterShapes are the clusters of a mixed campaign, and how many of ten faults each gets.
var clusterShapes = []struct{ nodes, partitions, share int }{
	{fleetSize, 1, 5},
	{fleetSize, 4, 3},
	{5, 1, 2},
}

// mixFaults distributes each fault to clusters of different shapes, in an order that the seed
// determines.
func mixFaults(chosen []fault, each int, seed uint64) []campaignPart {
	var shuffled []fault
	for range each {
		shuffled = append(shuffled, chosen...)
	}
	random := newRandom(seed)
	random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	parts, total, dealt, due := make([]campaignPart, len(clusterShapes)), len(shuffled), 0, 0
	for i, shape := range clusterShapes {
		due += shape.share
		end := total * due / 10
		parts[i] = campaignPart{nodes: shape.nodes, partitions: shape.partitions, faults: shuffled[dealt:end]}
		dealt = end
	}
	return parts
}

// runAndReportAll runs the parts of a campaign one after the other. It continues after a failed
// part and reports all results at the end.
func runAndReportAll(ctx context.Context, o options, parts []campaignPart, again string, keep bool) error {
	var errs []error
	for i, leg := range parts {
		if len(leg.faults) == 0 || ctx.Err() != nil {
			continue
		}
		part := o
		part.dir = filepath.Join(o.dir, fmt.Sprint(i))
		part.nodes, part.partitions, part.faults, part.count = leg.nodes, leg.partitions, leg.faults, len(leg.faults)
		if err := os.Mkdir(part.dir, 0o700); err != nil {
			return err
		}
		fmt.Fprintf(o.out, "== %d nodes, %d partitions, %d faults\n", part.nodes, part.partitions, part.count)
		if err := runAndReport(ctx, part, again, keep); err != nil {
			fmt.Fprintln(o.out, "==", err)
			errs = append(errs, fmt.Errorf("%d nodes, %d partitions: %w", part.nodes, part.partitions, err))
		}
	}
	if len(errs) > 0 || keep {
		return errors.Join(append(errs, ctx.Err())...)
	}
	return errors.Join(ctx.Err(), os.RemoveAll(o.dir))
}
