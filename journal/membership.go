package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Sentinels of AddMember, RemoveMember and MoveMember. After each nothing has
// changed.
var (
	// ErrChanging: another change of the members is under way. Retry after a
	// pause.
	ErrChanging = errors.New("another change of the members is under way")

	// ErrMember: the node has a vote already. For one that has lost its directory see
	// ErrOtherDirectory.
	ErrMember = errors.New("the node is a member already")

	// ErrNotMember: the node is none of the members.
	ErrNotMember = errors.New("the node is not a member")

	// ErrRemoved: the node was removed from the group, for ever.
	ErrRemoved = errors.New("the node was removed from the group")

	// ErrSelf: a node cannot do that to itself. Retry at another leader.
	ErrSelf = errors.New("the node leads and runs with its directory")

	// ErrAddressTaken: another member has the address. It has to be removed, or
	// to move, first.
	ErrAddressTaken = errors.New("another member has the address")
)

// Member is a node of the group as another one sees it.
type Member struct {
	Node    string
	Address string
	Voter   bool // or else it is catching up
	// Of its directory; "" if none is recorded yet.
	Identity string
	// How many committed entries it has not acknowledged yet. Known to the leader
	// alone, once the member has answered.
	Behind      uint64
	BehindKnown bool
	// How long the leader has had no answer from it; of one that has not answered since
	// the leadership began, how long that is. Known to the leader alone, 0 of itself.
	Silence      time.Duration
	SilenceKnown bool
	// Silent: that is longer than a member that runs and is reached lets it become.
	Silent bool
}

// silentAfter is for how long a leader may have no answer from a member that runs: it gets a
// heartbeat ten times in each HeartbeatTimeout.
func (c Config) silentAfter() time.Duration { return max(3*c.HeartbeatTimeout, time.Second) }

// Members returns the nodes of the group, in order of their names, by the latest
// configuration in this node's log, committed or not; none if it has none yet.
func (j *Journal) Members() []Member {
	r := j.reign.Load()
	committed := j.raft.CommitIndex()
	var members []Member
	for _, server := range j.raft.GetConfiguration().Configuration().Servers {
		m := Member{Node: string(server.ID), Voter: server.Suffrage == raft.Voter}
		m.Address, m.Identity = splitAddress(server.Address)
		if r != nil {
			last, known := j.acks.progress(server.ID, r.term)
			m.BehindKnown = known || m.Node == j.config.Node
			if known && last < committed {
				m.Behind = committed - last
			}
			m.SilenceKnown = true
			if m.Node != j.config.Node {
				m.Silence = time.Since(later(j.acks.of(server.ID).at, r.began))
				m.Silent = m.Silence > j.config.silentAfter()
			}
		}
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b Member) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return members
}

// ConfigurationIndex returns the index of the entry that Members is taken from; 0 if there
// is none yet.
func (j *Journal) ConfigurationIndex() uint64 { return j.raft.GetConfiguration().Index() }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// AddMember adds a node, on the leader: without a vote at first, with one as soon
// as it has caught up. It returns when the node has been added; repeating it for
// one without a vote is no error.
//
// Errors: *DirectoryError, ErrMember, ErrRemoved, ErrAddressTaken, ErrChanging, ErrNotLeader,
// ErrUnknownOutcome, ErrClosed, or ctx's, after which it may be added or not.
func (j *Journal) AddMember(ctx context.Context, p Peer) error {
	err := j.changeMembers(ctx, func(g *roster) (change, error) {
		if err := g.mayAdd(p); err != nil || g.has(p) {
			return nil, err
		}
		return func() raft.IndexFuture {
			return j.raft.AddNonvoter(raft.ServerID(p.Node), j.addressFor(p), g.index, enqueueTimeout)
		}, nil
	})
	if err != nil {
		return fmt.Errorf("add member %q: %w", p.Node, err)
	}
	return nil
}

// addressFor returns the address of a new member as Raft's configuration has it. Its
// identity is recorded unless members may be of a build that does not know identities.
func (j *Journal) addressFor(p Peer) raft.ServerAddress {
	if j.Protocol() < identityProtocol && !j.recordsIdentities() {
		return raft.ServerAddress(p.Address)
	}
	return withIdentity(p.Address, p.Identity)
}

// MayAdd tells why AddMember would refuse a node, as far as this node knows:
// *DirectoryError, ErrMember, ErrRemoved or ErrAddressTaken.
func (j *Journal) MayAdd(p Peer) error { return j.roster().mayAdd(p) }

func (g *roster) mayAdd(p Peer) error {
	server := g.find(p.Node)
	switch {
	case g.removed(p.Node):
		return ErrRemoved
	case server != nil && differs(server, p):
		return &DirectoryError{Node: p.Node, Identity: p.Identity, Recorded: identityOf(server)}
	case server != nil && server.Suffrage == raft.Voter:
		return ErrMember
	case g.taken(p):
		return ErrAddressTaken
	}
	return nil
}

