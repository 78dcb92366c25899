package main

import (
	"context"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How long the others may take to go on so far that one that is away needs a
	// snapshot, and how often another may be elected until that one leads.
	missLimit     = 60 * time.Second
	electionsMax  = 10
	repeatedCalls = 12
)

// lagFollower keeps a follower away until the others have left it behind, so that it
// must be sent a snapshot. With that it is made to lead, and calls that it has never
// heard of are repeated: whoever has the state knows that they were carried out.
func lagFollower(ctx context.Context, s *scene) error {
	id := s.follower()
	if err := s.kill(id); err != nil {
		return err
	}
	first := s.fleet.applied(ctx, s.group)
	deadline := s.fleet.log.Now() + missLimit
	for s.fleet.applied(ctx, s.group) < first+host.SnapshotEntries {
		if rest(ctx, short); ctx.Err() != nil || s.fleet.log.Now() > deadline {
			s.short("%s has missed no more than %d entries in %v", id, s.fleet.applied(ctx, s.group)-first, missLimit)
			return nil
		}
	}
	rest(ctx, host.SnapshotEvery) // the others take theirs
	return s.returnWithSnapshot(ctx, id)
}

// applied returns the highest index of a group's journal that a node has applied.
func (f *fleet) applied(ctx context.Context, group int) uint64 {
	return appliedAmong(f.states(ctx), group)
}

func appliedAmong(states []host.Node, group int) (highest uint64) {
	for _, state := range states {
		highest = max(highest, state.In(group).Applied)
	}
	return highest
}

func (s *scene) returnWithSnapshot(ctx context.Context, id string) error {
	if err := s.fleet.start(ctx); err != nil {
		return err
	}
	deadline := s.fleet.log.Now() + recoveryLimit
	for {
		installed, err := s.fleet.installs(id, s.group)
		if err != nil {
			return err
		}
		if node := s.fleet.node(id); installed > node.told[s.group] {
			node.told[s.group] = installed
			break
		}
		if rest(ctx, short); ctx.Err() != nil || s.fleet.log.Now() > deadline {
			s.short("%s was away, and was sent no snapshot", id)
			return nil
		}
	}
	return s.leadAndRepeat(ctx, id)
}

// leadAndRepeat has one leader of the group after the other stop until a node leads it,
// and repeats calls through that.
func (s *scene) leadAndRepeat(ctx context.Context, id string) error {
	for range electionsMax {
		leader, err := s.fleet.awaitLeader(ctx, s.group)
		if err != nil {
			return err
		}
		if leader == id {
			return s.repeat(ctx, id)
		}
		if err := s.fleet.node(leader).stop(); err != nil {
			return err
		}
		if _, err := s.fleet.awaitLeader(ctx, s.group, leader); err != nil {
			return err
		}
		if err := s.fleet.start(ctx); err != nil {
			return err
		}
	}
	s.short("%s did not lead after %d elections", id, electionsMax)
	return nil
}

// repeat puts acknowledged requests to a node again, of instances of the group that
// nobody purges.
func (s *scene) repeat(ctx context.Context, id string) error {
	for home, node := range s.fleet.nodes {
		if node.id != id {
			continue
		}
		again := client{fleet: s.fleet, id: repeaterID, home: home}
		for _, kind := range []evidence.Kind{evidence.Start, evidence.Send} {
			for _, call := range s.fleet.log.Acked(kind, "cycle-", s.group, repeatedCalls) {
				call.Request.Repeated = true
				again.do(ctx, call.Request)
			}
		}
	}
	return nil
}

// installs counts in a node's log the snapshots of a group that it was sent.
func (f *fleet) installs(id string, group int) (int, error) {
	n := 0
	err := eachLine(f.node(id).stderr.Name(), func(line string) {
		if install, ok := installIn(line); ok && install.Group == group {
			n++
		}
	})
	return n, err
}

// installIn reads a line of a node's log that tells of a snapshot that it was sent.
func installIn(line string) (install evidence.Install, ok bool) {
	_, fields, ok := strings.Cut(line, `msg="the state is that of a snapshot"`)
	for key, number := range numbersIn(fields) {
		switch key {
		case "partition":
			install.Group = int(number)
		case "index":
			install.Index = number
		}
	}
	return install, ok && install.Index > 0
}
