package cluster

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/telemetry"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A requestKind is how the cluster treats one kind of request: who may send it, what a correct one
// contains, and who answers it.
type requestKind struct {
	// actions returns what a remote client needs the right to do. If it is nil or returns none,
	// only nodes may send the request.
	actions func(*clusterpb.Request) []Action
	// ofInstance says that the request names one instance, whose ID is checked.
	ofInstance bool
	// check returns an error for a request that no correct client sends.
	check func(r *clusterpb.Request, most payloadLimit) error

	// serve answers on the leader of the partition; with anyRole, on every node.
	serve   partitionCall
	anyRole bool
	// read answers from a replica: the leader's after a barrier, or any node's if the request is
	// stale.
	read partitionCall
	// local answers on any node that has applied what the caller has seen; with leaderFirst, only
	// if the request is stale or no other node leads.
	local       func(*replicaCalls, context.Context, *clusterpb.Request) (*clusterpb.Response, error)
	leaderFirst bool
	// readOnly says that serve changes nothing.
	readOnly bool
	// fanOut answers for all partitions. Without it a request concerns one partition.
	fanOut func(*scatterGather, context.Context, *clusterpb.Request) (*clusterpb.Response, error)
}

// A partitionCall answers a request for a partition. p is nil where this node does not lead.
type partitionCall func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error)

// isRead reports whether a request of that kind changes nothing.
func (k requestKind) isRead() bool { return k.read != nil || k.readOnly }

// requestTable has a row for each case of the oneof in clusterpb.Request. It is assigned in init,
// because functions in its rows use it.
var requestTable map[reflect.Type]requestKind

func init() {
	requestTable = make(map[reflect.Type]requestKind)
	for _, rows := range []map[reflect.Type]requestKind{inputKinds(), readKinds(), managementKinds(), roleKinds(), protocolKinds(), workerKinds(), backupKinds(), nodeKinds(), verificationKinds()} {
		maps.Copy(requestTable, rows)
	}
}

// kindOf returns the kind of a request; the zero value if this build does not know it.
func kindOf(request *clusterpb.Request) requestKind {
	return requestTable[reflect.TypeOf(request.Call)]
}

// inputKinds are the requests that change an instance.
func inputKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_Start](): {
			actions: func(r *clusterpb.Request) []Action {
				actions := []Action{ActionStart}
				if r.GetStart().GetSend() != nil {
					actions = append(actions, ActionSend)
				}
				if r.GetStart().GetBeginWith() != nil {
					actions = append(actions, ActionUpdate)
				}
				if r.GetStart().GetReuse() == clusterpb.ReusePolicy_REUSE_POLICY_TERMINATE {
					actions = append(actions, ActionTerminate)
				}
				return actions
			},
			ofInstance: true,
			check: func(r *clusterpb.Request, most payloadLimit) error {
				start := r.GetStart()
				return firstError(checkStart(start), most.check("input", start.GetInput()), most.check("data", start.GetSend().GetData()),
					most.check("input of the update", start.GetBeginWith().GetInput()))
			},
			serve: confirmed(func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.inputs.Start(ctx, p, r, r.GetStart())
			}),
		},
		reflect.TypeFor[*clusterpb.Request_Send](): {
			actions:    needs(ActionSend),
			ofInstance: true,
			check: func(r *clusterpb.Request, most payloadLimit) error {
				return firstError(checkSend(r.GetSend()), most.check("data", r.GetSend().GetData()))
			},
			serve: confirmed(func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.inputs.Send(ctx, p, r, r.GetSend())
			}),
		},
		reflect.TypeFor[*clusterpb.Request_Control](): {
			actions:    func(r *clusterpb.Request) []Action { return controlActions[r.GetControl().GetKind()] },
			ofInstance: true,
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				control := r.GetControl()
				return firstError(checkText("reason", control.GetReason(), 0, reasonMax), actors.CheckRequestID(control.GetRequestId()))
			},
			serve: confirmed(func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.inputs.Control(ctx, p, r, r.GetControl())
			}),
		},
		reflect.TypeFor[*clusterpb.Request_Update](): {
			actions:    needs(ActionUpdate),
			ofInstance: true,
			check: func(r *clusterpb.Request, most payloadLimit) error {
				return firstError(checkUpdate(r.GetUpdate()), most.check("input", r.GetUpdate().GetInput()))
			},
			serve: func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.inputs.Update(ctx, p, r, r.GetUpdate())
			},
		},
		reflect.TypeFor[*clusterpb.Request_Complete](): {
			actions:    needs(ActionComplete),
			ofInstance: true,
			check: func(r *clusterpb.Request, most payloadLimit) error {
				return firstError(most.checkSize("failure", proto.Size(r.GetComplete().GetError())), most.check("result", r.GetComplete().GetResult()),
					checkSignedToken(r.GetComplete()))
			},
			serve: func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.inputs.Complete(ctx, p, r, r.GetComplete())
			},
		},
		reflect.TypeFor[*clusterpb.Request_Operate](): {
			actions:    func(r *clusterpb.Request) []Action { return operateActions[r.GetOperate().GetKind()] },
			ofInstance: true,
			check:      func(r *clusterpb.Request, most payloadLimit) error { return checkOperate(r.GetOperate(), most) },
			serve: confirmed(func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.inputs.Operate(ctx, p, r, r.GetOperate())
			}),
		},
		reflect.TypeFor[*clusterpb.Request_Copy](): {
			actions:    func(r *clusterpb.Request) []Action { return copyActions[r.GetCopy().GetKind()] },
			ofInstance: true,
			check:      func(r *clusterpb.Request, most payloadLimit) error { return checkCopy(r.GetCopy(), most) },
			serve: confirmed(func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.inputs.Copy(ctx, p, r, r.GetCopy())
			}),
		},
		reflect.TypeFor[*clusterpb.Request_Purge](): {
			actions: needs(ActionPurge),
			check:   func(r *clusterpb.Request, _ payloadLimit) error { return checkPurge(r.GetPurge()) },
			serve: func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.purge(ctx, p, r, r.GetPurge())
			},
			fanOut: (*scatterGather).fanOutPurge,
		},
	}
}

