package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How long running instances may take to end, and the nodes to have applied the same entries,
	// after all faults are healed.
	endsTimeout    = 2 * time.Minute
	collectTimeout = 8 * time.Minute
	// The longest line of a node's log.
	logLineMax = 1 << 20
	// How many instances are sampled after each fault.
	sampleSize = 12
)

// collectReplicas collects the whole state of every node, before and after a restart of all nodes.
func (c *campaign) collectReplicas(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	if err := c.collectAll(ctx); err != nil {
		return fmt.Errorf("collect replicas: %w", err)
	}
	leaderships, err := c.fleet.countLeaderships()
	if err != nil {
		return err
	}
	c.log.LeaderChanges(leaderships - c.leaderships)
	for _, node := range c.fleet.nodes {
		if err := node.kill(); err != nil {
			return err
		}
	}
	if err := c.fleet.start(ctx); err != nil {
		return err
	}
	if _, err := c.awaitLeaders(ctx); err != nil {
		return err
	}
	if err := c.collectAll(ctx); err != nil {
		return fmt.Errorf("collect replicas after a restart: %w", err)
	}
	return c.fleet.readLogs()
}

// readLogs collects leaderships and received snapshots from the logs of all nodes.
func (f *fleet) readLogs() error {
	logs, err := filepath.Glob(filepath.Join(f.dir, "*.log"))
	if err != nil {
		return err
	}
	for _, log := range logs {
		node := strings.TrimSuffix(filepath.Base(log), ".log")
		if err := eachLine(log, func(line string) {
			if leadership, ok := parseLeadership(line); ok {
				leadership.Node = node
				f.log.Leadership(leadership)
			}
			if install, ok := parseInstall(line); ok {
				install.Node = node
				f.log.Install(install)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

func eachLine(name string, do func(line string)) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, logLineMax)
	for lines.Scan() {
		do(lines.Text())
	}
	if err := errors.Join(lines.Err(), file.Close()); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// parseLeadership parses the log line of a node that has become leader.
func parseLeadership(line string) (leadership evidence.Leadership, ok bool) {
	_, fields, ok := strings.Cut(line, " msg=leading ")
	for key, number := range numericFields(fields) {
		switch key {
		case "partition":
			leadership.Partition = int(number)
		case "epoch":
			leadership.Epoch = number
		case "term":
			leadership.Term = number
		}
	}
	return leadership, ok && leadership.Epoch > 0 && leadership.Term > 0
}

// numericFields yields the fields of a log line whose values are numbers.
func numericFields(fields string) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for field := range strings.FieldsSeq(fields) {
			key, value, _ := strings.Cut(field, "=")
			if number, err := strconv.ParseUint(value, 10, 64); err == nil && !yield(key, number) {
				return
			}
		}
	}
}

// collectAll reads the whole state through the leader, and then from each node itself after it has
// applied as much.
func (c *campaign) collectAll(ctx context.Context) error {
	if !c.stuck {
		c.awaitEnds(ctx)
	}
	whole, err := c.fleet.report(ctx, c.fleet.nodes[0], host.ReportRequest{})
	if err != nil {
		return err
	}
	c.log.Replica(whole)
	applyTarget, err := c.fleet.appliedByLeaders(ctx)
	if err != nil {
		return err
	}
	for _, node := range c.fleet.nodes {
		if err := c.collectOwn(ctx, node, applyTarget); err != nil {
			return err
		}
	}
	return nil
}

// appliedByLeaders returns the applied index of each partition's leader.
func (f *fleet) appliedByLeaders(ctx context.Context) ([]uint64, error) {
	states := f.statuses(ctx)
	for slices.Contains(f.leadersAmong(states), "") {
		if sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return nil, fmt.Errorf("not every partition has a leader: %w", ctx.Err())
		}
		states = f.statuses(ctx)
	}
	all := make([]uint64, f.template.Partitions)
	for partition := range all {
		all[partition] = appliedAmong(states, partition)
	}
	return all, nil
}

// isBehind reports whether a partition has applied less than the target.
func isBehind(applied, applyTarget []uint64) bool {
	for partition, index := range applyTarget {
		if partition >= len(applied) || applied[partition] < index {
			return true
		}
	}
	return false
}

// collectOwn reads a node's own state after the node has applied the target indexes.
func (c *campaign) collectOwn(ctx context.Context, node *process, applyTarget []uint64) error {
	for {
		own, err := c.fleet.report(ctx, node, host.ReportRequest{Stale: true, Digests: true})
		if err != nil {
			return err
		}
		if !isBehind(own.Applied, applyTarget) {
			c.log.Replica(own)
			return nil
		}
		if err := c.fleet.checkFailed(ctx, node); err != nil {
			return err // the node answers, but applies nothing more
		}
		if sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%s has applied %d; want %d: %w", node.id, own.Applied, applyTarget, ctx.Err())
		}
	}
}

