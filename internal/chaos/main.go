// Command chaos puts a cluster of three processes under load, injects one fault after the other,
// and checks what clients, activities and nodes reported against the invariants of package check.
//
//	go run ./internal/chaos -minutes 10 -seed 17 -faults kill-leader,cut-pair
//
// It exits with status 1 if an invariant is violated, or if the run covered too little to tell. In
// both cases it keeps the evidence in a directory.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

func main() {
	if config := os.Getenv(host.Env); config != "" {
		exit(host.Run(config))
	}
	exit(runFromFlags())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

var errInsufficientCoverage = errors.New("insufficient coverage: the run proves nothing")

// runFromFlags runs what the command line asks for.
func runFromFlags() error {
	minutes := flag.Float64("minutes", 2, "how many minutes faults are injected")
	count := flag.Int("count", 0, "stop after this many faults; 0: when -minutes are over")
	seed := flag.Uint64("seed", 0, "seed of faults and load; 0 for a random one")
	names := flag.String("faults", "", "the faults to inject, separated by commas; all if empty")
	rate := flag.Float64("rate", 20, "the least acknowledged calls a second before each fault")
	keep := flag.Bool("keep", false, "keep the evidence even if all invariants hold")
	each := flag.Int("each", 0, "inject every fault this many times, however long that takes")
	snapshots := flag.Bool("snapshots", true, "let the nodes take a snapshot every few seconds")
	overload := flag.Bool("overload", false, "inject no faults: measure a cluster at its capacity and beyond; -minutes at 80% of it")
	open := flag.Int("open", 0, "keep this many instances open during the run, each with a timer and an activity")
	partitions := flag.Int("partitions", 0, "the number of partitions; 0: with -each a mix, else 1")
	nodes := flag.Int("nodes", 0, "the number of nodes; 0: with -each a mix, else 3")
	phase := flag.Int("fault-free", 20, "run a fault-free phase after this many faults; 0 for none")
	plain := flag.Bool("plain", false, "no disk for each node, even if that is possible")
	network := flag.String("network", networkAuto, "the network between the nodes: proxies on loopback, namespaces (root, Linux), or auto: namespaces if possible")
	from := flag.String("check", "", "check the evidence in this directory, and run nothing")
	flag.Parse()
	if *from != "" {
		return recheck(*from)
	}
	chosen, err := selectFaults(*names)
	if err != nil {
		return err
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	mixed := *each > 0 && *partitions == 0 && *nodes == 0
	*partitions, *nodes = cmp.Or(*partitions, 1), cmp.Or(*nodes, fleetSize)
	limit := time.Duration(*minutes * float64(time.Minute))
	if *each > 0 {
		*minutes, *count, limit = 0, *each*len(chosen), 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "tenuto-chaos-")
	if err != nil {
		return err
	}
	if *overload {
		return errors.Join(measureOverload(ctx, dir, *network, *partitions, limit, os.Stdout), os.RemoveAll(dir))
	}
	o := options{
		dir: dir, seed: *seed, out: os.Stdout, disks: !*plain, network: *network, snapshots: *snapshots, faults: chosen,
		rate: *rate, limit: limit, count: *count, open: *open, nodes: *nodes, partitions: *partitions, faultFreeEvery: *phase,
	}
	again := fmt.Sprintf("go run ./internal/chaos -minutes %v -count %d -seed %d -rate %v -snapshots=%v -network %s -open %d -nodes %d -partitions %d -fault-free %d -faults %s",
		*minutes, *count, *seed, *rate, *snapshots, *network, *open, *nodes, *partitions, *phase, joinNames(chosen))
	run := runAndReport
	if mixed {
		again = fmt.Sprintf("go run ./internal/chaos -each %d -seed %d -rate %v -snapshots=%v -network %s -open %d -fault-free %d -faults %s",
			*each, *seed, *rate, *snapshots, *network, *open, *phase, joinNames(chosen))
		run = func(ctx context.Context, o options, again string, keep bool) ([]evidence.Fault, error) {
			return runAndReportAll(ctx, o, mixFaults(chosen, *each, *seed), again, keep)
		}
	}
	fmt.Println(again)
	injected, err := run(ctx, o, again, *keep)
	if *each > 0 {
		reportRepetitions(os.Stdout, chosen, *each, injected)
	}
	return err
}

// selectFaults returns the faults with the given names.
func selectFaults(names string) ([]fault, error) {
	var chosen []fault
	if names == "" {
		for _, f := range faults {
			if f.disabledReason == "" {
				chosen = append(chosen, f)
			}
		}
		return chosen, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown fault %q; there are %s", name, joinNames(faults))
		}
		chosen = append(chosen, faults[i])
	}
	return chosen, nil
}

func joinNames(faults []fault) string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return strings.Join(names, ",")
}
