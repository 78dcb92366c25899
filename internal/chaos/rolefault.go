package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

const (
	// How many members there are, and vote, while roles change, and when a voter is replaced.
	roleMembers      = 5
	roleVoters       = 3
	roleReplaceAfter = time.Second
)

// changeRoles adds nodes up to five, of which three vote. It makes a member a standby and kills a
// voter, and then lets the cluster decide about the first member again and kills another voter. One
// of the killed nodes returns and must get its vote back. See invariant S34.
func changeRoles(ctx context.Context, s *injection) error {
	f := s.fleet
	all, err := s.addGuests(ctx, roleMembers-len(f.nodes))
	if err != nil {
		return err
	}
	if err := f.changeSettings(ctx, func(s *cluster.Settings) {
		s.Voters, s.ReplaceVoterAfter = roleVoters, roleReplaceAfter
	}); err != nil {
		return err
	}
	s.awaitVotes(ctx, evidence.Members{Step: "three vote", Wanted: roleVoters})
	standby := all[s.random.IntN(len(all))].settings().NodeID
	if err := f.operate(ctx, host.RolePath, host.RoleRequest{Node: standby, Role: operate.RoleStandby}); err != nil {
		return err
	}
	excluded := []evidence.Member{{Node: standby}}
	voters := s.awaitVotes(ctx, evidence.Members{Step: standby + " is a standby", Wanted: roleVoters, Excluded: excluded})
	var killed *process
	for range 2 {
		if len(voters) == 0 {
			return nil // S34 reports that
		}
		killed = processOf(all, voters[s.random.IntN(len(voters))].Node)
		s.addNodes(killed.id)
		if err := killed.kill(); err != nil {
			return err
		}
		id := killed.settings().NodeID
		excluded = append(slices.Clone(excluded), evidence.Member{Node: id})
		voters = s.awaitVotes(ctx, evidence.Members{Step: id + " is killed", Wanted: roleVoters, Excluded: excluded})
		if err := f.operate(ctx, host.RolePath, host.RoleRequest{Node: standby, Role: operate.RoleAuto}); err != nil {
			return err
		}
		excluded = slices.DeleteFunc(slices.Clone(excluded), func(m evidence.Member) bool { return m.Node == standby })
	}
	id := killed.settings().NodeID
	if err := f.operate(ctx, host.RolePath, host.RoleRequest{Node: id, Role: operate.RoleVoter}); err != nil {
		return err
	}
	if err := killed.start(ctx); err != nil {
		return err
	}
	s.awaitVotes(ctx, evidence.Members{Step: id + " is a voter", Wanted: roleVoters, Required: []evidence.Member{{Node: id}}})
	return nil
}

// addGuests adds nodes, and returns all. Healing removes them, and gives each other node its vote.
func (inj *injection) addGuests(ctx context.Context, n int) ([]*process, error) {
	f := inj.fleet
	all := slices.Clone(f.nodes)
	for range n {
		guest, err := f.newNode()
		if err != nil {
			return nil, err
		}
		all = append(all, guest)
	}
	guests := all[len(f.nodes):]
	inj.onHeal(func(ctx context.Context) error {
		err := errors.Join(f.start(ctx), f.changeSettings(ctx, func(*cluster.Settings) {}))
		for _, node := range f.nodes {
			id := node.settings().NodeID
			err = errors.Join(err, f.operate(ctx, host.RolePath, host.RoleRequest{Node: id, Role: operate.RoleAuto}))
		}
		for _, guest := range guests {
			err = errors.Join(err, f.remove(ctx, guest.id), guest.kill(), guest.stderr.Close())
		}
		for _, node := range f.nodes {
			err = errors.Join(err, f.awaitVoter(ctx, node.settings().NodeID))
		}
		return err
	})
	for _, guest := range guests {
		if err := errors.Join(guest.start(ctx), f.awaitVoter(ctx, guest.id)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// processOf returns the process of a node.
func processOf(all []*process, nodeID string) *process {
	return all[slices.IndexFunc(all, func(p *process) bool { return p.settings().NodeID == nodeID })]
}

// awaitVotes waits until the right members vote, adds what it saw to the injection, and returns the
// voters.
func (inj *injection) awaitVotes(ctx context.Context, seen evidence.Members) []evidence.Member {
	_ = inj.fleet.awaitMembers(ctx, host.MembersPath, struct{}{}, func(members []cluster.Member) bool {
		seen.Voters = nil
		for _, m := range members {
			if m.Voter {
				seen.Voters = append(seen.Voters, evidence.Member{Node: m.NodeID, Address: m.Address, Identity: m.Identity})
			}
		}
		return seen.AsWanted()
	})
	seen.At = inj.fleet.log.Now()
	inj.members = append(inj.members, seen)
	return seen.Voters
}

// changeSettings changes the settings with which the cluster was founded.
func (f *fleet) changeSettings(ctx context.Context, change func(*cluster.Settings)) error {
	settings := host.Settings()
	change(&settings)
	return f.operate(ctx, host.SettingsPath, settings)
}

// operate sends a request to one node after the other until one has done it.
func (f *fleet) operate(ctx context.Context, path string, question any) error {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	for i := 0; ; i++ {
		err := f.askOnce(ctx, f.nodes[i%len(f.nodes)], path, question, new(json.RawMessage))
		if err == nil {
			return nil
		}
		if sleep(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return fmt.Errorf("%s %+v: %w: %w", path, question, ctx.Err(), err)
		}
	}
}
