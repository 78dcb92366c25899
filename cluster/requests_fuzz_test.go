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

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// An observedContext ends when it has been looked at so many times, whoever does it. So
// a test can end a call at each of its points.
type observedContext struct {
	context.Context
	left  atomic.Int64
	ended chan struct{}
	end   sync.Once
}

func endingAfter(ctx context.Context, observations int) *observedContext {
	c := &observedContext{Context: ctx, ended: make(chan struct{})}
	c.left.Store(int64(observations))
	context.AfterFunc(ctx, c.finish)
	return c
}

func (c *observedContext) finish() { c.end.Do(func() { close(c.ended) }) }

func (c *observedContext) observe() {
	if c.left.Add(-1) < 0 {
		c.finish()
	}
}

func (c *observedContext) Done() <-chan struct{} {
	c.observe()
	return c.ended
}

func (c *observedContext) Err() error {
	c.observe()
	select {
	case <-c.ended:
		return context.DeadlineExceeded
	default:
		return c.Context.Err()
	}
}

func (c *observedContext) hasEnded() bool { return c.left.Load() < 0 }

// asLocal has requests come from a caller that may do everything.
func asLocal(ctx context.Context) context.Context {
	return peer.NewContext(ctx, &peer.Peer{AuthInfo: linkInfo{peer: Principal{Role: RoleLocal}}})
}

