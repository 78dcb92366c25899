package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/membership"
	"github.com/tenuto-dev/tenuto/cluster/internal/roles"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Errors of membership changes. A call that returns one of them has changed nothing.
var (
	// ErrRemoved: the node was removed from the cluster for good. A node that learns of its own
	// removal fails; see [Node.Failed].
	ErrRemoved = journal.ErrRemoved
	// ErrMemberExists: a node with that ID is already a member.
	ErrMemberExists = journal.ErrMember
	// ErrOtherDirectory: the member with that ID has another Dir than this node. See
	// [Client.AdoptNode] and [Client.RemoveNode].
	ErrOtherDirectory = journal.ErrOtherDirectory
	// ErrDirectoryCopied: another process runs with a copy of the node's Dir. The process that the
	// other members heard from first continues; the other one fails.
	ErrDirectoryCopied = journal.ErrDirectoryCopied
	// ErrNodeAlive: the node still answers the leader with its recorded Dir, so that Dir is not
	// lost; see [Client.AdoptNode].
	ErrNodeAlive = errors.New("tenuto: the node still answers with its recorded directory")
	// ErrNotMember: the cluster has no node with that ID.
	ErrNotMember = journal.ErrNotMember
	// ErrAddressTaken: another member has that address.
	ErrAddressTaken = journal.ErrAddressTaken
	// ErrMembershipChanging: another membership change is in progress; try again later.
	ErrMembershipChanging = journal.ErrMembershipChanging
	// ErrPartitionCount: the node is configured for another number of partitions than the cluster,
	// or its Dir, has. The error text has both numbers; see Config.Partitions.
	ErrPartitionCount = journal.ErrPartitionCount
	// ErrOtherCluster: the node is configured for another cluster. The error text names both
	// clusters; see Config.ClusterID and Config.Join.
	ErrOtherCluster = errors.New("tenuto: the node is configured for another cluster")
	// ErrLastVoter: only the named node has a vote, so it must keep its vote.
	ErrLastVoter = journal.ErrLastVoter
)

// A Member is a node of the cluster, according to the leader.
type Member struct {
	NodeID  string
	Address string
	Leader  bool // whether it leads; with several partitions, whether it leads the first
	// Voter reports whether the member has a vote in every partition. An added node gets its vote
	// when it has caught up, unless the cluster has enough voters.
	Voter bool
	// Role is what the cluster has decided: "voter" or "standby". Votes follow decisions within
	// seconds. PinnedRole is the role that an operator has set with operate.SetRole, "" for none.
	// Role is "" if the leader runs an earlier build.
	Role, PinnedRole string
	// Zone is the Config.Zone that the member has announced, "" for none.
	Zone string
	// Behind is the number of committed journal entries that the member has not acknowledged.
	// BehindKnown is false until the member has answered the leader of every partition.
	Behind      uint64
	BehindKnown bool
	// Liveness says whether the member answers the leaders. LastContact is the time since its last
	// answer; with several partitions, the longest of these times. If the member has not answered
	// since the leader took over, LastContact is the time since then. It is 0 for a node that leads
	// every partition. While Liveness is unknown, LastContact is 0 or, with several partitions, the
	// longest time among the partitions that have a leader.
	Liveness    Liveness
	LastContact time.Duration
	// LeadsPartitions lists the partitions that the member leads, counted from 0. It is nil if the
	// cluster has one partition.
	LeadsPartitions []int
	// Identity is the identity that the cluster has recorded for the member's Dir, "" if none yet.
	Identity string
	// Quarantined is how many of the member's replicas of instances are not used, because they
	// differ from those of the majority. Stopped is how many instances are stopped, because no
	// majority of their replicas agrees, in the partitions that the member leads; see
	// operate.AcceptReplica.
	Quarantined, Stopped int
}

// Liveness says whether a member answers the leaders.
type Liveness string

const (
	// MemberAlive: the member has answered recently.
	MemberAlive Liveness = "alive"
	// MemberUnreachable: the member has not answered a leader for at least 1 s, although leaders
	// ask many times a second. It is down, hangs, or cannot be reached.
	MemberUnreachable Liveness = "unreachable"
	// MemberUnknown: at least one partition has no leader, so no node asks the member there.
	MemberUnknown Liveness = "unknown"
)

