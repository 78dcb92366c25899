package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A countdownContext ends after it was observed a given number of times, by any goroutine. So a
// test can end a call at each of its points.
type countdownContext struct {
	context.Context
	remaining atomic.Int64
	ended     chan struct{}
	endOnce   sync.Once
}

func newCountdownContext(ctx context.Context, observations int) *countdownContext {
	c := &countdownContext{Context: ctx, ended: make(chan struct{})}
	c.remaining.Store(int64(observations))
	context.AfterFunc(ctx, c.finish)
	return c
}

func (c *countdownContext) finish() { c.endOnce.Do(func() { close(c.ended) }) }

func (c *countdownContext) observe() {
	if c.remaining.Add(-1) < 0 {
		c.finish()
	}
}

func (c *countdownContext) Done() <-chan struct{} {
	c.observe()
	return c.ended
}

func (c *countdownContext) Err() error {
	c.observe()
	select {
	case <-c.ended:
		return context.DeadlineExceeded
	default:
		return c.Context.Err()
	}
}

func (c *countdownContext) hasEnded() bool { return c.remaining.Load() < 0 }

// withLocalPrincipal makes requests come from a caller with all rights.
func withLocalPrincipal(ctx context.Context) context.Context {
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: transport.AuthInfo{Peer: transport.Principal{Kind: transport.KindLocal}}})
}

