package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// options configure a campaign.
type options struct {
	dir  string
	seed uint64
	out  io.Writer // progress, one line for each fault
	// Whether the nodes take a snapshot every few seconds.
	snapshots bool
	disks     bool   // whether each node gets its own disk, if possible
	network   string // the kind of network
	// The faults to inject, in turn, and when to stop: no fault begins after limit, nor after count
	// faults; 0 means no limit.
	faults []fault
	limit  time.Duration
	count  int
	// Whether each workload has only one client.
	small bool
	// How many instances stay open during the whole run.
	open int
	// The number of nodes, and of partitions.
	nodes, partitions int
	// The number of faults between fault-free phases; 0 means none.
	faultFreeEvery int
	// The minimum load before each fault, in acknowledged calls a second.
	rate float64
}

const (
	// How long the load may take to reach the minimum rate, and the fleet to recover. Both are long
	// enough for loaded machines.
	rateTimeout     = 2 * time.Minute
	recoveryTimeout = 2 * time.Minute
	faultTimeout    = 6 * time.Minute
	catchUpTimeout  = 20 * time.Second
	faultPauseMax   = time.Second // between two faults
)

// A campaign is one run: a fleet under load, and one fault after the other.
type campaign struct {
	options       options
	log           *evidence.Log
	fleet         *fleet
	load          *load
	openInstances openInstances
	leaderBalance leaderBalance
	random        *rand.Rand
	leaderships   int  // before the load
	sameLeader    bool // the last fault-free phase had no new leader
	stuck         bool // an instance makes no progress although there was no fault
	// Reasons why the run does not cover what it must.
	shortcomings []string
}

// runCampaign runs a campaign. The evidence it returns is complete: all clients have finished, and
// every node has caught up and has reported its whole state twice, before and after a restart of
// the fleet.
func runCampaign(ctx context.Context, o options) (record *evidence.Record, shortcomings []string, err error) {
	c := &campaign{options: o, log: evidence.NewLog(o.partitions), random: newRandom(o.seed)}
	defer func() { record = c.log.Record() }()
	network, err := newNetwork(o.network, o.out)
	if err != nil {
		return nil, nil, err
	}
	var own *disks
	if o.disks {
		var skipped *skipError
		if own, err = newDisks(o.dir, o.nodes); errors.As(err, &skipped) {
			fmt.Fprintln(o.out, skipped)
		} else if err != nil {
			return nil, nil, err
		}
	}
	if c.fleet, err = newFleet(o.dir, c.log, network, own, o.nodes, host.Config{Snapshots: o.snapshots, Partitions: o.partitions}); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, c.fleet.close()) }()
	if err := c.fleet.start(ctx); err != nil {
		return nil, nil, err
	}
	if _, err := c.awaitLeaders(ctx); err != nil {
		return nil, nil, err
	}
	if err := c.fleet.startRemote(ctx); err != nil {
		return nil, nil, err
	}
	c.openInstances = openInstances{fleet: c.fleet, count: o.open}
	if err := c.openInstances.start(ctx, o.out); err != nil {
		return nil, nil, err
	}
	if c.leaderships, err = c.fleet.countLeaderships(); err != nil {
		return nil, nil, err
	}
	if err := c.injectUnderLoad(ctx); err != nil {
		return nil, nil, err
	}
	return nil, c.shortcomings, errors.Join(c.collectReplicas(ctx), c.openInstances.report(o.out))
}

// injectUnderLoad puts the fleet under load and injects the faults. It returns when all calls have
// returned and the leaders are balanced.
func (c *campaign) injectUnderLoad(ctx context.Context) error {
	c.leaderBalance.fleet = c.fleet
	var watching sync.WaitGroup
	watched, stop := context.WithCancel(ctx)
	watching.Go(func() { c.leaderBalance.watch(watched) })
	c.load = startLoad(c.fleet, c.options.seed, c.options.small)
	err := c.inject(ctx)
	if err == nil && !c.leaderBalance.awaitBalanced(ctx) {
		c.addShortcoming("%v after the last fault the leaders are not balanced", balanceTimeout)
	}
	if err != nil {
		c.load.cancelCalls()
	}
	c.load.finish()
	stop()
	watching.Wait()
	if c.options.partitions > 1 {
		c.leaderBalance.report(c.options.out, c.fleet.leaders(ctx))
	}
	return err
}

// newRandom returns the random source that chooses the faults.
func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func (c *campaign) awaitLeaders(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	return c.fleet.awaitLeaders(ctx)
}