// Members returns the nodes of the cluster according to the leader, ordered by ID. Without a leader
// it returns the members according to the answering node: none of them is a Leader, and Liveness is
// unknown. Before a client of [Dial] returns such an answer, it asks all nodes whose addresses it
// has, for up to 1 s. The first node that answers may be cut off from the others or rejected by
// them. The error is an [*UnavailableError] or [ErrNotAuthorized].
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	response, err := c.call(ctx, &clusterpb.Request{Call: &clusterpb.Request_Members{Members: new(clusterpb.MembersRequest)}})
	if err != nil {
		return nil, fmt.Errorf("members: %w", err)
	}
	var members []Member
	for _, m := range response.GetMembers().GetMembers() {
		member := Member{
			NodeID: m.Node, Address: m.Address, Leader: m.Leader, Voter: m.Voter, Behind: m.Behind, BehindKnown: m.BehindKnown,
			Liveness: livenessOf(m), LastContact: time.Duration(m.SinceContact), Identity: m.Identity,
			Role: roles.NameOf(m), PinnedRole: roles.PinName(m.Pin), Zone: m.Zone,
			Quarantined: int(m.Quarantined), Stopped: int(m.Stopped),
		}
		for _, partition := range m.LeadsPartitions {
			member.LeadsPartitions = append(member.LeadsPartitions, int(partition))
		}
		members = append(members, member)
	}
	return members, nil
}

func livenessOf(m *clusterpb.Member) Liveness {
	switch {
	case !m.ContactKnown:
		return MemberUnknown
	case m.Unreachable:
		return MemberUnreachable
	}
	return MemberAlive
}

// RemoveNode removes a node from the cluster for good and returns when the removal is committed.
// The node has no vote anymore, and its ID cannot be used again. If the node leads, it transfers
// leadership first. To replace a node whose Dir is lost, remove it and start another one with
// Config.Join.
//
// Errors: [ErrNotMember], [ErrLastVoter], [ErrMembershipChanging], [ErrNotAuthorized],
// [*replay.InvalidError], [*UnavailableError]. Repeating the call is not an error.
func (c *Client) RemoveNode(ctx context.Context, nodeID string) error {
	request := &clusterpb.Request{Call: &clusterpb.Request_RemoveMember{RemoveMember: &clusterpb.RemoveMemberRequest{Node: nodeID}}}
	if err := checkText("node ID", nodeID, 1, nodeIDMax); err != nil {
		return fmt.Errorf("remove node: %w", err)
	}
	if _, err := c.call(ctx, request); err != nil {
		return fmt.Errorf("remove node %q: %w", nodeID, err)
	}
	return nil
}

// AdoptNode records that a node has lost its Dir for good and has a new one. It returns when that
// is committed. identity is the identity of the new Dir. The rejected node reports it in its error
// and its log; see [ErrOtherDirectory]. The node keeps its ID. It loses its vote and gets it back
// when it has caught up. A majority of the other voters must run with their recorded Dirs. From
// then on the cluster rejects the replaced Dir. While the node answers the leader with its recorded
// Dir, the call is rejected, because that Dir is not lost. A stopped node counts as answering for
// one more second; a leader that has just taken over waits for so long until it knows.
//
// Errors: [ErrNodeAlive], [ErrNotMember], [ErrRemoved], [ErrLastVoter], [ErrMembershipChanging],
// [ErrNotAuthorized], [*replay.InvalidError], [*UnavailableError]. Repeating the call is not an
// error.
func (c *Client) AdoptNode(ctx context.Context, nodeID, identity string) error {
	request := &clusterpb.Request{Call: &clusterpb.Request_AdoptMember{AdoptMember: &clusterpb.AdoptMemberRequest{Node: nodeID, Identity: identity}}}
	if err := checkText("node ID", nodeID, 1, nodeIDMax); err != nil {
		return fmt.Errorf("adopt the directory of a node: %w", err)
	}
	if _, err := c.call(ctx, request); err != nil {
		return fmt.Errorf("adopt the directory of node %q: %w", nodeID, err)
	}
	return nil
}

// nodeIDMax bounds the length, in bytes, of the IDs of nodes that are added or removed.
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

// newRoleKeeper returns what decides which members vote.
func newRoleKeeper(n *Node) *roles.Keeper {
	return roles.NewKeeper(roles.Config{
		Node: n.config.NodeID, Interval: n.config.maintenanceInterval, Logger: n.config.Logger,
		Journal: func() roles.Journal {
			select {
			case <-n.opened:
				return n.partitions[0].journal
			default:
				return nil
			}
		},
		Rules: func() roles.Rules {
			s := n.settings.current.Load()
			return roles.Rules{Voters: s.Voters, ReplaceAfter: s.ReplaceVoterAfter}
		},
		Members: func(ctx context.Context) ([]*clusterpb.Member, error) {
			if len(n.partitions) == 1 {
				return n.partitions[0].members.membersResponse().GetMembers().GetMembers(), nil
			}
			ctx, cancel := context.WithTimeout(ctx, membersWait)
			defer cancel()
			response, err := n.scatter.fanOutMembers(ctx, membersRequest())
			return response.GetMembers().GetMembers(), err
		},
		Zone: func(node string) (zone string, known bool) {
			if node == n.config.NodeID {
				return n.config.Zone, true
			}
			worker := n.partitions[0].worker(node)
			return worker.GetZone(), worker != nil
		},
	})
}

