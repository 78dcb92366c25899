package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

const (
	// How often it is looked who leads what, and how long the leaders may take to be
	// spread again in the end.
	spreadEvery = 200 * time.Millisecond
	spreadLimit = time.Minute
)

// A balance watches how the leaders of several groups are spread over the nodes.
type balance struct {
	fleet *fleet

	mu      sync.Mutex
	waiting bool          // for leaders that are spread,
	since   time.Duration // from when on
	took    []time.Duration
	cut     int // faults before which it had not come to that
}

// watch looks until ctx ends.
func (b *balance) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if leaders := b.fleet.leaders(ctx); isSpread(leaders, b.fleet.others()) {
			b.spread()
		}
		rest(ctx, spreadEvery)
	}
}

// isSpread tells whether all groups are led, and no node leads two more than another.
func isSpread(leaders, nodes []string) bool {
	led := make(map[string]int)
	for _, leader := range leaders {
		led[leader]++
	}
	least, most := len(leaders), 0
	for _, node := range nodes {
		least, most = min(least, led[node]), max(most, led[node])
	}
	return led[""] == 0 && most-least <= 1
}

func (b *balance) spread() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting {
		b.took, b.waiting = append(b.took, b.fleet.log.Now()-b.since), false
	}
}

// healed tells that a fault is over; begun, that the next one begins.
func (b *balance) healed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting, b.since = true, b.fleet.log.Now()
}

func (b *balance) begun() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting {
		b.cut++
	}
	b.waiting = false
}

// end waits until the leaders are spread after the last fault, and tells whether they
// are.
func (b *balance) end(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, spreadLimit)
	defer cancel()
	_, err := b.fleet.awaitThat(ctx, func(leaders []string) bool { return isSpread(leaders, b.fleet.others()) })
	return err == nil
}

// tell writes how soon the leaders were spread after faults, and who leads.
func (b *balance) tell(out io.Writer, leaders []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(out, "the leaders were spread within %v (p50), %v (p99), %v at most after %d faults; %d times another fault came before\n",
		quantile(b.took, 0.5), quantile(b.took, 0.99), quantile(b.took, 1), len(b.took), b.cut)
	for group, leader := range leaders {
		fmt.Fprintf(out, "in the end group %d was led by %s\n", group, leader)
	}
}

// reportReigns writes how often each group was led by whom, and how often by another than
// before.
func reportReigns(w io.Writer, reigns []evidence.Reign) {
	byGroup := make(map[int][]evidence.Reign)
	for _, reign := range reigns {
		byGroup[reign.Group] = append(byGroup[reign.Group], reign)
	}
	for _, group := range slices.Sorted(maps.Keys(byGroup)) {
		all := byGroup[group]
		slices.SortFunc(all, func(a, b evidence.Reign) int { return int(a.Epoch) - int(b.Epoch) })
		led, moved := make(map[string]int), 0
		for i, reign := range all {
			led[reign.Node]++
			if i > 0 && all[i-1].Node != reign.Node {
				moved++
			}
		}
		var by []string
		for _, node := range slices.Sorted(maps.Keys(led)) {
			by = append(by, fmt.Sprintf("%s %d", node, led[node]))
		}
		fmt.Fprintf(w, "group %d: %d reigns (%s), %d times another node's than the one before\n", group, len(all), strings.Join(by, ", "), moved)
	}
}
