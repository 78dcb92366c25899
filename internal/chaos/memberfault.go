package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// memberTimeout bounds how long a new node takes to get a vote, and a node to be removed.
const memberTimeout = 30 * time.Second

// removedTimeout bounds how long a removed node is watched.
const removedTimeout = 5 * time.Second

// addAndRemove adds a node to the cluster. Healing removes it permanently. Half of the injections
// also kill the leader while the new node has a vote.
func addAndRemove(ctx context.Context, s *injection) error {
	added, err := s.fleet.newNode()
	if err != nil {
		return err
	}
	s.addNodes(added.id)
	s.onHeal(func(ctx context.Context) error {
		err := s.fleet.remove(ctx, added.id)
		return errors.Join(err, added.kill(), added.stderr.Close())
	})
	if err := added.start(ctx); err != nil {
		return err
	}
	if err := s.fleet.awaitVoter(ctx, added.id); err != nil {
		return err
	}
	if s.random.IntN(2) == 0 {
		return s.kill(s.leader)
	}
	return nil
}

// newNode prepares a node with a new name.
func (f *fleet) newNode() (*process, error) {
	f.nodesAdded++
	config, advertised, err := f.configFor(fmt.Sprintf("guest%d", f.nodesAdded))
	if err != nil {
		return nil, err
	}
	config.Advertise, config.Join = advertised, f.addresses
	return f.process(config)
}

// replaceNode takes a node and its disk away permanently. Healing removes it from the cluster and
// starts a new node in its place. Then a process starts on the old disk; it must notice that it was
// removed.
func replaceNode(_ context.Context, s *injection) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.addNodes(node.id)
	if err := node.kill(); err != nil {
		return err
	}
	old := node.settings()
	found := old
	found.Dir = fmt.Sprintf("%s.lost%d", old.Dir, s.fleet.nodesAdded)
	if err := os.Rename(old.Dir, found.Dir); err != nil {
		return err
	}
	s.onHeal(func(ctx context.Context) error { return s.fleet.replace(ctx, node, found) })
	return nil
}

// replace replaces a node with a new one, and then starts the old one on its directory.
func (f *fleet) replace(ctx context.Context, node *process, found host.Config) error {
	if err := f.remove(ctx, found.NodeID); err != nil {
		return err
	}
	if err := f.startReplacement(ctx, node); err != nil {
		return err
	}
	return f.expectRemoved(ctx, found)
}

// startReplacement starts a new node in the place of one that was removed.
func (f *fleet) startReplacement(ctx context.Context, node *process) error {
	next := node.settings()
	f.nodesAdded++
	next.NodeID, next.Peers = fmt.Sprintf("%s-%d", node.id, f.nodesAdded), nil
	next.Join, next.Advertise = f.addresses, f.addresses[slices.Index(f.nodes, node)]
	var err error
	if next.Keys, err = f.keys.issue(next.NodeID); err != nil {
		return err
	}
	node.setConfig(next)
	if err := node.start(ctx); err != nil {
		return err
	}
	return f.awaitVoter(ctx, next.NodeID)
}

// expectRemoved starts a removed node and waits until it reports that it takes no part. The wait is
// bounded: if the replacement, which has the old address of the node, leads, it cannot tell the
// node that it was removed. The node must not lead meanwhile.
func (f *fleet) expectRemoved(ctx context.Context, config host.Config) error {
	f.nodesAdded++
	networkName := fmt.Sprintf("lost%d", f.nodesAdded)
	var err error
	if config.Listen, _, err = f.network.Add(networkName); err != nil {
		return err
	}
	lost, err := newProcess(networkName, config, f)
	if err != nil {
		return err
	}
	lost.setDamaged(true) // it may fail to start, or end
	defer func() {
		_ = lost.kill()
		_ = lost.stderr.Close()
	}()
	if lost.start(ctx) != nil {
		return nil
	}
	for deadline := f.log.Now() + removedTimeout; f.log.Now() < deadline; sleep(ctx, 50*time.Millisecond) {
		var state host.NodeStatus
		err := f.askOnce(ctx, lost, host.NodePath, struct{}{}, &state)
		switch {
		case errors.Is(err, errNotRunning), state.Err != "":
			return nil
		case state.IsLeader():
			return fmt.Errorf("%s leads after it was removed", config.NodeID)
		}
	}
	return nil
}

// awaitVoter waits until a node has a vote.
func (f *fleet) awaitVoter(ctx context.Context, id string) error {
	return f.awaitMembers(ctx, host.MembersPath, struct{}{}, func(members []cluster.Member) bool {
		return slices.ContainsFunc(members, func(m cluster.Member) bool { return m.NodeID == id && m.Voter })
	})
}

// remove removes a node, if it is a member.
func (f *fleet) remove(ctx context.Context, id string) error {
	gone := func(members []cluster.Member) bool {
		return !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.NodeID == id })
	}
	return f.awaitMembers(ctx, host.RemovePath, id, gone)
}

// awaitMembers sends a request to one node after the other until hold returns true for the members
// in an answer.
func (f *fleet) awaitMembers(ctx context.Context, path string, question any, hold func([]cluster.Member) bool) error {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	for i := 0; ; i++ {
		var members []cluster.Member
		err := f.askOnce(ctx, f.nodes[i%len(f.nodes)], path, question, &members)
		if err == nil && hold(members) {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%s %v: %w: %v, %+v", path, question, ctx.Err(), err, members)
		}
	}
}

// askOnce sends a request to one node, with a timeout.
func (f *fleet) askOnce(ctx context.Context, node *process, path string, question, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return f.post(ctx, node, path, question, answer)
}
