package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// options say what a campaign is to be.
type options struct {
	dir  string
	seed uint64
	out  io.Writer // what goes on, a line for each fault
	// Have the nodes take a snapshot every few seconds.
	snapshots bool
	disks     bool   // give each node a disk of its own, if that is possible
	network   string // which kind
	// What is injected, in turn, and when to stop: no fault begins after limit,
	// nor after count of them; 0 means no such bound.
	faults []fault
	limit  time.Duration
	count  int
	// One client for each workload, and no more.
	small bool
	// How many instances are to be open the whole time.
	open int
	// How many nodes there are, and how many Raft groups they have.
	nodes, groups int
	// After how many faults there is a phase without; 0: there is none.
	quietEvery int
	// The least rate before each fault, in acknowledged calls a second.
	rate float64
}

const (
	// How long the rate may take to come up, and the fleet to recover: on a machine
	// that has much else to do, too.
	rateLimit     = 2 * time.Minute
	recoveryLimit = 2 * time.Minute
	faultLimit    = 6 * time.Minute
	catchUpLimit  = 20 * time.Second
	quietMax      = time.Second // between two faults
)

// A campaign is a run: a fleet under load, and one fault after the other.
type campaign struct {
	options     options
	log         *evidence.Log
	fleet       *fleet
	load        *load
	burden      burden
	balance     balance
	random      *rand.Rand
	undisturbed bool // the last phase without faults had no new leader
	stuck       bool // an instance does not go on, though no fault was made
	// What the run did not live up to, so that its verdict says little.
	shortcomings []string
}

