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

// A fault is one kind of trouble.
type fault struct {
	name string
	// It takes the leader away, so that another must follow.
	deposes bool
	// How long it lasts: at least, at most.
	least, most time.Duration
	// inject makes it. It adds to the scene whom it has hit, and what puts it
	// right. A *skipError says that it cannot be made here.
	inject func(ctx context.Context, s *scene) error
	// Why it is not among those that are injected unless it is named; "" if it is.
	pending string
}

// A scene is one fault while it lasts.
type scene struct {
	fleet  *fleet
	random *rand.Rand
	group  int                                   // the one whose leader is aimed at
	leader string                                // of that, when it began
	short  func(format string, arguments ...any) // says what was not shown
	hit    []string
	broken []string // what was seen and must not be
	heals  []func(ctx context.Context) error
}

// A skipError reports that a fault was not injected, and why.
type skipError struct{ why string }

func (e *skipError) Error() string { return "skipped: " + e.why }

func (s *scene) hits(ids ...string) { s.hit = append(s.hit, ids...) }

func (s *scene) later(heal func(ctx context.Context) error) { s.heals = append(s.heals, heal) }

// heal undoes everything, what was done last first.
func (s *scene) heal(ctx context.Context) error {
	var errs []error
	for len(s.heals) > 0 {
		last := len(s.heals) - 1
		errs = append(errs, s.heals[last](ctx))
		s.heals = s.heals[:last]
	}
	return errors.Join(errs...)
}

// follower returns a node that does not lead the group, by chance.
func (s *scene) follower() string {
	others := s.fleet.others(s.leader)
	return others[s.random.IntN(len(others))]
}

const (
	short = 300 * time.Millisecond
	long  = 3 * time.Second
)

// faults lists every kind, in the order in which they are told of.
var faults = []fault{
	{"kill-leader", true, short, long, func(_ context.Context, s *scene) error { return s.kill(s.leader) }, ""},
	{"kill-follower", false, short, long, func(_ context.Context, s *scene) error { return s.kill(s.follower()) }, ""},
	{"kill-two", false, short, long, func(_ context.Context, s *scene) error { return s.kill(s.leader, s.follower()) }, ""},
	{"kill-all", false, 0, short, func(_ context.Context, s *scene) error { return s.kill(s.fleet.others()...) }, ""},
	{"pause-leader", true, time.Second, 5 * time.Second, func(_ context.Context, s *scene) error { return s.pause(s.leader) }, ""},
	{"pause-follower", false, short, long, func(_ context.Context, s *scene) error { return s.pause(s.follower()) }, ""},
	{"cut-leader", true, time.Second, long, func(_ context.Context, s *scene) error { return s.isolate(s.leader, true, true) }, ""},
	{"cut-follower", false, short, long, func(_ context.Context, s *scene) error { return s.isolate(s.follower(), true, true) }, ""},
	{"flap-leader", false, time.Second, long, flapLeader, ""},
	{"deafen-leader", true, 2 * time.Second, long, func(_ context.Context, s *scene) error { return s.isolate(s.leader, true, false) }, ""},
	{"mute-leader", true, 2 * time.Second, long, func(_ context.Context, s *scene) error { return s.isolate(s.leader, false, true) }, ""},
	{"cut-pair", false, time.Second, long, cutPair, ""},
	{"loss", false, time.Second, long, everywhere(link.Condition{Loss: 0.3}), ""},
	{"delay", false, time.Second, long, everywhere(link.Condition{Delay: 75 * time.Millisecond, Jitter: 50 * time.Millisecond}), ""},
	{"drain-leader", true, short, time.Second, func(_ context.Context, s *scene) error { return s.drain(s.leader) }, ""},
	{"rolling-restart", false, 0, short, rollingRestart, ""},
	{"add-and-remove", false, short, long, addAndRemove, ""},
	{"replace-node", false, short, long, replaceNode, ""},
	{"lag-follower", false, 0, short, lagFollower, ""},
	{"step-clock", false, short, long, stepClock, ""},
	{"kill-all-step-clock", false, 0, short, killAllStepClock, ""},
	{"rotate-keys", false, short, long, rotateKeys, ""},
	{"flip-bit", false, time.Second, long, flipBit, ""},
	{"slow-sync", false, 2 * time.Second, long, func(_ context.Context, s *scene) error {
		return s.tamper(s.leader, "delay_enter=500000")
	}, ""},
	{"fail-sync", true, time.Second, long, failSync, ""},
	{"full-disk", false, time.Second, long, fullDisk, ""},
	{"power-cut", true, short, long, func(_ context.Context, s *scene) error { return cutPower(s, s.leader) }, ""},
	{"power-cut-all", false, 0, short, func(_ context.Context, s *scene) error { return cutPower(s, s.fleet.others()...) }, ""},
	{"frozen-disk", true, 2 * time.Second, 4 * time.Second, frozenDisk, ""},
	{"query-storm", false, 0, short, queryStorm, ""},
	{"blocked-code", true, time.Second, long, blockedCode, ""},
	{"wipe-node", false, 0, short, wipeNode, ""},
	{"wipe-one-of-all", false, 0, short, wipeOneOfAll, ""},
	{"clone-node", false, 0, short, cloneNode, ""},
	{"full-disk-tail", true, short, long, fullDiskTail, ""},
}