// readKinds are the requests that change nothing.
func readKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_Get](): {
			actions:    needs(ActionGet),
			ofInstance: true,
			read: func(_ context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.reads.Get(p, r.Instance)
			},
		},
		reflect.TypeFor[*clusterpb.Request_Executions](): {
			actions:    needs(ActionGet),
			ofInstance: true,
			read: func(_ context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.reads.Executions(r.Instance)
			},
		},
		reflect.TypeFor[*clusterpb.Request_Pending](): {
			readOnly:   true,
			actions:    needs(ActionGet),
			ofInstance: true,
			serve: func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.reads.Pending(ctx, p, r.Instance)
			},
		},
		reflect.TypeFor[*clusterpb.Request_History](): {
			actions:    needs(ActionHistory),
			ofInstance: true,
			read: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.reads.History(ctx, r.Instance, r.GetHistory())
			},
		},
		reflect.TypeFor[*clusterpb.Request_Query](): {
			readOnly:   true,
			actions:    needs(ActionQuery),
			ofInstance: true,
			check: func(r *clusterpb.Request, most payloadLimit) error {
				return firstError(checkName("query name", r.GetQuery().GetName()), most.check("input", r.GetQuery().GetInput()))
			},
			serve: func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.reads.Query(ctx, p, r.Instance, r.GetQuery())
			},
		},
		reflect.TypeFor[*clusterpb.Request_Values](): {
			actions:    needs(ActionGet),
			ofInstance: true,
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkName("name of the key-value map", r.GetValues().GetMap())
			},
			read: func(_ context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.reads.Values(r.Instance, r.GetValues())
			},
		},
		reflect.TypeFor[*clusterpb.Request_List](): {
			actions: needs(ActionList),
			check:   func(r *clusterpb.Request, _ payloadLimit) error { return checkListRequest(r.GetList()) },
			read: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.reads.List(ctx, r.GetList())
			},
			fanOut: (*scatterGather).fanOutList,
		},
		reflect.TypeFor[*clusterpb.Request_Wait](): {
			actions:    needs(ActionGet),
			ofInstance: true,
			local:      (*replicaCalls).pollWait,
		},
		reflect.TypeFor[*clusterpb.Request_Watch](): {
			actions:    needs(ActionHistory),
			ofInstance: true,
			local:      (*replicaCalls).pollWatch,
		},
	}
}

