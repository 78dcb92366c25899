package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/peer"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Errors of AddMember, RemoveMember and MoveMember. After each of them nothing has changed.
var (
	// ErrMembershipChanging: another change of the members is in progress. Retry after a pause.
	ErrMembershipChanging = errors.New("another membership change is in progress")

	// ErrMember: the node already has a vote. For a node that has lost its directory see
	// ErrOtherDirectory.
	ErrMember = errors.New("the node is already a member")

	// ErrNotMember: the node is not a member.
	ErrNotMember = errors.New("the node is not a member")

	// ErrRemoved: the node was removed from the partition permanently.
	ErrRemoved = errors.New("the node was removed from the partition")

	// ErrSelf: the leader cannot do that to itself. Retry when another node leads.
	ErrSelf = errors.New("the node is the leader itself")

	// ErrAddressTaken: another member has the address. Remove or move that member first.
	ErrAddressTaken = errors.New("another member has the address")
)

// Member is a node of the partition as another node sees it.
type Member struct {
	Node    string
	Address string
	Voter   bool // false while it catches up
	// Identity is that of its directory; "" if none is recorded yet.
	Identity string
	// Behind is how many committed entries it has not acknowledged yet. Known only to the leader,
	// after the member has answered.
	Behind      uint64
	BehindKnown bool
	// SinceContact is how long the leader has had no answer from it, at most since the leadership
	// began. Known only to the leader, and 0 for itself.
	SinceContact time.Duration
	ContactKnown bool
	// Unreachable means that SinceContact is longer than it can be for a running, reachable member.
	Unreachable bool
}

// unreachableAfter is how long a leader may have no answer from a running member, which gets about
// ten heartbeats per HeartbeatTimeout.
func (c Config) unreachableAfter() time.Duration { return max(3*c.HeartbeatTimeout, time.Second) }

