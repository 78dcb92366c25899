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
	// How long clients work in a phase without faults.
	quietLoad = 6 * time.Second
	// An instance is stuck when for so long none has come to its end, while so many writes
	// were acknowledged: a slow machine is no reason then.
	stuckAfter       = 20 * time.Second
	stuckAcked       = 100
	undisturbedTries = 4
	// How often the machine's own noise is measured.
	controlEvery = 25 * time.Millisecond
)

// beQuiet makes a phase without faults. A new leader derives all open work anew, and so puts
// right what was forgotten: here there is none.
func (c *campaign) beQuiet(ctx context.Context) error {
	c.balance.end(ctx) // leaders are not moved then, to be spread
	before, err := c.fleet.countReigns()
	if err != nil {
		return err
	}
	quiet := evidence.Quiet{Begin: c.log.Now()}
	if quiet.Control, err = c.measureNoise(ctx, quietLoad); err != nil {
		return err
	}
	quiet.Loaded = c.log.Now()
	resume := c.load.still()
	defer resume()
	if quiet.Stuck = c.awaitQuiet(ctx); len(quiet.Stuck) > 0 {
		c.stuck = true // no fault may put it right before it is judged
		c.load.abandon()
	}
	quiet.End = c.log.Now()
	after, err := c.fleet.countReigns()
	if err != nil {
		return err
	}
	quiet.Changes = after - before
	c.undisturbed = quiet.Changes == 0
	c.log.Quiet(quiet)
	fmt.Fprintf(c.options.out, "%8.1fs without faults for %v, %d new leaderships, %d instances stuck\n",
		quiet.Begin.Seconds(), (quiet.End - quiet.Begin).Round(time.Millisecond), quiet.Changes, len(quiet.Stuck))
	return ctx.Err()
}

// beQuietUndisturbed makes phases without faults until there was one without a new leader, a few
// at most: on a machine under load there may be none.
func (c *campaign) beQuietUndisturbed(ctx context.Context) error {
	for range undisturbedTries {
		if err := c.beQuiet(ctx); err != nil || c.stuck || c.undisturbed {
			return err
		}
	}
	return nil
}

// still has no client begin another instance until resume is called.
func (l *load) still() (resume func()) {
	resumed := make(chan struct{})
	l.workers.Go(func() {
		l.driving.Lock() // when all that are driven have come to their end
		defer l.driving.Unlock()
		<-resumed
	})
	return func() { close(resumed) }
}

// awaitQuiet waits until nothing runs any more that comes to its end, and returns what is stuck.
func (c *campaign) awaitQuiet(ctx context.Context) (stuck []string) {
	since, least := c.log.Now(), -1
	for ctx.Err() == nil {
		running, err := c.unended(ctx)
		if err == nil && len(running) == 0 {
			return nil
		}
		if err == nil && (least < 0 || len(running) < least) {
			since, least = c.log.Now(), len(running)
		}
		if err == nil && c.log.Now() > since+stuckAfter && c.log.AckedSince(since) > stuckAcked {
			return running
		}
		rest(ctx, 100*time.Millisecond)
	}
	return nil
}

// unended returns the instances that run and are to come to an end by themselves.
func (c *campaign) unended(ctx context.Context) (ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	state, err := c.fleet.reportOnce(ctx, c.fleet.nodes[0], host.ReportRequest{Digests: true, Running: true})
	for _, instance := range state.Instances {
		ids = append(ids, instance.ID)
	}
	return ids, err
}

// countReigns counts the leaderships of which the nodes' logs tell.
func (f *fleet) countReigns() (n int, err error) {
	logs, err := filepath.Glob(filepath.Join(f.dir, "*.log"))
	for _, log := range logs {
		err = errors.Join(err, eachLine(log, func(line string) {
			if _, ok := reignIn(line); ok {
				n++
			}
		}))
	}
	return n, err
}

// measureNoise measures for a while what the cluster has no part in: a question to a process
// about itself, and a write and sync of a small file.
func (c *campaign) measureNoise(ctx context.Context, limit time.Duration) (took []time.Duration, err error) {
	file, err := os.Create(filepath.Join(c.options.dir, "noise"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for end := c.log.Now() + limit; c.log.Now() < end && ctx.Err() == nil; rest(ctx, controlEvery) {
		begin := c.log.Now()
		c.fleet.states(ctx)
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