// workerKinds are the requests about workers that are no nodes.
func workerKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_CheckWorker](): {
			readOnly: true,
			actions:  needs(actionRunActivities),
			anyRole:  true,
			serve: func(_ context.Context, pa *partition, _ *actors.Partition, _ *clusterpb.Request) (*clusterpb.Response, error) {
				result := &clusterpb.CheckWorkerResult{CompletionUrl: strings.TrimRight(pa.node.config.CompletionURL, "/")}
				return &clusterpb.Response{Result: &clusterpb.Response_CheckWorker{CheckWorker: result}}, nil
			},
		},
		reflect.TypeFor[*clusterpb.Request_SignToken](): {
			readOnly:   true,
			actions:    needs(actionRunActivities),
			ofInstance: true,
			serve:      signTokenOfWorker,
		},
		reflect.TypeFor[*clusterpb.Request_ListWorkers](): {
			readOnly: true,
			actions:  needs(ActionSeeMembers),
			serve:    listWorkers,
			fanOut:   (*scatterGather).fanOutWorkers,
		},
	}
}

// managementKinds are the requests about members, tokens and settings. Those that concern members
// go to the first partition first, and the others then follow it.
func managementKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_Members](): {
			actions:     needs(ActionSeeMembers),
			local:       (*replicaCalls).knownMembers,
			leaderFirst: true,
			read: func(_ context.Context, pa *partition, _ *actors.Partition, _ *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.membersResponse(), nil // this node became leader during the call
			},
			fanOut: (*scatterGather).fanOutMembers,
		},
		reflect.TypeFor[*clusterpb.Request_NodeReport](): {
			readOnly: true,
			actions:  needs(ActionSeeMembers),
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkText("node ID", r.GetNodeReport().GetNode(), 1, nodeIDMax)
			},
			local: (*replicaCalls).reportNode,
		},
		reflect.TypeFor[*clusterpb.Request_RemoveMember](): {
			actions: needs(ActionRemoveMember),
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkText("node ID", r.GetRemoveMember().GetNode(), 1, nodeIDMax)
			},
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.removeMember(ctx, r.GetRemoveMember())
			},
			fanOut: (*scatterGather).fanOutInOrder,
		},
		reflect.TypeFor[*clusterpb.Request_AdoptMember](): {
			actions: needs(ActionAdoptMember),
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkText("node ID", r.GetAdoptMember().GetNode(), 1, nodeIDMax)
			},
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.adoptMember(ctx, r.GetAdoptMember())
			},
			fanOut: (*scatterGather).fanOutInOrder,
		},
		reflect.TypeFor[*clusterpb.Request_IssueToken](): {
			actions: needs(ActionIssueToken),
			check:   func(r *clusterpb.Request, _ payloadLimit) error { return checkIssueToken(r.GetIssueToken()) },
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.issueToken(ctx, r.GetIssueToken())
			},
		},
		reflect.TypeFor[*clusterpb.Request_ListTokens](): {
			actions: needs(ActionSeeTokens),
			read: func(_ context.Context, pa *partition, _ *actors.Partition, _ *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.listTokens(), nil
			},
		},
		reflect.TypeFor[*clusterpb.Request_RevokeToken](): {
			actions: needs(ActionRevokeToken),
			check:   func(r *clusterpb.Request, _ payloadLimit) error { return checkTokenKey(r.GetRevokeToken().GetKey()) },
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.revokeToken(ctx, r, r.GetRevokeToken())
			},
		},
		reflect.TypeFor[*clusterpb.Request_GetSettings](): {
			readOnly: true,
			actions:  needs(ActionSeeSettings),
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, _ *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.getSettings(ctx)
			},
		},
		reflect.TypeFor[*clusterpb.Request_PauseActivity](): {
			actions: func(r *clusterpb.Request) []Action {
				if r.GetPauseActivity().GetResume() {
					return []Action{"resume activity"}
				}
				return []Action{"pause activity"}
			},
			check: func(r *clusterpb.Request, _ payloadLimit) error { return checkPauseActivity(r.GetPauseActivity()) },
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.pauseActivity(ctx, r, r.GetPauseActivity())
			},
		},
		reflect.TypeFor[*clusterpb.Request_ChangeSettings](): {
			actions: needs(ActionChangeSettings),
			check:   func(r *clusterpb.Request, _ payloadLimit) error { return checkChangeSettings(r.GetChangeSettings()) },
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.changeSettings(ctx, r, r.GetChangeSettings())
			},
		},
	}
}

// roleKinds are the requests that change which members lead and vote.
func roleKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_TransferLeadership](): {
			actions: needs("transfer leadership"),
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkTransferLeadership(r.GetTransferLeadership())
			},
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.transferLeadership(ctx, r, r.GetTransferLeadership())
			},
			fanOut: (*scatterGather).fanOutInOrder,
		},
		reflect.TypeFor[*clusterpb.Request_SetRole](): {
			actions: needs("set role"),
			check:   func(r *clusterpb.Request, _ payloadLimit) error { return checkSetRole(r.GetSetRole()) },
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.setRole(ctx, r, r.GetSetRole())
			},
		},
	}
}

