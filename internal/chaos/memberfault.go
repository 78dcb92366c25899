package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// memberTimeout bounds how long a new node takes to get a vote, and a node to be removed.
const memberTimeout = 2 * time.Minute

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

// lostAfter is how long a lost directory has not answered before the cluster replaces it.
const lostAfter = 5 * time.Second

// rejoin stops nodes and starts them with other addresses, which they and the others find in a
// file: one node, one that has also lost its directory, or all. The cluster must give them their
// votes back. See invariant S34.
func rejoin(ctx context.Context, s *injection) error {
	f := s.fleet
	moved, losesDirectory := f.nodes, false
	if kind := s.random.IntN(3); kind > 0 {
		i := s.random.IntN(len(f.nodes))
		moved, losesDirectory = f.nodes[i:i+1], kind == 1
	}
	before := s.awaitVotes(ctx, evidence.Members{Step: "before", Wanted: len(f.nodes)})
	wanted := evidence.Members{Step: "moved", Wanted: len(f.nodes)}
	for _, node := range moved {
		s.addNodes(node.id)
		if err := node.kill(); err != nil {
			return err
		}
		for _, member := range before {
			switch {
			case member.Node != node.settings().NodeID:
			case losesDirectory:
				wanted.Step, wanted.Excluded = "moved and lost", append(wanted.Excluded, member)
				wanted.Excluded[0].Address = ""
			default:
				wanted.Required = append(wanted.Required, evidence.Member{Node: member.Node, Identity: member.Identity})
			}
		}
		if err := f.move(node); err != nil {
			return errors.Join(err, f.start(ctx))
		}
		config := node.settings()
		wanted.Required = append(wanted.Required, evidence.Member{Node: config.NodeID, Address: config.Advertise})
	}
	if losesDirectory {
		if err := s.loseDirectory(ctx, moved[0]); err != nil {
			return err
		}
	}
	s.onHeal(f.start)
	if err := errors.Join(f.publish(), f.start(ctx)); err != nil {
		return err
	}
	s.awaitVotes(ctx, wanted)
	return nil
}

// loseDirectory deletes the directory of a node. Until healing, the cluster replaces lost
// directories.
func (inj *injection) loseDirectory(ctx context.Context, node *process) error {
	f := inj.fleet
	inj.onHeal(func(ctx context.Context) error { return f.changeSettings(ctx, func(*cluster.Settings) {}) })
	return errors.Join(inj.wipe(node), f.changeSettings(ctx, func(s *cluster.Settings) { s.ReplaceLostAfter = lostAfter }))
}

// move gives a stopped node another address.
func (f *fleet) move(node *process) error {
	config := node.settings()
	var err error
	if config.Listen, config.Advertise, err = f.network.Move(node.id); err != nil {
		return err
	}
	config.Peers, config.Join, config.Discover = nil, nil, f.addressFile()
	node.setConfig(config)
	f.addresses[slices.Index(f.nodes, node)] = config.Advertise
	return nil
}

// startReplacement starts a new node in the place of one that was removed.
func (f *fleet) startReplacement(ctx context.Context, node *process) error {
	next := node.settings()
	f.nodesAdded++
	next.NodeID, next.Peers, next.Discover = fmt.Sprintf("%s-%d", node.id, f.nodesAdded), nil, ""
	next.Join, next.Advertise = f.addresses, f.addresses[slices.Index(f.nodes, node)]
	var err error
	if next.Keys, err = f.keys.Issue(next.NodeID); err != nil {
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
