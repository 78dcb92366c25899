package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// refuseLimit bounds how long a node on a directory that is not its own may take to find that out.
const refuseLimit = 15 * time.Second

// broke notes what was seen and must not be.
func (s *scene) broke(format string, arguments ...any) {
	s.broken = append(s.broken, fmt.Sprintf(format, arguments...))
}

// wipeNode deletes a node's directory while it is down, and starts it with its usual
// configuration, as happens when a volume is made anew. It must not take part; in the end another
// node takes its place.
func wipeNode(ctx context.Context, s *scene) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.hits(node.id)
	if err := s.wipe(node); err != nil {
		return err
	}
	s.later(func(ctx context.Context) error { return s.exchange(ctx, node) })
	s.expectRefused(ctx, node)
	return nil
}

// wipeOneOfAll loses the directory of one of the two nodes that have acknowledged what the third
// has not. With that one it must not form a majority.
func wipeOneOfAll(ctx context.Context, s *scene) error {
	others := s.fleet.others(s.leader)
	s.random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	away, wiped := others[:len(others)/2], s.fleet.node(others[len(others)/2])
	if err := s.kill(away...); err != nil {
		return err
	}
	rest(ctx, time.Second) // in which the others acknowledge writes
	s.hits(s.fleet.others(away...)...)
	if err := s.kill(s.fleet.others(away...)...); err != nil {
		return err
	}
	if err := s.wipe(wiped); err != nil {
		return err
	}
	s.heals = nil // the order is the point
	s.later(func(ctx context.Context) error { return s.exchange(ctx, wiped) })
	started := s.fleet.startAside(ctx, away)
	s.later(func(context.Context) error { return <-started })
	s.later(func(ctx context.Context) error {
		return s.fleet.startAll(ctx, s.fleet.others(append(away, wiped.id)...))
	})
	s.later(func(context.Context) error { return wiped.kill() })
	s.expectRefused(ctx, wiped)
	return nil
}

// startAside starts nodes that take no calls yet, because there is no majority, and tells when
// they do.
func (f *fleet) startAside(ctx context.Context, ids []string) <-chan error {
	started := make(chan error, 1)
	ctx = context.WithoutCancel(ctx) // start has a limit of its own
	go func() { started <- f.startAll(ctx, ids) }()
	return started
}

// startAll starts some nodes, all at once.
func (f *fleet) startAll(ctx context.Context, ids []string) error {
	var starting sync.WaitGroup
	errs := make([]error, len(ids))
	for i, id := range ids {
		starting.Go(func() { errs[i] = f.node(id).start(ctx) })
	}
	starting.Wait()
	return errors.Join(errs...)
}

// wipe ends a node and deletes its directory.
func (s *scene) wipe(node *process) error {
	return errors.Join(node.kill(), os.RemoveAll(node.settings().Dir))
}

// expectRefused starts a node on a directory that it may not have, and waits until it refuses to
// take part.
func (s *scene) expectRefused(ctx context.Context, node *process) {
	node.damage(true) // it may end by itself
	defer node.damage(false)
	if refused := s.fleet.awaitRefusal(ctx, node); refused != "" {
		s.broke("%s", refused)
	}
}

// exchange has the cluster remove a node, and starts one of another name in its place.
func (s *scene) exchange(ctx context.Context, node *process) error {
	lost := node.settings()
	err := errors.Join(node.kill(), os.RemoveAll(lost.Dir), s.fleet.remove(ctx, lost.NodeID))
	if err != nil {
		return err
	}
	return s.fleet.takePlace(ctx, node)
}

// cloneNode starts a process on a copy of a node's directory beside the cluster, with that node's
// configuration. It must find out and take no part, and the original must go on.
func cloneNode(ctx context.Context, s *scene) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.hits(node.id)
	config := node.settings()
	s.fleet.guests++
	config.Dir = fmt.Sprintf("%s.copy%d", config.Dir, s.fleet.guests)
	err := errors.Join(node.kill(), os.CopyFS(config.Dir, os.DirFS(node.settings().Dir)), s.fleet.start(ctx))
	if err != nil {
		return err
	}
	place := fmt.Sprintf("clone%d", s.fleet.guests)
	if config.Listen, _, err = s.fleet.network.Add(place); err != nil {
		return err
	}
	clone, err := newProcess(place, config, s.fleet)
	if err != nil {
		return err
	}
	s.later(func(context.Context) error {
		return errors.Join(clone.kill(), clone.stderr.Close(), os.RemoveAll(config.Dir))
	})
	s.expectRefused(ctx, clone)
	if err := s.fleet.aside(ctx, node); err != nil {
		s.broke("the original: %v", err)
	}
	return nil
}

// awaitRefusal starts a node that may take no part, and returns "" when it has ended, or says that
// it has stepped aside or is refused in every group; otherwise what it does instead.
func (f *fleet) awaitRefusal(ctx context.Context, node *process) string {
	ctx, cancel := context.WithTimeout(ctx, refuseLimit)
	defer cancel()
	name := node.settings().NodeID
	if node.start(ctx) != nil {
		return "" // it has refused, or waits for an operator
	}
	for ; ctx.Err() == nil; rest(ctx, 50*time.Millisecond) {
		var state host.Node
		err := f.askOnce(ctx, node, host.NodePath, struct{}{}, &state)
		switch {
		case errors.Is(err, errNoDoor), state.Err != "", state.Refused:
			return ""
		case state.Leads():
			return fmt.Sprintf("%s leads, on a directory that is not the one it had", name)
		}
	}
	return fmt.Sprintf("%s takes part for %v, on a directory that is not the one it had", name, refuseLimit)
}