// protocolKinds are the requests about the protocol of the cluster.
func protocolKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_Protocols](): {
			readOnly: true,
			actions:  needs(ActionSeeMembers),
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, _ *clusterpb.Request) (*clusterpb.Response, error) {
				return protocolKeeper{pa}.showProtocols(ctx)
			},
		},
		reflect.TypeFor[*clusterpb.Request_Finalize](): {
			actions: needs("finalize"),
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkText("reason", r.GetFinalize().GetReason(), 0, reasonMax)
			},
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return protocolKeeper{pa}.finalize(ctx, r)
			},
		},
	}
}

// backupKinds are the requests of a backup, for the node that they name.
func backupKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_BeginBackup](): {
			readOnly: true,
			actions:  needs("back up"),
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkText("node ID", r.GetBeginBackup().GetNode(), 1, nodeIDMax)
			},
			local: (*replicaCalls).beginBackup,
		},
		reflect.TypeFor[*clusterpb.Request_ReadBackup](): {
			readOnly: true,
			actions:  needs("back up"),
			check:    func(r *clusterpb.Request, _ payloadLimit) error { return checkReadBackup(r.GetReadBackup()) },
			local:    (*replicaCalls).readBackup,
		},
		reflect.TypeFor[*clusterpb.Request_EndBackup](): {
			readOnly: true,
			actions:  needs("back up"),
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return checkText("node ID", r.GetEndBackup().GetNode(), 1, nodeIDMax)
			},
			local: (*replicaCalls).endBackup,
		},
	}
}

// verificationKinds are the requests that compare, repair and prove what replicas have.
func verificationKinds() map[reflect.Type]requestKind {
	ofView := requestKind{anyRole: true, readOnly: true, serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
		return serveView(ctx, pa, r)
	}}
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_View]():          ofView,
		reflect.TypeFor[*clusterpb.Request_Compare]():       ofView,
		reflect.TypeFor[*clusterpb.Request_CompareEvents](): ofView,
		reflect.TypeFor[*clusterpb.Request_ReadView]():      ofView,
		reflect.TypeFor[*clusterpb.Request_Repair]():        ofView,
		reflect.TypeFor[*clusterpb.Request_EndView]():       ofView,
		reflect.TypeFor[*clusterpb.Request_Verify](): {
			readOnly: true,
			actions:  needs("verify"),
			serve: func(_ context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return verifyReplicas(pa, r.GetVerify())
			},
		},
		reflect.TypeFor[*clusterpb.Request_AcceptReplica](): {
			actions:    needs("accept replica"),
			ofInstance: true,
			check: func(r *clusterpb.Request, _ payloadLimit) error {
				return firstError(checkText("node ID", r.GetAcceptReplica().GetNode(), 1, nodeIDMax), checkText("reason", r.Reason, 0, reasonMax))
			},
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return acceptReplica(ctx, pa, r)
			},
		},
		reflect.TypeFor[*clusterpb.Request_Prove](): {
			actions:    needs(ActionHistory),
			ofInstance: true,
			read: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return prove(ctx, pa, r)
			},
		},
		reflect.TypeFor[*clusterpb.Request_SigningKey](): {
			readOnly: true,
			actions:  needs(ActionHistory),
			local:    (*replicaCalls).signingKey,
		},
	}
}

