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
	// How often the leaders are sampled, and how long they may take to be balanced after the last
	// fault.
	balanceInterval = 200 * time.Millisecond
	balanceTimeout  = time.Minute
)

// A leaderBalance measures how soon after a fault the leaders of the partitions are balanced.
type leaderBalance struct {
	fleet *fleet

	mu          sync.Mutex
	waiting     bool          // for the leaders to be balanced
	since       time.Duration // start of the wait
	durations   []time.Duration
	interrupted int // faults that began before the leaders were balanced
}

// watch samples the leaders until ctx ends.
func (b *leaderBalance) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if leaders := b.fleet.leaders(ctx); isBalanced(leaders, b.fleet.nodeIDsExcept()) {
			b.recordBalanced()
		}
		sleep(ctx, balanceInterval)
	}
}

// isBalanced reports whether every partition has a leader and the numbers of partitions that the
// nodes lead differ by at most one.
func isBalanced(leaders, nodes []string) bool {
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

func (b *leaderBalance) recordBalanced() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting {
		b.durations, b.waiting = append(b.durations, b.fleet.log.Now()-b.since), false
	}
}

// faultHealed starts a wait after a fault was healed; faultBegan ends it when the next fault
// starts.
func (b *leaderBalance) faultHealed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting, b.since = true, b.fleet.log.Now()
}

func (b *leaderBalance) faultBegan() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting {
		b.interrupted++
	}
	b.waiting = false
}

// awaitBalanced waits until the leaders are balanced after the last fault, and reports whether they
// are.
func (b *leaderBalance) awaitBalanced(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, balanceTimeout)
	defer cancel()
	_, err := b.fleet.awaitLeadersUntil(ctx, func(leaders []string) bool { return isBalanced(leaders, b.fleet.nodeIDsExcept()) })
	return err == nil
}

// report writes how soon the leaders were balanced after faults, and who leads at the end.
func (b *leaderBalance) report(out io.Writer, leaders []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(out, "leaders balanced within %v (p50), %v (p99), %v (max) after %d faults; %d times another fault came first\n",
		quantile(b.durations, 0.5), quantile(b.durations, 0.99), quantile(b.durations, 1), len(b.durations), b.interrupted)
	for partition, leader := range leaders {
		fmt.Fprintf(out, "final leader of partition %d: %s\n", partition, leader)
	}
}

// reportLeaderships writes how often each node led each partition, and how often the leader changed
// to another node.
func reportLeaderships(w io.Writer, leaderships []evidence.Leadership) {
	byPartition := make(map[int][]evidence.Leadership)
	for _, leadership := range leaderships {
		byPartition[leadership.Partition] = append(byPartition[leadership.Partition], leadership)
	}
	for _, partition := range slices.Sorted(maps.Keys(byPartition)) {
		all := byPartition[partition]
		slices.SortFunc(all, func(a, b evidence.Leadership) int { return int(a.Epoch) - int(b.Epoch) })
		led, moved := make(map[string]int), 0
		for i, leadership := range all {
			led[leadership.Node]++
			if i > 0 && all[i-1].Node != leadership.Node {
				moved++
			}
		}
		var by []string
		for _, node := range slices.Sorted(maps.Keys(led)) {
			by = append(by, fmt.Sprintf("%s %d", node, led[node]))
		}
		fmt.Fprintf(w, "partition %d: %d leaderships (%s), %d changes to another node\n", partition, len(all), strings.Join(by, ", "), moved)
	}
}
