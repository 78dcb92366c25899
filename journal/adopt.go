package journal

import (
	"context"
	"fmt"

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
	for {
		done, err := m.adoptStep(ctx, node, identity)
		if err != nil {
			return fmt.Errorf("adopt the directory %s of member %q: %w", identity, node, err)
		}
		if done {
			return nil
		}
	}
}

// adoptStep makes one membership change: the first step takes the vote of the node, the second
// records its new identity. If leadership changes between the two, the new leader finds the node
// without a vote.
func (m *members) adoptStep(ctx context.Context, node, identity string) (done bool, err error) {
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
	r, err := m.identities.dialHandshake(context.Background(), peer.AddressOf(server), m.identities.newHandshake(purposeProbe), probeTimeout)
	if err == nil && r.Node == node {
		m.identities.peerIdentities.set(node, r.Identity)
	}
	return err
}