func checkSetRole(r *clusterpb.SetRoleRequest) error {
	if roles.PinName(r.GetPin()) == "" && r.GetPin() != journalpb.MemberRole_PIN_NONE {
		return invalidArgument("role", "is unknown")
	}
	return firstError(checkText("node ID", r.GetNode(), 1, nodeIDMax), checkText("reason", r.GetReason(), 0, reasonMax))
}

// setRole pins the role of a member, or lets the cluster decide again. The first partition decides.
func (h *memberHandler) setRole(ctx context.Context, request *clusterpb.Request, r *clusterpb.SetRoleRequest) (*clusterpb.Response, error) {
	if h.partition.number > 0 {
		return nil, fmt.Errorf("%w: only the first partition records roles", ErrProtocol)
	}
	if err := h.partition.barrier(ctx); err != nil {
		return nil, err
	}
	changed, err := h.partition.node.roles.Pin(ctx, r, request.Principal)
	switch {
	case errors.Is(err, journal.ErrRolesProtocol):
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	case err != nil:
		return nil, err
	case changed:
		h.partition.node.config.Logger.Info("role of a member set", "member", r.Node, "role", roles.PinName(r.Pin), "principal", request.Principal, "reason", r.Reason)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_SetRole{SetRole: new(clusterpb.SetRoleResult)}}, nil
}

// A memberHandler answers calls about members, tokens and settings.
type memberHandler struct {
	partition *partition
	journal   *journal.Journal
}

// membersResponse returns the members of the partition according to this node.
func (h *memberHandler) membersResponse() *clusterpb.Response {
	leader, _ := h.journal.Leader()
	// Read before the members, so that they are of this configuration or a newer one.
	result := &clusterpb.MembersResult{ConfigurationIndexes: []uint64{h.journal.ConfigurationIndex()}}
	quarantines := h.journal.Quarantines()
	for _, m := range h.journal.Members() {
		quarantined, stopped := countQuarantines(quarantines, m.Node)
		if m.Node != leader {
			stopped = 0
		}
		member := &clusterpb.Member{
			Quarantined: uint32(quarantined), Stopped: uint32(stopped),
			Node: m.Node, Address: m.Address, Leader: m.Node == leader, Voter: m.Voter,
			Behind: m.Behind, BehindKnown: m.BehindKnown, Identity: m.Identity,
			SinceContact: int64(m.SinceContact), ContactKnown: m.ContactKnown, Unreachable: m.Unreachable,
		}
		h.partition.node.roles.Show(member)
		result.Members = append(result.Members, member)
	}
	result.AppliedIndexes = []uint64{h.journal.AppliedIndex()}
	result.Lineages = h.journal.Lineages()
	result.PayloadMax = uint64(h.partition.node.settings.payloadMax())
	// Read after the members, so that it is not below the index of their configuration.
	result.LastIndex = h.journal.LastIndex()
	return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}}
}

func (h *memberHandler) removeMember(ctx context.Context, r *clusterpb.RemoveMemberRequest) (*clusterpb.Response, error) {
	if err := h.journal.RemoveMember(ctx, r.Node); err != nil {
		return nil, err
	}
	h.partition.node.config.Logger.Info("node removed", "member", r.Node, "partition", h.partition.number)
	return &clusterpb.Response{Result: &clusterpb.Response_RemoveMember{RemoveMember: new(clusterpb.RemoveMemberResult)}}, nil
}

func (h *memberHandler) adoptMember(ctx context.Context, r *clusterpb.AdoptMemberRequest) (*clusterpb.Response, error) {
	if err := journal.CheckIdentity(r.Identity); err != nil {
		return nil, invalidArgument("identity", err.Error())
	}
	if err := h.checkAdopt(ctx, r); err != nil {
		return nil, err
	}
	err := h.journal.AdoptMember(ctx, r.Node, r.Identity)
	switch {
	case errors.Is(err, journal.ErrSelf) && r.Identity == h.journal.Identity():
		err = nil // already recorded here; partitions with other leaders may still have to adopt it
	case errors.Is(err, journal.ErrSelf):
		err = fmt.Errorf("%w: it leads with %s; nothing was adopted", ErrNodeAlive, h.journal.Identity())
	}
	if err != nil {
		return nil, err
	}
	h.partition.node.config.Logger.Info("directory of a node adopted", "member", r.Node, "identity", r.Identity, "partition", h.partition.number)
	return &clusterpb.Response{Result: &clusterpb.Response_AdoptMember{AdoptMember: new(clusterpb.AdoptMemberResult)}}, nil
}

