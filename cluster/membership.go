package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Errors of changes of the members. With each of them nothing has changed.
var (
	// ErrRemoved: the node was removed from the cluster, for ever. A node that
	// learns that of itself takes no further part; see [Node.Failed].
	ErrRemoved = journal.ErrRemoved
	// ErrMember: a node of that name is a member already.
	ErrMember = journal.ErrMember
	// ErrOtherDirectory: a node of that name is a member, with another Dir than this one. See
	// [Client.AdoptNode] and [Client.RemoveNode].
	ErrOtherDirectory = journal.ErrOtherDirectory
	// ErrCopied: another process runs with a copy of the node's Dir. The one that the
	// other members have heard of first goes on, the other takes no part.
	ErrCopied = journal.ErrCopied
	// ErrAnswers: the node whose Dir is to be replaced by another one answers the leader with the
	// Dir that is recorded; see [Client.AdoptNode].
	ErrAnswers = errors.New("tenuto: the node answers with the directory that is recorded for it")
	// ErrNotMember: the cluster has no node of that name.
	ErrNotMember = journal.ErrNotMember
	// ErrAddressTaken: another member is known by that address.
	ErrAddressTaken = journal.ErrAddressTaken
	// ErrChanging: another change of the members is under way; try again later.
	ErrChanging = journal.ErrChanging
	// ErrGroups: the node is configured for another number of groups than the cluster
	// has; see Config.Groups.
	ErrGroups = errors.New("tenuto: the node is configured for another number of groups")
	// ErrOtherCluster: the node is configured for another cluster, which the text names, as it
	// does the one that was asked; see Config.ClusterID and Config.Join.
	ErrOtherCluster = errors.New("tenuto: the node is configured for another cluster")
	// ErrAlone: no other node has a vote, so this one cannot be removed.
	ErrAlone = journal.ErrAlone
)

// A Member is a node of the cluster, as the one that leads sees it.
type Member struct {
	NodeID  string
	Address string
	Leader  bool // of several groups: of the first
	// It has a vote, in every group. One that was added is without until it has caught
	// up.
	Voter bool
	// How many committed entries of the journals it has not acknowledged yet, if
	// that is known: the leaders know once the member has answered them.
	Behind      uint64
	BehindKnown bool
	// Whether it answers the leaders, and how long ago it last did; of several groups the
	// longest. Of one that has not answered since the leader leads, LastContact is how long
	// that is; of a node that leads every group it is 0. While Liveness is unknown it is 0, or,
	// of several groups, the longest in those that have a leader.
	Liveness    Liveness
	LastContact time.Duration
	// The groups that it leads, from 0 on, if there are several.
	Leads []int
	// The identity of its Dir, as the cluster has recorded it; "" if it has not yet.
	Identity string
}

// Liveness is whether a member answers.
type Liveness string

const (
	// MemberAlive: it has answered of late.
	MemberAlive Liveness = "alive"
	// MemberSilent: for 1 s and more it has not answered a leader, which asks it many times
	// a second. It does not run, hangs, or is not reached.
	MemberSilent Liveness = "silent"
	// MemberUnknown: no node leads (of several groups: one of them), and so nobody asks the
	// members there.
	MemberUnknown Liveness = "unknown"
)

// Members returns the nodes of the cluster in order of their names, as the leader
// knows them. While no node leads they are those that the node that answers knows of, none of
// them is a Leader, and Liveness is unknown. A client of [Dial] says so only after it has
// asked all nodes that it knows, for up to 1 s: the one that answered first may be cut off
// from the others, or be refused by them. The error is an [*UnavailableError] or
// [ErrNotAuthorized].
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	response, err := c.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_Members{Members: new(clusterpb.MembersRequest)}})
	if err != nil {
		return nil, fmt.Errorf("members: %w", err)
	}
	var members []Member
	for _, m := range response.GetMembers().GetMembers() {
		member := Member{
			NodeID: m.Node, Address: m.Address, Leader: m.Leader, Voter: m.Voter, Behind: m.Behind, BehindKnown: m.BehindKnown,
			Liveness: livenessOf(m), LastContact: time.Duration(m.Silence), Identity: m.Identity,
		}
		for _, group := range m.Leads {
			member.Leads = append(member.Leads, int(group))
		}
		members = append(members, member)
	}
	return members, nil
}

func livenessOf(m *clusterpb.Member) Liveness {
	switch {
	case !m.SilenceKnown:
		return MemberUnknown
	case m.Silent:
		return MemberSilent
	}
	return MemberAlive
}