func (c *campaign) awaitLeader(ctx context.Context, partition int, not ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	return c.fleet.awaitLeader(ctx, partition, not...)
}

func (c *campaign) addShortcoming(format string, arguments ...any) {
	c.shortcomings = append(c.shortcomings, fmt.Sprintf(format, arguments...))
}

// inject injects the faults one after the other. It repeats the list in a new random order each
// time all were injected.
func (c *campaign) inject(ctx context.Context) error {
	if len(c.options.faults) == 0 {
		return c.runFaultFreeUndisturbed(ctx)
	}
	var shuffled []fault
	n := 0
	for ; (c.options.count == 0 || n < c.options.count) && (c.options.limit == 0 || c.log.Now() < c.options.limit); n++ {
		if every := c.options.faultFreeEvery; every > 0 && n%every == 0 {
			if err := c.runFaultFree(ctx); err != nil || c.stuck {
				return err
			}
		}
		if len(shuffled) == 0 {
			shuffled = append(shuffled, c.options.faults...)
			c.random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		outcome, err := c.injectOne(ctx, shuffled[0])
		if outcome.Begin != 0 { // it was injected
			c.log.Fault(outcome)
			fmt.Fprintln(c.options.out, describeFault(outcome))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", shuffled[0].name, err)
		}
		shuffled = shuffled[1:]
		sleep(ctx, time.Duration(c.random.Int64N(int64(faultPauseMax))))
	}
	if c.options.faultFreeEvery > 0 {
		return c.runFaultFree(ctx)
	}
	return nil
}

// injectOne injects a fault, waits for its duration, heals it, and waits until the fleet has
// recovered.
func (c *campaign) injectOne(ctx context.Context, kind fault) (outcome evidence.Fault, err error) {
	ctx, cancel := context.WithTimeout(ctx, faultTimeout)
	defer cancel()
	outcome.Name = kind.name
	outcome.Rate = c.awaitRate(ctx)
	leaders, err := c.awaitLeaders(ctx)
	if err != nil {
		return outcome, err
	}
	outcome.Partition = c.random.IntN(c.options.partitions)
	outcome.LeaderBefore = leaders[outcome.Partition]
	s := &injection{fleet: c.fleet, random: c.random, partition: outcome.Partition, leader: outcome.LeaderBefore, addShortcoming: c.addShortcoming}
	outcome.Begin = c.log.Now()
	c.leaderBalance.faultBegan()
	err = kind.inject(ctx, s)
	outcome.Nodes = s.nodes
	if err == nil {
		hold := kind.minDuration + time.Duration(c.random.Int64N(int64(kind.maxDuration-kind.minDuration)))
		sleep(ctx, hold)
		if kind.deposesLeader {
			if outcome.LeaderAfter, _ = c.awaitLeader(ctx, s.partition, s.leader); outcome.LeaderAfter == "" {
				c.addShortcoming("%s at %v: no other leader within %v", kind.name, outcome.Begin, recoveryTimeout)
			}
		}
	}
	// A fault must be healed even if ctx has ended, within its own timeout.
	healing, done := context.WithTimeout(context.WithoutCancel(ctx), faultTimeout)
	defer done()
	healErr := s.heal(healing)
	outcome.Violations, outcome.Members = s.violations, s.members
	outcome.End = c.log.Now()
	c.leaderBalance.faultHealed()
	var skipped *skipError
	if errors.As(err, &skipped) {
		outcome.Skipped, err = skipped.why, nil
	}
	if err := errors.Join(err, healErr); err != nil || outcome.Skipped != "" {
		return outcome, err
	}
	c.awaitRecovery(healing, &outcome)
	outcome.InFlight = c.log.InFlight(outcome.Begin)
	outcome.Gap, outcome.GapAfter = c.log.Gap(outcome)
	c.openInstances.sampleMemory()
	return outcome, c.collectSample(healing)
}

// awaitRate waits until the load reaches the minimum rate, and returns the rate.
func (c *campaign) awaitRate(ctx context.Context) float64 {
	deadline := c.log.Now() + rateTimeout
	for {
		sleep(ctx, 500*time.Millisecond)
		rate := float64(c.log.AckedSince(c.log.Now() - time.Second))
		if rate >= c.options.rate {
			return rate
		}
		if c.log.Now() > deadline || ctx.Err() != nil {
			c.addShortcoming("%.0f acknowledged calls a second before a fault; at least %.0f are required", rate, c.options.rate)
			return rate
		}
	}
}

// awaitRecovery waits until every node has acknowledged a write that began after the fault, has
// applied all entries and is ready. A node that can only forward writes to the leader has not
// recovered.
func (c *campaign) awaitRecovery(ctx context.Context, outcome *evidence.Fault) {
	for {
		var missing []string
		outcome.Recovery, missing = c.log.Recovered(outcome.End, c.fleet.nodeIDsExcept())
		if len(missing) == 0 {
			missing = c.awaitCatchUp(ctx)
		}
		if len(missing) == 0 {
			missing = c.fleet.unreadyNodes(ctx)
		}
		if len(missing) == 0 {
			return
		}
		if c.log.Now() > outcome.End+recoveryTimeout || ctx.Err() != nil {
			outcome.Recovery, outcome.NotRecovered = c.log.Now()-outcome.End, true
			c.addShortcoming("%v after %s was healed: %s", outcome.Recovery, outcome.Name, strings.Join(missing, "; "))
			return
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// awaitCatchUp waits until every node has applied what the leaders have applied by now. It returns
// a line for each node that has not done so in time.
func (c *campaign) awaitCatchUp(ctx context.Context) (behind []string) {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	applyTarget, err := c.fleet.appliedByLeaders(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for {
		behind = behind[:0]
		for i, state := range c.fleet.statuses(ctx) {
			var applied []uint64
			for _, partition := range state.Partitions {
				applied = append(applied, partition.Applied)
			}
			if isBehind(applied, applyTarget) {
				behind = append(behind, fmt.Sprintf("%s has applied %d, the leaders %d", c.fleet.nodes[i].id, applied, applyTarget))
			}
		}
		if len(behind) == 0 || ctx.Err() != nil {
			return behind
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

func describeFault(f evidence.Fault) string {
	if f.Skipped != "" {
		return fmt.Sprintf("%8.1fs %-16s SKIPPED: %s", f.Begin.Seconds(), f.Name, f.Skipped)
	}
	line := fmt.Sprintf("%8.1fs %-16s %v for %v, %d calls in flight, gap %v after %v, %s %v", f.Begin.Seconds(), f.Name, f.Nodes,
		(f.End - f.Begin).Round(time.Millisecond), f.InFlight, f.Gap.Round(time.Millisecond), f.GapAfter.Round(time.Millisecond),
		map[bool]string{false: "recovered in", true: "not recovered in"}[f.NotRecovered], f.Recovery.Round(time.Millisecond))
	if f.LeaderAfter != "" {
		line += fmt.Sprintf(", leader of partition %d %s → %s", f.Partition, f.LeaderBefore, f.LeaderAfter)
	}
	return line
}

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
	parts, total, begin, due := make([]campaignPart, len(clusterShapes)), len(shuffled), 0, 0
	for i, shape := range clusterShapes {
		due += shape.share
		end := total * due / 10
		parts[i] = campaignPart{nodes: shape.nodes, partitions: shape.partitions, faults: shuffled[begin:end]}
		begin = end
	}
	return parts
}

// runAndReportAll runs the parts of a campaign one after the other. It continues after a failed
// part and reports all results at the end. It returns the faults also with an error.
func runAndReportAll(ctx context.Context, o options, parts []campaignPart, again string, keep bool) (all []evidence.Fault, err error) {
	var errs []error
	for i, part := range parts {
		if len(part.faults) == 0 || ctx.Err() != nil {
			continue
		}
		own := o
		own.dir = filepath.Join(o.dir, fmt.Sprint(i))
		own.nodes, own.partitions, own.faults, own.count = part.nodes, part.partitions, part.faults, len(part.faults)
		if err := os.Mkdir(own.dir, 0o700); err != nil {
			errs = append(errs, err)
			break
		}
		fmt.Fprintf(o.out, "== %d nodes, %d partitions, %d faults\n", part.nodes, part.partitions, len(part.faults))
		faults, err := runAndReport(ctx, own, again, keep)
		all = append(all, faults...)
		if err != nil {
			fmt.Fprintln(o.out, "==", err)
			errs = append(errs, fmt.Errorf("%d nodes, %d partitions: %w", part.nodes, part.partitions, err))
		}
	}
	if len(errs) > 0 || keep {
		return all, errors.Join(append(errs, ctx.Err())...)
	}
	return all, errors.Join(ctx.Err(), os.RemoveAll(o.dir))
}
