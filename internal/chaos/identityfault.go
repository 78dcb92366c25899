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

// rejectionTimeout bounds how long a node with a wrong directory may take to notice that.
const rejectionTimeout = 15 * time.Second

// addViolation records that something happened that must not happen.
func (inj *injection) addViolation(format string, arguments ...any) {
	inj.violations = append(inj.violations, fmt.Sprintf(format, arguments...))
}

// wipeNode deletes a node's directory while it is down and starts it with its usual configuration,
// as when a volume is recreated. The node must not take part. Healing replaces it with a new node.
func wipeNode(ctx context.Context, s *injection) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.addNodes(node.id)
	if err := s.wipe(node); err != nil {
		return err
	}
	s.onHeal(func(ctx context.Context) error { return s.replaceWithNew(ctx, node) })
	s.expectRejected(ctx, node)
	return nil
}

// wipeOneOfAll kills a minority of the nodes, so that only the others have the writes that follow.
// It then kills these too, and deletes the directory of one of them. The wiped node and the
// minority must not form a majority.
func wipeOneOfAll(ctx context.Context, s *injection) error {
	others := s.fleet.nodeIDsExcept(s.leader)
	s.random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	minority, wiped := others[:len(others)/2], s.fleet.node(others[len(others)/2])
	if err := s.kill(minority...); err != nil {
		return err
	}
	sleep(ctx, time.Second) // the two others acknowledge writes meanwhile
	s.addNodes(s.fleet.nodeIDsExcept(minority...)...)
	if err := s.kill(s.fleet.nodeIDsExcept(minority...)...); err != nil {
		return err
	}
	if err := s.wipe(wiped); err != nil {
		return err
	}
	s.heals = nil // replaced by heals in the required order
	s.onHeal(func(ctx context.Context) error { return s.replaceWithNew(ctx, wiped) })
	started := s.fleet.startInBackground(ctx, minority)
	s.onHeal(func(context.Context) error { return <-started })
	s.onHeal(func(ctx context.Context) error {
		return s.fleet.startAll(ctx, s.fleet.nodeIDsExcept(append(minority, wiped.id)...))
	})
	s.onHeal(func(context.Context) error { return wiped.kill() })
	s.expectRejected(ctx, wiped)
	return nil
}

// startInBackground starts nodes that cannot serve calls yet, because there is no majority. The
// channel receives the result when they do.
func (f *fleet) startInBackground(ctx context.Context, ids []string) <-chan error {
	started := make(chan error, 1)
	ctx = context.WithoutCancel(ctx) // start has its own timeout
	go func() { started <- f.startAll(ctx, ids) }()
	return started
}

// startAll starts nodes concurrently.
func (f *fleet) startAll(ctx context.Context, ids []string) error {
	var starting sync.WaitGroup
	errs := make([]error, len(ids))
	for i, id := range ids {
		starting.Go(func() { errs[i] = f.node(id).start(ctx) })
	}
	starting.Wait()
	return errors.Join(errs...)
}

// wipe kills a node and deletes its directory.
func (inj *injection) wipe(node *process) error {
	return errors.Join(node.kill(), os.RemoveAll(node.settings().Dir))
}

// expectRejected starts a node with a wrong directory, and waits until it is rejected.
func (inj *injection) expectRejected(ctx context.Context, node *process) {
	node.setDamaged(true) // it may end by itself
	defer node.setDamaged(false)
	if rejected := inj.fleet.awaitRejection(ctx, node); rejected != "" {
		inj.addViolation("%s", rejected)
	}
}

// replaceWithNew removes a node from the cluster and starts one with a new name in its place.
func (inj *injection) replaceWithNew(ctx context.Context, node *process) error {
	lost := node.settings()
	err := errors.Join(node.kill(), os.RemoveAll(lost.Dir), inj.fleet.remove(ctx, lost.NodeID))
	if err != nil {
		return err
	}
	return inj.fleet.startReplacement(ctx, node)
}

// cloneNode starts a process on a copy of a node's directory beside the cluster, with that node's
// configuration. The copy must notice and take no part; the original must continue.
func cloneNode(ctx context.Context, s *injection) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.addNodes(node.id)
	config := node.settings()
	s.fleet.nodesAdded++
	config.Dir = fmt.Sprintf("%s.copy%d", config.Dir, s.fleet.nodesAdded)
	err := errors.Join(node.kill(), os.CopyFS(config.Dir, os.DirFS(node.settings().Dir)), s.fleet.start(ctx))
	if err != nil {
		return err
	}
	networkName := fmt.Sprintf("clone%d", s.fleet.nodesAdded)
	if config.Listen, _, err = s.fleet.network.Add(networkName); err != nil {
		return err
	}
	clone, err := newProcess(networkName, config, s.fleet)
	if err != nil {
		return err
	}
	s.onHeal(func(context.Context) error {
		return errors.Join(clone.kill(), clone.stderr.Close(), os.RemoveAll(config.Dir))
	})
	s.expectRejected(ctx, clone)
	if err := s.fleet.checkFailed(ctx, node); err != nil {
		s.addViolation("original node: %v", err)
	}
	return nil
}

// awaitRejection starts a node that must not take part. It returns "" after the node has ended, has
// failed or is rejected in every partition; otherwise it returns what the node did instead.
func (f *fleet) awaitRejection(ctx context.Context, node *process) string {
	ctx, cancel := context.WithTimeout(ctx, rejectionTimeout)
	defer cancel()
	name := node.settings().NodeID
	if node.start(ctx) != nil {
		return "" // it did not start, or waits for an operator
	}
	for ; ctx.Err() == nil; sleep(ctx, 50*time.Millisecond) {
		var state host.NodeStatus
		err := f.askOnce(ctx, node, host.NodePath, struct{}{}, &state)
		switch {
		case errors.Is(err, errNotRunning), state.Err != "", state.Rejected:
			return ""
		case state.IsLeader():
			return fmt.Sprintf("%s leads with a directory that is not its own", name)
		}
	}
	return fmt.Sprintf("%s took part for %v with a directory that is not its own", name, rejectionTimeout)
}