// RemoveNode removes a node from the cluster, for ever, and returns when that is
// committed: the node has no vote any more, and another one takes part only under
// a name of its own. The leader hands its office over first. To replace a node
// whose Dir is lost, remove it and start another with Config.Join.
//
// Errors: [ErrNotMember], [ErrAlone], [ErrChanging], [ErrNotAuthorized],
// [*InputError], [*UnavailableError]. Repeating it is no error.
func (c *Client) RemoveNode(ctx context.Context, nodeID string) error {
	request := &clusterpb.Request{Call: &clusterpb.Request_RemoveMember{RemoveMember: &clusterpb.RemoveMemberRequest{Node: nodeID}}}
	if err := checkText("node ID", nodeID, 1, nodeIDMax); err != nil {
		return err
	}
	if _, err := c.call(ctx, request); err != nil {
		return fmt.Errorf("remove node %q: %w", nodeID, err)
	}
	return nil
}

// AdoptNode records that a node has lost its Dir for good and has another one, and returns when
// that is committed. identity is that of the new Dir, which the node that is refused says in
// its error and its log; see [ErrOtherDirectory]. The node keeps its name, loses its vote, and
// gets it again when it has caught up. A majority of the nodes with a vote, without that one,
// has to run with their own Dirs. A Dir that comes back after another was adopted is refused.
// While the node answers the leader with the Dir that is recorded for it, the call is refused:
// that Dir is not lost. A node that was stopped counts as answering for a second.
//
// Errors: [ErrAnswers], [ErrNotMember], [ErrRemoved], [ErrAlone], [ErrChanging], [ErrNotAuthorized],
// [*InputError], [*UnavailableError]. Repeating it is no error.
func (c *Client) AdoptNode(ctx context.Context, nodeID, identity string) error {
	request := &clusterpb.Request{Call: &clusterpb.Request_AdoptMember{AdoptMember: &clusterpb.AdoptMemberRequest{Node: nodeID, Identity: identity}}}
	if err := checkText("node ID", nodeID, 1, nodeIDMax); err != nil {
		return err
	}
	if _, err := c.call(ctx, request); err != nil {
		return fmt.Errorf("adopt the directory of node %q: %w", nodeID, err)
	}
	return nil
}

// nodeIDMax bounds the names of nodes that are added or removed.
const nodeIDMax = 64

// Members returns the nodes of the cluster; see [Client.Members].
func (n *Node) Members(ctx context.Context) ([]Member, error) { return n.Client().Members(ctx) }

// RemoveNode removes a node from the cluster; see [Client.RemoveNode].
func (n *Node) RemoveNode(ctx context.Context, nodeID string) error {
	return n.Client().RemoveNode(ctx, nodeID)
}

// AdoptNode records that a node has another Dir; see [Client.AdoptNode].
func (n *Node) AdoptNode(ctx context.Context, nodeID, identity string) error {
	return n.Client().AdoptNode(ctx, nodeID, identity)
}

// Identity returns the identity of the node's Dir: random, and recorded by the cluster.
func (n *Node) Identity() string {
	if n.check() != nil {
		return ""
	}
	return n.identity()
}

// membersKnown returns the members of the group as this node knows them.
func (g *group) membersKnown() *clusterpb.Response {
	leader, _ := g.journal.Leader()
	// The index first: the members are of that configuration, or of a newer one.
	result := &clusterpb.MembersResult{ConfigurationIndexes: []uint64{g.journal.ConfigurationIndex()}}
	for _, m := range g.journal.Members() {
		result.Members = append(result.Members, &clusterpb.Member{
			Node: m.Node, Address: m.Address, Leader: m.Node == leader, Voter: m.Voter,
			Behind: m.Behind, BehindKnown: m.BehindKnown, Identity: m.Identity,
			Silence: int64(m.Silence), SilenceKnown: m.SilenceKnown, Silent: m.Silent,
		})
	}
	result.AppliedIndexes = []uint64{g.journal.AppliedIndex()}
	result.LastIndex = g.journal.LastIndex() // after them: it is not before their entry
	return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}}
}

func (g *group) removeOther(ctx context.Context, r *clusterpb.RemoveMemberRequest) (*clusterpb.Response, error) {
	if err := g.journal.RemoveMember(ctx, r.Node); err != nil {
		return nil, err
	}
	g.config.Logger.Info("node removed", "member", r.Node, "partition", g.number)
	return &clusterpb.Response{Result: &clusterpb.Response_RemoveMember{RemoveMember: new(clusterpb.RemoveMemberResult)}}, nil
}