// nodeKinds are the requests that only nodes may send. Batches of starts come over their own
// stream.
func nodeKinds() map[reflect.Type]requestKind {
	return map[reflect.Type]requestKind{
		reflect.TypeFor[*clusterpb.Request_Join](): {
			anyRole: true,
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.members.handleJoin(ctx, r.Protocol, r.GetJoin())
			},
		},
		reflect.TypeFor[*clusterpb.Request_CrossMessages](): {
			serve: func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				return pa.receiveCrossMessages(ctx, p, r.GetCrossMessages())
			},
		},
		reflect.TypeFor[*clusterpb.Request_RecordCut](): {
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				if err := pa.journal.RecordCut(ctx, r.GetRecordCut().Cut); err != nil {
					return nil, err
				}
				return &clusterpb.Response{Result: &clusterpb.Response_RecordCut{RecordCut: new(clusterpb.CutRecorded)}}, nil
			},
		},
		reflect.TypeFor[*clusterpb.Request_RecordBackup](): {
			check: func(r *clusterpb.Request, _ payloadLimit) error { return checkRecordBackup(r) },
			serve: func(ctx context.Context, pa *partition, _ *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
				if err := pa.journal.RecordBackup(ctx, r.GetRecordBackup().Outcome); err != nil {
					return nil, err
				}
				return &clusterpb.Response{Result: &clusterpb.Response_RecordBackup{RecordBackup: new(clusterpb.BackupRecorded)}}, nil
			},
		},
		reflect.TypeFor[*clusterpb.Request_CommitIndex](): {
			read: func(context.Context, *partition, *actors.Partition, *clusterpb.Request) (*clusterpb.Response, error) {
				return &clusterpb.Response{Result: &clusterpb.Response_CommitIndex{CommitIndex: new(clusterpb.CommitIndexResult)}}, nil
			},
		},
		reflect.TypeFor[*clusterpb.Request_OfferLeadership](): {
			local: (*replicaCalls).acceptLeadership,
		},
		reflect.TypeFor[*clusterpb.Request_Introduce](): {
			check: func(r *clusterpb.Request, _ payloadLimit) error { return checkIntroduce(r.GetIntroduce()) },
			local: (*replicaCalls).introduce,
		},
		reflect.TypeFor[*clusterpb.Request_StartBatch](): {},
	}
}

// needs returns the actions of a kind that always needs the same ones.
func needs(actions ...Action) func(*clusterpb.Request) []Action {
	return func(*clusterpb.Request) []Action { return actions }
}

// confirmed returns a call whose rejections are confirmed; see instances.Inputs.ConfirmRejection.
func confirmed(call partitionCall) partitionCall {
	return func(ctx context.Context, pa *partition, p *actors.Partition, r *clusterpb.Request) (*clusterpb.Response, error) {
		response, err := call(ctx, pa, p, r)
		return response, pa.inputs.ConfirmRejection(ctx, p, err)
	}
}

// checkRequest returns an error for a request that no correct client sends.
func checkRequest(request *clusterpb.Request, most payloadLimit) error {
	kind := kindOf(request)
	switch {
	case kind.ofInstance:
		if err := checkID(request.Instance); err != nil {
			return err
		}
	case request.Instance != "" && kind.actions != nil: // Authorize must not see an ID for it
		return invalidArgument("instance ID", "is set in a request that concerns no single instance")
	}
	if kind.check == nil {
		return nil
	}
	return kind.check(request, most)
}

// nameMax bounds names, in bytes, as package replay does.
const nameMax = 128

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkText returns an error if text is too short, too long, or not UTF-8.
func checkText(field, text string, least, most int) error {
	return engine.CheckText(field, text, least, most)
}

// checkName returns an error if a user may not choose that name.
func checkName(field, name string) error { return engine.CheckCallName(field, name) }

func checkStart(r *clusterpb.StartRequest) error {
	err := firstError(
		checkName("name", r.Name),
		actors.CheckVersion(r.Version),
		actors.CheckRequestID(r.RequestId),
		checkText("trace", r.Trace, 0, telemetry.TraceMax),
		actors.CheckTags(r.Tags),
		engine.CheckHeaders(r.Headers),
		engine.CheckRetry(r.Retry),
		engine.CheckSummary(r.Summary),
	)
	if err == nil && r.Reuse == clusterpb.ReusePolicy_REUSE_POLICY_TERMINATE {
		err = actors.CheckReuse(actors.ReuseTerminating, r.Attach || r.Send != nil)
	}
	if err == nil && r.Send != nil {
		err = checkSend(r.Send)
	}
	if err == nil && r.BeginWith != nil {
		err = checkUpdate(r.BeginWith)
	}
	return err
}

func checkSend(r *clusterpb.SendRequest) error {
	return firstError(checkName("event name", r.Name), actors.CheckRequestID(r.RequestId), engine.CheckHeaders(r.Headers))
}

// contentTypeMax bounds the content type that a codec gives its payloads, in bytes.
const contentTypeMax = 128

// A payloadLimit bounds a received payload, in bytes.
type payloadLimit int

// payloadLimit returns the present limit. A codec may enlarge a value by up to a third plus
// codecOverhead.
func (s *nodeService) payloadLimit() payloadLimit {
	most := s.node.settings.payloadMax()
	if s.node.registry.PayloadConverter().Codec != nil {
		most += most/3 + codecOverhead
	}
	return payloadLimit(most)
}

