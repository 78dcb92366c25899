package main

import (
	"context"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	tailEvents = 64
	tailLimit  = 300 * time.Millisecond
)

// fullDiskTail cuts the leader off, has it take writes that it cannot commit, and fills its disk
// as it comes back: it has to cut off what nobody else has, and to write what the others have.
func fullDiskTail(ctx context.Context, s *scene) error {
	if s.fleet.disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	if err := s.isolate(s.leader, true, true); err != nil {
		return err
	}
	s.writeTail(ctx)
	if _, err := s.fleet.awaitLeader(ctx, s.group, s.leader); err != nil {
		return err
	}
	if err := fullDisk(ctx, s); err != nil {
		return err
	}
	return s.fleet.healNetwork(ctx)
}

// writeTail sends events through the leader, which waits for a majority in vain.
func (s *scene) writeTail(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tailLimit)
	defer cancel()
	var home int
	for i, node := range s.fleet.nodes {
		if node.id == s.leader {
			home = i
		}
	}
	targets := s.fleet.log.Acked(evidence.Start, "register-", s.group, tailEvents)
	var sending sync.WaitGroup
	for i, target := range targets {
		sender := client{fleet: s.fleet, id: tailSender - i, home: home, faithful: true}
		sending.Go(func() {
			sender.do(ctx, evidence.Request{
				Kind: evidence.Send, Instance: target.Instance, Name: host.Number,
				RequestID: "tail/" + target.Instance + "/" + s.leader + "/" + s.fleet.log.Now().String(), Input: encode("tail"),
			})
		})
	}
	sending.Wait()
}

// tailSender is the first of the clients that write what is not committed.
const tailSender = -1000
