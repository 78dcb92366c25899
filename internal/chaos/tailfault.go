package main

import (
	"context"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	tailEvents  = 64
	tailTimeout = 300 * time.Millisecond
)

// fullDiskTail cuts the leader off, makes it append writes that it cannot commit, and fills its
// disk when it is reconnected. It must then truncate its tail and write the other nodes' entries.
func fullDiskTail(ctx context.Context, s *injection) error {
	if s.fleet.disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	if err := s.isolate(s.leader, true, true); err != nil {
		return err
	}
	s.writeTail(ctx)
	if _, err := s.fleet.awaitLeader(ctx, s.partition, s.leader); err != nil {
		return err
	}
	if err := fullDisk(ctx, s); err != nil {
		return err
	}
	return s.fleet.healNetwork(ctx)
}

// writeTail sends events through the leader, which waits in vain for a majority.
func (inj *injection) writeTail(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	var nodeIndex int
	for i, node := range inj.fleet.nodes {
		if node.id == inj.leader {
			nodeIndex = i
		}
	}
	targets := inj.fleet.log.Acked(evidence.Start, "register-", inj.partition, tailEvents)
	var sending sync.WaitGroup
	for i, target := range targets {
		sender := client{fleet: inj.fleet, id: tailSender - i, firstNode: nodeIndex, noFailover: true}
		sending.Go(func() {
			sender.do(ctx, evidence.Request{
				Kind: evidence.Send, Instance: target.Instance, Name: host.Number,
				RequestID: "tail/" + target.Instance + "/" + inj.leader + "/" + inj.fleet.log.Now().String(), Input: encode("tail"),
			})
		})
	}
	sending.Wait()
}

// tailSender is the first of the clients whose writes are not committed.
const tailSender = -1000
