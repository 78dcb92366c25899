package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/bulk"
	"github.com/tenuto-dev/tenuto/cluster/internal/server"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// ErrNotAuthorized means that the caller lacks the right to make the call. Nothing was done.
var ErrNotAuthorized = errors.New("tenuto: not authorized")

// A PrincipalKind says what a certificate is for, or who else a [Principal] is.
type PrincipalKind string

const (
	// PrincipalNode is a node of the cluster.
	PrincipalNode PrincipalKind = "node"
	// PrincipalClient is a program that calls the cluster with [Dial].
	PrincipalClient PrincipalKind = "client"
	// PrincipalLocal is an unauthenticated peer. Without TLS, which is allowed on loopback only,
	// every peer is one.
	PrincipalLocal PrincipalKind = "local"

	// principalUser is a user of this process, whom no certificate names; exported by package
	// operate.
	principalUser PrincipalKind = "user"
)

// A Principal is the peer of a connection, or a user of the dashboard.
type Principal struct {
	Kind PrincipalKind
	// Name is the name of the node or client in its certificate; "" with PrincipalLocal. It is the
	// user's with operate.PrincipalUser.
	Name string
}

func (p Principal) String() string {
	if p.Name == "" {
		return string(p.Kind)
	}
	return string(p.Kind) + " " + p.Name
}

func newPrincipal(of transport.Principal) Principal {
	return Principal{PrincipalKind(of.Kind), of.Name}
}

// An Action is what a remote client asks for; see Config.Authorize. Package cluster/operate has
// further ones.
type Action string

// The actions.
const (
	ActionStart        Action = "start"
	ActionSend         Action = "send"
	ActionCancel       Action = "cancel"
	ActionTerminate    Action = "terminate"
	ActionSuspend      Action = "suspend"
	ActionResume       Action = "resume"
	ActionRetry        Action = "retry"
	ActionUpdate       Action = "update"
	ActionComplete     Action = "complete" // complete or fail an activity from outside
	ActionPurge        Action = "purge"
	ActionGet          Action = "get"     // status, end, executions, pending operations
	ActionHistory      Action = "history" // also watch, and wait for an update
	ActionQuery        Action = "query"
	ActionList         Action = "list" // also count
	ActionSeeMembers   Action = "see members"
	ActionRemoveMember Action = "remove member"
	ActionAdoptMember  Action = "adopt member" // adopt its new directory
	ActionIssueToken   Action = "issue token"  // a join token
	ActionSeeTokens    Action = "see tokens"
	ActionRevokeToken  Action = "revoke token"

	ActionSeeSettings    Action = "see settings" // of the cluster
	ActionChangeSettings Action = "change settings"
)

var controlActions = map[clusterpb.ControlRequest_Kind][]Action{
	clusterpb.ControlRequest_KIND_CANCEL:    {ActionCancel},
	clusterpb.ControlRequest_KIND_TERMINATE: {ActionTerminate},
	clusterpb.ControlRequest_KIND_SUSPEND:   {ActionSuspend},
	clusterpb.ControlRequest_KIND_RESUME:    {ActionResume},
	clusterpb.ControlRequest_KIND_RETRY:     {ActionRetry},
}

// actionsOf returns the actions of a request; none if only nodes may send it.
func actionsOf(request *clusterpb.Request) []Action {
	if actions := kindOf(request).actions; actions != nil {
		return actions(request)
	}
	return nil
}

// A nodeService implements server.Node. It checks every call from the network, even if the sender
// has checked it.
type nodeService struct{ node *Node }

func (s *nodeService) Serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	check := func() error { return s.check(ctx, request) }
	if err := s.node.recoverer.Call(request, check); err != nil {
		return addLineages(s.node, request, &clusterpb.Response{Protocol: s.node.config.protocol, Failure: toFailure(err)})
	}
	return addLineages(s.node, request, s.node.dispatcher.serve(ctx, request))
}

