package journal

import (
	"context"
	"fmt"

	"github.com/hashicorp/raft"
)

// AdoptMember records, on the leader, that a member has lost its directory and has another
// one, and returns when that is committed. The member loses its vote and is without one until
// it has caught up, as a new one: the directory that was lost may have voted in any term up
// to now, and the new one does not know for whom. To Raft the two are two servers: the old one
// is taken out of those that vote before the new one is put in, and no node counts the answer
// of the one as that of the other. Repeating it is no error.
//
// A majority of the other members has to be there, and to have its directories: what the lost
// one has acknowledged is on them.
//
// Errors: ErrNotMember, ErrRemoved, ErrSelf, ErrAlone if no other node has a vote, ErrChanging,
// ErrNotLeader, ErrUnknownOutcome, ErrClosed, or ctx's, after which it may be adopted or not.
func (j *Journal) AdoptMember(ctx context.Context, node, identity string) error {
	for {
		done, err := j.adoptStep(ctx, node, identity)
		if err != nil {
			return fmt.Errorf("adopt the directory %s of member %q: %w", identity, node, err)
		}
		if done {
			return nil
		}
	}
}

// adoptStep makes one change of the members: first the node loses its vote, and then it gets
// the other identity. Whoever leads next finds it without a vote, or adopted.
func (j *Journal) adoptStep(ctx context.Context, node, identity string) (done bool, err error) {
	if node == j.config.Node {
		return false, ErrSelf
	}
	err = j.changeMembers(ctx, func(g *roster) (change, error) {
		server := g.find(node)
		switch {
		case g.removed(node):
			return nil, ErrRemoved
		case server == nil:
			return nil, ErrNotMember
		case identityOf(server) == identity:
			done = true
			return nil, nil
		case server.Suffrage == raft.Voter && g.voters() == 1:
			return nil, ErrAlone
		case server.Suffrage == raft.Voter:
			return func() raft.IndexFuture {
				j.acks.forget(server.ID)
				return j.raft.DemoteVoter(server.ID, g.index, enqueueTimeout)
			}, nil
		}
		address := withIdentity(addressOf(server), identity)
		return func() raft.IndexFuture {
			j.acks.forget(server.ID)
			return j.raft.AddNonvoter(server.ID, address, g.index, enqueueTimeout)
		}, nil
	})
	return done, err
}

// lacksIdentity reports whether the identity of a member is to be recorded: that of one that
// was added by a build which did not record it.
func (j *Journal) lacksIdentity(server *raft.Server) bool {
	return identityOf(server) == "" && j.Protocol() >= identityProtocol
}

// recordIdentity records the identity that a member shows when it is first met, which is
// believed. The leader begins with its own: from then on it says hello, and is told.
func (j *Journal) recordIdentity(ctx context.Context, node string) error {
	identity := j.learned.of(node)
	if node == j.config.Node {
		identity = j.self.Identity
	}
	if identity == "" {
		return j.meet(node)
	}
	j.config.Logger.Info("recording the directory of a member", "member", node, "identity", identity)
	return j.changeMembers(ctx, func(g *roster) (change, error) {
		server := g.find(node)
		if server == nil || !j.lacksIdentity(server) {
			return nil, nil
		}
		set := j.raft.AddNonvoter
		if server.Suffrage == raft.Voter {
			set = j.raft.AddVoter
		}
		address := withIdentity(addressOf(server), identity)
		return func() raft.IndexFuture { return set(server.ID, address, g.index, enqueueTimeout) }, nil
	})
}

// meet asks a member for the identity of its directory.
func (j *Journal) meet(node string) error {
	server := j.roster().find(node)
	if server == nil {
		return nil
	}
	r, err := j.sayHello(addressOf(server), j.helloOf(purposeProbe), probeTimeout)
	if err == nil && r.Node == node {
		j.learned.note(node, r.Identity)
	}
	return err
}
