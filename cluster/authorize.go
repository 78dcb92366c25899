package cluster

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/peer"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// ErrNotAuthorized: the caller may not do that. Nothing was done.
var ErrNotAuthorized = errors.New("tenuto: the caller may not do that")

// An Action is what a remote client asks for; see Config.Authorize.
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
	ActionComplete     Action = "complete" // an activity, from outside, or fail it
	ActionPurge        Action = "purge"
	ActionGet          Action = "get"     // the state, the end, the executions, what is pending
	ActionHistory      Action = "history" // and watch, and wait for an update
	ActionQuery        Action = "query"
	ActionList         Action = "list"        // and count
	ActionSeeMembers   Action = "see members" // of the cluster
	ActionRemoveMember Action = "remove member"
	ActionAdoptMember  Action = "adopt member" // the new directory of one
	ActionIssueToken   Action = "issue token"  // with which a node may join
	ActionSeeTokens    Action = "see tokens"
	ActionRevokeToken  Action = "revoke token"
)

var signalActions = map[clusterpb.SignalRequest_Kind]Action{
	clusterpb.SignalRequest_KIND_CANCEL:    ActionCancel,
	clusterpb.SignalRequest_KIND_TERMINATE: ActionTerminate,
	clusterpb.SignalRequest_KIND_SUSPEND:   ActionSuspend,
	clusterpb.SignalRequest_KIND_RESUME:    ActionResume,
	clusterpb.SignalRequest_KIND_RETRY:     ActionRetry,
}

// actionsOf returns all that a request asks for; see actionOf.
func actionsOf(request *clusterpb.Request) []Action {
	if request.GetStart().GetSend() != nil {
		return []Action{ActionStart, ActionSend}
	}
	return []Action{actionOf(request)}
}

// actionOf returns what a request asks for, "" for what is between nodes alone.
func actionOf(request *clusterpb.Request) Action {
	switch call := request.Call.(type) {
	case *clusterpb.Request_Start:
		return ActionStart
	case *clusterpb.Request_Send:
		return ActionSend
	case *clusterpb.Request_Signal:
		return signalActions[call.Signal.GetKind()]
	case *clusterpb.Request_Update:
		return ActionUpdate
	case *clusterpb.Request_Complete:
		return ActionComplete
	case *clusterpb.Request_Purge:
		return ActionPurge
	case *clusterpb.Request_Get, *clusterpb.Request_Executions, *clusterpb.Request_Pending, *clusterpb.Request_Wait:
		return ActionGet
	case *clusterpb.Request_History, *clusterpb.Request_Watch:
		return ActionHistory
	case *clusterpb.Request_Members:
		return ActionSeeMembers
	case *clusterpb.Request_RemoveMember:
		return ActionRemoveMember
	case *clusterpb.Request_AdoptMember:
		return ActionAdoptMember
	case *clusterpb.Request_IssueToken:
		return ActionIssueToken
	case *clusterpb.Request_ListTokens:
		return ActionSeeTokens
	case *clusterpb.Request_RevokeToken:
		return ActionRevokeToken
	case *clusterpb.Request_Query:
		return ActionQuery
	case *clusterpb.Request_List:
		return ActionList
	}
	return ""
}

// A gate stands between the network and the node: what comes from other nodes
// and from clients is checked here, whatever they may have checked themselves.
type gate struct{ node *Node }

// serve implements caller.
func (g *gate) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	check := func() error { return g.check(ctx, request) }
	if err := g.node.recovered(request, check); err != nil {
		return &clusterpb.Response{Protocol: g.node.config.protocol, Failure: failure(err)}
	}
	return g.node.serve(ctx, request)
}

// Kinds of requests that no remote client may send come with an action of "".
func (g *gate) check(ctx context.Context, request *clusterpb.Request) error {
	if request.Call == nil {
		return fmt.Errorf("%w: a call that this node does not know", ErrProtocol)
	}
	if err := firstError(checkRequest(request), g.node.checkPayloads(request)); err != nil {
		return err
	}
	if int(request.Group) > len(g.node.groups) {
		return fmt.Errorf("%w: a group that this node does not know", ErrProtocol)
	}
	caller := callerOf(ctx)
	switch {
	case request.GetEnrol() != nil && caller.Role == RoleNode:
		return checkEnrol(caller, request.GetEnrol())
	case caller.Role == RoleLocal, caller.Role == RoleNode && g.node.isMember(caller.Name):
		return nil
	case caller.Role != RoleClient || actionOf(request) == "":
		g.node.config.Logger.Warn("call refused", "caller", caller.String(), "error", "it is between nodes")
		return ErrNotAuthorized
	}
	return g.authorize(ctx, caller, request)
}

// authorize asks Config.Authorize.
func (g *gate) authorize(ctx context.Context, caller Principal, request *clusterpb.Request) error {
	if g.node.config.Authorize == nil {
		return nil
	}
	instances := []string{request.Instance}
	if purge := request.GetPurge(); len(purge.GetInstances()) > 0 {
		instances = purge.Instances
	}
	for _, action := range actionsOf(request) {
		for _, instance := range instances {
			if err := g.node.config.Authorize(ctx, caller, action, instance); err != nil {
				g.node.config.Logger.Warn("call refused", "caller", caller.String(), "action", string(action), "instance", instance, "error", err)
				return ErrNotAuthorized
			}
		}
	}
	return nil
}

// callerOf returns who has sent what a gRPC server has received.
func callerOf(ctx context.Context) Principal {
	if sender, ok := peer.FromContext(ctx); ok {
		if info, ok := sender.AuthInfo.(linkInfo); ok {
			return info.peer
		}
	}
	return Principal{}
}