// requestsByKind returns valid requests by the name of their kind, for the running instance
// "running" and the ended one "ended".
func requestsByKind() map[string][]*clusterpb.Request {
	payload := func(text string) *journalpb.Payload {
		return &journalpb.Payload{Data: []byte(text)}
	}
	running := func(r *clusterpb.Request) *clusterpb.Request { r.Instance = "running"; return r }
	ended := func(r *clusterpb.Request) *clusterpb.Request { r.Instance = "ended"; return r }
	again := func(r *clusterpb.Request) *clusterpb.Request { r.Retried, r.FirstIndex = true, new(uint64); return r }
	stale := func(r *clusterpb.Request) *clusterpb.Request { r.Stale = true; return r }
	start := func() *clusterpb.StartRequest {
		return &clusterpb.StartRequest{Name: "waiter", Input: payload(`"x"`), RequestId: "s", Attach: true}
	}
	withEvent := start()
	withEvent.Send = &clusterpb.SendRequest{Name: "other", Data: payload(`1`), RequestId: "s"}
	withUpdate := start()
	withUpdate.Update, withUpdate.BeginWith = true, &clusterpb.UpdateRequest{Name: "raise", Input: payload(`1`)}
	controls := func(r func(*clusterpb.Request) *clusterpb.Request, kinds ...clusterpb.ControlRequest_Kind) (all []*clusterpb.Request) {
		for _, kind := range kinds {
			all = append(all, r(&clusterpb.Request{Call: &clusterpb.Request_Control{Control: &clusterpb.ControlRequest{Kind: kind, RequestId: "g"}}}))
		}
		return all
	}
	operate := func(kind clusterpb.OperateRequest_Kind, event uint64) *clusterpb.Request {
		action := &clusterpb.OperateRequest{Kind: kind, EventId: event, RequestId: fmt.Sprint(kind)}
		if kind == clusterpb.OperateRequest_KIND_FAIL {
			action.Error = &journalpb.Error{Message: "failed"}
		}
		return &clusterpb.Request{User: "alice", Call: &clusterpb.Request_Operate{Operate: action}}
	}
	copied := func(r *clusterpb.CopyRequest) *clusterpb.Request {
		r.RequestId = fmt.Sprint("copy", r.Kind, r.EventId)
		return &clusterpb.Request{Call: &clusterpb.Request_Copy{Copy: r}}
	}
	query := func(name string) *clusterpb.Request {
		return running(&clusterpb.Request{Call: &clusterpb.Request_Query{Query: &clusterpb.QueryRequest{Name: name, Input: payload(`""`)}}})
	}
	update := func(n string) *clusterpb.Request {
		return running(&clusterpb.Request{Call: &clusterpb.Request_Update{Update: &clusterpb.UpdateRequest{Name: "raise", Input: payload(n), RequestId: "u" + n}}})
	}
	get := func() *clusterpb.Request {
		return &clusterpb.Request{Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
	}
	history := func() *clusterpb.Request {
		return &clusterpb.Request{Call: &clusterpb.Request_History{History: new(clusterpb.HistoryRequest)}}
	}
	list := func() *clusterpb.Request {
		return &clusterpb.Request{Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Limit: 10}}}
	}
	members := func() *clusterpb.Request {
		return &clusterpb.Request{Call: &clusterpb.Request_Members{Members: new(clusterpb.MembersRequest)}}
	}
	crossMessage := &clusterpb.CrossMessage{Instance: "running", Execution: 1, Event: &journalpb.Event{SourceEventId: 9, Body: &journalpb.Event_SubOrchestrationCompleted{
		SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: payload(`1`)},
	}}}
	return map[string][]*clusterpb.Request{
		"start": {
			running(&clusterpb.Request{Call: &clusterpb.Request_Start{Start: start()}}),
			again(running(&clusterpb.Request{Call: &clusterpb.Request_Start{Start: withEvent}})),
			{Instance: "begins-with-an-update", Call: &clusterpb.Request_Start{Start: withUpdate}},
			ended(&clusterpb.Request{Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "none", RequestId: "t"}}}),
		},
		"send": {
			running(&clusterpb.Request{Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Name: "other", RequestId: "e"}}}),
			again(ended(&clusterpb.Request{Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Name: "other", RequestId: "e"}}})),
		},
		"get":     {running(get()), ended(get()), stale(running(get()))},
		"history": {running(history()), stale(ended(history()))},
		"control": append(controls(running, clusterpb.ControlRequest_KIND_SUSPEND, clusterpb.ControlRequest_KIND_RESUME, clusterpb.ControlRequest_KIND_RETRY,
			clusterpb.ControlRequest_KIND_UNSPECIFIED), controls(ended, clusterpb.ControlRequest_KIND_CANCEL, clusterpb.ControlRequest_KIND_TERMINATE)...),
		"list": {
			list(), stale(list()), {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Count: true}}},
			{Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{
				Order: "created", Descending: true, After: "a", AfterKey: 1, AcceptsShort: true, UpdatedFrom: 1, EndedBefore: 2, ErrorCode: "x",
				Waiting: &clusterpb.WaitingFilter{Kind: "event", Name: "other"}, Failing: &clusterpb.FailingFilter{Attempts: 1, ErrorCode: "x"},
			}}},
			{Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Count: true, GroupBy: []string{"state", "tag:a", "attr:b"}}}},
		},
		"purge": {{Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: []string{"running", "unknown"}}}}},
		"query": {query("sum"), query("none"), query("failing"), ended(query("sum"))},
		"update": {
			update("1"), again(update("1")), update("500"), again(update("500")), ended(update("1")),
		},
		"values":     {ended(&clusterpb.Request{Call: &clusterpb.Request_Values{Values: &clusterpb.ValuesRequest{Map: "m"}}})},
		"executions": {ended(&clusterpb.Request{Call: &clusterpb.Request_Executions{Executions: new(clusterpb.ExecutionsRequest)}})},
		"complete": {running(&clusterpb.Request{Call: &clusterpb.Request_Complete{Complete: &clusterpb.CompleteRequest{
			Execution: 1, EventId: 5, Attempt: 1, Result: payload(`1`),
		}}}), running(&clusterpb.Request{Call: &clusterpb.Request_Complete{Complete: &clusterpb.CompleteRequest{
			SignedToken: "t3.gICAgICAgIBAAAEFAXJ1bm5pbmcAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", Result: payload(`1`),
		}}})},
		"operate": {
			running(operate(clusterpb.OperateRequest_KIND_HOLD, 2)), again(running(operate(clusterpb.OperateRequest_KIND_COMPLETE, 5))),
			running(operate(clusterpb.OperateRequest_KIND_FAIL, 1)), ended(operate(clusterpb.OperateRequest_KIND_RETRY_NOW, 2)),
		},
		"copy": {
			ended(copied(&clusterpb.CopyRequest{Kind: clusterpb.CopyRequest_KIND_FORK, EventId: 1, Input: payload(`"y"`)})),
			again(ended(copied(&clusterpb.CopyRequest{Kind: clusterpb.CopyRequest_KIND_REWIND, EventId: 2}))),
			running(copied(&clusterpb.CopyRequest{Kind: clusterpb.CopyRequest_KIND_FORK, Call: "none", CallNumber: 1, Target: "fork"})),
			running(copied(&clusterpb.CopyRequest{})),
		},
		"pause_activity": {
			{Call: &clusterpb.Request_PauseActivity{PauseActivity: &clusterpb.PauseActivityRequest{Activity: "paused", RequestId: "p"}}},
			{Call: &clusterpb.Request_PauseActivity{PauseActivity: &clusterpb.PauseActivityRequest{Activity: "paused", RequestId: "q", Resume: true}}},
		},
		"transfer_leadership": {
			{Call: &clusterpb.Request_TransferLeadership{TransferLeadership: &clusterpb.TransferLeadershipRequest{From: "a", To: "b"}}},
		},
		"set_role": {
			{Call: &clusterpb.Request_SetRole{SetRole: &clusterpb.SetRoleRequest{Node: "other", Pin: journalpb.MemberRole_PIN_VOTER}}},
			{Call: &clusterpb.Request_SetRole{SetRole: &clusterpb.SetRoleRequest{Node: "n1", Pin: 9, Reason: "x"}}},
		},
		"protocols":    {{Call: &clusterpb.Request_Protocols{Protocols: new(clusterpb.ProtocolsRequest)}}},
		"finalize":     {{Call: &clusterpb.Request_Finalize{Finalize: &clusterpb.FinalizeRequest{Reason: "x"}}}},
		"check_worker": {{Call: &clusterpb.Request_CheckWorker{CheckWorker: new(clusterpb.CheckWorkerRequest)}}},
		"sign_token": {running(&clusterpb.Request{Call: &clusterpb.Request_SignToken{SignToken: &clusterpb.SignTokenRequest{
			Attempt: &clusterpb.AttemptID{Ref: &journalpb.OperationRef{Instance: "running", Execution: 1, EventId: 5}, Number: 1}, Lifetime: int64(time.Hour),
		}}})},
		"list_workers": {{Call: &clusterpb.Request_ListWorkers{ListWorkers: new(clusterpb.ListWorkersRequest)}}},
		"node_report": {
			{Call: &clusterpb.Request_NodeReport{NodeReport: &clusterpb.NodeReportRequest{Node: "n1"}}},
			{Call: &clusterpb.Request_NodeReport{NodeReport: &clusterpb.NodeReportRequest{Node: "other"}}},
		},
		"begin_backup": {
			{Call: &clusterpb.Request_BeginBackup{BeginBackup: &clusterpb.BeginBackupRequest{Node: "n1"}}},
			{Call: &clusterpb.Request_BeginBackup{BeginBackup: &clusterpb.BeginBackupRequest{Node: "other"}}},
		},
		"read_backup":    {{Call: &clusterpb.Request_ReadBackup{ReadBackup: &clusterpb.ReadBackupRequest{Node: "n1", Id: "x", File: "CURRENT", Size: 10}}}},
		"end_backup":     {{Call: &clusterpb.Request_EndBackup{EndBackup: &clusterpb.EndBackupRequest{Node: "n1", Id: "x"}}}},
		"view":           {{Partition: 1, Call: &clusterpb.Request_View{View: &clusterpb.ViewRequest{Node: "n1", Number: 5}}}},
		"compare":        {{Partition: 1, Call: &clusterpb.Request_Compare{Compare: &clusterpb.CompareRequest{Node: "n1", Number: 5}}}},
		"compare_events": {{Partition: 1, Call: &clusterpb.Request_CompareEvents{CompareEvents: &clusterpb.CompareEventsRequest{Node: "n1", Number: 5}}}},
		"read_view":      {{Partition: 1, Call: &clusterpb.Request_ReadView{ReadView: &clusterpb.ReadViewRequest{Node: "n1", Number: 5}}}},
		"repair":         {{Partition: 1, Call: &clusterpb.Request_Repair{Repair: &clusterpb.RepairRequest{Node: "n1", Number: 5}}}},
		"end_view":       {{Partition: 1, Call: &clusterpb.Request_EndView{EndView: &clusterpb.EndViewRequest{Node: "n1", Number: 5}}}},
		"verify":         {{Partition: 1, Call: &clusterpb.Request_Verify{Verify: new(clusterpb.VerifyRequest)}}},
		"accept_replica": {running(&clusterpb.Request{Call: &clusterpb.Request_AcceptReplica{AcceptReplica: &clusterpb.AcceptReplicaRequest{Node: "n1"}}})},
		"prove":          {ended(&clusterpb.Request{Call: &clusterpb.Request_Prove{Prove: new(clusterpb.ProveRequest)}})},
		"signing_key":    {{Call: &clusterpb.Request_SigningKey{SigningKey: new(clusterpb.SigningKeyRequest)}}},
		"record_cut":     {{Partition: 1, Call: &clusterpb.Request_RecordCut{RecordCut: &clusterpb.RecordCutRequest{Cut: 5}}}},
		"record_backup": {{Call: &clusterpb.Request_RecordBackup{RecordBackup: &clusterpb.RecordBackupRequest{
			Outcome: &journalpb.BackupRecord{Error: "disk full"},
		}}}},
		"pending": {running(&clusterpb.Request{Call: &clusterpb.Request_Pending{Pending: new(clusterpb.PendingRequest)}})},
		"wait":    {ended(&clusterpb.Request{Call: &clusterpb.Request_Wait{Wait: new(clusterpb.WaitRequest)}})},
		"watch": {
			ended(&clusterpb.Request{Call: &clusterpb.Request_Watch{Watch: new(clusterpb.WatchRequest)}}),
			running(&clusterpb.Request{Call: &clusterpb.Request_Watch{Watch: new(clusterpb.WatchRequest)}}),
		},
		"members": {members(), stale(members())},
		"introduce": {{Call: &clusterpb.Request_Introduce{Introduce: &clusterpb.IntroduceRequest{
			Node: "n9", Address: "127.0.0.1:1", Identity: fmt.Sprintf("%032d", 0), Cluster: "tenuto",
		}}}},
		"join":             {{Call: &clusterpb.Request_Join{Join: &clusterpb.JoinRequest{Node: "n9", Address: "127.0.0.1:1", NewNode: true}}}},
		"remove_member":    {{Call: &clusterpb.Request_RemoveMember{RemoveMember: &clusterpb.RemoveMemberRequest{Node: "n9"}}}},
		"adopt_member":     {{Call: &clusterpb.Request_AdoptMember{AdoptMember: &clusterpb.AdoptMemberRequest{Node: "n9", Identity: "x"}}}},
		"issue_token":      {{Call: &clusterpb.Request_IssueToken{IssueToken: &clusterpb.IssueTokenRequest{Key: make([]byte, 32), Lifetime: int64(time.Hour)}}}},
		"list_tokens":      {{Call: &clusterpb.Request_ListTokens{ListTokens: new(clusterpb.ListTokensRequest)}}},
		"revoke_token":     {{Call: &clusterpb.Request_RevokeToken{RevokeToken: &clusterpb.RevokeTokenRequest{Key: make([]byte, 32)}}}},
		"get_settings":     {{Call: &clusterpb.Request_GetSettings{GetSettings: new(clusterpb.GetSettingsRequest)}}},
		"change_settings":  {{Call: &clusterpb.Request_ChangeSettings{ChangeSettings: &clusterpb.ChangeSettingsRequest{Version: 2}}}},
		"cross_messages":   {{Partition: 1, Call: &clusterpb.Request_CrossMessages{CrossMessages: &clusterpb.CrossMessagesRequest{Messages: []*clusterpb.CrossMessage{crossMessage}}}}},
		"offer_leadership": {{Partition: 1, Call: &clusterpb.Request_OfferLeadership{OfferLeadership: new(clusterpb.OfferLeadershipRequest)}}},
		"commit_index":     {{Partition: 1, Call: &clusterpb.Request_CommitIndex{CommitIndex: new(clusterpb.CommitIndexRequest)}}},
		"start_batch": {{Partition: 1, Call: &clusterpb.Request_StartBatch{StartBatch: &clusterpb.StartBatchRequest{Starts: []*clusterpb.InstanceStart{
			{Instance: "running", Start: start()}, {Instance: "ended", Start: start()},
		}}}}},
	}
}

