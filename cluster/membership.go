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
	// ErrMember: a node of that name is a member already. One that has lost its
	// Dir comes back under another name, after the old one was removed.
	ErrMember = journal.ErrMember
	// ErrNotMember: the cluster has no node of that name.
	ErrNotMember = journal.ErrNotMember
	// ErrAddressTaken: another member is known by that address.
	ErrAddressTaken = journal.ErrAddressTaken
	// ErrChanging: another change of the members is under way; try again later.
	ErrChanging = journal.ErrChanging
	// ErrAlone: no other node has a vote, so this one cannot be removed.
	ErrAlone = journal.ErrAlone
)

// A Member is a node of the cluster, as the one that leads sees it.
type Member struct {
	NodeID  string
	Address string
	Leader  bool
	// It has a vote. One that was added is without until it has caught up.
	Voter bool
	// How many committed entries of the journal it has not acknowledged yet, if
	// that is known: the leader knows once the member has answered it.
	Behind      uint64
	BehindKnown bool
}

// Members returns the nodes of the cluster in order of their names, as the leader
// knows them. The error is an [*UnavailableError] or [ErrNotAuthorized].
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	response, err := c.access.call(ctx, membersRequest())
	if err != nil {
		return nil, fmt.Errorf("members: %w", err)
	}
	var members []Member
	for _, m := range response.GetMembers().GetMembers() {
		members = append(members, Member{m.Node, m.Address, m.Leader, m.Voter, m.Behind, m.BehindKnown})
	}
	return members, nil
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
	if _, err := c.access.call(ctx, request); err != nil {
		return fmt.Errorf("remove node %q: %w", nodeID, err)
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

// membersKnown returns the members as this node knows them.
func (n *Node) membersKnown() (members []*clusterpb.Member) {
	leader, _ := n.journal.Leader()
	for _, m := range n.journal.Members() {
		members = append(members, &clusterpb.Member{
			Node: m.Node, Address: m.Address, Leader: m.Node == leader, Voter: m.Voter,
			Behind: m.Behind, BehindKnown: m.BehindKnown,
		})
	}
	return members
}

func (n *Node) removeOther(ctx context.Context, r *clusterpb.RemoveMemberRequest) (*clusterpb.Response, error) {
	if err := n.journal.RemoveMember(ctx, r.Node); err != nil {
		return nil, err
	}
	n.config.Logger.Info("node removed", "member", r.Node)
	return &clusterpb.Response{Result: &clusterpb.Response_RemoveMember{RemoveMember: new(clusterpb.RemoveMemberResult)}}, nil
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
func (n *Node) enrolOther(ctx context.Context, protocol uint32, r *clusterpb.EnrolRequest) (*clusterpb.Response, error) {
	if !n.Leading() {
		return nil, journal.ErrNotLeader
	}
	if err := checkText("node ID", r.Node, 1, nodeIDMax); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(r.Address); err != nil {
		return nil, &InputError{"address", "is not host:port: " + err.Error()}
	}
	if len(n.config.Peers) == 0 && n.config.Join == nil {
		return nil, &InputError{"Config.Peers", "of the leading node is empty: a cluster that others are to join names its first node there"}
	}
	if err := n.mayEnter(r.Node, protocol); err != nil {
		return nil, err
	}
	err := ErrNotMember
	if !r.Fresh {
		err = n.journal.MoveMember(ctx, journal.Peer{Node: r.Node, Address: r.Address})
	}
	if errors.Is(err, ErrNotMember) {
		err = n.admit(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	n.config.Logger.Info("node reported", "member", r.Node, "address", r.Address, "new", r.Fresh)
	return &clusterpb.Response{Result: &clusterpb.Response_Enrol{Enrol: new(clusterpb.EnrolResult)}}, nil
}

// admit adds a node, if nothing speaks against it. A token is used up last.
func (n *Node) admit(ctx context.Context, r *clusterpb.EnrolRequest) error {
	peer := journal.Peer{Node: r.Node, Address: r.Address}
	if err := n.journal.MayAdd(peer); err != nil {
		return err
	}
	if !n.journal.IsMember(r.Node) {
		if err := n.useToken(ctx, r); err != nil {
			n.config.Logger.Warn("node not added", "member", r.Node, "address", r.Address, "error", err)
			return err
		}
	}
	return n.journal.AddMember(ctx, peer)
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
	for rest(context.Background(), n.closing, settledEvery) == nil && n.journal.Err() == nil {
		switch {
		case n.settled():
			settled = time.Now()
		case time.Since(settled) >= strayAfter:
			if err := n.report(context.Background()); err != nil {
				n.config.Logger.Warn("this node is not where it belongs", "error", err)
			}
		}
	}
}

// settled tells whether there is a leader, and this node is known by its address.
func (n *Node) settled() bool {
	self := n.self()
	return n.Leader() != "" && self != nil && self.Address == n.config.address()
}

// self returns what is known of this node as a member, nil if it is none.
func (n *Node) self() *journal.Member {
	members := n.journal.Members()
	i := slices.IndexFunc(members, func(m journal.Member) bool { return m.Node == n.config.NodeID })
	if i < 0 {
		return nil
	}
	return &members[i]
}

// join reports a node that is to be added until it is, or is refused.
func (n *Node) join(ctx context.Context) error {
	if n.config.Join == nil || n.self() != nil {
		return nil
	}
	ctx, cancel := bounded(ctx, n.config.CallTimeout)
	defer cancel()
	pause := pauseFirst
	for {
		err := n.report(ctx)
		switch {
		case err == nil:
			return n.poll(ctx, func() bool { return n.self() != nil })
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
		ErrRemoved, ErrMember, ErrAddressTaken, ErrNotAuthorized, ErrProtocol,
		ErrTokenRequired, ErrTokenInvalid, ErrTokenExpired, ErrTokenUsed,
	} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return errors.As(err, new(*InputError))
}

// report tells the leader of this node, once, through whoever answers.
func (n *Node) report(ctx context.Context) error {
	enrol := &clusterpb.EnrolRequest{Node: n.config.NodeID, Address: n.config.address(), Fresh: n.self() == nil}
	if n.config.JoinToken != "" {
		n.config.signEnrol(enrol)
	}
	request := &clusterpb.Request{Protocol: n.config.protocol, Node: n.config.NodeID, Call: &clusterpb.Request_Enrol{Enrol: enrol}}
	err := errors.New("there is nobody to ask")
	var asked []string
	for addresses := n.others(); len(addresses) > 0; addresses = addresses[1:] {
		if slices.Contains(asked, addresses[0]) {
			continue
		}
		asked = append(asked, addresses[0])
		failure := n.askOnce(ctx, addresses[0], request).GetFailure()
		if failure == nil || failure.Leader != "" {
			n.hearOfMembers(ctx, addresses[0])
		}
		switch {
		case failure == nil:
			return nil
		case !repeatable(failure):
			err = failed(failure)
			if errors.Is(err, ErrRemoved) {
				n.journal.Retire(ErrRemoved)
			}
			return err
		case failure.Leader != "":
			addresses = slices.Insert(addresses, 1, failure.Leader)
		}
		err = errors.New(failure.Message)
	}
	return err
}

func (n *Node) askOnce(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return n.peers.ask(ctx, address, request)
}

// others returns where there may be nodes of the cluster.
func (n *Node) others() []string {
	addresses := slices.Clone(n.config.Join)
	for _, m := range n.journal.Members() {
		if m.Node != n.config.NodeID {
			addresses = append(addresses, m.Address)
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
	if err := n.journal.Err(); errors.Is(err, ErrRemoved) {
		return &clusterpb.Response{Failure: failure(ErrRemoved)}
	}
	return nil
}
