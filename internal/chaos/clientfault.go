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
	stormTime    = 2 * time.Second
	stormLongest = 4 * time.Millisecond
	stormCallers = 4
	stormTargets = 8
	// How long an instance whose code blocks may take to be terminated.
	terminateLimit = 30 * time.Second
)

// queryStorm has every process make many calls that change nothing, with deadlines that mostly
// end before the answer comes, or just then.
func queryStorm(ctx context.Context, s *scene) error {
	s.later(s.fleet.start) // those that have ended
	storm := host.Storm{For: stormTime, Longest: stormLongest, Callers: stormCallers}
	storm.Instances = append(s.fleet.log.Known(host.Entity, stormTargets), s.fleet.log.Known(host.Register, stormTargets)...)
	processes := s.fleet.processes()
	var storming sync.WaitGroup
	calls := make([]int64, len(processes))
	for i, process := range processes {
		storming.Go(func() {
			var stormed host.Stormed
			if err := s.fleet.post(ctx, process, host.StormPath, storm, &stormed); err == nil {
				calls[i] = stormed.Calls
			}
		})
	}
	storming.Wait()
	for i, process := range processes {
		s.hits(process.id)
		if calls[i] == 0 {
			s.short("%s has made no calls in a storm of them", process.id)
		}
	}
	return nil
}

// blockedCode starts an instance whose code blocks outside of durable calls, and cuts its leader
// off. The node that leads next is stopped as its owner stops it, and the instance terminated.
func blockedCode(ctx context.Context, s *scene) error {
	id := s.blockedID()
	caller := client{fleet: s.fleet, id: blockedCaller}
	start := evidence.Request{Kind: evidence.Start, Instance: id, Name: host.Blocked, RequestID: id, Input: encode(1)}
	limited, cancel := context.WithTimeout(ctx, terminateLimit)
	defer cancel()
	if call := caller.do(limited, start); call.Outcome != evidence.Acked {
		return fmt.Errorf("start %s: %s", id, call.Message)
	}
	for !s.fleet.log.Finished(id) {
		if rest(limited, pauseFirst); limited.Err() != nil {
			return fmt.Errorf("%s has not come to where it blocks: %w", id, limited.Err())
		}
	}
	s.later(func(ctx context.Context) error { return s.endBlocked(ctx, caller, id) })
	return s.isolate(s.leader, true, true)
}

// blockedCaller is the client of instances whose code blocks.
const blockedCaller = -200

// blockedID returns the ID of an instance of the group that is aimed at.
func (s *scene) blockedID() string {
	for {
		if id := fmt.Sprintf("blocked-%d", s.random.Uint64()); slots.Group(id, s.fleet.pattern.Groups) == s.group {
			return id
		}
	}
}

// endBlocked stops the node that has the instance, starts it again, and terminates the instance.
func (s *scene) endBlocked(ctx context.Context, caller client, id string) error {
	leader, err := s.fleet.awaitLeader(ctx, s.group)
	if err != nil {
		return err
	}
	if err := errors.Join(s.fleet.node(leader).stop(), s.fleet.start(ctx)); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, terminateLimit)
	defer cancel()
	if call := caller.do(limited, evidence.Request{Kind: evidence.Terminate, Instance: id}); call.Outcome != evidence.Acked {
		s.broke("%s, whose code blocks, is not terminated: %s %s", id, call.Code, call.Message)
	}
	return nil
}