// checkAdopt returns an error if the node still answers with its recorded Dir. A leader that has
// just taken over waits until the node has answered it, or has had the time to. Only the first
// partition checks this. In the others the node may answer until they have adopted the new Dir,
// too.
func (h *memberHandler) checkAdopt(ctx context.Context, r *clusterpb.AdoptMemberRequest) error {
	n := h.partition.node
	if h.partition.number > 0 || r.Node == n.config.NodeID {
		return nil
	}
	answersWith := ""
	decided := func() bool {
		members := h.journal.Members()
		i := slices.IndexFunc(members, func(m journal.Member) bool { return m.Node == r.Node })
		if i < 0 || !members[i].ContactKnown || members[i].Unreachable || members[i].Identity == r.Identity {
			return true
		}
		if members[i].BehindKnown {
			answersWith = members[i].Identity
		}
		return members[i].BehindKnown
	}
	if err := n.poll(ctx, decided); err != nil {
		return err
	}
	if answersWith != "" {
		return fmt.Errorf("%w: %q with %s; nothing was adopted; to replace that directory, stop the node first", ErrNodeAlive, r.Node, answersWith)
	}
	return nil
}

// checkOwnID rejects a node that announces or introduces itself under another node's ID.
func checkOwnID(caller Principal, node string) error {
	if caller.Name != node {
		return fmt.Errorf("%w: %s announces itself as %.100q", ErrNotAuthorized, caller, node)
	}
	return nil
}

// checkIntroduce returns an error for an introduction that no correct node sends.
func checkIntroduce(r *clusterpb.IntroduceRequest) error {
	if _, _, err := net.SplitHostPort(r.GetAddress()); err != nil {
		return invalidArgument("address", "is not host:port: "+err.Error())
	}
	if err := journal.CheckIdentity(r.GetIdentity()); err != nil {
		return invalidArgument("identity", err.Error())
	}
	return checkText("node ID", r.GetNode(), 1, nodeIDMax)
}

// introduce answers a node that has discovered this one.
func (r *replicaCalls) introduce(_ context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	answer := r.node.introducer.Answer(request.GetIntroduce())
	return &clusterpb.Response{Result: &clusterpb.Response_Introduce{Introduce: answer}}, nil
}

// handleJoin handles a node's announcement: it adds a new node, and records the current address of
// a member.
func (h *memberHandler) handleJoin(ctx context.Context, protocol uint32, r *clusterpb.JoinRequest) (*clusterpb.Response, error) {
	if r.Cluster != "" && r.Cluster != h.partition.node.config.ClusterID {
		return nil, fmt.Errorf("%w: %.100q, this cluster is %q", ErrOtherCluster, r.Cluster, h.partition.node.config.ClusterID)
	}
	if requested := int(max(r.Partitions, 1)); requested != h.partition.node.config.Partitions {
		return nil, fmt.Errorf("%w: %d, the cluster has %d", ErrPartitionCount, requested, h.partition.node.config.Partitions)
	}
	if r.CheckPartitionsOnly {
		return joinResponse(), nil
	}
	if r.Cluster != "" {
		if err := h.journal.CheckLineages(r.Node, r.Lineages); err != nil {
			return nil, err
		}
	}
	if !h.partition.isLeader() {
		return nil, journal.ErrNotLeader
	}
	if err := checkText("node ID", r.Node, 1, nodeIDMax); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(r.Address); err != nil {
		return nil, invalidArgument("address", "is not host:port: "+err.Error())
	}
	if h.partition.node.config.Listen == "" {
		return nil, invalidArgument("Config.Listen", "of the leader is empty: other nodes cannot reach it to join")
	}
	if err := h.checkMemberProtocol(r.Node, protocol); err != nil {
		return nil, err
	}
	listed := h.journal.NodeAt(r.Address) == r.Node
	err := ErrNotMember
	if !r.NewNode {
		err = h.journal.MoveMember(ctx, peerOf(r))
	}
	if errors.Is(err, ErrNotMember) {
		err = h.addMember(ctx, r)
	}
	if errors.Is(err, ErrOtherDirectory) {
		err = h.replaceLost(ctx, r, err)
	}
	if err != nil {
		return nil, err
	}
	if !listed { // a node announces itself again and again until it learns that it is listed
		h.partition.node.config.Logger.Info("node announced", "member", r.Node, "address", r.Address, "new", r.NewNode)
	}
	return joinResponse(), nil
}

// peerOf returns the Peer that a join request describes.
func peerOf(r *clusterpb.JoinRequest) journal.Peer {
	return journal.Peer{Node: r.Node, Address: r.Address, Identity: r.Identity, Starts: r.OpenCount, Session: r.Session}
}

func joinResponse() *clusterpb.Response {
	return &clusterpb.Response{Result: &clusterpb.Response_Join{Join: new(clusterpb.JoinResult)}}
}