// differs reports whether a node has another directory than is recorded for it. A node that
// says nothing of its directory differs from one whose directory is recorded.
func differs(server *raft.Server, p Peer) bool {
	recorded := identityOf(server)
	return recorded != "" && recorded != p.Identity
}

// has tells whether a node is a member at its address.
func (g *roster) has(p Peer) bool {
	server := g.find(p.Node)
	return server != nil && addressOf(server) == p.Address
}

// MoveMember records, on the leader, that a member is reached at another address.
//
// Errors: ErrNotMember, ErrRemoved, *CopiedError if another process with the same directory
// answers at the address that is recorded, and those of AddMember but ErrMember.
func (j *Journal) MoveMember(ctx context.Context, p Peer) error {
	if server := j.roster().find(p.Node); server != nil && !differs(server, p) {
		if err := j.CheckCopy(p); err != nil {
			return fmt.Errorf("move member %q: %w", p.Node, err)
		}
	}
	err := j.changeMembers(ctx, func(g *roster) (change, error) {
		server := g.find(p.Node)
		switch {
		case g.removed(p.Node):
			return nil, ErrRemoved
		case server == nil:
			return nil, ErrNotMember
		case differs(server, p):
			return nil, &DirectoryError{Node: p.Node, Identity: p.Identity, Recorded: identityOf(server)}
		case addressOf(server) == p.Address:
			return nil, nil
		case g.taken(p):
			return nil, ErrAddressTaken
		}
		set := j.raft.AddNonvoter
		if server.Suffrage == raft.Voter {
			set = j.raft.AddVoter
		}
		return func() raft.IndexFuture {
			return set(server.ID, withIdentity(p.Address, identityOf(server)), g.index, enqueueTimeout)
		}, nil
	})
	if err != nil {
		return fmt.Errorf("move member %q: %w", p.Node, err)
	}
	return nil
}

// RemoveMember removes a node for ever, on the leader, and returns when that is
// committed. A leader that is to remove itself hands leadership over instead and
// returns ErrNotLeader: the next one is to be asked. A removal that was begun is
// finished by the next leader. Repeating it is no error.
//
// Errors: ErrNotMember, ErrAlone if no other node has a vote, ErrChanging,
// ErrNotLeader, ErrUnknownOutcome, ErrClosed, or ctx's, after which it may be
// removed or not.
func (j *Journal) RemoveMember(ctx context.Context, node string) error {
	if err := j.removeMember(ctx, node); err != nil {
		return fmt.Errorf("remove member %q: %w", node, err)
	}
	return nil
}

func (j *Journal) removeMember(ctx context.Context, node string) error {
	if !j.IsLeader() {
		return ErrNotLeader
	}
	g := j.roster()
	server := g.find(node)
	switch {
	case server == nil && g.removed(node):
		return nil
	case server == nil:
		return ErrNotMember
	case server.Suffrage == raft.Voter && g.voters() == 1:
		return ErrAlone
	case node == j.config.Node:
		return j.passOn(ctx)
	}
	if !g.removed(node) {
		// It is never added again from here on.
		if err := j.changeGroup(ctx, &journalpb.GroupChange{Removed: node}); err != nil {
			return err
		}
	}
	notify(j.tending) // in case the rest does not come to its end here
	return j.dropMember(ctx, node)
}

// passOn hands leadership over so that another node does what this one cannot, and
// returns ErrNotLeader: who asks again finds that one, or this one once more, if the
// other was too slow to take it.
func (j *Journal) passOn(ctx context.Context) error {
	err := j.TransferLeadership(ctx)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, ErrNotLeader), errors.Is(err, ErrClosed):
		return cmp.Or(err, ErrNotLeader)
	}
	return fmt.Errorf("%w: %v", ErrNotLeader, err)
}

// dropMember takes a node out of the configuration.
func (j *Journal) dropMember(ctx context.Context, node string) error {
	return j.changeMembers(ctx, func(g *roster) (change, error) {
		server := g.find(node)
		switch {
		case server == nil:
			return nil, nil
		case server.Suffrage == raft.Voter && g.voters() == 1:
			return nil, ErrAlone
		}
		return func() raft.IndexFuture { return j.raft.RemoveServer(server.ID, g.index, enqueueTimeout) }, nil
	})
}

// Removed returns the nodes that were removed, or are to be, in order of their
// names, as far as this node knows. The slice must not be changed.
func (j *Journal) Removed() []string { return j.machine.Removed() }

// roster is who belongs to the group at one moment.
type roster struct {
	servers []raft.Server
	index   uint64 // of the entry with the configuration
	gone    []string
}

