package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A leg is one of the runs that a campaign consists of, on a cluster of its own.
type leg struct {
	nodes, groups int
	faults        []fault
}

// shapes are the clusters of a mixed campaign, each with how many of ten faults it gets.
var shapes = []struct{ nodes, groups, share int }{
	{fleetSize, 1, 5},
	{fleetSize, 4, 3},
	{5, 1, 2},
}

// mix deals so many of every fault to clusters of different shapes, in an order that the seed
// draws.
func mix(chosen []fault, each int, seed uint64) []leg {
	var deck []fault
	for range each {
		deck = append(deck, chosen...)
	}
	random := newRandom(seed)
	random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	legs, total, dealt, due := make([]leg, len(shapes)), len(deck), 0, 0
	for i, shape := range shapes {
		due += shape.share
		end := total * due / 10
		legs[i] = leg{nodes: shape.nodes, groups: shape.groups, faults: deck[dealt:end]}
		dealt = end
	}
	return legs
}

// concludeAll runs the legs of a campaign one after the other, and goes on after one that shows
// something, so that its end says what became of each.
func concludeAll(ctx context.Context, o options, legs []leg, again string, keep bool) error {
	var errs []error
	for i, leg := range legs {
		if len(leg.faults) == 0 || ctx.Err() != nil {
			continue
		}
		part := o
		part.dir = filepath.Join(o.dir, fmt.Sprint(i))
		part.nodes, part.groups, part.faults, part.count = leg.nodes, leg.groups, leg.faults, len(leg.faults)
		if err := os.Mkdir(part.dir, 0o700); err != nil {
			return err
		}
		fmt.Fprintf(o.out, "== %d nodes, %d groups, %d faults\n", part.nodes, part.groups, part.count)
		if err := conclude(ctx, part, again, keep); err != nil {
			fmt.Fprintln(o.out, "==", err)
			errs = append(errs, fmt.Errorf("%d nodes, %d groups: %w", part.nodes, part.groups, err))
		}
	}
	if len(errs) > 0 || keep {
		return errors.Join(append(errs, ctx.Err())...)
	}
	return errors.Join(ctx.Err(), os.RemoveAll(o.dir))
}
