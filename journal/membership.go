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
	"github.com/tenuto-dev/tenuto/journal/internal/raftnode"
	"github.com/tenuto-dev/tenuto/journal/internal/transport"
	"github.com/tenuto-dev/tenuto/journal/internal/voters"
	"github.com/tenuto-dev/tenuto/journal/state"
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
	Voter   bool // false while it catches up, and for a member that is to have no vote
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

// members changes the members of the partition, and completes what another leader has begun.
type members struct {
	config      *Config
	raft        *raftnode.Node
	machine     *state.Machine
	acks        *transport.Acks
	identities  *identities
	leaderships *leaderships
	metadata    *metadata
	callers     *goroutineGroup

	changeSlot   chan struct{} // holds a token during a change of the members
	reconcileDue chan struct{} // holds a token when reconcileMembers has work
}

// unreachableAfter is how long a leader may have no answer from a running member, which gets about
// ten heartbeats per HeartbeatTimeout.
func (c Config) unreachableAfter() time.Duration { return max(3*c.HeartbeatTimeout, time.Second) }

// Members returns the nodes of the partition, sorted by name, from the latest configuration in this
// node's log, committed or not; none if the log has no configuration yet.
func (m *members) Members() []Member {
	r := m.leaderships.leadership.Load()
	committed := m.raft.CommitIndex()
	var members []Member
	for _, server := range m.raft.GetConfiguration().Configuration().Servers {
		member := Member{Node: string(server.ID), Voter: server.Suffrage == raft.Voter}
		member.Address, member.Identity = peer.SplitAddress(server.Address)
		if r != nil {
			last, known := m.acks.Progress(server.ID, r.term)
			member.BehindKnown = known || member.Node == m.config.Node
			if known && last < committed {
				member.Behind = committed - last
			}
			member.ContactKnown = true
			if member.Node != m.config.Node {
				member.SinceContact = time.Since(later(m.acks.Get(server.ID).ReceivedAt, r.startedAt))
				member.Unreachable = member.SinceContact > m.config.unreachableAfter()
			}
		}
		members = append(members, member)
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
func (m *members) ConfigurationIndex() uint64 { return m.raft.GetConfiguration().Index() }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// AddMember adds a node. It must be called on the leader. The node gets a vote as soon as it has
// caught up, if Config.Voters allows that. AddMember returns when the node has been added without a
// vote. Repeating it for a node of the same identity and address is no error, also after the node
// has got its vote: it may not have heard of the first call.
//
// Errors: *DirectoryError, ErrMember, ErrRemoved, ErrAddressTaken, ErrMembershipChanging,
// ErrNotLeader, ErrUnknownOutcome, ErrClosed, or ctx's, after which it may be added or not.
func (m *members) AddMember(ctx context.Context, p Peer) error {
	answers := m.answersAtTaken(ctx, p)
	err := m.changeMembers(ctx, func(g *membership) (change, error) {
		if err := g.checkAdd(p, answers); err != nil || g.hasAddress(p) {
			return nil, err
		}
		return func() raft.IndexFuture {
			return m.raft.AddNonvoter(raft.ServerID(p.Node), m.addressFor(p), g.index, enqueueTimeout)
		}, nil
	})
	if err != nil {
		return fmt.Errorf("add member %q: %w", p.Node, err)
	}
	return nil
}

// addressFor returns the address of a new member for Raft's configuration. It includes the identity
// unless members may run a build without identities.
func (m *members) addressFor(p Peer) raft.ServerAddress {
	if m.machine.Protocol() < identityProtocol && !m.identities.hasRecordedIdentities() {
		return raft.ServerAddress(p.Address)
	}
	return peer.Address(p.Address, p.Identity)
}

// CheckAdd returns why AddMember would reject a node, as far as this node knows: *DirectoryError,
// ErrMember, ErrRemoved or ErrAddressTaken.
func (m *members) CheckAdd(ctx context.Context, p Peer) error {
	return m.membership().checkAdd(p, m.answersAtTaken(ctx, p))
}

// answersAtTaken reports whether the address of a node is recorded for another member, but this
// node answers there: the other one has moved.
func (m *members) answersAtTaken(ctx context.Context, p Peer) bool {
	return m.membership().isAddressTaken(p) && m.identities.answersAt(ctx, p)
}

func (m *membership) checkAdd(p Peer, answers bool) error {
	server := m.find(p.Node)
	switch {
	case m.isRemoved(p.Node):
		return ErrRemoved
	case server != nil && hasOtherDirectory(server, p):
		return &DirectoryError{Node: p.Node, Identity: p.Identity, Recorded: peer.IdentityOf(server)}
	case server != nil && server.Suffrage == raft.Voter && (peer.IdentityOf(server) == "" || !m.hasAddress(p)):
		return ErrMember
	case m.isAddressTaken(p) && !answers:
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
func (m *membership) hasAddress(p Peer) bool {
	server := m.find(p.Node)
	return server != nil && peer.AddressOf(server) == p.Address
}

// MoveMember records another address of a member. It must be called on the leader. If the address
// is that of another member, it is recorded only if this member answers there: the other one has
// moved as well, and will report its own address.
//
// Errors: ErrNotMember, ErrRemoved, *DirectoryCopiedError if another process with the same
// directory answers at the recorded address, and those of AddMember except ErrMember.
func (m *members) MoveMember(ctx context.Context, p Peer) error {
	if server := m.membership().find(p.Node); server != nil && !hasOtherDirectory(server, p) {
		if err := m.identities.CheckDirectoryCopy(p); err != nil {
			return fmt.Errorf("move member %q: %w", p.Node, err)
		}
	}
	answers := m.answersAtTaken(ctx, p)
	err := m.changeMembers(ctx, func(g *membership) (change, error) {
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
		case g.isAddressTaken(p) && !answers:
			return nil, ErrAddressTaken
		}
		set := m.raft.AddNonvoter
		if server.Suffrage == raft.Voter {
			set = m.raft.AddVoter
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
func (m *members) RemoveMember(ctx context.Context, node string) error {
	if err := m.removeMember(ctx, node); err != nil {
		return fmt.Errorf("remove member %q: %w", node, err)
	}
	return nil
}

func (m *members) removeMember(ctx context.Context, node string) error {
	if !m.leaderships.IsLeader() {
		return ErrNotLeader
	}
	g := m.membership()
	server := g.find(node)
	switch {
	case server == nil && g.isRemoved(node):
		return nil
	case server == nil:
		return ErrNotMember
	case server.Suffrage == raft.Voter && g.voterCount() == 1:
		return ErrLastVoter
	case node == m.config.Node:
		return m.transferAway(ctx)
	}
	if !g.isRemoved(node) {
		// From here on it can never be added again.
		if err := m.metadata.changeMetadata(ctx, &journalpb.MetadataChange{Removed: node}); err != nil {
			return err
		}
	}
	defer notify(m.reconcileDue) // in case the removal does not finish here
	return afterOtherChanges(ctx, func() error { return m.removeServer(ctx, node) })
}

// transferAway transfers leadership so that another node does what this one cannot, and returns
// ErrNotLeader. A caller that retries finds the new leader, or this one if the transfer failed.
func (m *members) transferAway(ctx context.Context) error {
	err := m.leaderships.TransferLeadership(ctx)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, ErrNotLeader), errors.Is(err, ErrClosed):
		return cmp.Or(err, ErrNotLeader)
	}
	return fmt.Errorf("%w: %v", ErrNotLeader, err)
}

// removeServer removes a node from the configuration.
func (m *members) removeServer(ctx context.Context, node string) error {
	return m.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(node)
		switch {
		case server == nil:
			return nil, nil
		case server.Suffrage == raft.Voter && g.voterCount() == 1:
			return nil, ErrLastVoter
		}
		return func() raft.IndexFuture { return m.raft.RemoveServer(server.ID, g.index, enqueueTimeout) }, nil
	})
}

// RemovedNodes returns the nodes that were or will be removed, sorted by name, as far as this node
// knows. The slice must not be changed.
func (m *members) RemovedNodes() []string { return m.machine.RemovedNodes() }

// membership is the set of members at one moment.
type membership struct {
	servers      []raft.Server
	index        uint64 // of the entry with the configuration
	removedNodes []string
}

func (m *members) membership() *membership {
	latest := m.raft.GetConfiguration()
	return &membership{servers: latest.Configuration().Servers, index: latest.Index(), removedNodes: m.machine.RemovedNodes()}
}

func (m *membership) find(node string) *raft.Server {
	i := slices.IndexFunc(m.servers, func(s raft.Server) bool { return string(s.ID) == node })
	if i < 0 {
		return nil
	}
	return &m.servers[i]
}

// votersBefore returns how many voters, not counting except, have an ID less than node.
func (m *membership) votersBefore(node string, except ...string) int {
	n := 0
	for _, s := range m.servers {
		if id := string(s.ID); s.Suffrage == raft.Voter && id < node && !slices.Contains(except, id) {
			n++
		}
	}
	return n
}

// isRemoved reports whether a node was or will be removed.
func (m *membership) isRemoved(node string) bool {
	_, gone := slices.BinarySearch(m.removedNodes, node)
	return gone
}

func (m *membership) isAddressTaken(p Peer) bool {
	return slices.ContainsFunc(m.servers, func(s raft.Server) bool {
		return peer.AddressOf(&s) == p.Address && string(s.ID) != p.Node
	})
}

func (m *membership) voterCount() int {
	voters := 0
	for _, server := range m.servers {
		if server.Suffrage == raft.Voter {
			voters++
		}
	}
	return voters
}

// change proposes another configuration to Raft.
type change func() raft.IndexFuture

// changeMembers makes one change at a time. plan returns the change for the current members, or nil
// if there is nothing to do. If ctx ends first, the change continues.
func (m *members) changeMembers(ctx context.Context, plan func(*membership) (change, error)) error {
	if !m.leaderships.IsLeader() {
		return ErrNotLeader
	}
	select {
	case m.changeSlot <- struct{}{}:
	default:
		return ErrMembershipChanging
	}
	g := m.membership()
	do, err := plan(g)
	if do == nil {
		<-m.changeSlot
		return err
	}
	result := make(chan error, 1)
	if !m.callers.start(func() {
		err := do().Error()
		<-m.changeSlot // before the caller may begin its next change
		result <- err
		if err == nil { // otherwise that would repeat at once what fails at once
			notify(m.reconcileDue) // the caller may no longer wait
		}
	}) {
		<-m.changeSlot
		return ErrClosed
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-result:
		if err != nil && m.membership().index != g.index && !errors.Is(err, raft.ErrLeadershipLost) {
			return ErrMembershipChanging // the configuration that plan has seen is outdated
		}
		return outcomeError(err)
	}
}

// afterOtherChanges makes a change that completes what was begun, after other changes.
func afterOtherChanges(ctx context.Context, change func() error) error {
	for {
		err := change()
		if !errors.Is(err, ErrMembershipChanging) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(reconcileInterval):
		}
	}
}

// reconcileInterval is how often a leader checks the votes of members while they are not as they
// are to be.
const reconcileInterval = 50 * time.Millisecond

// transferPause is how long a leader that is to lose its vote waits after a transfer of leadership
// has failed.
const transferPause = time.Second

// reconcileMembers completes, during a leadership, what AddMember and RemoveMember have begun here
// or at an earlier leader, and gives and takes votes as Config.Voters says.
func (m *members) reconcileMembers(ctx context.Context) {
	r := reconciler{members: m, targets: map[string]uint64{}}
	for {
		var again <-chan time.Time
		if r.runOnce(ctx) {
			again = time.After(reconcileInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.reconcileDue:
		case <-again:
		}
	}
}

// ReconcileVotes makes the leader compare the votes with what Config.Voters returns. It does not
// wait. On a node that does not lead, it has no effect.
func (m *members) ReconcileVotes() { notify(m.reconcileDue) }

// reconciler is the state of reconcileMembers.
type reconciler struct {
	*members
	// targets holds for each node the commit index of the previous round. A node that has
	// acknowledged that index lacks only newer entries: it has caught up.
	targets       map[string]uint64
	transferAfter time.Time // no transfer of leadership before
}

// runOnce reports whether work is left.
func (r *reconciler) runOnce(ctx context.Context) (more bool) {
	l, g := r.leaderships.leadership.Load(), r.membership()
	if l == nil {
		return false
	}
	for _, server := range g.servers {
		node := string(server.ID)
		var err error
		switch {
		case g.isRemoved(node):
			err = r.finishRemoval(ctx, node)
		case r.lacksIdentity(&server):
			err = r.recordIdentity(ctx, node)
		default:
			continue
		}
		more = true
		r.logFailure(ctx, node, err)
	}
	node, votesChange, err := r.changeVotes(ctx, l, g)
	r.logFailure(ctx, node, err)
	return more || votesChange
}

func (r *reconciler) logFailure(ctx context.Context, node string, err error) {
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrMembershipChanging) {
		r.config.Logger.Warn("membership change not completed, trying again", "member", node, "error", err)
	}
}

// changeVotes gives or takes one vote, if that is due. It returns the member that it concerns, and
// whether votes are left to change.
func (r *reconciler) changeVotes(ctx context.Context, l *leadership, g *membership) (node string, more bool, err error) {
	wanted, known := r.wantedVoters(g)
	if !known {
		return "", true, nil
	}
	committed := r.raft.CommitIndex()
	var seen []voters.Member
	for _, server := range g.servers {
		node := string(server.ID)
		one := voters.Member{Node: node, Voter: server.Suffrage == raft.Voter, Wanted: slices.Contains(wanted, node), Leader: node == r.config.Node}
		if g.isRemoved(node) {
			one.Wanted = one.Voter // its removal is in progress
		}
		last, progressKnown := r.acks.Progress(server.ID, l.term)
		one.Alive = progressKnown && time.Since(r.acks.Get(server.ID).ReceivedAt) < r.config.unreachableAfter()
		if progressKnown && last < committed {
			one.Behind = committed - last
		}
		one.CaughtUp = progressKnown && r.targets[node] > 0 && last >= r.targets[node]
		r.targets[node] = committed
		seen = append(seen, one)
	}
	missing := slices.ContainsFunc(wanted, func(node string) bool { return g.find(node) == nil && !g.isRemoved(node) })
	step, node := voters.Next(seen, missing)
	switch step {
	case voters.Promote:
		err = r.promote(ctx, node)
	case voters.Demote:
		err = r.demote(ctx, node)
	case voters.Transfer:
		if time.Now().After(r.transferAfter) {
			r.config.Logger.Info("transferring leadership: this node is to lose its vote", "to", node)
			r.transferAfter = time.Now().Add(transferPause)
			err = r.leaderships.TransferLeadershipTo(ctx, node)
		}
	}
	return node, step != voters.Done, err
}

// wantedVoters returns the nodes that are to have a vote; known is false if that is unknown yet.
func (m *members) wantedVoters(g *membership) (wanted []string, known bool) {
	for _, server := range g.servers {
		wanted = append(wanted, string(server.ID))
	}
	if m.config.Voters == nil {
		return wanted, true
	}
	return m.config.Voters(wanted)
}

func (m *members) finishRemoval(ctx context.Context, node string) error {
	if node == m.config.Node {
		return m.leaderships.TransferLeadership(ctx)
	}
	return m.removeServer(ctx, node)
}

// demote takes the vote of another node.
func (m *members) demote(ctx context.Context, node string) error {
	m.config.Logger.Info("demoting voter to standby", "member", node)
	return m.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(node)
		if server == nil || server.Suffrage != raft.Voter || g.voterCount() == 1 {
			return nil, nil
		}
		return func() raft.IndexFuture { return m.raft.DemoteVoter(server.ID, g.index, enqueueTimeout) }, nil
	})
}

