// Command chaos puts a cluster of three processes under load, makes one fault
// after the other, and judges what clients, activities and nodes have told by
// the invariants of package judge.
//
//	go run ./internal/chaos -minutes 10 -seed 17 -faults kill-leader,cut-pair
//
// It ends with status 1 when an invariant does not hold, or when the run was too
// thin to say that it does, and leaves the evidence in a directory then.
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

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

func main() {
	if config := os.Getenv(host.Env); config != "" {
		exit(host.Run(config))
	}
	exit(campaigns())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

var errTooLittle = errors.New("the run does not count")

// campaigns runs what the command line asks for.
func campaigns() error {
	minutes := flag.Float64("minutes", 2, "how long faults are injected")
	count := flag.Int("count", 0, "stop after so many faults; 0: when the time is over")
	seed := flag.Uint64("seed", 0, "of faults and load; 0 for a new one")
	names := flag.String("faults", "", "which, separated by commas; all if empty")
	rate := flag.Float64("rate", 20, "the least acknowledged calls a second before each fault")
	keep := flag.Bool("keep", false, "keep the evidence in any case")
	each := flag.Int("each", 0, "inject every fault so often, however long that takes")
	snapshots := flag.Bool("snapshots", true, "have the nodes take a snapshot every few seconds")
	overload := flag.Bool("overload", false, "make no faults: measure a cluster at its capacity and beyond; -minutes at 80% of it")
	open := flag.Int("open", 0, "have so many instances open the whole time, each with a timer and an activity")
	groups := flag.Int("groups", 0, "how many Raft groups keep the instances between them; 0: with -each a mix, else 1")
	nodes := flag.Int("nodes", 0, "how many nodes there are; 0: with -each a mix, else 3")
	quiet := flag.Int("quiet", 20, "judge a phase without faults after so many; 0 for none")
	plain := flag.Bool("plain", false, "no disk for each node, even if that is possible")
	network := flag.String("network", byEither, "between the nodes: proxies on loopback, namespaces (root, Linux), or auto: the latter if possible")
	from := flag.String("judge", "", "judge the evidence in this directory, and run nothing")
	flag.Parse()
	if *from != "" {
		return judgeAgain(*from)
	}
	chosen, err := choose(*names)
	if err != nil {
		return err
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	mixed := *each > 0 && *groups == 0 && *nodes == 0
	*groups, *nodes = cmp.Or(*groups, 1), cmp.Or(*nodes, fleetSize)
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
		return errors.Join(measureOverload(ctx, dir, *network, *groups, limit, os.Stdout), os.RemoveAll(dir))
	}
	o := options{
		dir: dir, seed: *seed, out: os.Stdout, disks: !*plain, network: *network, snapshots: *snapshots, faults: chosen,
		rate: *rate, limit: limit, count: *count, open: *open, nodes: *nodes, groups: *groups, quietEvery: *quiet,
	}
	again := fmt.Sprintf("go run ./internal/chaos -minutes %v -count %d -seed %d -rate %v -snapshots=%v -network %s -open %d -nodes %d -groups %d -quiet %d -faults %s",
		*minutes, *count, *seed, *rate, *snapshots, *network, *open, *nodes, *groups, *quiet, nameAll(chosen))
	if mixed {
		again = fmt.Sprintf("go run ./internal/chaos -each %d -seed %d -rate %v -snapshots=%v -network %s -open %d -quiet %d -faults %s",
			*each, *seed, *rate, *snapshots, *network, *open, *quiet, nameAll(chosen))
		fmt.Println(again)
		return concludeAll(ctx, o, mix(chosen, *each, *seed), again, *keep)
	}
	fmt.Println(again)
	return conclude(ctx, o, again, *keep)
}

// choose returns the named faults.
func choose(names string) ([]fault, error) {
	var chosen []fault
	if names == "" {
		for _, f := range faults {
			if f.pending == "" {
				chosen = append(chosen, f)
			}
		}
		return chosen, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no fault is called %q; there are %s", name, nameAll(faults))
		}
		chosen = append(chosen, faults[i])
	}
	return chosen, nil
}

func nameAll(faults []fault) string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return strings.Join(names, ",")
}