// addMember adds a node if all checks allow it. The last check uses up the node's join token.
func (h *memberHandler) addMember(ctx context.Context, r *clusterpb.JoinRequest) error {
	peer := peerOf(r)
	if err := h.journal.CheckAdd(ctx, peer); err != nil {
		return err
	}
	if !h.journal.IsMember(r.Node) {
		if err := h.authorizeJoin(ctx, r); err != nil {
			h.partition.node.config.Logger.Warn("node not added", "member", r.Node, "address", r.Address, "error", err)
			return err
		}
	}
	return h.journal.AddMember(ctx, peer)
}

// replaceLost adopts the directory of a member that has lost another one, if the settings and the
// state of the cluster allow it. Otherwise it returns why the member was rejected. The first
// partition decides, and the others follow it.
func (h *memberHandler) replaceLost(ctx context.Context, r *clusterpb.JoinRequest, rejected error) error {
	grace := h.partition.node.settings.current.Load().ReplaceLostAfter
	if grace == 0 || journal.CheckIdentity(r.Identity) != nil {
		return rejected
	}
	if h.partition.number > 0 {
		first := h.partition.node.partitions[0]
		if err := first.catchUp(ctx); err != nil {
			return err
		}
		if !h.partition.node.directory.IsInFirstPartition(r.Node, r.Identity) {
			return rejected
		}
	}
	err := h.journal.ReplaceLostDirectory(ctx, r.Node, r.Identity, grace)
	switch {
	case errors.Is(err, journal.ErrNotReplaced):
		return fmt.Errorf("%w; %w", rejected, err)
	case err != nil:
		return err
	}
	h.partition.node.config.Logger.Warn("lost directory of a node replaced", "member", r.Node, "identity", r.Identity, "partition", h.partition.number)
	return h.journal.MoveMember(ctx, peerOf(r))
}

// authorizeJoin uses up the join token that a node presents, or returns why the node must not join.
// The first partition decides. The others add only nodes that the first has added.
func (h *memberHandler) authorizeJoin(ctx context.Context, r *clusterpb.JoinRequest) error {
	if h.partition.number == 0 {
		return h.useToken(ctx, r)
	}
	first := h.partition.node.partitions[0]
	if err := first.catchUp(ctx); err != nil {
		return err
	}
	if !first.journal.IsMember(r.Node) {
		return fmt.Errorf("%w: the first partition has not added it", ErrNotMember)
	}
	return nil
}

// An announcer announces this node to the leaders.
type announcer struct{ node *Node }

// attachDiscovery sets how this node finds others and introduces itself to them.
func (a *announcer) attachDiscovery() {
	n := a.node
	n.introducer.Node, n.introducer.Address = n.config.NodeID, n.config.address()
	n.introducer.Book, n.introducer.Logger = &n.directory.Book, n.config.Logger
	n.introducer.Self = func() *clusterpb.IntroduceRequest {
		self := &clusterpb.IntroduceRequest{Node: n.config.NodeID, Address: n.config.address(), Identity: n.identity(), Cluster: n.config.ClusterID}
		self.HasLog = len(n.partitions) > 0 && len(n.partitions[0].journal.Members()) > 0
		return self
	}
	n.introducer.Recorded = func(node string) (identity string, member bool) {
		for _, m := range n.partitions[0].journal.Members() {
			if m.Node == node {
				return m.Identity, true
			}
		}
		return "", false
	}
	n.introducer.Ask = func(ctx context.Context, address string, self *clusterpb.IntroduceRequest) (*clusterpb.IntroduceResult, error) {
		request := &clusterpb.Request{Node: n.config.NodeID, Call: &clusterpb.Request_Introduce{Introduce: self}}
		request.Protocol = requestProtocol(n.config.protocol, request)
		response := n.acquaintance.ask(ctx, address, request)
		if err := n.partitions[0].journal.CheckLineages("at "+address, response.GetLineages()); err != nil {
			return nil, err
		}
		if failure := response.GetFailure(); failure != nil {
			return nil, fromFailure(failure)
		}
		return response.GetIntroduce(), nil
	}
	failures := announceFailures{logger: n.config.Logger}
	n.discoverer.Discover, n.discoverer.Introduce = n.config.Discover, n.introducer.Introduce
	n.discoverer.Needed = func() bool { return !n.hasFailed() && !a.isAnnounced() }
	n.discoverer.Failed = func(err error) { failures.add("cannot discover other nodes; trying again", err) }
}

// announceInterval is how often a node checks whether it must announce itself. The check must fail
// for noLeaderTimeout before the node does so; elections take less time. While the node cannot, it
// logs that again after announceLogMin, and then after twice as long each time, up to
// announceLogMax.
const (
	announceInterval = 250 * time.Millisecond
	noLeaderTimeout  = time.Second
	announceLogMin   = time.Second
	announceLogMax   = time.Minute
)