func (g *group) adoptOther(ctx context.Context, r *clusterpb.AdoptMemberRequest) (*clusterpb.Response, error) {
	if err := journal.CheckIdentity(r.Identity); err != nil {
		return nil, &InputError{"identity", err.Error()}
	}
	if err := g.mayAdopt(r); err != nil {
		return nil, err
	}
	err := g.journal.AdoptMember(ctx, r.Node, r.Identity)
	switch {
	case errors.Is(err, journal.ErrSelf) && r.Identity == g.journal.Identity():
		err = nil // another group may be led by another node
	case errors.Is(err, journal.ErrSelf):
		err = fmt.Errorf("%w: it leads, with %s; nothing was adopted", ErrAnswers, g.journal.Identity())
	}
	if err != nil {
		return nil, err
	}
	g.config.Logger.Info("directory of a node adopted", "member", r.Node, "identity", r.Identity, "partition", g.number)
	return &clusterpb.Response{Result: &clusterpb.Response_AdoptMember{AdoptMember: new(clusterpb.AdoptMemberResult)}}, nil
}

// mayAdopt refuses to take a Dir for lost that a node answers with. The first group decides; in
// the others the node may answer until they have followed.
func (g *group) mayAdopt(r *clusterpb.AdoptMemberRequest) error {
	for _, m := range g.journal.Members() {
		answers := m.SilenceKnown && m.BehindKnown && !m.Silent && m.Identity != ""
		if g.number == 0 && m.Node == r.Node && m.Identity != r.Identity && answers && m.Node != g.config.NodeID {
			return fmt.Errorf("%w: %q with %s; nothing was adopted, stop the node first if that is meant", ErrAnswers, r.Node, m.Identity)
		}
	}
	return nil
}

// checkEnrol refuses a node that reports in the name of another.
func checkEnrol(caller Principal, r *clusterpb.EnrolRequest) error {
	if caller.Name != r.Node {
		return fmt.Errorf("%w: %s reports as %.100q", ErrNotAuthorized, caller, r.Node)
	}
	return nil
}