// check returns an error if the request is not valid or the caller may not send it.
func (s *nodeService) check(ctx context.Context, request *clusterpb.Request) error {
	if request.Call == nil {
		return fmt.Errorf("%w: unknown call", ErrProtocol)
	}
	if err := firstError(checkRequest(request, s.payloadLimit()), checkPrincipal(request)); err != nil {
		return err
	}
	if int(request.Partition) > len(s.node.partitions) {
		return fmt.Errorf("%w: unknown partition %d", ErrProtocol, request.Partition-1)
	}
	caller := callerOf(ctx)
	if caller.Kind == PrincipalClient {
		request.Cut = 0
	}
	if recordsPrincipal(request) {
		statePrincipal(request, caller)
	}
	switch {
	case request.GetJoin() != nil && caller.Kind == PrincipalNode:
		return checkOwnID(caller, request.GetJoin().GetNode())
	case request.GetIntroduce() != nil && caller.Kind == PrincipalNode:
		return checkOwnID(caller, request.GetIntroduce().GetNode())
	case caller.Kind == PrincipalLocal, caller.Kind == PrincipalNode && s.node.directory.IsMember(caller.Name):
		return nil
	case caller.Kind != PrincipalClient || len(actionsOf(request)) == 0:
		s.node.config.Logger.Warn("call rejected", "caller", caller.String(), "error", "only nodes may make this call")
		return ErrNotAuthorized
	}
	return s.authorize(ctx, caller, request)
}

func (s *nodeService) authorize(ctx context.Context, caller Principal, request *clusterpb.Request) error {
	bulkAction, err := s.bulkAction(request)
	if err != nil || s.node.config.Authorize == nil {
		return err
	}
	instances := []string{request.Instance}
	if purge := request.GetPurge(); len(purge.GetInstances()) > 0 {
		instances = purge.Instances
	}
	if target := request.GetCopy().GetTarget(); target != "" {
		instances = append(instances, target)
	}
	if bulkAction != "" {
		for _, action := range []Action{bulkAction, ActionList} {
			if err := s.authorizeAction(ctx, caller, action, ""); err != nil {
				return err
			}
		}
	}
	for _, action := range actionsOf(request) {
		for _, instance := range instances {
			if err := s.authorizeAction(ctx, caller, action, instance); err != nil {
				return err
			}
		}
	}
	return nil
}

// authorizeUser returns an error if a user of this process may not do something to an instance. A
// page asks about many actions only to show which are possible, so a refusal is no warning.
func (r *router) authorizeUser(ctx context.Context, user, action, instance string) error {
	if err := checkUser(user); err != nil || r.node.config.Authorize == nil {
		return err
	}
	caller := Principal{principalUser, user}
	if err := r.node.config.Authorize(ctx, caller, Action(action), instance); err != nil {
		r.node.config.Logger.Debug("action refused", "caller", caller.String(), "action", action, "instance", instance, "error", err)
		return ErrNotAuthorized
	}
	return nil
}

func (s *nodeService) authorizeAction(ctx context.Context, caller Principal, action Action, instance string) error {
	err := s.node.config.Authorize(ctx, caller, action, instance)
	if err == nil {
		return nil
	}
	s.node.config.Logger.Warn("call rejected", "caller", caller.String(), "action", string(action), "instance", instance, "error", err)
	return ErrNotAuthorized
}

// bulkAction returns the action of the bulk job that a request starts, "" if it starts none. The
// job acts on any instance on behalf of the caller.
func (s *nodeService) bulkAction(request *clusterpb.Request) (Action, error) {
	start := request.GetStart()
	if start.GetName() != bulk.Name {
		return "", nil
	}
	var job bulk.Input
	err := s.node.registry.PayloadConverter().Decode(replay.PayloadInfo{Kind: "orchestration", Name: bulk.Name, Part: "input"}, start.Input, &job)
	if err != nil {
		return "", invalidArgument("input", "of a bulk job cannot be decoded: "+err.Error())
	}
	action, err := bulk.RightOf(job)
	return Action(action), err
}

func callerOf(ctx context.Context) Principal { return newPrincipal(transport.PeerOf(ctx)) }

// serveCalls begins to receive the calls of other nodes and of remote clients.
func serveCalls(to server.Node, mux *transport.Mux) *server.Server {
	return server.Serve(to, mux.Calls(), server.Config{IsMember: mux.IsMember, Rejection: ErrNotAuthorized, Stats: admission.StatsHandler{}})
}
