package main

import (
	"context"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How long it may take until a node that is down needs a snapshot.
	lagTimeout = 60 * time.Second
	// How many leaders are killed until that node leads. With five nodes a given one does not win
	// any of 40 elections once in 100,000 times.
	electionsMax  = 40
	repeatedCalls = 12
)

// lagFollower keeps a follower down until it needs a snapshot. It then makes that node lead, and
// repeats calls on it that were acknowledged while it was down. The node must know that they were
// executed.
func lagFollower(ctx context.Context, s *injection) error {
	id := s.follower()
	if err := s.kill(id); err != nil {
		return err
	}
	first := s.fleet.applied(ctx, s.partition)
	deadline := s.fleet.log.Now() + lagTimeout
	for s.fleet.applied(ctx, s.partition) < first+host.SnapshotEntries {
		if sleep(ctx, shortTime); ctx.Err() != nil || s.fleet.log.Now() > deadline {
			s.addShortcoming("%s missed only %d entries in %v", id, s.fleet.applied(ctx, s.partition)-first, lagTimeout)
			return nil
		}
	}
	sleep(ctx, host.SnapshotEvery) // the others take a snapshot
	return s.returnWithSnapshot(ctx, id)
}

// applied returns the highest index of a partition's journal that any node has applied.
func (f *fleet) applied(ctx context.Context, partition int) uint64 {
	return appliedAmong(f.statuses(ctx), partition)
}

func appliedAmong(states []host.NodeStatus, partition int) (highest uint64) {
	for _, state := range states {
		highest = max(highest, state.Partition(partition).Applied)
	}
	return highest
}

func (inj *injection) returnWithSnapshot(ctx context.Context, id string) error {
	if err := inj.fleet.start(ctx); err != nil {
		return err
	}
	deadline := inj.fleet.log.Now() + recoveryTimeout
	for {
		installed, err := inj.fleet.countInstalls(id, inj.partition)
		if err != nil {
			return err
		}
		if node := inj.fleet.node(id); installed > node.snapshotsSeen[inj.partition] {
			node.snapshotsSeen[inj.partition] = installed
			break
		}
		if sleep(ctx, shortTime); ctx.Err() != nil || inj.fleet.log.Now() > deadline {
			inj.addShortcoming("%s was away, but was sent no snapshot", id)
			return nil
		}
	}
	return inj.leadAndRepeat(ctx, id)
}

// leadAndRepeat kills one leader of the partition after the other until a node leads, and repeats
// calls through that node. It does not stop them: a stopping leader hands leadership to the first
// of the followers that lag equally little, which may never be that node.
func (inj *injection) leadAndRepeat(ctx context.Context, id string) error {
	for range electionsMax {
		leader, err := inj.fleet.awaitLeader(ctx, inj.partition)
		if err != nil {
			return err
		}
		if leader == id {
			return inj.repeat(ctx, id)
		}
		if err := inj.fleet.node(leader).kill(); err != nil {
			return err
		}
		if _, err := inj.fleet.awaitLeader(ctx, inj.partition, leader); err != nil {
			return err
		}
		if err := inj.fleet.start(ctx); err != nil {
			return err
		}
	}
	inj.addShortcoming("%s did not lead after %d elections", id, electionsMax)
	return nil
}

// repeat repeats acknowledged requests on a node. Their instances belong to the partition and are
// never purged.
func (inj *injection) repeat(ctx context.Context, id string) error {
	for nodeIndex, node := range inj.fleet.nodes {
		if node.id != id {
			continue
		}
		again := client{fleet: inj.fleet, id: repeatClient, firstNode: nodeIndex}
		for _, kind := range []evidence.Kind{evidence.Start, evidence.Send} {
			for _, call := range inj.fleet.log.Acked(kind, "cycle-", inj.partition, repeatedCalls) {
				call.Request.Repeated = true
				again.do(ctx, call.Request)
			}
		}
	}
	return nil
}

// countInstalls counts, in a node's log, the snapshots of a partition that it received.
func (f *fleet) countInstalls(id string, partition int) (int, error) {
	n := 0
	err := eachLine(f.node(id).stderr.Name(), func(line string) {
		if install, ok := parseInstall(line); ok && install.Partition == partition {
			n++
		}
	})
	return n, err
}

// parseInstall parses the log line of a node that has received a snapshot.
func parseInstall(line string) (install evidence.Install, ok bool) {
	_, fields, ok := strings.Cut(line, `msg="state replaced by snapshot"`)
	for key, number := range numericFields(fields) {
		switch key {
		case "partition":
			install.Partition = int(number)
		case "index":
			install.Index = number
		}
	}
	return install, ok && install.Index > 0
}
