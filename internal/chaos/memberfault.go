package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// memberLimit bounds how long a guest takes to get a vote, and to be removed.
const memberLimit = 30 * time.Second

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
	id := fmt.Sprintf("guest%d", f.guests)
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	advertised, err := f.mesh.Add(id, listen)
	if err != nil {
		return nil, err
	}
	config := host.Config{NodeID: id, Listen: listen, Dir: f.dataDir(id), Ledger: f.ledger.url(), Advertise: advertised}
	for _, peer := range f.nodes[0].config.Peers {
		config.Join = append(config.Join, peer.Address)
	}
	return newProcess(config, f.log, f.dir, func(pid int) { f.mesh.SetProcess(id, pid) })
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