// enrolOther takes the report of a node: a new one is added, and one that is known
// is recorded where it is now.
func (g *group) enrolOther(ctx context.Context, protocol uint32, r *clusterpb.EnrolRequest) (*clusterpb.Response, error) {
	if r.Cluster != "" && r.Cluster != g.config.ClusterID {
		return nil, fmt.Errorf("%w: %.100q, and this one is %q", ErrOtherCluster, r.Cluster, g.config.ClusterID)
	}
	if theirs := int(max(r.Groups, 1)); theirs != g.config.Groups {
		return nil, fmt.Errorf("%w: %d, and the cluster has %d", ErrGroups, theirs, g.config.Groups)
	}
	if r.GroupsOnly {
		return enrolled(), nil
	}
	if !g.leads() {
		return nil, journal.ErrNotLeader
	}
	if err := checkText("node ID", r.Node, 1, nodeIDMax); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(r.Address); err != nil {
		return nil, &InputError{"address", "is not host:port: " + err.Error()}
	}
	if g.config.Listen == "" {
		return nil, &InputError{"Config.Listen", "of the leading node is empty: nobody can join a node that cannot be reached"}
	}
	if err := g.mayEnter(r.Node, protocol); err != nil {
		return nil, err
	}
	err := ErrNotMember
	if !r.Fresh {
		err = g.journal.MoveMember(ctx, peerOf(r))
	}
	if errors.Is(err, ErrNotMember) {
		err = g.admit(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	g.config.Logger.Info("node reported", "member", r.Node, "address", r.Address, "new", r.Fresh)
	return enrolled(), nil
}

// peerOf returns what a node says of itself.
func peerOf(r *clusterpb.EnrolRequest) journal.Peer {
	return journal.Peer{Node: r.Node, Address: r.Address, Identity: r.Identity, Starts: r.Starts, Session: r.Session}
}

func enrolled() *clusterpb.Response {
	return &clusterpb.Response{Result: &clusterpb.Response_Enrol{Enrol: new(clusterpb.EnrolResult)}}
}

// admit adds a node, if nothing speaks against it. A token is used up last.
func (g *group) admit(ctx context.Context, r *clusterpb.EnrolRequest) error {
	peer := peerOf(r)
	if err := g.journal.MayAdd(peer); err != nil {
		return err
	}
	if !g.journal.IsMember(r.Node) {
		if err := g.mayJoin(ctx, r); err != nil {
			g.config.Logger.Warn("node not added", "member", r.Node, "address", r.Address, "error", err)
			return err
		}
	}
	return g.journal.AddMember(ctx, peer)
}

// mayJoin uses up the token that a node shows, or tells why the node may not join.
// The first group decides; the others add whom that one has added.
func (g *group) mayJoin(ctx context.Context, r *clusterpb.EnrolRequest) error {
	if g.number == 0 {
		return g.useToken(ctx, r)
	}
	first := g.groups[0]
	if err := first.catchUp(ctx); err != nil {
		return err
	}
	if !first.journal.IsMember(r.Node) {
		return fmt.Errorf("%w: the first group has not added it", ErrNotMember)
	}
	return nil
}

// How often a node looks whether it is where it belongs, and for how long it has
// to be without a leader before it asks around: longer than elections take.
const (
	settledEvery = 250 * time.Millisecond
	strayAfter   = time.Second
)

// attend reports this node to the leader when that is needed: its address has
// changed, or it hears of no leader, which may be because it was removed. Of a node
// that was removed nobody takes notice, so it has to ask.
func (n *Node) attend() {
	settled := time.Now()
	for rest(n.life, n.closing, settledEvery) == nil && !n.hasFailed() {
		switch {
		case n.settled():
			settled = time.Now()
		case time.Since(settled) >= strayAfter:
			if err := n.report(n.life); err != nil && n.life.Err() == nil {
				n.config.Logger.Warn("this node is not where it belongs", "error", err)
			}
		}
	}
}

// hasFailed tells whether the node takes part in no group any more.
func (n *Node) hasFailed() bool {
	select {
	case <-n.failed:
		return true
	default:
		return false
	}
}

// settled tells whether each group has a leader, and knows this node by its address.
func (n *Node) settled() bool {
	for _, g := range n.groups {
		if !g.settled() {
			return false
		}
	}
	return true
}

// settled tells the same of one group, if the node takes part in it.
func (g *group) settled() bool {
	if g.journal.Err() != nil {
		return true
	}
	self := g.self()
	return g.leader() != "" && self != nil && self.Address == g.config.address()
}

// self returns what is known of this node as a member of the first group, nil if it
// is none.
func (n *Node) self() *journal.Member { return n.groups[0].self() }

// self returns what is known of this node as a member of the group, nil if it is
// none.
func (g *group) self() *journal.Member {
	members := g.journal.Members()
	i := slices.IndexFunc(members, func(m journal.Member) bool { return m.Node == g.config.NodeID })
	if i < 0 {
		return nil
	}
	return &members[i]
}

// isIn tells whether this node is a member of every group.
func (n *Node) isIn() bool {
	return !slices.ContainsFunc(n.groups, func(g *group) bool { return g.self() == nil })
}

// checkGroups asks the cluster that this node is to join whether it is the one that is
// configured and has as many groups, before both are stamped into Dir for ever.
func (n *Node) checkGroups(ctx context.Context) error {
	if n.config.Join == nil || n.config.Dir == "" || journal.IsStamped(n.config.Dir) {
		return nil
	}
	ctx, cancel := bounded(ctx, n.config.CallTimeout)
	defer cancel()
	request := &clusterpb.Request{Protocol: n.config.protocol, Node: n.config.NodeID, Call: &clusterpb.Request_Enrol{Enrol: &clusterpb.EnrolRequest{
		Node: n.config.NodeID, Address: n.config.address(), Groups: uint32(n.config.Groups), GroupsOnly: true,
		Cluster: n.config.ClusterID,
	}}}
	for pause := pauseFirst; ; pause = min(2*pause, pauseLongest) {
		var unanswered []error
		for _, address := range n.config.Join {
			failure := n.askOnce(ctx, address, request).GetFailure()
			switch {
			case failure != nil && repeatable(failure):
				unanswered = append(unanswered, errors.New(failure.Message))
			case failure != nil && (errors.Is(failed(failure), ErrGroups) || errors.Is(failed(failure), ErrOtherCluster)):
				return fmt.Errorf("join: %w", failed(failure))
			default:
				return nil // what else is wrong, join will be told
			}
		}
		if ended := rest(ctx, n.closing, pause); ended != nil {
			return fmt.Errorf("join: %w", &UnavailableError{NotExecuted: true, Err: errors.Join(append(unanswered, ended)...)})
		}
	}
}

// join reports a node that is to be added until it is, or is refused.
func (n *Node) join(ctx context.Context) error {
	if n.config.Join == nil || n.isIn() {
		return nil
	}
	ctx, cancel := bounded(ctx, n.config.CallTimeout)
	defer cancel()
	pause := pauseFirst
	for {
		err := n.report(ctx)
		switch {
		case err == nil:
			return n.poll(ctx, n.isIn)
		case refusesForGood(err):
			return fmt.Errorf("join: %w", err)
		}
		if ended := rest(ctx, n.closing, pause); ended != nil {
			return fmt.Errorf("join: %w", &UnavailableError{NotExecuted: false, Err: errors.Join(ended, err)})
		}
		pause = min(2*pause, pauseLongest)
	}
}

func refusesForGood(err error) bool {
	for _, refusal := range []error{
		ErrRemoved, ErrMember, ErrAddressTaken, ErrNotAuthorized, ErrProtocol, ErrGroups, ErrOtherCluster,
		ErrTokenRequired, ErrTokenInvalid, ErrTokenExpired, ErrTokenUsed, ErrOtherDirectory, ErrCopied,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return errors.As(err, new(*InputError))
}

// report tells the leaders of all groups of this node, once. What a report before
// has come to is found done.
func (n *Node) report(ctx context.Context) error {
	for _, g := range n.groups {
		if n.isSettledIn(g) {
			continue
		}
		if err := g.report(ctx); err != nil {
			return err
		}
	}
	return nil
}

// isSettledIn tells whether a group need not be told. Of one that is all there is
// to tell anyway.
func (n *Node) isSettledIn(g *group) bool { return len(n.groups) > 1 && g.settled() }

// report tells the leader of the group of this node, once, through whoever answers.
func (g *group) report(ctx context.Context) error {
	if g.leads() {
		return g.journal.MoveMember(ctx, journal.Peer{Node: g.config.NodeID, Address: g.config.address(), Identity: g.journal.Identity()})
	}
	if g.config.Join == nil && len(g.journal.Members()) == 0 {
		return nil // it founds the group with others, and is not to be added
	}
	starts, session := g.journal.Starts()
	enrol := &clusterpb.EnrolRequest{
		Node: g.config.NodeID, Address: g.config.address(), Fresh: g.self() == nil, Groups: uint32(g.config.Groups),
		Identity: g.journal.Identity(), Starts: starts, Session: session, Cluster: g.config.ClusterID,
	}
	if g.config.JoinToken != "" && g.number == 0 {
		g.config.signEnrol(enrol)
	}
	request := g.request(&clusterpb.Request{Call: &clusterpb.Request_Enrol{Enrol: enrol}})
	err := errors.New("there is nobody to ask")
	var asked []string
	for addresses := g.others(); len(addresses) > 0; addresses = addresses[1:] {
		if slices.Contains(asked, addresses[0]) {
			continue
		}
		asked = append(asked, addresses[0])
		failure := g.askOnce(ctx, addresses[0], request).GetFailure()
		if failure == nil || failure.Leader != "" {
			g.hearOfMembers(ctx, addresses[0])
		}
		switch {
		case failure == nil:
			return nil
		case !repeatable(failure):
			err = failed(failure)
			g.heedRefusal(err)
			return err
		case failure.Leader != "":
			addresses = slices.Insert(addresses, 1, failure.Leader)
		}
		err = errors.New(failure.Message)
	}
	return err
}

// heedRefusal has the node step aside when the cluster does not want it any more.
func (g *group) heedRefusal(err error) {
	for _, final := range []error{ErrRemoved, ErrCopied} {
		if errors.Is(err, final) {
			g.journal.Retire(final)
		}
	}
}

func (n *Node) askOnce(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return n.peers.ask(ctx, address, request)
}

// others returns where there may be nodes of the cluster.
func (n *Node) others() []string {
	addresses := slices.Clone(n.config.Join)
	for _, g := range n.groups {
		for _, m := range g.journal.Members() {
			if m.Node != n.config.NodeID {
				addresses = append(addresses, m.Address)
			}
		}
	}
	for _, peer := range n.config.Peers {
		if peer.NodeID != n.config.NodeID {
			addresses = append(addresses, peer.Address)
		}
	}
	return addresses
}

// removed returns the failure of every call on a node that was removed, nil on any
// other.
func (n *Node) removed() *clusterpb.Response {
	if err := n.Err(); errors.Is(err, ErrRemoved) {
		return &clusterpb.Response{Failure: failure(ErrRemoved)}
	}
	return nil
}
