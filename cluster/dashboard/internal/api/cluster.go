package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Bounds of the wait for a leader that knows the members, and for the reports of nodes. An overview
// does without nodes that do not answer soon.
const (
	membersTimeout  = 2 * time.Second
	overviewTimeout = 250 * time.Millisecond
)

// clusterAPI serves what concerns the whole cluster: the overview, its nodes and their code.
type clusterAPI struct {
	client    *cluster.Client
	schedules scheduleChecker
}

// clusterAnswer is the cluster as its leaders and its nodes see it.
type clusterAnswer struct {
	Nodes      []*nodeView       `json:"nodes"`
	Settings   *cluster.Settings `json:"settings,omitempty"`
	JoinTokens []tokenView       `json:"join_tokens,omitempty"`

	reports []access.NodeReport
}

// nodeView is a member as its leader sees it, and what it reports of itself.
type nodeView struct {
	ID          string           `json:"id"`
	Address     string           `json:"address"`
	Voter       *bool            `json:"voter,omitempty"`       // absent: unknown
	Role        string           `json:"role,omitempty"`        // voter or standby, as the cluster has decided
	PinnedRole  string           `json:"pinned_role,omitempty"` // as an operator has set it
	Zone        string           `json:"zone,omitempty"`
	Quarantined int              `json:"quarantined,omitempty"` // replicas of instances that are not used
	Stopped     int              `json:"stopped,omitempty"`     // instances, in the partitions that it leads
	LeaderOf    []int            `json:"leader_of"`             // partitions, from 0
	Behind      *uint64          `json:"behind,omitempty"`
	Liveness    cluster.Liveness `json:"liveness,omitempty"`
	LastContact float64          `json:"last_contact_seconds"`
	// Report is false for a node that does not answer, absent for one of an earlier build.
	Report      *bool  `json:"report,omitempty"`
	ReportError string `json:"report_error,omitempty"`
	nodeReport
}

type tokenView struct {
	ID      string     `json:"id"`
	Expires *time.Time `json:"expires_at"`
	UsedBy  string     `json:"node,omitempty"`
}

// showCluster answers with the settings and join tokens, too, if the user may see them.
func (a *clusterAPI) showCluster(ctx context.Context, r *request) (*clusterAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	answer, err := a.nodes(ctx)
	if err != nil {
		return nil, err
	}
	if r.authorize(cluster.ActionSeeSettings, "") == nil {
		if settings, err := a.client.Settings(ctx); err == nil {
			answer.Settings = &settings
		}
	}
	if r.authorize(cluster.ActionSeeTokens, "") == nil {
		if tokens, err := a.client.JoinTokens(ctx); err == nil {
			for _, t := range tokens {
				answer.JoinTokens = append(answer.JoinTokens, tokenView{t.ID, timeOf(t.Expires), t.UsedBy})
			}
		}
	}
	return answer, nil
}

// cluster is showCluster for those who may see members.
func (a *clusterAPI) cluster(ctx context.Context) (*clusterAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	return a.nodes(ctx)
}

// nodes returns the members and their reports. It fails only if neither can be had before ctx ends.
func (a *clusterAPI) nodes(ctx context.Context) (*clusterAnswer, error) {
	internals, err := a.client.Internal(access.Key{})
	if err != nil {
		return nil, err
	}
	answer := &clusterAnswer{Nodes: []*nodeView{}}
	var members []cluster.Member
	var membersErr, reportsErr error
	var asking errgroup.Group
	asking.Go(func() error { members, membersErr = a.client.Members(ctx); return nil })
	asking.Go(func() error { answer.reports, reportsErr = internals.Reports(ctx); return nil })
	_ = asking.Wait()
	if membersErr != nil && reportsErr != nil {
		return nil, membersErr
	}
	for _, m := range members {
		answer.Nodes = append(answer.Nodes, memberViewOf(m))
	}
	for _, r := range answer.reports {
		at := slices.IndexFunc(answer.Nodes, func(v *nodeView) bool { return v.ID == r.Node })
		switch {
		case at >= 0:
			answer.Nodes[at].add(r)
		case membersErr != nil: // otherwise it is no longer a member
			v := &nodeView{ID: r.Node, Address: r.Address, LeaderOf: []int{}}
			v.add(r)
			answer.Nodes = append(answer.Nodes, v)
		}
	}
	slices.SortFunc(answer.Nodes, func(a, b *nodeView) int { return cmp.Compare(a.ID, b.ID) })
	return answer, nil
}