// wage runs a campaign. The evidence it returns is complete: the clients have
// come to an end, every node has caught up and has told all that it has, twice,
// with a stop of the whole fleet between.
func wage(ctx context.Context, o options) (record *evidence.Record, shortcomings []string, err error) {
	c := &campaign{options: o, log: evidence.NewLog(o.groups), random: newRandom(o.seed)}
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
	if c.fleet, err = newFleet(o.dir, c.log, network, own, o.nodes, host.Config{Snapshots: o.snapshots, Groups: o.groups}); err != nil {
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
	c.burden = burden{fleet: c.fleet, count: o.open}
	if err := c.burden.lay(ctx, o.out); err != nil {
		return nil, nil, err
	}
	if err := c.trouble(ctx); err != nil {
		return nil, nil, err
	}
	return nil, c.shortcomings, errors.Join(c.takeStock(ctx), c.burden.tell(o.out))
}

// trouble puts the fleet under load, injects the faults, and returns when all calls have
// come to an end and the leaders are spread.
func (c *campaign) trouble(ctx context.Context) error {
	c.balance.fleet = c.fleet
	var watching sync.WaitGroup
	watched, stop := context.WithCancel(ctx)
	watching.Go(func() { c.balance.watch(watched) })
	c.load = startLoad(c.fleet, c.options.seed, c.options.small)
	err := c.inject(ctx)
	if err == nil && !c.balance.end(ctx) {
		c.short("%v after the last fault the leaders are not spread", spreadLimit)
	}
	if err != nil {
		c.load.abandon()
	}
	c.load.finish()
	stop()
	watching.Wait()
	if c.options.groups > 1 {
		c.balance.tell(c.options.out, c.fleet.leaders(ctx))
	}
	return err
}

// newRandom returns the source by which faults are chosen.
func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func (c *campaign) awaitLeaders(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	return c.fleet.awaitLeaders(ctx)
}

func (c *campaign) awaitLeader(ctx context.Context, group int, not ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	return c.fleet.awaitLeader(ctx, group, not...)
}

func (c *campaign) short(format string, arguments ...any) {
	c.shortcomings = append(c.shortcomings, fmt.Sprintf(format, arguments...))
}

// inject injects fault after fault, from a deck that is shuffled anew each time
// that it is used up.
func (c *campaign) inject(ctx context.Context) error {
	if len(c.options.faults) == 0 {
		return c.beQuietUndisturbed(ctx)
	}
	var deck []fault
	n := 0
	for ; (c.options.count == 0 || n < c.options.count) && (c.options.limit == 0 || c.log.Now() < c.options.limit); n++ {
		if every := c.options.quietEvery; every > 0 && n%every == 0 {
			if err := c.beQuiet(ctx); err != nil || c.stuck {
				return err
			}
		}
		if len(deck) == 0 {
			deck = append(deck, c.options.faults...)
			c.random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		outcome, err := c.injectOne(ctx, deck[0])
		c.log.Fault(outcome)
		fmt.Fprintln(c.options.out, describe(outcome))
		if err != nil {
			return fmt.Errorf("%s: %w", deck[0].name, err)
		}
		deck = deck[1:]
		rest(ctx, time.Duration(c.random.Int64N(int64(quietMax))))
	}
	if c.options.quietEvery > 0 {
		return c.beQuiet(ctx)
	}
	return nil
}

// injectOne makes a fault, lets it last, puts it right, and waits until the
// fleet has recovered.
func (c *campaign) injectOne(ctx context.Context, kind fault) (outcome evidence.Fault, err error) {
	ctx, cancel := context.WithTimeout(ctx, faultLimit)
	defer cancel()
	outcome.Name = kind.name
	outcome.Rate = c.awaitRate(ctx)
	leaders, err := c.awaitLeaders(ctx)
	if err != nil {
		return outcome, err
	}
	outcome.Group = c.random.IntN(c.options.groups)
	outcome.LeaderBefore = leaders[outcome.Group]
	s := &scene{fleet: c.fleet, random: c.random, group: outcome.Group, leader: outcome.LeaderBefore, short: c.short}
	outcome.Begin = c.log.Now()
	c.balance.begun()
	err = kind.inject(ctx, s)
	outcome.Nodes = s.hit
	if err == nil {
		hold := kind.least + time.Duration(c.random.Int64N(int64(kind.most-kind.least)))
		rest(ctx, hold)
		if kind.deposes {
			if outcome.LeaderAfter, _ = c.awaitLeader(ctx, s.group, s.leader); outcome.LeaderAfter == "" {
				c.short("%s at %v: no other leader within %v", kind.name, outcome.Begin, recoveryLimit)
			}
		}
	}
	// Healing must be tried whatever happened, and within a time of its own.
	healing, done := context.WithTimeout(context.WithoutCancel(ctx), faultLimit)
	defer done()
	healed := s.heal(healing)
	outcome.Broken = s.broken
	outcome.End = c.log.Now()
	c.balance.healed()
	var skipped *skipError
	if errors.As(err, &skipped) {
		outcome.Skipped, err = skipped.why, nil
	}
	if err := errors.Join(err, healed); err != nil || outcome.Skipped != "" {
		return outcome, err
	}
	c.awaitRecovery(healing, &outcome)
	outcome.InFlight = c.log.InFlight(outcome.Begin)
	outcome.Gap, outcome.GapAfter = c.log.Gap(outcome)
	c.burden.weigh()
	return outcome, c.sample(healing)
}

// awaitRate waits until the load works at the least rate, and returns the rate.
func (c *campaign) awaitRate(ctx context.Context) float64 {
	deadline := c.log.Now() + rateLimit
	for {
		rest(ctx, 500*time.Millisecond)
		rate := float64(c.log.AckedSince(c.log.Now() - time.Second))
		if rate >= c.options.rate {
			return rate
		}
		if c.log.Now() > deadline || ctx.Err() != nil {
			c.short("%.0f acknowledged calls a second before a fault; at least %.0f are needed", rate, c.options.rate)
			return rate
		}
	}
}

// awaitRecovery waits until a write that began after the fault is acknowledged on every node, and
// every node has applied what there is and says that it is ready: a node that only forwards writes
// to the leader has not recovered.
func (c *campaign) awaitRecovery(ctx context.Context, outcome *evidence.Fault) {
	for {
		took, acked := c.log.Recovered(outcome.End, len(c.fleet.nodes))
		outcome.Recovery = took
		if acked && c.caughtUp(ctx) && c.fleet.notReady(ctx) == "" {
			return
		}
		if c.log.Now() > outcome.End+recoveryLimit || ctx.Err() != nil {
			c.short("%v after %s was healed not every node takes writes, has applied what the leaders have and is ready: %s", recoveryLimit, outcome.Name, c.fleet.notReady(ctx))
			return
		}
		rest(ctx, 20*time.Millisecond)
	}
}

// caughtUp waits for a while until every node has applied what the leaders have now, and tells
// whether they have.
func (c *campaign) caughtUp(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, catchUpLimit)
	defer cancel()
	shown, err := c.reached(ctx)
	behind := func(state host.Node) bool {
		var applied []uint64
		for _, group := range state.Groups {
			applied = append(applied, group.Applied)
		}
		return isBehind(applied, shown)
	}
	for err == nil && ctx.Err() == nil {
		if !slices.ContainsFunc(c.fleet.states(ctx), behind) {
			return true
		}
		rest(ctx, 20*time.Millisecond)
	}
	return false
}

func describe(f evidence.Fault) string {
	if f.Skipped != "" {
		return fmt.Sprintf("%8.1fs %-16s SKIPPED: %s", f.Begin.Seconds(), f.Name, f.Skipped)
	}
	line := fmt.Sprintf("%8.1fs %-16s %v for %v, %d calls in flight, gap %v after %v, recovered in %v", f.Begin.Seconds(), f.Name, f.Nodes,
		(f.End - f.Begin).Round(time.Millisecond), f.InFlight, f.Gap.Round(time.Millisecond), f.GapAfter.Round(time.Millisecond), f.Recovery.Round(time.Millisecond))
	if f.LeaderAfter != "" {
		line += fmt.Sprintf(", leader of group %d %s → %s", f.Group, f.LeaderBefore, f.LeaderAfter)
	}
	return line
}
