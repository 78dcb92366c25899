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

// memberLimit bounds how long a guest takes to get a vote, and to be removed.
const memberLimit = 30 * time.Second

// outsideLimit bounds how long a node that was removed is watched.
const outsideLimit = 5 * time.Second

// addAndRemove adds a node to the cluster, and removes it in the end, for ever.
// Every other time the leader is killed while the guest has a vote.
func addAndRemove(ctx context.Context, s *scene) error {
	guest, err := s.fleet.newGuest()
	if err != nil {
		return err
	}
	s.hits(guest.id)
	s.later(func(ctx context.Context) error {
		err := s.fleet.remove(ctx, guest.id)
		return errors.Join(err, guest.kill(), guest.stderr.Close())
	})
	if err := guest.start(ctx); err != nil {
		return err
	}
	if err := s.fleet.awaitVoter(ctx, guest.id); err != nil {
		return err
	}
	if s.random.IntN(2) == 0 {
		return s.kill(s.leader)
	}
	return nil
}

// newGuest prepares a node that was never there before.
func (f *fleet) newGuest() (*process, error) {
	f.guests++
	config, advertised, err := f.place(fmt.Sprintf("guest%d", f.guests))
	if err != nil {
		return nil, err
	}
	config.Advertise, config.Join = advertised, f.addresses
	return f.process(config)
}

// replaceNode takes a node and its disk away, for ever. In the end the cluster removes
// it and another node takes its place; and then the lost disk is found, and a process
// started on it, that must find out that it has no part in anything any more.
func replaceNode(_ context.Context, s *scene) error {
	node := s.fleet.nodes[s.random.IntN(len(s.fleet.nodes))]
	s.hits(node.id)
	if err := node.kill(); err != nil {
		return err
	}
	old := node.settings()
	found := old
	found.Dir = fmt.Sprintf("%s.lost%d", old.Dir, s.fleet.guests)
	if err := os.Rename(old.Dir, found.Dir); err != nil {
		return err
	}
	s.later(func(ctx context.Context) error { return s.fleet.replace(ctx, node, found) })
	return nil
}

// replace has a new node take the place of another, whose directory was found again.
func (f *fleet) replace(ctx context.Context, node *process, found host.Config) error {
	if err := f.remove(ctx, found.NodeID); err != nil {
		return err
	}
	if err := f.takePlace(ctx, node); err != nil {
		return err
	}
	return f.expectOutside(ctx, found)
}

// takePlace starts a new node at the place of one that was removed.
func (f *fleet) takePlace(ctx context.Context, node *process) error {
	next := node.settings()
	f.guests++
	next.NodeID, next.Peers = fmt.Sprintf("%s-%d", node.id, f.guests), nil
	next.Join, next.Advertise = f.addresses, f.addresses[slices.Index(f.nodes, node)]
	var err error
	if next.Keys, err = f.keys.issue(next.NodeID); err != nil {
		return err
	}
	node.become(next)
	if err := node.start(ctx); err != nil {
		return err
	}
	return f.awaitVoter(ctx, next.NodeID)
}

// expectOutside starts a node that was removed, and waits until it says that it takes
// no part: for a while, because a leader that has its address now cannot tell it. It
// must not lead meanwhile.
func (f *fleet) expectOutside(ctx context.Context, config host.Config) error {
	f.guests++
	place := fmt.Sprintf("lost%d", f.guests)
	var err error
	if config.Listen, _, err = f.network.Add(place); err != nil {
		return err
	}
	lost, err := newProcess(place, config, f)
	if err != nil {
		return err
	}
	lost.damage(true) // it may refuse to start, or end
	defer func() {
		_ = lost.kill()
		_ = lost.stderr.Close()
	}()
	if lost.start(ctx) != nil {
		return nil
	}
	for deadline := f.log.Now() + outsideLimit; f.log.Now() < deadline; rest(ctx, 50*time.Millisecond) {
		var state host.Node
		err := f.askOnce(ctx, lost, host.NodePath, struct{}{}, &state)
		switch {
		case errors.Is(err, errNoDoor), state.Err != "":
			return nil
		case state.Leads():
			return fmt.Errorf("%s leads, and it was removed", config.NodeID)
		}
	}
	return nil
}

// awaitVoter waits until a node has a vote.
func (f *fleet) awaitVoter(ctx context.Context, id string) error {
	return f.askMembers(ctx, host.MembersPath, struct{}{}, func(members []cluster.Member) bool {
		return slices.ContainsFunc(members, func(m cluster.Member) bool { return m.NodeID == id && m.Voter })
	})
}

// remove removes a node, if it is a member.
func (f *fleet) remove(ctx context.Context, id string) error {
	gone := func(members []cluster.Member) bool {
		return !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.NodeID == id })
	}
	return f.askMembers(ctx, host.RemovePath, id, gone)
}

// askMembers puts a question to one node after the other, until the members are
// as they should be.
func (f *fleet) askMembers(ctx context.Context, path string, question any, hold func([]cluster.Member) bool) error {
	ctx, cancel := context.WithTimeout(ctx, memberLimit)
	defer cancel()
	for i := 0; ; i++ {
		var members []cluster.Member
		err := f.askOnce(ctx, f.nodes[i%len(f.nodes)], path, question, &members)
		if err == nil && hold(members) {
			return nil
		}
		if rest(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%s %v: %w: %v, %+v", path, question, ctx.Err(), err, members)
		}
	}
}

// askOnce gives one node a limited time to answer.
func (f *fleet) askOnce(ctx context.Context, node *process, path string, question, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	return f.post(ctx, node, path, question, answer)
}