// codecOverhead is what a codec may add to each payload, such as the name of a key.
const codecOverhead = 4 << 10

// check returns an error if a payload is larger than a correct client sends.
func (most payloadLimit) check(field string, payload *journalpb.Payload) error {
	return firstError(most.checkSize(field, len(payload.GetData())),
		checkText("content type of "+field, payload.GetContentType(), 0, contentTypeMax))
}

func (most payloadLimit) checkSize(field string, size int) error {
	if size > int(most) {
		return &sizeError{
			invalid: &replay.InvalidError{Field: field, Reason: fmt.Sprintf("has %d bytes: at most %d are allowed", size, most)},
			large:   &replay.PayloadTooLargeError{Bytes: size, Max: int(most)},
		}
	}
	return nil
}

// checkSignedToken returns an error for a completion that names its attempt in two ways, or whose
// signed token is too long.
func checkSignedToken(r *clusterpb.CompleteRequest) error {
	if r.SignedToken != "" && (r.Execution != 0 || r.EventId != 0 || r.Attempt != 0 || r.Incarnation != 0) {
		return invalidArgument("signed token", "is set together with an attempt")
	}
	return checkText("signed token", r.SignedToken, 0, engine.SignedTokenMax)
}

func checkUpdate(r *clusterpb.UpdateRequest) error {
	return firstError(checkName("update name", r.Name), actors.CheckRequestID(r.RequestId), engine.CheckHeaders(r.Headers))
}

func checkListRequest(r *clusterpb.ListRequest) error {
	if r.Limit > listMax {
		return invalidArgument("limit", fmt.Sprintf("is %d: 0 to %d are allowed", r.Limit, listMax))
	}
	err := firstError(
		checkText("after", r.After, 0, filterTextMax),
		checkText("filter by name", r.Name, 0, filterTextMax),
		checkText("filter by version", r.Version, 0, filterTextMax),
		checkText("filter by ID prefix", r.IdPrefix, 0, filterTextMax),
		checkText("filter by parent", r.Parent, 0, filterTextMax),
		checkText("filter by error code", r.ErrorCode, 0, filterTextMax),
		checkText("order", r.Order, 0, filterTextMax),
		checkText("filter by kind of operation", r.Waiting.GetKind(), 0, filterTextMax),
		checkText("filter by name of operation", r.Waiting.GetName(), 0, filterTextMax),
		checkText("filter by code of the last failure", r.Failing.GetErrorCode(), 0, filterTextMax),
		actors.CheckTags(r.Tags),
		checkAttributes(r.Attributes),
	)
	if err != nil {
		return err
	}
	if len(r.States) > statesMax {
		return invalidArgument("filter by state", fmt.Sprintf("names %d states: at most %d are allowed", len(r.States), statesMax))
	}
	for _, state := range r.States {
		if err := checkText("filter by state", state, 0, filterTextMax); err != nil {
			return err
		}
	}
	for _, dimension := range r.GroupBy {
		if err := checkText("dimension", dimension, 1, filterTextMax); err != nil {
			return err
		}
	}
	_, err = instances.QueryOf(r)
	if err == nil {
		_, err = instances.GroupingsOf(r.GroupBy)
	}
	return err
}

// statesMax bounds the states of a filter. There are fewer, but a caller may repeat some.
const statesMax = 64

// checkAttributes returns an error for attributes that no instance can have.
func checkAttributes(attributes map[string]string) error {
	if len(attributes) > engine.AttributesMax {
		return invalidArgument("filter by attributes", fmt.Sprintf("has %d: at most %d are allowed", len(attributes), engine.AttributesMax))
	}
	for name, text := range attributes {
		if err := firstError(checkName("attribute", name), checkText(fmt.Sprintf("attribute %q", name), text, 0, filterTextMax)); err != nil {
			return err
		}
	}
	return nil
}

func checkPurge(r *clusterpb.PurgeRequest) error {
	ids := r.GetInstances()
	if n := len(r.GetIncarnations()); n > 0 && n != len(ids) {
		return invalidArgument("incarnations", fmt.Sprintf("are %d of %d instances", n, len(ids)))
	}
	if len(ids) > listMax {
		return invalidArgument("IDs", fmt.Sprintf("are %d: at most %d are allowed", len(ids), listMax))
	}
	for _, id := range ids {
		if err := checkID(id); err != nil {
			return err
		}
	}
	return nil
}