// kill ends nodes as kill -9 does; in the end they are started again.
func (s *scene) kill(ids ...string) error {
	s.hits(ids...)
	s.later(s.fleet.start)
	var errs []error
	for _, id := range ids {
		errs = append(errs, s.fleet.node(id).kill())
	}
	return errors.Join(errs...)
}

func (s *scene) pause(id string) error {
	s.hits(id)
	node := s.fleet.node(id)
	s.later(func(ctx context.Context) error {
		if err := node.resume(); err != nil {
			return err
		}
		return readAtOnce(ctx, s.fleet, id)
	})
	return node.pause()
}

// readAtOnce reads through a node that has just come back and may still believe
// that it leads.
func readAtOnce(ctx context.Context, f *fleet, id string) error {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	calls := f.log.Latest(evidence.Read, 8)
	for i, call := range calls {
		for home, node := range f.nodes {
			if node.id == id {
				reader := client{fleet: f, id: -1 - i, home: home, faithful: true}
				reader.do(ctx, evidence.Request{Kind: evidence.Read, Instance: call.Instance})
			}
		}
	}
	return nil
}

// isolate cuts a node off: from what others send, from what it sends, or both.
func (s *scene) isolate(id string, in, out bool) error {
	s.hits(id)
	s.later(s.fleet.healNetwork)
	return s.cut(id, in, out)
}

// cut says what of a node is cut off: what others send, what it sends.
func (s *scene) cut(id string, in, out bool) error {
	var errs []error
	for _, other := range s.fleet.others(id) {
		errs = append(errs,
			s.fleet.network.Set(other, id, link.Condition{Cut: in}),
			s.fleet.network.Set(id, other, link.Condition{Cut: out}))
	}
	return errors.Join(errs...)
}

const flapEvery = 200 * time.Millisecond

// flapLeader cuts the leader off and joins it again, over and over.
func flapLeader(ctx context.Context, s *scene) error {
	s.hits(s.leader)
	ctx, cancel := context.WithCancel(ctx)
	flapped := make(chan error, 1)
	go func() {
		var err error
		for cut := true; ctx.Err() == nil && err == nil; cut = !cut {
			err = s.cut(s.leader, cut, cut)
			rest(ctx, flapEvery)
		}
		flapped <- err
	}()
	s.later(func(ctx context.Context) error {
		cancel()
		return errors.Join(<-flapped, s.fleet.healNetwork(ctx))
	})
	return nil
}

// cutPair parts the nodes in two, of which none reaches one of the other part, all but one: both
// parts still see that. Of three nodes the leader is cut from one follower; of five, each part
// has a majority with the one between.
func cutPair(_ context.Context, s *scene) error {
	others := s.fleet.others(s.leader)
	s.random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	half := len(others) / 2
	with, against := append([]string{s.leader}, others[:half-1]...), others[half-1:len(others)-1]
	s.hits(slices.Concat(with, against)...)
	s.later(s.fleet.healNetwork)
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

// everywhere gives all links the same condition.
func everywhere(c link.Condition) func(context.Context, *scene) error {
	return func(_ context.Context, s *scene) error {
		s.hits(s.fleet.others()...)
		s.later(s.fleet.healNetwork)
		for _, from := range s.fleet.nodes {
			for _, to := range s.fleet.others(from.id) {
				if err := s.fleet.network.Set(from.id, to, c); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// healNetwork makes all links like new.
func (f *fleet) healNetwork(context.Context) error { return f.network.Heal() }

// drain stops a node as its owner does, by a signal that it heeds.
func (s *scene) drain(id string) error {
	s.hits(id)
	s.later(s.fleet.start)
	return s.fleet.node(id).stop()
}

// rotateKeys gives every node another certificate by another authority. At every step
// a follower is killed and started, so that there are handshakes.
func rotateKeys(ctx context.Context, s *scene) error {
	s.hits(s.fleet.others()...)
	return s.fleet.keys.rotate(func() error {
		id := s.follower()
		if err := s.fleet.node(id).kill(); err != nil {
			return err
		}
		return s.fleet.start(ctx)
	})
}

// rollingRestart stops and starts one node after the other, the leader last.
func rollingRestart(ctx context.Context, s *scene) error {
	for _, id := range append(s.fleet.others(s.leader), s.leader) {
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