// awaitEnds waits until every instance that can end has ended. Invariant L2 checks the rest.
func (c *campaign) awaitEnds(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endsTimeout)
	defer cancel()
	for ctx.Err() == nil {
		state, err := c.fleet.report(ctx, c.fleet.nodes[0], host.ReportRequest{Digests: true, Running: true})
		if err == nil && len(state.Instances) == 0 {
			return
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

// collectSample reads some histories in full from every node: those of the latest calls. Later
// reads of them must extend these.
func (c *campaign) collectSample(ctx context.Context) error {
	var ids []string
	for _, kind := range []evidence.Kind{evidence.Wait, evidence.Read, evidence.Send} {
		for _, call := range c.log.Latest(kind, sampleSize/3) {
			ids = append(ids, call.Instance)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	for _, node := range c.fleet.nodes {
		for _, stale := range []bool{true, false} {
			replica, err := c.fleet.report(ctx, node, host.ReportRequest{IDs: ids, Stale: stale})
			if err != nil {
				return fmt.Errorf("sample of %s: %w", node.id, err)
			}
			c.log.Replica(replica)
		}
	}
	return nil
}

// report reads a report of a node. It retries a report that breaks off, for example because the
// leader changed. A failed node may never answer: for that the error is a *nodeFailedError.
func (f *fleet) report(ctx context.Context, node *process, request host.ReportRequest) (evidence.Replica, error) {
	healthy, done := f.whileNotFailed(ctx, node)
	defer done()
	for {
		replica, err := f.reportOnce(healthy, node, request)
		if err == nil {
			return replica, nil
		}
		if sleep(healthy, 100*time.Millisecond); healthy.Err() != nil {
			return replica, fmt.Errorf("report of %s: %w: %w", node.id, context.Cause(healthy), err)
		}
	}
}

// failedPollInterval is how often a node is asked whether it has failed.
const failedPollInterval = 200 * time.Millisecond

// A nodeFailedError reports that a node has failed and takes no further part.
type nodeFailedError struct{ node, why string }

func (e *nodeFailedError) Error() string { return e.node + " failed: " + e.why }

// checkFailed returns a *nodeFailedError if a node reports that it has failed.
func (f *fleet) checkFailed(ctx context.Context, node *process) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var state host.NodeStatus
	if err := f.post(ctx, node, host.NodePath, struct{}{}, &state); err != nil || state.Err == "" {
		return nil
	}
	return &nodeFailedError{node.id, state.Err}
}

// whileNotFailed returns a context that ends, with a *nodeFailedError as its cause, when a node has
// failed. The caller must call done.
func (f *fleet) whileNotFailed(ctx context.Context, node *process) (healthy context.Context, done func()) {
	healthy, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for healthy.Err() == nil {
			if err := f.checkFailed(healthy, node); err != nil {
				cancel(err)
			}
			sleep(healthy, failedPollInterval)
		}
	})
	return healthy, func() {
		cancel(nil)
		looking.Wait()
	}
}

func (f *fleet) reportOnce(ctx context.Context, node *process, request host.ReportRequest) (evidence.Replica, error) {
	var replica evidence.Replica
	begin := f.log.Now()
	body, err := f.open(ctx, node, host.ReportPath, request)
	if err != nil {
		return replica, err
	}
	defer body.Close()
	if replica, err = evidence.ReadReplica(body); err != nil {
		return replica, err
	}
	replica.Node, replica.Stale, replica.Complete = node.id, request.Stale, len(request.IDs) == 0
	_, replica.Generation = node.socket()
	replica.Begin, replica.End = begin, f.log.Now()
	return replica, nil
}
