package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How long clients work in a fault-free phase.
	faultFreeLoad = 6 * time.Second
	// Instances are stuck if none has ended for stuckAfter while so many writes were acknowledged.
	// The writes show that the machine is not just slow.
	stuckAfter     = 20 * time.Second
	stuckAcked     = 100
	faultFreeTries = 4
	// The interval between measurements of the machine without the cluster.
	noiseInterval = 25 * time.Millisecond
)

// runFaultFree runs a fault-free phase. A new leader recovers all open operations and so hides lost
// work; here there is no new leader.
func (c *campaign) runFaultFree(ctx context.Context) error {
	c.leaderBalance.awaitBalanced(ctx) // moving leaders would change leaderships in the phase
	before, err := c.fleet.countLeaderships()
	if err != nil {
		return err
	}
	phase := evidence.FaultFreePhase{Begin: c.log.Now()}
	if phase.Noise, err = c.measureNoise(ctx, faultFreeLoad); err != nil {
		return err
	}
	phase.LoadEnd = c.log.Now()
	resume := c.load.pauseStarts()
	defer resume()
	if phase.Stuck = c.awaitEndedOrStuck(ctx); len(phase.Stuck) > 0 {
		c.stuck = true // no fault may repair it before it is checked
		c.load.cancelCalls()
	}
	phase.End = c.log.Now()
	after, err := c.fleet.countLeaderships()
	if err != nil {
		return err
	}
	phase.LeaderChanges = after - before
	c.sameLeader = phase.LeaderChanges == 0
	c.log.FaultFreePhase(phase)
	fmt.Fprintf(c.options.out, "%8.1fs no faults for %v, %d new leaderships, %d instances stuck\n",
		phase.Begin.Seconds(), (phase.End - phase.Begin).Round(time.Millisecond), phase.LeaderChanges, len(phase.Stuck))
	return ctx.Err()
}

// runFaultFreeUndisturbed repeats fault-free phases until no leader changes in one, at most
// faultFreeTries times. On a loaded machine a leader may change in each.
func (c *campaign) runFaultFreeUndisturbed(ctx context.Context) error {
	for range faultFreeTries {
		if err := c.runFaultFree(ctx); err != nil || c.stuck || c.sameLeader {
			return err
		}
	}
	return nil
}

// pauseStarts stops all clients from starting instances until resume is called.
func (l *load) pauseStarts() (resume func()) {
	resumed := make(chan struct{})
	l.drivers.Go(func() {
		l.startMu.Lock() // waits until all instances being driven have ended
		defer l.startMu.Unlock()
		<-resumed
	})
	return func() { close(resumed) }
}

// awaitEndedOrStuck waits until every instance that can end has ended, and returns those that are
// stuck.
func (c *campaign) awaitEndedOrStuck(ctx context.Context) (stuck []string) {
	since, least := c.log.Now(), -1
	for ctx.Err() == nil {
		running, err := c.unendedInstances(ctx)
		if err == nil && len(running) == 0 {
			return nil
		}
		if err == nil && (least < 0 || len(running) < least) {
			since, least = c.log.Now(), len(running)
		}
		if err == nil && c.log.Now() > since+stuckAfter && c.log.AckedSince(since) > stuckAcked {
			return running
		}
		sleep(ctx, 100*time.Millisecond)
	}
	return nil
}

// unendedInstances returns the running instances that can end by themselves.
func (c *campaign) unendedInstances(ctx context.Context) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	state, err := c.fleet.reportOnce(ctx, c.fleet.nodes[0], host.ReportRequest{Digests: true, Running: true})
	for _, instance := range state.Instances {
		ids = append(ids, instance.ID)
	}
	return ids, err
}

// countLeaderships counts the leaderships in the nodes' logs.
func (f *fleet) countLeaderships() (n int, err error) {
	logs, err := filepath.Glob(filepath.Join(f.dir, "*.log"))
	for _, log := range logs {
		err = errors.Join(err, eachLine(log, func(line string) {
			if _, ok := parseLeadership(line); ok {
				n++
			}
		}))
	}
	return n, err
}

// measureNoise repeats, for the time limit, operations that do not depend on the cluster, and
// returns their durations: a status request to each node, and a write and sync of a small file.
func (c *campaign) measureNoise(ctx context.Context, limit time.Duration) (took []time.Duration, err error) {
	file, err := os.Create(filepath.Join(c.options.dir, "noise"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for end := c.log.Now() + limit; c.log.Now() < end && ctx.Err() == nil; sleep(ctx, noiseInterval) {
		begin := c.log.Now()
		c.fleet.statuses(ctx)
		if _, err := file.WriteAt(make([]byte, 512), 0); err != nil {
			return nil, err
		}
		if err := file.Sync(); err != nil {
			return nil, err
		}
		took = append(took, c.log.Now()-begin)
	}
	return took, nil
}