// maintainMembership announces this node to the leaders if its address has changed or a leader is
// unknown. A node that finds no leader may have been removed: members ignore a removed node, so it
// must ask.
func (a *announcer) maintainMembership() {
	lastAnnounced := time.Now()
	failures := announceFailures{logger: a.node.config.Logger}
	for admission.Sleep(a.node.ctx, a.node.closing, announceInterval) == nil && !a.node.hasFailed() {
		switch {
		case a.isAnnounced():
			lastAnnounced = time.Now()
			failures.end()
		case time.Since(lastAnnounced) >= noLeaderTimeout:
			// A removed node has logged that.
			if err := a.announce(a.node.ctx); err != nil && a.node.ctx.Err() == nil && !errors.Is(err, ErrRemoved) {
				failures.add(announceFailed, err)
			}
		}
	}
}

// announceFailures logs that a node cannot announce itself or find others, less often the longer
// that lasts.
type announceFailures struct {
	logger *slog.Logger
	next   time.Time // when the next failure is logged; zero means at once
	delay  time.Duration
}

// add logs a failure, unless one was logged a short time ago.
func (f *announceFailures) add(message string, err error) {
	now := time.Now()
	if now.Before(f.next) {
		return
	}
	f.delay = min(max(2*f.delay, announceLogMin), announceLogMax)
	f.next = now.Add(f.delay)
	f.logger.Warn(message, "error", err)
}

const announceFailed = "cannot announce this node to the leader; trying again"

// end makes the next failure be logged at once.
func (f *announceFailures) end() { f.next, f.delay = time.Time{}, 0 }

// hasFailed reports whether the node has failed in every partition.
func (n *Node) hasFailed() bool {
	select {
	case <-n.failed:
		return true
	default:
		return false
	}
}

// isAnnounced reports whether each partition has a leader and lists this node with its address.
func (a *announcer) isAnnounced() bool {
	for _, g := range a.node.partitions {
		if !g.isAnnounced() {
			return false
		}
	}
	return true
}

// isAnnounced reports whether the partition has a leader and lists this node with its address. It
// is also true if the node has failed in the partition.
func (pa *partition) isAnnounced() bool {
	if pa.journal.Err() != nil {
		return true
	}
	self := pa.self()
	return pa.leader() != "" && self != nil && self.Address == pa.node.config.address()
}

// self returns this node's entry among the members of the first partition, nil if it is not a
// member.
func (n *Node) self() *journal.Member { return n.partitions[0].self() }

// self returns this node's entry among the members of the partition, nil if it is not a member.
func (pa *partition) self() *journal.Member {
	members := pa.journal.Members()
	i := slices.IndexFunc(members, func(m journal.Member) bool { return m.Node == pa.node.config.NodeID })
	if i < 0 {
		return nil
	}
	return &members[i]
}

// isMemberOfAll reports whether this node is a member of every partition.
func (a *announcer) isMemberOfAll() bool {
	return !slices.ContainsFunc(a.node.partitions, func(g *partition) bool { return g.self() == nil })
}

// checkJoinTarget returns an error if the cluster to join has another name or number of partitions
// than configured. It runs before both are written into Dir for good.
func (a *announcer) checkJoinTarget(ctx context.Context) error {
	if !a.node.config.joins || a.node.config.Dir == "" || journal.HasOwner(a.node.config.Dir) {
		return nil
	}
	ctx, cancel := a.joinContext(ctx)
	defer cancel()
	request := &clusterpb.Request{Protocol: a.node.config.protocol, Node: a.node.config.NodeID, Call: &clusterpb.Request_Join{Join: &clusterpb.JoinRequest{
		Node: a.node.config.NodeID, Address: a.node.config.address(), Partitions: uint32(a.node.config.Partitions), CheckPartitionsOnly: true,
		Cluster: a.node.config.ClusterID,
	}}}
	for delay := admission.BackoffMin; ; delay = min(2*delay, admission.BackoffMax) {
		var unanswered []error
		addresses, err := a.joinAddresses(ctx)
		if err != nil {
			unanswered = append(unanswered, err)
		}
		for _, address := range addresses {
			failure := a.node.askOnce(ctx, address, request).GetFailure()
			switch {
			case failure != nil && wire.IsRetryable(failure):
				unanswered = append(unanswered, errors.New(failure.Message))
			case failure != nil && (errors.Is(fromFailure(failure), ErrPartitionCount) || errors.Is(fromFailure(failure), ErrOtherCluster)):
				return fmt.Errorf("join: %w", fromFailure(failure))
			default:
				return nil // join reports any other error
			}
		}
		if ended := admission.Sleep(ctx, a.node.closing, delay); ended != nil {
			return fmt.Errorf("join: %w", &UnavailableError{NotExecuted: true, Err: errors.Join(append(unanswered, ended)...)})
		}
	}
}

