package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/peer"
)

// AdoptMember records that a member has lost its directory and has another one, and returns when
// that is committed. It must be called on the leader. The member loses its vote until it has caught
// up, like a new one: the lost directory may have voted in any term so far, and the new one has no
// record of these votes. To Raft the two directories are different servers. The old one loses its
// vote before the new one is added. No node counts an answer of one as that of the other. Repeating
// the call is no error.
//
// A majority of the other members must be running with their directories, because these hold the
// entries that the lost directory has acknowledged.
//
// Errors: ErrNotMember, ErrRemoved, ErrSelf, ErrLastVoter if no other node has a vote,
// ErrMembershipChanging, ErrNotLeader, ErrUnknownOutcome, ErrClosed, or ctx's error; the directory
// may then be adopted or not.
func (m *members) AdoptMember(ctx context.Context, node, identity string) error {
	return m.adopt(ctx, node, identity, func(*membership) error { return nil })
}

// ErrNotReplaced: the conditions under which the leader itself adopts a directory do not hold yet.
var ErrNotReplaced = errors.New("the recorded directory is not replaced yet")

// ReplaceLostDirectory does what AdoptMember does, if the recorded directory of the member appears
// to be lost: the member has not answered this leader with it for the grace, and a majority of the
// other voters answers with theirs. It replaces one directory at a time: each other member that is
// to have a vote must have it. So a directory that was replaced before has caught up, and holds
// what the lost one had acknowledged.
//
// Errors: ErrNotReplaced with the reason, and those of AdoptMember.
func (m *members) ReplaceLostDirectory(ctx context.Context, node, identity string, grace time.Duration) error {
	return m.adopt(ctx, node, identity, func(g *membership) error { return m.checkLost(g, node, grace) })
}

// checkLost returns why the directory of a member must not be replaced now.
func (m *members) checkLost(g *membership, node string, grace time.Duration) error {
	leadership := m.leaderships.leadership.Load()
	if leadership == nil {
		return ErrNotLeader
	}
	wanted, known := m.wantedVoters(g)
	isWanted := func(id string) bool { return !known || slices.Contains(wanted, id) }
	voters, alive := 0, 0
	for _, server := range g.servers {
		silence := time.Since(later(m.acks.Get(server.ID).ReceivedAt, leadership.startedAt))
		_, answered := m.acks.Progress(server.ID, leadership.term)
		switch other := string(server.ID) != node; {
		case !other && silence < grace:
			return fmt.Errorf("%w: the member has been silent for %v of %v", ErrNotReplaced, silence.Round(time.Second), grace)
		case other && server.Suffrage != raft.Voter && isWanted(string(server.ID)):
			return fmt.Errorf("%w: member %q has no vote yet, and must catch up first", ErrNotReplaced, server.ID)
		case other && server.Suffrage == raft.Voter:
			voters++
			if string(server.ID) == m.config.Node || answered && silence <= m.config.unreachableAfter() {
				alive++
			}
		}
	}
	if alive <= voters/2 {
		return fmt.Errorf("%w: %d of the %d other voters answer, a majority must", ErrNotReplaced, alive, voters)
	}
	return nil
}

// adopt makes the steps of an adoption. Each must pass check, which sees the members that the step
// changes. Once the first step is made, the next one waits for other changes.
func (m *members) adopt(ctx context.Context, node, identity string, check func(*membership) error) error {
	done, err := m.adoptStep(ctx, node, identity, check)
	for err == nil && !done {
		err = afterOtherChanges(ctx, func() error {
			done, err = m.adoptStep(ctx, node, identity, check)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("adopt the directory %s of member %q: %w", identity, node, err)
	}
	return nil
}

// adoptStep makes one membership change: the first step takes the vote of the node, the second
// records its new identity. If leadership changes between the two, the new leader finds the node
// without a vote.
func (m *members) adoptStep(ctx context.Context, node, identity string, check func(*membership) error) (done bool, err error) {
	if node == m.config.Node {
		return false, ErrSelf
	}
	err = m.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(node)
		switch {
		case g.isRemoved(node):
			return nil, ErrRemoved
		case server == nil:
			return nil, ErrNotMember
		case peer.IdentityOf(server) == identity:
			done = true
			return nil, nil
		}
		if err := check(g); err != nil {
			return nil, err
		}
		switch {
		case server.Suffrage == raft.Voter && g.voterCount() == 1:
			return nil, ErrLastVoter
		case server.Suffrage == raft.Voter:
			return func() raft.IndexFuture {
				m.acks.Forget(server.ID)
				return m.raft.DemoteVoter(server.ID, g.index, enqueueTimeout)
			}, nil
		}
		address := peer.Address(peer.AddressOf(server), identity)
		return func() raft.IndexFuture {
			m.acks.Forget(server.ID)
			return m.raft.AddNonvoter(server.ID, address, g.index, enqueueTimeout)
		}, nil
	})
	return done, err
}

// lacksIdentity reports whether the identity of a member must still be recorded, because a build
// that did not record it added the member.
func (m *members) lacksIdentity(server *raft.Server) bool {
	return peer.IdentityOf(server) == "" && m.machine.Protocol() >= identityProtocol
}

// recordIdentity records the identity that a member first reports (trust on first use). The leader
// begins with its own. From then on it sends handshakes, whose replies contain the identities of
// the others.
func (m *members) recordIdentity(ctx context.Context, node string) error {
	identity := m.identities.peerIdentities.get(node)
	if node == m.config.Node {
		identity = m.identities.self.Identity
	}
	if identity == "" {
		return m.learnIdentity(node)
	}
	m.config.Logger.Info("recording identity of member directory", "member", node, "identity", identity)
	return m.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(node)
		if server == nil || !m.lacksIdentity(server) {
			return nil, nil
		}
		set := m.raft.AddNonvoter
		if server.Suffrage == raft.Voter {
			set = m.raft.AddVoter
		}
		address := peer.Address(peer.AddressOf(server), identity)
		return func() raft.IndexFuture { return set(server.ID, address, g.index, enqueueTimeout) }, nil
	})
}

// learnIdentity asks a member for the identity of its directory.
func (m *members) learnIdentity(node string) error {
	server := m.membership().find(node)
	if server == nil {
		return nil
	}
	r, err := m.identities.dialHandshake(context.Background(), m.config.resolve(server), m.identities.newHandshake(purposeProbe), probeTimeout)
	if err == nil && r.Node == node {
		m.identities.peerIdentities.set(node, r.Identity)
	}
	return err
}