// promote gives a node a vote.
func (m *members) promote(ctx context.Context, node string) error {
	m.config.Logger.Info("member has caught up, promoting to voter", "member", node)
	return m.changeMembers(ctx, func(g *membership) (change, error) {
		server := g.find(node)
		if server == nil || server.Suffrage == raft.Voter || g.isRemoved(node) {
			return nil, nil
		}
		return func() raft.IndexFuture { return m.raft.AddVoter(server.ID, server.Address, g.index, enqueueTimeout) }, nil
	})
}

// IsMember reports whether a node is a member, with or without a vote, by the latest configuration
// in this node's log, committed or not. On a node without a configuration, which is about to join,
// it returns true for every node.
func (m *members) IsMember(node string) bool {
	g := m.membership()
	return len(g.servers) == 0 || g.find(node) != nil
}

// isAdmitted reports whether messages of a node are accepted: it is a member or MemberHint says so.
func (m *members) isAdmitted(node string) bool {
	return m.IsMember(node) || m.config.MemberHint != nil && m.config.MemberHint(node, "")
}

// NodeAt returns the ID of the member at an address, by the same configuration; "" if there is
// none.
func (m *members) NodeAt(address string) string {
	for _, server := range m.membership().servers {
		if peer.AddressOf(&server) == address {
			return string(server.ID)
		}
	}
	return ""
}
