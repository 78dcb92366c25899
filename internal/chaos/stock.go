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
	// How long all that runs may take to come to its end, and the nodes to have
	// applied the same, once nothing is wrong any more.
	settleLimit = 2 * time.Minute
	stockLimit  = 8 * time.Minute
	// Of a node's log.
	lineBytesMax = 1 << 20
	// How many instances are looked at after each fault.
	sampleSize = 12
)

// takeStock has every node tell all that it has, before and after all of them
// were stopped.
func (c *campaign) takeStock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stockLimit)
	defer cancel()
	if err := c.tellAll(ctx); err != nil {
		return fmt.Errorf("take stock: %w", err)
	}
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
	if err := c.tellAll(ctx); err != nil {
		return fmt.Errorf("take stock after a restart: %w", err)
	}
	return c.fleet.readLogs()
}

// readLogs finds in the logs of all nodes that there were when they began to lead, and
// which snapshots they were sent.
func (f *fleet) readLogs() error {
	logs, err := filepath.Glob(filepath.Join(f.dir, "*.log"))
	if err != nil {
		return err
	}
	for _, log := range logs {
		node := strings.TrimSuffix(filepath.Base(log), ".log")
		if err := eachLine(log, func(line string) {
			if reign, ok := reignIn(line); ok {
				reign.Node = node
				f.log.Reign(reign)
			}
			if install, ok := installIn(line); ok {
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
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		do(lines.Text())
	}
	if err := errors.Join(lines.Err(), file.Close()); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// reignIn reads a line of a node's log that tells of the beginning of a reign.
func reignIn(line string) (reign evidence.Reign, ok bool) {
	_, fields, ok := strings.Cut(line, " msg=leading ")
	for key, number := range numbersIn(fields) {
		switch key {
		case "partition":
			reign.Group = int(number)
		case "epoch":
			reign.Epoch = number
		case "term":
			reign.Term = number
		}
	}
	return reign, ok && reign.Epoch > 0 && reign.Term > 0
}

// numbersIn yields the fields of a line of a log whose values are numbers.
func numbersIn(fields string) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for field := range strings.FieldsSeq(fields) {
			key, value, _ := strings.Cut(field, "=")
			if number, err := strconv.ParseUint(value, 10, 64); err == nil && !yield(key, number) {
				return
			}
		}
	}
}

// tellAll asks for everything through the leader, and then each node for what it
// has itself, once it has applied as much.
func (c *campaign) tellAll(ctx context.Context) error {
	if !c.stuck {
		c.awaitEnds(ctx)
	}
	whole, err := c.fleet.report(ctx, c.fleet.nodes[0], host.ReportRequest{})
	if err != nil {
		return err
	}
	c.log.Replica(whole)
	shown, err := c.reached(ctx)
	if err != nil {
		return err
	}
	for _, node := range c.fleet.nodes {
		if err := c.tellOwn(ctx, node, shown); err != nil {
			return err
		}
	}
	return nil
}

// reached returns up to where the leader of each group has come.
func (c *campaign) reached(ctx context.Context) ([]uint64, error) {
	states := c.fleet.states(ctx)
	for slices.Contains(c.fleet.leadersAmong(states), "") {
		if rest(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return nil, fmt.Errorf("not every group has a leader: %w", ctx.Err())
		}
		states = c.fleet.states(ctx)
	}
	all := make([]uint64, c.options.groups)
	for group := range all {
		all[group] = appliedAmong(states, group)
	}
	return all, nil
}

// isBehind tells whether in one of the groups something is lacking.
func isBehind(applied, shown []uint64) bool {
	for group, index := range shown {
		if group >= len(applied) || applied[group] < index {
			return true
		}
	}
	return false
}

// tellOwn has a node tell what it has itself, once nothing is lacking there of what was shown.
func (c *campaign) tellOwn(ctx context.Context, node *process, shown []uint64) error {
	for {
		own, err := c.fleet.report(ctx, node, host.ReportRequest{Stale: true, Digests: true})
		if err != nil {
			return err
		}
		if !isBehind(own.Applied, shown) {
			c.log.Replica(own)
			return nil
		}
		if err := c.fleet.aside(ctx, node); err != nil {
			return err // it answers, and comes no further
		}
		if rest(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%s has applied %d of %d: %w", node.id, own.Applied, shown, ctx.Err())
		}
	}
}

// awaitEnds waits until every instance has ended that comes to an end by itself.
// What has not by then is judged.
func (c *campaign) awaitEnds(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for ctx.Err() == nil {
		state, err := c.fleet.report(ctx, c.fleet.nodes[0], host.ReportRequest{Digests: true, Running: true})
		if err == nil && len(state.Instances) == 0 {
			return
		}
		rest(ctx, 200*time.Millisecond)
	}
}

// sample has every node tell some histories in full: those of calls that were
// read last. Histories that are read later must go on from there.
func (c *campaign) sample(ctx context.Context) error {
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
			told, err := c.fleet.report(ctx, node, host.ReportRequest{IDs: ids, Stale: stale})
			if err != nil {
				return fmt.Errorf("sample of %s: %w", node.id, err)
			}
			c.log.Replica(told)
		}
	}
	return nil
}

// report has a node tell of instances. A report that breaks off, because the
// leader changed for example, is asked for again; but not of a node that has stepped
// aside, which may never answer: then the error is an *asideError.
func (f *fleet) report(ctx context.Context, node *process, request host.ReportRequest) (evidence.Replica, error) {
	well, done := f.whileWell(ctx, node)
	defer done()
	for {
		told, err := f.reportOnce(well, node, request)
		if err == nil {
			return told, nil
		}
		if rest(well, 100*time.Millisecond); well.Err() != nil {
			return told, fmt.Errorf("report of %s: %w: %w", node.id, context.Cause(well), err)
		}
	}
}

// asideEvery is how often a node that is to answer is asked whether it can.
const asideEvery = 200 * time.Millisecond

// An asideError reports that a node has stepped aside, and so takes no part any more.
type asideError struct{ node, why string }

func (e *asideError) Error() string { return e.node + " has stepped aside: " + e.why }

// aside returns an *asideError if a node says that it has stepped aside.
func (f *fleet) aside(ctx context.Context, node *process) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var state host.Node
	if err := f.post(ctx, node, host.NodePath, struct{}{}, &state); err != nil || state.Err == "" {
		return nil
	}
	return &asideError{node.id, state.Err}
}

// whileWell returns a context that ends when a node has stepped aside, which is its
// cause then. done ends it, and must be called.
func (f *fleet) whileWell(ctx context.Context, node *process) (well context.Context, done func()) {
	well, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		for well.Err() == nil {
			if err := f.aside(well, node); err != nil {
				cancel(err)
			}
			rest(well, asideEvery)
		}
	})
	return well, func() {
		cancel(nil)
		looking.Wait()
	}
}

func (f *fleet) reportOnce(ctx context.Context, node *process, request host.ReportRequest) (evidence.Replica, error) {
	var told evidence.Replica
	begin := f.log.Now()
	body, err := f.open(ctx, node, host.ReportPath, request)
	if err != nil {
		return told, err
	}
	defer body.Close()
	if told, err = evidence.ReadReplica(body); err != nil {
		return told, err
	}
	told.Node, told.Stale, told.Whole = node.id, request.Stale, len(request.IDs) == 0
	_, told.Life = node.door()
	told.Begin, told.End = begin, f.log.Now()
	return told, nil
}
