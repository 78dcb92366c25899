package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/link"
)

// A fault is one kind of fault.
type fault struct {
	name string
	// Whether it removes the leader, so that another node must lead.
	deposesLeader bool
	// The shortest and the longest duration.
	minDuration, maxDuration time.Duration
	// inject injects it. It adds the nodes that it hits, and how to heal it, to the injection. A
	// *skipError means that this machine cannot have the fault.
	inject func(ctx context.Context, s *injection) error
	// Why it is injected only if it is named; "" if it always is.
	disabledReason string
}

// An injection is one fault while it lasts.
type injection struct {
	fleet          *fleet
	random         *rand.Rand
	partition      int                                   // the partition whose leader is the target
	leader         string                                // of that partition, when the fault began
	addShortcoming func(format string, arguments ...any) // adds a reason why the run does not prove enough
	nodes          []string
	violations     []string // what the fault observed although it must not happen
	members        []evidence.Members
	heals          []func(ctx context.Context) error
}

// A skipError reports that a fault was not injected, and why.
type skipError struct{ why string }

func (e *skipError) Error() string { return "skipped: " + e.why }

func (inj *injection) addNodes(ids ...string) { inj.nodes = append(inj.nodes, ids...) }

func (inj *injection) onHeal(heal func(ctx context.Context) error) {
	inj.heals = append(inj.heals, heal)
}

// heal undoes everything, in reverse order.
func (inj *injection) heal(ctx context.Context) error {
	var errs []error
	for len(inj.heals) > 0 {
		last := len(inj.heals) - 1
		errs = append(errs, inj.heals[last](ctx))
		inj.heals = inj.heals[:last]
	}
	return errors.Join(errs...)
}

// follower returns a random node that does not lead the partition.
func (inj *injection) follower() string {
	others := inj.fleet.nodeIDsExcept(inj.leader)
	return others[inj.random.IntN(len(others))]
}

const (
	shortTime = 300 * time.Millisecond
	longTime  = 3 * time.Second
)

// faults lists all faults, in the order of reports.
var faults = []fault{
	{"kill-leader", true, shortTime, longTime, func(_ context.Context, s *injection) error { return s.kill(s.leader) }, ""},
	{"kill-follower", false, shortTime, longTime, func(_ context.Context, s *injection) error { return s.kill(s.follower()) }, ""},
	{"kill-two", false, shortTime, longTime, func(_ context.Context, s *injection) error { return s.kill(s.leader, s.follower()) }, ""},
	{"kill-all", false, 0, shortTime, func(_ context.Context, s *injection) error { return s.kill(s.fleet.nodeIDsExcept()...) }, ""},
	{"pause-leader", true, time.Second, 5 * time.Second, func(_ context.Context, s *injection) error { return s.pause(s.leader) }, ""},
	{"pause-follower", false, shortTime, longTime, func(_ context.Context, s *injection) error { return s.pause(s.follower()) }, ""},
	{"cut-leader", true, time.Second, longTime, func(_ context.Context, s *injection) error { return s.isolate(s.leader, true, true) }, ""},
	{"cut-follower", false, shortTime, longTime, func(_ context.Context, s *injection) error { return s.isolate(s.follower(), true, true) }, ""},
	{"flap-leader", false, time.Second, longTime, flapLeader, ""},
	{"deafen-leader", true, 2 * time.Second, longTime, func(_ context.Context, s *injection) error { return s.isolate(s.leader, true, false) }, ""},
	{"mute-leader", true, 2 * time.Second, longTime, func(_ context.Context, s *injection) error { return s.isolate(s.leader, false, true) }, ""},
	{"cut-pair", false, time.Second, longTime, cutPair, ""},
	{"loss", false, time.Second, longTime, onAllLinks(link.Condition{Loss: 0.3}), ""},
	{"delay", false, time.Second, longTime, onAllLinks(link.Condition{Delay: 75 * time.Millisecond, Jitter: 50 * time.Millisecond}), ""},
	{"drain-leader", true, shortTime, time.Second, func(_ context.Context, s *injection) error { return s.drain(s.leader) }, ""},
	{"rolling-restart", false, 0, shortTime, rollingRestart, ""},
	{"add-and-remove", false, shortTime, longTime, addAndRemove, ""},
	{"replace-node", false, shortTime, longTime, replaceNode, ""},
	{"lag-follower", false, 0, shortTime, lagFollower, ""},
	{"step-clock", false, shortTime, longTime, stepClock, ""},
	{"kill-all-step-clock", false, 0, shortTime, killAllStepClock, ""},
	{"rotate-keys", false, shortTime, longTime, rotateKeys, ""},
	{"flip-bit", false, time.Second, longTime, flipBit, ""},
	{"slow-sync", false, 2 * time.Second, longTime, func(_ context.Context, s *injection) error {
		return s.injectSyncFault(s.leader, "delay_enter=500000")
	}, ""},
	{"fail-sync", true, time.Second, longTime, failSync, ""},
	{"full-disk", false, time.Second, longTime, fullDisk, ""},
	{"power-cut", true, shortTime, longTime, func(_ context.Context, s *injection) error { return cutPower(s, s.leader) }, ""},
	{"power-cut-all", false, 0, shortTime, func(_ context.Context, s *injection) error { return cutPower(s, s.fleet.nodeIDsExcept()...) }, ""},
	{"frozen-disk", true, 2 * time.Second, 4 * time.Second, frozenDisk, ""},
	{"query-storm", false, 0, shortTime, queryStorm, ""},
	{"blocked-code", true, time.Second, longTime, blockedCode, ""},
	{"wipe-node", false, 0, shortTime, wipeNode, ""},
	{"wipe-one-of-all", false, 0, shortTime, wipeOneOfAll, ""},
	{"clone-node", false, 0, shortTime, cloneNode, ""},
	{"full-disk-tail", true, shortTime, longTime, fullDiskTail, ""},
	{"restore-backup", false, 0, shortTime, restoreBackup, ""},
	{"lost-majority", false, 0, shortTime, loseMajority, ""},
	{"change-roles", false, 0, shortTime, changeRoles, ""},
	{"workers", false, time.Second, disturbedMax, disturbWorkers, ""},
	{"join", false, 0, shortTime, rejoin, ""},
}