// Members returns the nodes of the partition, sorted by name, from the latest configuration in this
// node's log, committed or not; none if the log has no configuration yet.
func (j *Journal) Members() []Member {
	r := j.leadership.Load()
	committed := j.raft.CommitIndex()
	var members []Member
	for _, server := range j.raft.GetConfiguration().Configuration().Servers {
		m := Member{Node: string(server.ID), Voter: server.Suffrage == raft.Voter}
		m.Address, m.Identity = peer.SplitAddress(server.Address)
		if r != nil {
			last, known := j.acks.Progress(server.ID, r.term)
			m.BehindKnown = known || m.Node == j.config.Node
			if known && last < committed {
				m.Behind = committed - last
			}
			m.ContactKnown = true
			if m.Node != j.config.Node {
				m.SinceContact = time.Since(later(j.acks.Get(server.ID).ReceivedAt, r.startedAt))
				m.Unreachable = m.SinceContact > j.config.unreachableAfter()
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

// ConfigurationIndex returns the index of the entry that Members is taken from; 0 if there is none
// yet.
func (j *Journal) ConfigurationIndex() uint64 { return j.raft.GetConfiguration().Index() }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// AddMember adds a node. It must be called on the leader. The node gets a vote as soon as it has
// caught up. AddMember returns when the node has been added without a vote; repeating it for such a
// node is no error.
//
// Errors: *DirectoryError, ErrMember, ErrRemoved, ErrAddressTaken, ErrMembershipChanging,
// ErrNotLeader, ErrUnknownOutcome, ErrClosed, or ctx's, after which it may be added or not.
func (j *Journal) AddMember(ctx context.Context, p Peer) error {
	err := j.changeMembers(ctx, func(g *membership) (change, error) {
		if err := g.checkAdd(p); err != nil || g.hasAddress(p) {
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

// addressFor returns the address of a new member for Raft's configuration. It includes the identity
// unless members may run a build that does not know identities.
func (j *Journal) addressFor(p Peer) raft.ServerAddress {
	if j.Protocol() < identityProtocol && !j.hasRecordedIdentities() {
		return raft.ServerAddress(p.Address)
	}
	return peer.Address(p.Address, p.Identity)
}

// CheckAdd returns why AddMember would refuse a node, as far as this node knows: *DirectoryError,
// ErrMember, ErrRemoved or ErrAddressTaken.
func (j *Journal) CheckAdd(p Peer) error { return j.membership().checkAdd(p) }

func (g *membership) checkAdd(p Peer) error {
	server := g.find(p.Node)
	switch {
	case g.isRemoved(p.Node):
		return ErrRemoved
	case server != nil && hasOtherDirectory(server, p):
		return &DirectoryError{Node: p.Node, Identity: p.Identity, Recorded: peer.IdentityOf(server)}
	case server != nil && server.Suffrage == raft.Voter:
		return ErrMember
	case g.isAddressTaken(p):
		return ErrAddressTaken
	}
	return nil
}

// hasOtherDirectory reports whether a node has another directory than is recorded for it. A node
// that reports no directory differs from any recorded one.
func hasOtherDirectory(server *raft.Server, p Peer) bool {
	recorded := peer.IdentityOf(server)
	return recorded != "" && recorded != p.Identity
}

// hasAddress reports whether a node is a member at its address.
func (g *membership) hasAddress(p Peer) bool {
	server := g.find(p.Node)
	return server != nil && peer.AddressOf(server) == p.Address
}

// MoveMember records another address of a member. It must be called on the leader.
//
// Errors: ErrNotMember, ErrRemoved, *DirectoryCopiedError if another process with the same
// directory answers at the recorded address, and those of AddMember except ErrMember.
func (j *Journal) MoveMember(ctx context.Context, p Peer) error {
	if server := j.membership().find(p.Node); server != nil && !hasOtherDirectory(server, p) {
		if err := j.CheckDirectoryCopy(p); err != nil {
			return fmt.Errorf("move member %q: %w", p.Node, err)
		}
	}
	err := j.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(p.Node)
		switch {
		case g.isRemoved(p.Node):
			return nil, ErrRemoved
		case server == nil:
			return nil, ErrNotMember
		case hasOtherDirectory(server, p):
			return nil, &DirectoryError{Node: p.Node, Identity: p.Identity, Recorded: peer.IdentityOf(server)}
		case peer.AddressOf(server) == p.Address:
			return nil, nil
		case g.isAddressTaken(p):
			return nil, ErrAddressTaken
		}
		set := j.raft.AddNonvoter
		if server.Suffrage == raft.Voter {
			set = j.raft.AddVoter
		}
		return func() raft.IndexFuture {
			return set(server.ID, peer.Address(p.Address, peer.IdentityOf(server)), g.index, enqueueTimeout)
		}, nil
	})
	if err != nil {
		return fmt.Errorf("move member %q: %w", p.Node, err)
	}
	return nil
}

// RemoveMember removes a node permanently and returns when that is committed. It must be called on
// the leader. A leader that is to remove itself transfers leadership instead and returns
// ErrNotLeader: ask the next one. The next leader finishes a removal that was begun. Repeating it
// is no error.
//
// Errors: ErrNotMember, ErrLastVoter if no other node has a vote, ErrMembershipChanging,
// ErrNotLeader, ErrUnknownOutcome, ErrClosed, or ctx's, after which it may be removed or not.
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
	g := j.membership()
	server := g.find(node)
	switch {
	case server == nil && g.isRemoved(node):
		return nil
	case server == nil:
		return ErrNotMember
	case server.Suffrage == raft.Voter && g.voterCount() == 1:
		return ErrLastVoter
	case node == j.config.Node:
		return j.transferAway(ctx)
	}
	if !g.isRemoved(node) {
		// From here on it can never be added again.
		if err := j.changeMetadata(ctx, &journalpb.MetadataChange{Removed: node}); err != nil {
			return err
		}
	}
	notify(j.reconcileDue) // in case the removal does not finish here
	return j.removeServer(ctx, node)
}

// transferAway transfers leadership so that another node does what this one cannot, and returns
// ErrNotLeader. A caller that retries finds the new leader, or this one if the transfer failed.
func (j *Journal) transferAway(ctx context.Context) error {
	err := j.TransferLeadership(ctx)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, ErrNotLeader), errors.Is(err, ErrClosed):
		return cmp.Or(err, ErrNotLeader)
	}
	return fmt.Errorf("%w: %v", ErrNotLeader, err)
}

// removeServer removes a node from the configuration.
func (j *Journal) removeServer(ctx context.Context, node string) error {
	return j.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(node)
		switch {
		case server == nil:
			return nil, nil
		case server.Suffrage == raft.Voter && g.voterCount() == 1:
			return nil, ErrLastVoter
		}
		return func() raft.IndexFuture { return j.raft.RemoveServer(server.ID, g.index, enqueueTimeout) }, nil
	})
}

// RemovedNodes returns the nodes that were or will be removed, sorted by name, as far as this node
// knows. The slice must not be changed.
func (j *Journal) RemovedNodes() []string { return j.machine.RemovedNodes() }

// membership is the set of members at one moment.
type membership struct {
	servers      []raft.Server
	index        uint64 // of the entry with the configuration
	removedNodes []string
}

func (j *Journal) membership() *membership {
	latest := j.raft.GetConfiguration()
	return &membership{servers: latest.Configuration().Servers, index: latest.Index(), removedNodes: j.machine.RemovedNodes()}
}

func (g *membership) find(node string) *raft.Server {
	i := slices.IndexFunc(g.servers, func(s raft.Server) bool { return string(s.ID) == node })
	if i < 0 {
		return nil
	}
	return &g.servers[i]
}

// votersBefore returns how many voters, not counting except, have an ID less than node.
func (g *membership) votersBefore(node string, except ...string) int {
	n := 0
	for _, s := range g.servers {
		if id := string(s.ID); s.Suffrage == raft.Voter && id < node && !slices.Contains(except, id) {
			n++
		}
	}
	return n
}

// isRemoved reports whether a node was or will be removed.
func (g *membership) isRemoved(node string) bool {
	_, gone := slices.BinarySearch(g.removedNodes, node)
	return gone
}

func (g *membership) isAddressTaken(p Peer) bool {
	return slices.ContainsFunc(g.servers, func(s raft.Server) bool {
		return peer.AddressOf(&s) == p.Address && string(s.ID) != p.Node
	})
}

func (g *membership) voterCount() int {
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

// changeMembers makes one change at a time. plan returns the change for the current members, or nil
// if there is nothing to do. If ctx ends first, the change continues.
func (j *Journal) changeMembers(ctx context.Context, plan func(*membership) (change, error)) error {
	if !j.IsLeader() {
		return ErrNotLeader
	}
	select {
	case j.changeSlot <- struct{}{}:
	default:
		return ErrMembershipChanging
	}
	g := j.membership()
	do, err := plan(g)
	if do == nil {
		<-j.changeSlot
		return err
	}
	result := make(chan error, 1)
	if !j.callers.start(func() {
		result <- do().Error()
		<-j.changeSlot
		notify(j.reconcileDue) // the caller may no longer wait
	}) {
		<-j.changeSlot
		return ErrClosed
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-result:
		if err != nil && j.membership().index != g.index && !errors.Is(err, raft.ErrLeadershipLost) {
			return ErrMembershipChanging // the configuration that plan has seen is outdated
		}
		return outcomeError(err)
	}
}

// reconcileInterval is how often a leader checks members without a vote, while there are any.
const reconcileInterval = 50 * time.Millisecond

// reconcileMembers completes, during a leadership, what AddMember and RemoveMember have begun here
// or at an earlier leader.
func (j *Journal) reconcileMembers(ctx context.Context) {
	targets := map[string]uint64{}
	for {
		var again <-chan time.Time
		if j.reconcileMembersOnce(ctx, targets) {
			again = time.After(reconcileInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-j.reconcileDue:
		case <-again:
		}
	}
}

// reconcileMembersOnce reports whether work is left. targets holds for each node the commit index
// of the previous round. A node without a vote gets one when it has acknowledged that index, so it
// lacks only newer entries.
func (j *Journal) reconcileMembersOnce(ctx context.Context, targets map[string]uint64) (more bool) {
	r, g := j.leadership.Load(), j.membership()
	if r == nil {
		return false
	}
	committed := j.raft.CommitIndex()
	for _, server := range g.servers {
		node := string(server.ID)
		var err error
		switch last, known := j.acks.Progress(server.ID, r.term); {
		case g.isRemoved(node):
			err = j.finishRemoval(ctx, node)
		case j.lacksIdentity(&server):
			err = j.recordIdentity(ctx, node)
		case server.Suffrage == raft.Voter:
			continue
		case known && targets[node] > 0 && last >= targets[node]:
			err = j.promote(ctx, node)
		}
		targets[node] = committed
		more = true
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrMembershipChanging) {
			j.config.Logger.Warn("membership change not completed, trying again", "member", node, "error", err)
		}
	}
	return more
}

func (j *Journal) finishRemoval(ctx context.Context, node string) error {
	if node == j.config.Node {
		return j.TransferLeadership(ctx)
	}
	return j.removeServer(ctx, node)
}

// promote gives a node a vote.
func (j *Journal) promote(ctx context.Context, node string) error {
	j.config.Logger.Info("member has caught up, promoting to voter", "member", node)
	return j.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(node)
		if server == nil || server.Suffrage == raft.Voter || g.isRemoved(node) {
			return nil, nil
		}
		return func() raft.IndexFuture { return j.raft.AddVoter(server.ID, server.Address, g.index, enqueueTimeout) }, nil
	})
}

// Fail fails the node for a reason that the caller has found: the node was removed, its directory
// was copied, or another of its partitions has failed.
func (j *Journal) Fail(cause error) { _ = j.failStop.Fail(cause) }