// joinContext returns the context of a node's attempts to join. A node that discovers the others
// may have been started before them, so only its caller's context ends them.
func (a *announcer) joinContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.node.config.Discover != nil {
		return context.WithCancel(ctx)
	}
	return withDefaultTimeout(ctx, a.node.config.CallTimeout)
}

// joinAddresses returns the addresses of nodes to join, before this node is open.
func (a *announcer) joinAddresses(ctx context.Context) ([]string, error) {
	if a.node.config.Discover == nil {
		return a.node.config.Join, nil
	}
	found, err := membership.Discover(a.node.config.Discover).Addresses(ctx)
	found = slices.DeleteFunc(found, func(address string) bool { return address == a.node.config.address() })
	return slices.Concat(a.node.config.Join, found), err
}

// join announces a node until the cluster has added or rejected it.
func (a *announcer) join(ctx context.Context) error {
	if !a.node.config.joins || a.isMemberOfAll() {
		return nil
	}
	ctx, cancel := a.joinContext(ctx)
	defer cancel()
	failures := announceFailures{logger: a.node.config.Logger}
	delay := admission.BackoffMin
	for {
		err := a.announce(ctx)
		switch {
		case err == nil:
			return a.node.poll(ctx, a.isMemberOfAll)
		case a.node.config.Discover != nil && (errors.Is(err, ErrOtherDirectory) || errors.Is(err, ErrAddressTaken)):
			failures.add(announceFailed, err) // the leader may replace the lost directory, or the other node move
		case isPermanentJoinError(err):
			return fmt.Errorf("join: %w", err)
		}
		if ended := admission.Sleep(ctx, a.node.closing, delay); ended != nil {
			return fmt.Errorf("join: %w", &UnavailableError{NotExecuted: false, Err: errors.Join(ended, err)})
		}
		delay = min(2*delay, admission.BackoffMax)
	}
}

func isPermanentJoinError(err error) bool {
	for _, rejection := range []error{
		ErrRemoved, ErrMemberExists, ErrAddressTaken, ErrNotAuthorized, ErrProtocol, ErrPartitionCount, ErrOtherCluster,
		ErrTokenRequired, ErrTokenInvalid, ErrTokenExpired, ErrTokenUsed, ErrOtherDirectory, ErrDirectoryCopied, journal.ErrOtherLineage,
	} {
		if errors.Is(err, rejection) {
			return true
		}
	}
	return errors.As(err, new(*replay.InvalidError))
}

// announce announces this node to the leaders of all partitions, once. Partitions that already list
// the node are skipped, so a repeated call continues where the last one failed.
func (a *announcer) announce(ctx context.Context) error {
	for _, g := range a.node.partitions {
		if a.isAnnouncedTo(g) {
			continue
		}
		if err := g.announce(ctx); err != nil {
			return err
		}
	}
	return nil
}

// isAnnouncedTo reports whether announce may skip a partition. It never skips the only one.
func (a *announcer) isAnnouncedTo(g *partition) bool {
	return len(a.node.partitions) > 1 && g.isAnnounced()
}

// announce announces this node to the leader of the partition, once, through any node that answers.
func (pa *partition) announce(ctx context.Context) error {
	if pa.isLeader() {
		return pa.journal.MoveMember(ctx, journal.Peer{Node: pa.node.config.NodeID, Address: pa.node.config.address(), Identity: pa.journal.Identity()})
	}
	if pa.node.announcer.isFounding(pa) {
		return nil // a founding member need not be added
	}
	starts, session := pa.journal.Starts()
	joinRequest := &clusterpb.JoinRequest{
		Node: pa.node.config.NodeID, Address: pa.node.config.address(), NewNode: pa.self() == nil, Partitions: uint32(pa.node.config.Partitions),
		Identity: pa.journal.Identity(), OpenCount: starts, Session: session, Cluster: pa.node.config.ClusterID, Lineages: pa.journal.LineageIDs(),
	}
	if pa.node.config.JoinToken != "" && pa.number == 0 {
		pa.node.config.signJoin(joinRequest)
	}
	request := pa.prepareRequest(&clusterpb.Request{Call: &clusterpb.Request_Join{Join: joinRequest}})
	err := errors.New("no other node is known")
	var asked []string
	for addresses := pa.node.announcer.knownAddresses(); len(addresses) > 0; addresses = addresses[1:] {
		if slices.Contains(asked, addresses[0]) {
			continue
		}
		asked = append(asked, addresses[0])
		response := pa.node.askOnce(ctx, addresses[0], request)
		if other := pa.journal.CheckLineages("at "+addresses[0], response.GetLineages()); other != nil {
			err = other
			continue
		}
		failure := response.GetFailure()
		if failure == nil || failure.Leader != "" {
			pa.node.announcer.fetchMemberHint(ctx, addresses[0])
		}
		switch {
		case failure == nil:
			return nil
		case !wire.IsRetryable(failure):
			err = fromFailure(failure)
			pa.failIfRemovedOrCopied(err)
			return err
		case failure.Leader != "":
			addresses = slices.Insert(addresses, 1, failure.Leader)
		}
		err = errors.New(failure.Message)
	}
	return err
}