// requestKinds returns the names of all kinds of requests.
func requestKinds() (kinds []string) {
	fields := new(clusterpb.Request).ProtoReflect().Descriptor().Oneofs().ByName("call").Fields()
	for i := range fields.Len() {
		kinds = append(kinds, string(fields.Get(i).Name()))
	}
	return kinds
}

// emptyRequest returns a request of a kind with no fields set.
func emptyRequest(kind, instance string) *clusterpb.Request {
	request := &clusterpb.Request{Instance: instance}
	message := request.ProtoReflect()
	message.Mutable(message.Descriptor().Fields().ByName(protoreflect.Name(kind)))
	return request
}

// startRequestTarget starts a node with the instances of requestsByKind.
func startRequestTarget(t testing.TB) (*Node, *logRecorder) {
	t.Helper()
	log := new(logRecorder)
	sums := replay.Query[string, int]("sum")
	failing := replay.Query[string, int]("failing")
	body := func(ctx *replay.Context, sum int) (int, error) {
		if err := errors.Join(sums.Handle(ctx, func(string) (int, error) { return sum, nil }),
			failing.Handle(ctx, func(string) (int, error) { return 0, errTest })); err != nil {
			return 0, err
		}
		return ledgerOrchestrationBody(ctx, sum)
	}
	node := startNode(t, Config{InMemory: true, Partitions: 1, Logger: log.logger(), Definitions: append(definitions(), ledgerOrchestration.Bind(body))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), ledgerOrchestration, "running", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Call(ctx, node.Client(), doubled, "ended", 1); err != nil {
		t.Fatal(err)
	}
	return node, log
}

// requestPaths are the ways in which a request reaches a node.
var requestPaths = map[string]func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response{
	"over the network": func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response {
		return (&nodeService{node}).Serve(withLocalPrincipal(ctx), request)
	},
	"in the process": func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response {
		return node.router.callLeader(ctx, request)
	},
	"on a stream": func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response {
		stream := &fakeServerStream{ctx: withLocalPrincipal(ctx), request: request}
		_ = (&nodeService{node}).ServeStartBatch(stream)
		return stream.lastResponse
	},
}

// checkResponse sends a request to a node in one way, and fails the test if there is no response or
// something panicked.
func checkResponse(ctx context.Context, t testing.TB, node *Node, log *logRecorder, what, call string, request *clusterpb.Request) {
	t.Helper()
	request = proto.CloneOf(request)
	request.Protocol = node.config.protocol
	response := requestPaths[call](ctx, node, request)
	if response == nil || response.Failure == nil && response.Result == nil {
		t.Errorf("%s, %s: the answer is %v: neither a result nor a failure", what, call, response)
	}
	if log.countLines(panicMessage) > 0 {
		t.Fatalf("%s, %s: the call panicked:\n%s", what, call, log.all())
	}
}

// A fakeServerStream is the server side of a call with several responses.
type fakeServerStream struct {
	grpc.ServerStream
	ctx          context.Context
	request      *clusterpb.Request
	lastResponse *clusterpb.Response
}

func (s *fakeServerStream) Context() context.Context { return s.ctx }

func (s *fakeServerStream) RecvMsg(into any) error {
	proto.Merge(into.(proto.Message), s.request)
	return nil
}

func (s *fakeServerStream) SendMsg(response any) error {
	s.lastResponse = response.(*clusterpb.Response)
	return nil
}

// TestRequests_AnsweredWhereverContextEnds sends every kind of request with a context that ends at
// its first, second, third observation and so on, until the call ends before the context.
func TestRequests_AnsweredWhereverContextEnds(t *testing.T) {
	node, log := startRequestTarget(t)
	known := requestsByKind()
	for _, kind := range requestKinds() {
		if len(known[kind]) == 0 {
			t.Errorf("requests of the kind %q are not tried: add one to requestsOfEachKind", kind)
		}
		for i, request := range append(known[kind], emptyRequest(kind, ""), emptyRequest(kind, "running")) {
			for call := range requestPaths {
				if call != "on a stream" || kind == "start_batch" {
					endAtEveryObservation(t, node, log, fmt.Sprintf("%s %d", kind, i), call, request)
				}
			}
		}
	}
}

// endAtEveryObservation repeats a request until its context ends after the call. Calls that wait in
// vain observe their context for as long as they wait.
func endAtEveryObservation(t *testing.T, node *Node, log *logRecorder, what, call string, request *clusterpb.Request) {
	t.Helper()
	const ctxChecksMax = 50
	for end := range ctxChecksMax {
		parent, cancel := context.WithTimeout(t.Context(), time.Minute)
		ctx := newCountdownContext(parent, end)
		checkResponse(ctx, t, node, log, fmt.Sprintf("%s, ended when looked at %d times", what, end), call, request)
		cancel()
		if !ctx.hasEnded() {
			return
		}
	}
	t.Errorf("%s, %s: looks at its context more than %d times", what, call, ctxChecksMax)
}

// TestQuery_AnswerRacesContextEnd is the race that once crashed processes.
func TestQuery_AnswerRacesContextEnd(t *testing.T) {
	node, _ := startRequestTarget(t)
	sums := replay.Query[string, int]("sum")
	for end := range 40 {
		ctx := newCountdownContext(testContext(t), end)
		got, err := Query(ctx, node.Client(), "running", sums, "")
		if err == nil && got != 1 || err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*UnavailableError)) {
			t.Errorf("ended when looked at %d times: %d, %v; want 1, or that the context has ended", end, got, err)
		}
	}
}

// FuzzRequests sends a node arbitrary requests, as raw clients may.
func FuzzRequests(f *testing.F) {
	for _, requests := range requestsByKind() {
		for _, request := range requests {
			raw, err := proto.Marshal(request)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw, uint8(3))
			f.Add(raw, uint8(255))
		}
	}
	for _, kind := range requestKinds() {
		raw, err := proto.Marshal(emptyRequest(kind, "running"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint8(255))
	}
	node, log := startRequestTarget(f)
	f.Fuzz(func(t *testing.T, raw []byte, end uint8) {
		request := new(clusterpb.Request)
		if proto.Unmarshal(raw, request) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		for _, call := range []string{"over the network", "on a stream"} {
			checkResponse(newCountdownContext(ctx, int(end)), t, node, log, fmt.Sprintf("%v", request), call, request)
		}
	})
}