func (j *Journal) roster() *roster {
	latest := j.raft.GetConfiguration()
	return &roster{servers: latest.Configuration().Servers, index: latest.Index(), gone: j.machine.Removed()}
}

func (g *roster) find(node string) *raft.Server {
	i := slices.IndexFunc(g.servers, func(s raft.Server) bool { return string(s.ID) == node })
	if i < 0 {
		return nil
	}
	return &g.servers[i]
}

// before returns how many members with a vote, some nodes apart, have an ID that is
// less than that of a node.
func (g *roster) before(node string, not ...string) int {
	n := 0
	for _, s := range g.servers {
		if id := string(s.ID); s.Suffrage == raft.Voter && id < node && !slices.Contains(not, id) {
			n++
		}
	}
	return n
}

// removed tells whether a node was removed, or is to be.
func (g *roster) removed(node string) bool {
	_, gone := slices.BinarySearch(g.gone, node)
	return gone
}

func (g *roster) taken(p Peer) bool {
	return slices.ContainsFunc(g.servers, func(s raft.Server) bool {
		return addressOf(&s) == p.Address && string(s.ID) != p.Node
	})
}

func (g *roster) voters() int {
	voters := 0
	for _, server := range g.servers {
		if server.Suffrage == raft.Voter {
			voters++
		}
	}
	return voters
}

// change asks Raft for another configuration.
type change func() raft.IndexFuture

// changeMembers carries out what plan makes of the members as they are, one change
// at a time. With no change there is nothing to do. When ctx ends first the change
// goes on.
func (j *Journal) changeMembers(ctx context.Context, plan func(*roster) (change, error)) error {
	if !j.IsLeader() {
		return ErrNotLeader
	}
	select {
	case j.changing <- struct{}{}:
	default:
		return ErrChanging
	}
	g := j.roster()
	do, err := plan(g)
	if do == nil {
		<-j.changing
		return err
	}
	result := make(chan error, 1)
	if !j.callers.start(func() {
		result <- do().Error()
		<-j.changing
		notify(j.tending) // whoever has asked for it, and may be gone
	}) {
		<-j.changing
		return ErrClosed
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-result:
		if err != nil && j.roster().index != g.index && !errors.Is(err, raft.ErrLeadershipLost) {
			return ErrChanging // what plan has seen is not the latest any more
		}
		return outcome(err)
	}
}

// tendEvery is how often a leader looks whether those without a vote have caught
// up, while there are any.
const tendEvery = 50 * time.Millisecond

// tend completes, during a reign, what AddMember and RemoveMember have begun, here
// or at a leader before.
func (j *Journal) tend(ctx context.Context) {
	goals := map[string]uint64{}
	for {
		var again <-chan time.Time
		if j.tendOnce(ctx, goals) {
			again = time.After(tendEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-j.tending:
		case <-again:
		}
	}
}

// tendOnce tells whether anything is left to be done. goals are what those without
// a vote have to have acknowledged to get one: what was committed a moment ago, so
// that what they lack is no more than what has come since.
func (j *Journal) tendOnce(ctx context.Context, goals map[string]uint64) (more bool) {
	r, g := j.reign.Load(), j.roster()
	if r == nil {
		return false
	}
	committed := j.raft.CommitIndex()
	for _, server := range g.servers {
		node := string(server.ID)
		var err error
		switch last, known := j.acks.progress(server.ID, r.term); {
		case g.removed(node):
			err = j.finishRemoval(ctx, node)
		case j.lacksIdentity(&server):
			err = j.recordIdentity(ctx, node)
		case server.Suffrage == raft.Voter:
			continue
		case known && goals[node] > 0 && last >= goals[node]:
			err = j.promote(ctx, node)
		}
		goals[node] = committed
		more = true
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrChanging) {
			j.config.Logger.Warn("the members are not as they should be yet", "member", node, "error", err)
		}
	}
	return more
}

func (j *Journal) finishRemoval(ctx context.Context, node string) error {
	if node == j.config.Node {
		return j.TransferLeadership(ctx)
	}
	return j.dropMember(ctx, node)
}

// promote gives a node a vote.
func (j *Journal) promote(ctx context.Context, node string) error {
	j.config.Logger.Info("member has caught up and gets a vote", "member", node)
	return j.changeMembers(ctx, func(g *roster) (change, error) {
		server := g.find(node)
		if server == nil || server.Suffrage == raft.Voter || g.removed(node) {
			return nil, nil
		}
		return func() raft.IndexFuture { return j.raft.AddVoter(server.ID, server.Address, g.index, enqueueTimeout) }, nil
	})
}

// Retire fences the node for a reason from outside: that it was removed from the
// group.
func (j *Journal) Retire(cause error) { j.fence.draw(cause) }