// requestsOfEachKind returns requests that are carried out, by the name of their kind: for
// an instance that runs, "running", and one that has ended, "ended".
func requestsOfEachKind() map[string][]*clusterpb.Request {
	payload := func(text string) *journalpb.Payload {
		return &journalpb.Payload{Data: []byte(text)}
	}
	running := func(r *clusterpb.Request) *clusterpb.Request { r.Instance = "running"; return r }
	ended := func(r *clusterpb.Request) *clusterpb.Request { r.Instance = "ended"; return r }
	again := func(r *clusterpb.Request) *clusterpb.Request { r.Again, r.FirstIndex = true, new(uint64); return r }
	stale := func(r *clusterpb.Request) *clusterpb.Request { r.Stale = true; return r }
	start := func() *clusterpb.StartRequest {
		return &clusterpb.StartRequest{Name: "waiter", Input: payload(`"x"`), RequestId: "s", Attach: true}
	}
	withEvent := start()
	withEvent.Send = &clusterpb.SendRequest{Name: "other", Data: payload(`1`), RequestId: "s"}
	signals := func(r func(*clusterpb.Request) *clusterpb.Request, kinds ...clusterpb.SignalRequest_Kind) (all []*clusterpb.Request) {
		for _, kind := range kinds {
			all = append(all, r(&clusterpb.Request{Call: &clusterpb.Request_Signal{Signal: &clusterpb.SignalRequest{Kind: kind, RequestId: "g"}}}))
		}
		return all
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
	crossing := &clusterpb.Crossing{Instance: "running", Execution: 1, Event: &journalpb.Event{SourceEventId: 9, Body: &journalpb.Event_SubOrchestrationCompleted{
		SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: payload(`1`)},
	}}}
	return map[string][]*clusterpb.Request{
		"start": {
			running(&clusterpb.Request{Call: &clusterpb.Request_Start{Start: start()}}),
			again(running(&clusterpb.Request{Call: &clusterpb.Request_Start{Start: withEvent}})),
			ended(&clusterpb.Request{Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "none", RequestId: "t"}}}),
		},
		"send": {
			running(&clusterpb.Request{Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Name: "other", RequestId: "e"}}}),
			again(ended(&clusterpb.Request{Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Name: "other", RequestId: "e"}}})),
		},
		"get":     {running(get()), ended(get()), stale(running(get()))},
		"history": {running(history()), stale(ended(history()))},
		"signal": append(signals(running, clusterpb.SignalRequest_KIND_SUSPEND, clusterpb.SignalRequest_KIND_RESUME, clusterpb.SignalRequest_KIND_RETRY,
			clusterpb.SignalRequest_KIND_UNSPECIFIED), signals(ended, clusterpb.SignalRequest_KIND_CANCEL, clusterpb.SignalRequest_KIND_TERMINATE)...),
		"list":  {list(), stale(list()), {Call: &clusterpb.Request_List{List: &clusterpb.ListRequest{Count: true}}}},
		"purge": {{Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{Instances: []string{"running", "nobody"}}}}},
		"query": {query("sum"), query("none"), query("failing"), ended(query("sum"))},
		"update": {
			update("1"), again(update("1")), update("500"), again(update("500")), ended(update("1")),
		},
		"executions": {ended(&clusterpb.Request{Call: &clusterpb.Request_Executions{Executions: new(clusterpb.ExecutionsRequest)}})},
		"complete": {running(&clusterpb.Request{Call: &clusterpb.Request_Complete{Complete: &clusterpb.CompleteRequest{
			Execution: 1, EventId: 5, Attempt: 1, Result: payload(`1`),
		}}})},
		"pending": {running(&clusterpb.Request{Call: &clusterpb.Request_Pending{Pending: new(clusterpb.PendingRequest)}})},
		"wait":    {ended(&clusterpb.Request{Call: &clusterpb.Request_Wait{Wait: new(clusterpb.WaitRequest)}})},
		"watch": {
			ended(&clusterpb.Request{Call: &clusterpb.Request_Watch{Watch: new(clusterpb.WatchRequest)}}),
			running(&clusterpb.Request{Call: &clusterpb.Request_Watch{Watch: new(clusterpb.WatchRequest)}}),
		},
		"members":       {members(), stale(members())},
		"enrol":         {{Call: &clusterpb.Request_Enrol{Enrol: &clusterpb.EnrolRequest{Node: "n9", Address: "127.0.0.1:1", Fresh: true}}}},
		"remove_member": {{Call: &clusterpb.Request_RemoveMember{RemoveMember: &clusterpb.RemoveMemberRequest{Node: "n9"}}}},
		"adopt_member":  {{Call: &clusterpb.Request_AdoptMember{AdoptMember: &clusterpb.AdoptMemberRequest{Node: "n9", Identity: "x"}}}},
		"issue_token":   {{Call: &clusterpb.Request_IssueToken{IssueToken: &clusterpb.IssueTokenRequest{Key: make([]byte, 32), Lifetime: int64(time.Hour)}}}},
		"list_tokens":   {{Call: &clusterpb.Request_ListTokens{ListTokens: new(clusterpb.ListTokensRequest)}}},
		"revoke_token":  {{Call: &clusterpb.Request_RevokeToken{RevokeToken: &clusterpb.RevokeTokenRequest{Key: make([]byte, 32)}}}},
		"cross":         {{Group: 1, Call: &clusterpb.Request_Cross{Cross: &clusterpb.CrossRequest{Crossings: []*clusterpb.Crossing{crossing}}}}},
		"offer":         {{Group: 1, Call: &clusterpb.Request_Offer{Offer: new(clusterpb.OfferRequest)}}},
		"index":         {{Group: 1, Call: &clusterpb.Request_Index{Index: new(clusterpb.IndexRequest)}}},
		"starts": {{Group: 1, Call: &clusterpb.Request_Starts{Starts: &clusterpb.StartsRequest{Starts: []*clusterpb.InstanceStart{
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

// emptyRequest returns a request of a kind of which nothing is filled in.
func emptyRequest(kind, instance string) *clusterpb.Request {
	request := &clusterpb.Request{Instance: instance}
	message := request.ProtoReflect()
	message.Mutable(message.Descriptor().Fields().ByName(protoreflect.Name(kind)))
	return request
}

// requestTarget is a node with the instances that requestsOfEachKind is about.
func requestTarget(t testing.TB) (*Node, *logbook) {
	t.Helper()
	log := new(logbook)
	sums := replay.Query[string, int]("sum")
	failing := replay.Query[string, int]("failing")
	body := func(ctx *replay.Context, sum int) (int, error) {
		if err := errors.Join(sums.Answer(ctx, func(string) (int, error) { return sum, nil }),
			failing.Answer(ctx, func(string) (int, error) { return 0, errWanted })); err != nil {
			return 0, err
		}
		return ledgerBody(ctx, sum)
	}
	node := startNode(t, Config{InMemory: true, Groups: 1, Logger: log.logger(), Definitions: append(definitions(), ledger.Bind(body))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), ledger, "running", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := Call(ctx, node.Client(), doubled, "ended", 1); err != nil {
		t.Fatal(err)
	}
	return node, log
}

// requestWays are the ways by which a request reaches a node.
var requestWays = map[string]func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response{
	"over the network": func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response {
		return (&gate{node}).serve(asLocal(ctx), request)
	},
	"in the process": func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response {
		return node.attempt(ctx, request)
	},
	"on a stream": func(ctx context.Context, node *Node, request *clusterpb.Request) *clusterpb.Response {
		stream := &recordedStream{ctx: asLocal(ctx), request: request}
		_ = (&gate{node}).startAll(stream)
		return stream.last
	},
}

// checkAnswer has a node answer a request one way, and fails the test if there is no
// answer, or if something has panicked.
func checkAnswer(ctx context.Context, t testing.TB, node *Node, log *logbook, what, way string, request *clusterpb.Request) {
	t.Helper()
	request = proto.CloneOf(request)
	request.Protocol = node.config.protocol
	response := requestWays[way](ctx, node, request)
	if response == nil || response.Failure == nil && response.Result == nil {
		t.Errorf("%s, %s: the answer is %v: neither a result nor a failure", what, way, response)
	}
	if log.lines(panicMessage) > 0 {
		t.Fatalf("%s, %s: the call panicked:\n%s", what, way, log.all())
	}
}

// A recordedStream is the server's side of a call with several responses.
type recordedStream struct {
	grpc.ServerStream
	ctx     context.Context
	request *clusterpb.Request
	last    *clusterpb.Response
}

func (s *recordedStream) Context() context.Context { return s.ctx }

func (s *recordedStream) RecvMsg(into any) error {
	proto.Merge(into.(proto.Message), s.request)
	return nil
}

func (s *recordedStream) SendMsg(response any) error {
	s.last = response.(*clusterpb.Response)
	return nil
}

// TestEveryRequestIsAnsweredWhereverItsContextEnds sends every kind of request with a
// context that ends when it is looked at for the first, second, third time and so on,
// until the call comes to its end before the context does.
func TestEveryRequestIsAnsweredWhereverItsContextEnds(t *testing.T) {
	node, log := requestTarget(t)
	known := requestsOfEachKind()
	for _, kind := range requestKinds() {
		if len(known[kind]) == 0 {
			t.Errorf("requests of the kind %q are not tried: add one to requestsOfEachKind", kind)
		}
		for i, request := range append(known[kind], emptyRequest(kind, ""), emptyRequest(kind, "running")) {
			for way := range requestWays {
				if way != "on a stream" || kind == "starts" {
					endEverywhere(t, node, log, fmt.Sprintf("%s %d", kind, i), way, request)
				}
			}
		}
	}
}

// endEverywhere sends a request until its context ends after the call. Calls that wait for
// something that does not happen look at their context for as long as they wait.
func endEverywhere(t *testing.T, node *Node, log *logbook, what, way string, request *clusterpb.Request) {
	t.Helper()
	const looksMax = 50
	for end := range looksMax {
		parent, cancel := context.WithTimeout(t.Context(), time.Minute)
		ctx := endingAfter(parent, end)
		checkAnswer(ctx, t, node, log, fmt.Sprintf("%s, ended when looked at %d times", what, end), way, request)
		cancel()
		if !ctx.hasEnded() {
			return
		}
	}
	t.Errorf("%s, %s: looks at its context more than %d times", what, way, looksMax)
}

// TestAQueryWhoseAnswerComesAsItsContextEndsHasOneOfBoth is the case that killed processes.
func TestAQueryWhoseAnswerComesAsItsContextEndsHasOneOfBoth(t *testing.T) {
	node, _ := requestTarget(t)
	sums := replay.Query[string, int]("sum")
	for end := range 40 {
		ctx := endingAfter(testContext(t), end)
		got, err := Query(ctx, node.Client(), "running", sums, "")
		if err == nil && got != 1 || err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*UnavailableError)) {
			t.Errorf("ended when looked at %d times: %d, %v; want 1, or that the context has ended", end, got, err)
		}
	}
}

// FuzzRequests has a node answer requests as raw clients may send them.
func FuzzRequests(f *testing.F) {
	for _, requests := range requestsOfEachKind() {
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
	node, log := requestTarget(f)
	f.Fuzz(func(t *testing.T, raw []byte, end uint8) {
		request := new(clusterpb.Request)
		if proto.Unmarshal(raw, request) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		for _, way := range []string{"over the network", "on a stream"} {
			checkAnswer(endingAfter(ctx, int(end)), t, node, log, fmt.Sprintf("%v", request), way, request)
		}
	})
}
