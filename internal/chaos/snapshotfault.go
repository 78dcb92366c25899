package main

import (
	"context"
	"strconv"
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
	first := s.fleet.applied(ctx)
	deadline := s.fleet.log.Now() + missLimit
	for s.fleet.applied(ctx) < first+host.SnapshotEntries {
		if rest(ctx, short); ctx.Err() != nil || s.fleet.log.Now() > deadline {
			s.short("%s has missed no more than %d entries in %v", id, s.fleet.applied(ctx)-first, missLimit)
			return nil
		}
	}
	rest(ctx, host.SnapshotEvery) // the others take theirs
	return s.returnWithSnapshot(ctx, id)
}

// applied returns the highest index that a node has applied.
func (f *fleet) applied(ctx context.Context) uint64 {
	highest := uint64(0)
	for _, state := range f.states(ctx) {
		highest = max(highest, state.Applied)
	}
	return highest
}

func (s *scene) returnWithSnapshot(ctx context.Context, id string) error {
	if err := s.fleet.start(ctx); err != nil {
		return err
	}
	deadline := s.fleet.log.Now() + recoveryLimit
	for {
		installed, err := s.fleet.installs(id)
		if err != nil {
			return err
		}
		if installed > s.fleet.node(id).told {
			s.fleet.node(id).told = installed
			break
		}
		if rest(ctx, short); ctx.Err() != nil || s.fleet.log.Now() > deadline {
			s.short("%s was away, and was sent no snapshot", id)
			return nil
		}
	}
	return s.leadAndRepeat(ctx, id)
}

// leadAndRepeat has one leader after the other stop until a node leads, and repeats
// calls through it.
func (s *scene) leadAndRepeat(ctx context.Context, id string) error {
	for range electionsMax {
		leader, err := s.fleet.awaitLeader(ctx)
		if err != nil {
			return err
		}
		if leader == id {
			return s.repeat(ctx, id)
		}
		if err := s.fleet.node(leader).stop(); err != nil {
			return err
		}
		if _, err := s.fleet.awaitLeader(ctx, leader); err != nil {
			return err
		}
		if err := s.fleet.start(ctx); err != nil {
			return err
		}
	}
	s.short("%s did not lead after %d elections", id, electionsMax)
	return nil
}

// repeat puts acknowledged requests to a node again, of instances that nobody purges.
func (s *scene) repeat(ctx context.Context, id string) error {
	for home, node := range s.fleet.nodes {
		if node.id != id {
			continue
		}
		again := client{fleet: s.fleet, id: repeaterID, home: home}
		for _, kind := range []evidence.Kind{evidence.Start, evidence.Send} {
			for _, call := range s.fleet.log.Acked(kind, "cycle-", repeatedCalls) {
				call.Request.Repeated = true
				again.do(ctx, call.Request)
			}
		}
	}
	return nil
}

// installs counts in a node's log the snapshots that it was sent.
func (f *fleet) installs(id string) (int, error) {
	n := 0
	err := eachLine(f.node(id).stderr.Name(), func(line string) {
		if _, ok := installIn(line); ok {
			n++
		}
	})
	return n, err
}

// installIn reads a line of a node's log that tells of a snapshot that it was sent.
func installIn(line string) (index uint64, ok bool) {
	if !strings.Contains(line, `msg="the state is that of a snapshot"`) {
		return 0, false
	}
	_, number, _ := strings.Cut(line, "index=")
	index, err := strconv.ParseUint(number, 10, 64)
	return index, err == nil
}