// kill kills nodes with SIGKILL. Healing restarts them.
func (inj *injection) kill(ids ...string) error {
	inj.addNodes(ids...)
	inj.onHeal(inj.fleet.start)
	var errs []error
	for _, id := range ids {
		errs = append(errs, inj.fleet.node(id).kill())
	}
	return errors.Join(errs...)
}

func (inj *injection) pause(id string) error {
	inj.addNodes(id)
	node := inj.fleet.node(id)
	inj.onHeal(func(ctx context.Context) error {
		if err := node.resume(); err != nil {
			return err
		}
		return readAfterResume(ctx, inj.fleet, id)
	})
	return node.pause()
}

// readAfterResume reads through a node that has just been resumed and may still believe that it
// leads.
func readAfterResume(ctx context.Context, f *fleet, id string) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	calls := f.log.Latest(evidence.Read, 8)
	for i, call := range calls {
		for nodeIndex, node := range f.nodes {
			if node.id == id {
				reader := client{fleet: f, id: -1 - i, firstNode: nodeIndex, noFailover: true}
				reader.do(ctx, evidence.Request{Kind: evidence.Read, Instance: call.Instance})
			}
		}
	}
	return nil
}

// isolate cuts off what a node receives, what it sends, or both, until the fault is healed.
func (inj *injection) isolate(id string, in, out bool) error {
	inj.addNodes(id)
	inj.onHeal(inj.fleet.healNetwork)
	return inj.cut(id, in, out)
}

// cut cuts off what a node receives (in) and what it sends (out).
func (inj *injection) cut(id string, in, out bool) error {
	var errs []error
	for _, other := range inj.fleet.nodeIDsExcept(id) {
		errs = append(errs,
			inj.fleet.network.Set(other, id, link.Condition{Cut: in}),
			inj.fleet.network.Set(id, other, link.Condition{Cut: out}))
	}
	return errors.Join(errs...)
}

const flapEvery = 200 * time.Millisecond

// flapLeader cuts the leader off and reconnects it, repeatedly.
func flapLeader(ctx context.Context, s *injection) error {
	s.addNodes(s.leader)
	ctx, cancel := context.WithCancel(ctx)
	flapped := make(chan error, 1)
	go func() {
		var err error
		for cut := true; ctx.Err() == nil && err == nil; cut = !cut {
			err = s.cut(s.leader, cut, cut)
			sleep(ctx, flapEvery)
		}
		flapped <- err
	}()
	s.onHeal(func(ctx context.Context) error {
		cancel()
		return errors.Join(<-flapped, s.fleet.healNetwork(ctx))
	})
	return nil
}

// cutPair splits the nodes into two parts that cannot reach each other, except for one node that
// reaches both. With three nodes, the leader is cut from one follower. With five, each part and the
// node that reaches both form a majority.
func cutPair(_ context.Context, s *injection) error {
	others := s.fleet.nodeIDsExcept(s.leader)
	s.random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	half := len(others) / 2
	with, against := append([]string{s.leader}, others[:half-1]...), others[half-1:len(others)-1]
	s.addNodes(slices.Concat(with, against)...)
	s.onHeal(s.fleet.healNetwork)
	var errs []error
	for _, one := range with {
		for _, other := range against {
			errs = append(errs,
				s.fleet.network.Set(one, other, link.Condition{Cut: true}),
				s.fleet.network.Set(other, one, link.Condition{Cut: true}))
		}
	}
	return errors.Join(errs...)
}

// onAllLinks sets the condition of all links.
func onAllLinks(c link.Condition) func(context.Context, *injection) error {
	return func(_ context.Context, s *injection) error {
		s.addNodes(s.fleet.nodeIDsExcept()...)
		s.onHeal(s.fleet.healNetwork)
		for _, from := range s.fleet.nodes {
			for _, to := range s.fleet.nodeIDsExcept(from.id) {
				if err := s.fleet.network.Set(from.id, to, c); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// healNetwork resets all links.
func (f *fleet) healNetwork(context.Context) error { return f.network.Heal() }

// drain stops a node gracefully, by SIGTERM.
func (inj *injection) drain(id string) error {
	inj.addNodes(id)
	inj.onHeal(inj.fleet.start)
	return inj.fleet.node(id).stop()
}

// rotateKeys gives every node a new certificate from a new authority. At each step a follower is
// killed and restarted, which forces handshakes.
func rotateKeys(ctx context.Context, s *injection) error {
	s.addNodes(s.fleet.nodeIDsExcept()...)
	return s.fleet.keys.Rotate(func() error {
		id := s.follower()
		if err := s.fleet.node(id).kill(); err != nil {
			return err
		}
		return s.fleet.start(ctx)
	})
}

// rollingRestart restarts one node after the other, the leader last.
func rollingRestart(ctx context.Context, s *injection) error {
	for _, id := range append(s.fleet.nodeIDsExcept(s.leader), s.leader) {
		if err := s.drain(id); err != nil {
			return err
		}
		if err := s.fleet.start(ctx); err != nil {
			return err
		}
		if _, err := s.fleet.awaitLeaders(ctx); err != nil {
			return fmt.Errorf("after the restart of %s: %w", id, err)
		}
	}
	return nil
}