func memberViewOf(m cluster.Member) *nodeView {
	v := &nodeView{
		ID: m.NodeID, Address: m.Address, Voter: &m.Voter, LeaderOf: m.LeadsPartitions, Liveness: m.Liveness,
		Role: m.Role, PinnedRole: m.PinnedRole, Zone: m.Zone, Quarantined: m.Quarantined, Stopped: m.Stopped,
	}
	if m.BehindKnown {
		v.Behind = &m.Behind
	}
	switch {
	case m.Leader && v.LeaderOf == nil:
		v.LeaderOf = []int{0}
	case v.LeaderOf == nil:
		v.LeaderOf = []int{}
	}
	// A page that follows the cluster is sent what has changed: a time that always grows has not.
	if m.Liveness != cluster.MemberAlive {
		v.LastContact = m.LastContact.Round(time.Second).Seconds()
	}
	return v
}

// add adds the report of the node, or why there is none.
func (v *nodeView) add(r access.NodeReport) {
	has := r.Report != nil
	switch {
	case has:
		v.Report, v.nodeReport = &has, nodeReportOf(r.Report)
		if v.Liveness == "" {
			v.Liveness = cluster.MemberAlive
		}
	case errors.Is(r.Err, cluster.ErrProtocol):
		v.ReportError = "the node runs an earlier build"
	default:
		v.Report, v.ReportError = &has, r.Err.Error()
	}
}

// transferBody is the body of a transfer of leadership.
type transferBody struct {
	To     string `json:"to"` // "": the node that is least behind
	Reason string `json:"reason"`
}

// transferPartition transfers the leadership of one partition.
func (a *clusterAPI) transferPartition(ctx context.Context, r *request, body *transferBody) (*accepted, error) {
	number, err := strconv.Atoi(r.PathValue("partition"))
	if err != nil || number < 0 {
		return nil, &replay.InvalidError{Field: "partition", Reason: "must be a number from 0"}
	}
	members, err := a.client.Members(ctx)
	if err != nil {
		return nil, err
	}
	leader := slices.IndexFunc(members, func(m cluster.Member) bool { return slices.Contains(memberViewOf(m).LeaderOf, number) })
	if leader < 0 {
		return nil, &replay.InvalidError{Field: "partition", Reason: "has no leader, or does not exist"}
	}
	if members[leader].NodeID == body.To {
		return &accepted{}, nil
	}
	request := &clusterpb.Request{Partition: uint32(number + 1), Call: &clusterpb.Request_TransferLeadership{
		TransferLeadership: &clusterpb.TransferLeadershipRequest{From: members[leader].NodeID, To: body.To},
	}}
	internals, err := a.client.Internal(access.Key{})
	if err != nil {
		return nil, err
	}
	if err := internals.Check(request); err != nil {
		return nil, err
	}
	return &accepted{}, r.logged(ctx, operate.ActionTransfer, body.Reason, func(ctx context.Context) error {
		_, err := internals.Call(ctx, request)
		return err
	}, "partition", number, "from", members[leader].NodeID, "to", body.To)
}

// drainBody is the body of a drain.
type drainBody struct {
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run"` // only answer with what would be moved
}

// drainAnswer is what a drain has moved, or would move.
type drainAnswer struct {
	Moved []movedPartition `json:"moved"`
}

type movedPartition struct {
	Partition int    `json:"partition"`
	To        string `json:"to"`
}

// drainNode moves the leadership of all partitions that a node leads.
func (a *clusterAPI) drainNode(ctx context.Context, r *request, body *drainBody) (*drainAnswer, error) {
	node := r.PathValue("id")
	var moved []operate.Transfer
	var err error
	if body.DryRun {
		moved, err = operate.PlanDrain(ctx, a.client, node)
	} else {
		err = r.logged(ctx, operate.ActionTransfer, body.Reason, func(ctx context.Context) (err error) {
			moved, err = operate.Drain(ctx, a.client, node)
			return err
		}, "drained", node)
	}
	answer := &drainAnswer{Moved: []movedPartition{}}
	for _, m := range moved {
		answer.Moved = append(answer.Moved, movedPartition(m))
	}
	return answer, err
}