// isFounding reports whether this node founds a partition with others, or will, as far as it knows.
func (a *announcer) isFounding(pa *partition) bool {
	if a.node.config.joins || len(pa.journal.Members()) > 0 {
		return false
	}
	return pa.journal.DirectoryRejection() == nil && (pa.journal.HasAgreedToFound() || !a.node.introducer.HasFoundCluster())
}

// failIfRemovedOrCopied fails the node if it was removed from the cluster or runs with a copied
// directory.
func (pa *partition) failIfRemovedOrCopied(err error) {
	for _, final := range []error{ErrRemoved, ErrDirectoryCopied} {
		if errors.Is(err, final) {
			pa.journal.Fail(final)
		}
	}
}

func (n *Node) askOnce(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
	ctx, cancel := context.WithTimeout(ctx, transport.HandshakeTimeout)
	defer cancel()
	return n.peers.ask(ctx, address, request)
}

// fetchMemberHint asks the node at an address for the members.
func (a *announcer) fetchMemberHint(ctx context.Context, address string) {
	asked := time.Now()
	a.node.directory.Learn(a.node.askOnce(ctx, address, membersRequest()).GetMembers(), asked)
}

// replicas yields this node's replicas of the partitions.
func (a *announcer) replicas(yield func(membership.Replica) bool) {
	for _, g := range a.node.partitions {
		if !yield(g.journal) {
			return
		}
	}
}

// knownAddresses returns the addresses where nodes of the cluster may be.
func (a *announcer) knownAddresses() []string {
	addresses := slices.Concat(a.node.directory.Book.Addresses(a.node.config.NodeID), a.node.config.Join)
	for _, g := range a.node.partitions {
		for _, m := range g.journal.Members() {
			if m.Node != a.node.config.NodeID {
				addresses = append(addresses, m.Address)
			}
		}
	}
	for _, peer := range a.node.config.Peers {
		if peer.NodeID != a.node.config.NodeID && peer.Address != "" {
			addresses = append(addresses, peer.Address)
		}
	}
	return addresses
}

// askLineages returns the lineages of the node at an address; see journal.Config. Any node of the
// cluster answers this request, also one that does not know this node as a member.
func (a *announcer) askLineages(ctx context.Context, address string) []string {
	c := a.node.config
	return a.node.acquaintance.ask(ctx, address, &clusterpb.Request{Protocol: c.protocol, Node: c.NodeID, Call: &clusterpb.Request_Join{Join: &clusterpb.JoinRequest{
		Node: c.NodeID, Address: c.address(), Partitions: uint32(c.Partitions), CheckPartitionsOnly: true, Cluster: c.ClusterID,
	}}}).GetLineages()
}

// checkLineage returns an error if the cluster has continued without this node, or the caller has
// seen another lineage than this node's. A caller that asks for the members decides itself.
func checkLineage(n *Node, request *clusterpb.Request) error {
	if err := n.Err(); errors.Is(err, journal.ErrOtherLineage) {
		return err
	}
	if request.Lineage == "" || request.GetMembers() != nil {
		return nil
	}
	return n.partitions[0].journal.CheckCaller(request.Lineage)
}

// addLineages adds the lineages of this node to a response that is to show them.
func addLineages(n *Node, request *clusterpb.Request, response *clusterpb.Response) *clusterpb.Response {
	join, introduce, first := request.GetJoin(), request.GetIntroduce(), n.partitions[0].journal
	if join != nil && join.Cluster == n.config.ClusterID || introduce != nil && introduce.Cluster == n.config.ClusterID ||
		response.GetFailure().GetCode() == wire.CodeOtherLineage {
		response.Lineages = first.LineageIDs()
	}
	if members := response.GetMembers(); members != nil && members.Lineages == nil {
		members.Lineages = first.Lineages()
	}
	return response
}

// removedFailure returns the response to every call on a removed node, nil on any other node.
func (n *Node) removedFailure() *clusterpb.Response {
	if err := n.Err(); errors.Is(err, ErrRemoved) {
		return &clusterpb.Response{Failure: toFailure(ErrRemoved)}
	}
	return nil
}
