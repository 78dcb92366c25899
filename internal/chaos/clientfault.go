package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
	"github.com/tenuto-dev/tenuto/internal/slots"
)

const (
	stormTime        = 2 * time.Second
	stormDeadlineMax = 4 * time.Millisecond
	stormCallers     = 4
	stormTargets     = 8
	// How long terminating an instance whose code blocks may take.
	terminateTimeout = 30 * time.Second
)

// queryStorm makes every process send many read-only calls. Most of their deadlines end before the
// answer arrives, or at about the same moment.
func queryStorm(ctx context.Context, s *injection) error {
	s.onHeal(s.fleet.start) // processes that ended
	storm := host.Storm{For: stormTime, Longest: stormDeadlineMax, Callers: stormCallers}
	storm.Instances = append(s.fleet.log.RecentlyStarted(host.Entity, stormTargets), s.fleet.log.RecentlyStarted(host.Register, stormTargets)...)
	processes := s.fleet.processes()
	var storming sync.WaitGroup
	calls := make([]int64, len(processes))
	for i, process := range processes {
		storming.Go(func() {
			var result host.StormResult
			if err := s.fleet.post(ctx, process, host.StormPath, storm, &result); err == nil {
				calls[i] = result.Calls
			}
		})
	}
	storming.Wait()
	for i, process := range processes {
		s.addNodes(process.id)
		if calls[i] == 0 {
			s.addShortcoming("%s made no calls in a query storm", process.id)
		}
	}
	return nil
}

// blockedCode starts an instance whose code blocks outside of durable calls, and cuts its leader
// off. When healed, it stops the next leader gracefully and terminates the instance.
func blockedCode(ctx context.Context, s *injection) error {
	id := s.blockedID()
	caller := client{fleet: s.fleet, id: blockedCaller}
	start := evidence.Request{Kind: evidence.Start, Instance: id, Name: host.Blocked, RequestID: id, Input: encode(1)}
	limited, cancel := context.WithTimeout(ctx, terminateTimeout)
	defer cancel()
	if call := caller.do(limited, start); call.Outcome != evidence.Acked {
		return fmt.Errorf("start %s: %s", id, call.Message)
	}
	for !s.fleet.log.HasFinished(id) {
		if sleep(limited, backoffMin); limited.Err() != nil {
			return fmt.Errorf("%s has not reached its blocking code: %w", id, limited.Err())
		}
	}
	s.onHeal(func(ctx context.Context) error { return s.endBlocked(ctx, caller, id) })
	return s.isolate(s.leader, true, true)
}

// blockedCaller is the client of instances whose code blocks.
const blockedCaller = -200

// blockedID returns an instance ID of the target partition.
func (inj *injection) blockedID() string {
	for {
		if id := fmt.Sprintf("blocked-%d", inj.random.Uint64()); slots.Partition(id, inj.fleet.template.Partitions) == inj.partition {
			return id
		}
	}
}

// endBlocked stops the node that runs the instance, restarts it, and terminates the instance.
func (inj *injection) endBlocked(ctx context.Context, caller client, id string) error {
	leader, err := inj.fleet.awaitLeader(ctx, inj.partition)
	if err != nil {
		return err
	}
	if err := errors.Join(inj.fleet.node(leader).stop(), inj.fleet.start(ctx)); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, terminateTimeout)
	defer cancel()
	if call := caller.do(limited, evidence.Request{Kind: evidence.Terminate, Instance: id}); call.Outcome != evidence.Acked {
		inj.addViolation("%s, whose code blocks, was not terminated: %s %s", id, call.Code, call.Message)
	}
	return nil
}
