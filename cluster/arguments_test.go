package cluster

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// callWithoutPanic returns the error of a call, and fails the test if the call panics.
func callWithoutPanic(t *testing.T, name string, call func() error) (err error) {
	t.Helper()
	defer func() {
		if value := recover(); value != nil {
			t.Errorf("%s panicked in the caller: %v", name, value)
		}
	}()
	return call()
}

func TestUnstartedNode_RejectsEveryCall(t *testing.T) {
	ctx := testContext(t)
	for name, node := range map[string]*Node{"nil": nil, "zero": new(Node)} {
		for what, call := range map[string]func() error{
			"close":               func() error { return node.Close() },
			"stop":                func() error { return node.Stop(ctx) },
			"err":                 func() error { return node.Err() },
			"health":              func() error { return node.Health().Err },
			"members":             func() error { return errOf(node.Members(ctx)) },
			"remove a node":       func() error { return node.RemoveNode(ctx, "n") },
			"adopt a node":        func() error { return node.AdoptNode(ctx, "n", strings.Repeat("0", 32)) },
			"issue a token":       func() error { _, _, err := node.IssueJoinToken(ctx, time.Hour); return err },
			"get by its client":   func() error { return errOf(node.Client().Get(ctx, "i")) },
			"add a meter":         func() error { return node.AddMeterProvider(noop.NewMeterProvider()) },
			"close its client":    func() error { return node.Client().Close() },
			"start by its client": func() error { return errOf(StartRun(ctx, node.Client(), doubled, "d", 1)) },
		} {
			if err := callWithoutPanic(t, name+": "+what, call); !isInvalidError(err) {
				t.Errorf("%s: %s: %v; want an InvalidError", name, what, err)
			}
		}
		if ready := node.Health().Ready(); ready == nil || node.Failed() != nil || node.IsLeader() ||
			node.ID()+node.Leader()+node.LeaderOf("i")+node.Identity() != "" {
			t.Errorf("%s: it reports membership: %v", name, ready)
		}
	}
	if err := startNode(t, Config{InMemory: true}).AddMeterProvider(nil); !isInvalidError(err) {
		t.Errorf("a nil meter provider: %v; want an InvalidError", err)
	}
}

func TestArguments_RejectNil(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), accountOrchestration.Bind(accountOrchestrationBody))})
	ctx, client := testContext(t), node.Client()
	var none context.Context
	var nobody *Client
	var run *Run[int]
	for name, call := range map[string]func() error{
		"start without a context":  func() error { return errOf(StartRun(none, client, doubled, "d", 1)) },
		"start without a client":   func() error { return errOf(StartRun(ctx, nobody, doubled, "d", 1)) },
		"start by an empty client": func() error { return errOf(StartRun(ctx, new(Client), doubled, "d", 1)) },
		"send without a context":   func() error { return Send(none, client, "a", word, "") },
		"send without a client":    func() error { return Send(ctx, nobody, "a", word, "") },
		"send or start, no client": func() error { return errOf(SendOrStart(ctx, nobody, waiter, "a", "", word, "")) },
		"update or start, no client": func() error {
			_, _, err := UpdateOrStart(ctx, nobody, "a", basket, basketInput{}, raiseUpdate, 1)
			return err
		},
		"query without a client":        func() error { return errOf(Query(ctx, nobody, "a", balanceQuery, "")) },
		"query without a context":       func() error { return errOf(Query(none, client, "a", balanceQuery, "")) },
		"update without a client":       func() error { return errOf(CallUpdate(ctx, nobody, "a", raiseUpdate, 1)) },
		"complete without a client":     func() error { return CompleteActivity(ctx, nobody, "x", 1) },
		"fail without a client":         func() error { return FailActivity(ctx, nobody, "x", errTest) },
		"fail without a failure":        func() error { return FailActivity(ctx, client, "x", nil) },
		"get without a context":         func() error { return errOf(client.Get(none, "a")) },
		"wait without a client":         func() error { return errOf(nobody.Wait(ctx, "a")) },
		"watch without a context":       func() error { return errOf(collectWatch(none, client, "a", history.Position{})) },
		"export without a writer":       func() error { return client.Export(ctx, "a", 0, nil) },
		"a nil run":                     func() error { return errOf(run.Wait(ctx)) },
		"members without a context":     func() error { return errOf(client.Members(none)) },
		"purge without a client":        func() error { return errOf(nobody.Purge(ctx)) },
		"stop without a context":        func() error { return node.Stop(none) },
		"dial without a context":        func() error { return errOf(Dial(none, DialConfig{Addresses: []string{"127.0.0.1:1"}})) },
		"a node without a context":      func() error { return errOf(Start(none, Config{InMemory: true})) },
		"close without a client":        func() error { return nobody.Close() },
		"cancel by an empty client":     func() error { return new(Client).Cancel(ctx, "a", "") },
		"list without a context":        func() error { return errOf(client.List(none, Filter{}, "", 0)) },
		"executions without a context":  func() error { return errOf(client.Executions(none, "a")) },
		"token without a context":       func() error { _, _, err := client.IssueJoinToken(none, 0); return err },
		"remove node without a context": func() error { return client.RemoveNode(none, "n") },
	} {
		if err := callWithoutPanic(t, name, call); !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%s: %v; want an InvalidError", name, err)
		}
	}
}

func TestArguments_InvalidUTF8NamesField(t *testing.T) {
	type address struct{ Street string }
	type order struct {
		Home  *address
		Notes map[string][]any
		Raw   []byte
		skip  string
	}
	const bad = "a\xff"
	orders, received := replay.Orchestration[order, int]("orders"), replay.Event[any]("told")
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), orders.Bind(
		func(*replay.Context, order) (int, error) { return 1, nil }))})
	ctx, client := testContext(t), node.Client()
	for field, err := range map[string]error{
		"input":             errOf(StartRun(ctx, client, waiter, "w", bad)),
		"input.Home.Street": errOf(StartRun(ctx, client, orders, "o", order{Home: &address{bad}})),
		"input.Notes[x][1]": errOf(StartRun(ctx, client, orders, "o", order{Notes: map[string][]any{"x": {1, bad}}})),
		"data":              Send(ctx, client, "w", received, any(bad)),
		"a key of data":     Send(ctx, client, "w", received, any(map[string]int{bad: 1})),
		"reason":            client.Cancel(ctx, "w", bad),
		"option Tags":       errOf(StartRun(ctx, client, doubled, "d", 1, Tags(map[string]string{bad: ""}))),
		"option RequestID":  errOf(StartRun(ctx, client, doubled, "d", 1, RequestID(bad))),
	} {
		var wrong *replay.InvalidError
		if !errors.As(err, &wrong) || wrong.Field != field || !strings.Contains(wrong.Reason, "UTF-8") {
			t.Errorf("%s: %v; want an InvalidError of that field", field, err)
		}
	}
	// Bytes need not be UTF-8, nor do unencoded fields; the replacement character is valid text.
	if _, err := Call(ctx, client, orders, "fine", order{Raw: []byte{0xff}, skip: bad, Home: &address{"\ufffd \\ufffd"}}); err != nil {
		t.Error(err)
	}
}

func TestCall_EndedContextIsNotExecuted(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeersWith(t, 3, append(definitions(), accountOrchestration.Bind(accountOrchestrationBody))...)
	leader := leaderOf(t, nodes)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, client := range map[string]*Client{"of the leader": leader.Client(), "elsewhere": dialNodes(t, DialConfig{}, nodes...)} {
		for call, err := range map[string]error{
			"start": errOf(StartRun(ended, client, doubled, "d", 1)),
			"send":  Send(ended, client, "d", word, ""),
			"query": errOf(Query(ended, client, "d", balanceQuery, "")),
			"get":   errOf(client.Get(ended, "d")),
		} {
			var unavailable *UnavailableError
			if !errors.As(err, &unavailable) || !unavailable.NotExecuted || !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: %v; want NotExecuted and the reason", name, call, err)
			}
		}
	}
}

// The node also rejects what the client rejects by itself.
func TestPayloadLimits_HoldForRawClients(t *testing.T) {
	plain := startNode(t, Config{InMemory: true, Definitions: definitions()})
	coded := startNode(t, Config{InMemory: true, NodeID: "coded", Definitions: definitions(), PayloadConverter: replay.PayloadConverter{Codec: flippingCodec{}}, Settings: Settings{PayloadMax: 100}})
	sized := func(n int) *journalpb.Payload { return &journalpb.Payload{Data: bytes.Repeat([]byte("1"), n)} }
	named := func(n int) *journalpb.Payload { return &journalpb.Payload{ContentType: strings.Repeat("x", n)} }
	inEach := func(payload *journalpb.Payload) map[string]*clusterpb.Request {
		return map[string]*clusterpb.Request{
			"input of a start":   {Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "doubled", Input: payload}}},
			"data with a start":  {Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "doubled", Send: &clusterpb.SendRequest{Name: "e", Data: payload}}}},
			"data":               {Call: &clusterpb.Request_Send{Send: &clusterpb.SendRequest{Name: "e", Data: payload}}},
			"input of a query":   {Call: &clusterpb.Request_Query{Query: &clusterpb.QueryRequest{Name: "q", Input: payload}}},
			"input of an update": {Call: &clusterpb.Request_Update{Update: &clusterpb.UpdateRequest{Name: "u", Input: payload}}},
			"result":             {Call: &clusterpb.Request_Complete{Complete: &clusterpb.CompleteRequest{Result: payload}}},
		}
	}
	check := func(node *Node, payload *journalpb.Payload, allowed bool) {
		t.Helper()
		for where, request := range inEach(payload) {
			request = proto.CloneOf(request)
			request.Instance = "i"
			err := (&nodeService{node}).check(withLocalPrincipal(testContext(t)), request)
			if allowed != (err == nil) || err != nil && !errors.As(err, new(*replay.InvalidError)) {
				t.Errorf("%s, %d bytes, content type of %d: %v; want allowed %t", where, len(payload.Data), len(payload.ContentType), err, allowed)
			}
		}
	}
	check(plain, sized(replay.PayloadMax), true)
	check(plain, sized(replay.PayloadMax+1), false)
	check(coded, sized(133+codecOverhead), true)
	check(coded, sized(134+codecOverhead), false)
	check(plain, named(contentTypeMax), true)
	check(plain, named(contentTypeMax+1), false)
	long := &clusterpb.Request{Instance: "i", Call: &clusterpb.Request_Complete{Complete: &clusterpb.CompleteRequest{
		Error: &journalpb.Error{Message: strings.Repeat("x", 2<<20)},
	}}}
	if err := (&nodeService{plain}).check(withLocalPrincipal(testContext(t)), long); !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("a long failure: %v; want an InvalidError", err)
	}
}

func TestAuthorize_CalledForEveryAction(t *testing.T) {
	var asked []string
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	node.config.Authorize = func(_ context.Context, _ Principal, action Action, instance string) error {
		asked = append(asked, string(action)+" "+instance)
		if action == ActionSend || action == ActionPurge {
			return errTest
		}
		return nil
	}
	for what, c := range map[string]struct {
		request  *clusterpb.Request
		asked    string
		rejected bool
	}{
		"start": {&clusterpb.Request{Instance: "i", Call: &clusterpb.Request_Start{Start: new(clusterpb.StartRequest)}}, "start i", false},
		"send or start": {&clusterpb.Request{Instance: "i", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{
			Send: new(clusterpb.SendRequest),
		}}}, "start i,send i", true},
		"replace": {&clusterpb.Request{Instance: "i", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{
			Reuse: clusterpb.ReusePolicy_REUSE_POLICY_TERMINATE,
		}}}, "start i,terminate i", false},
		"a purge of nothing": {&clusterpb.Request{Call: &clusterpb.Request_Purge{Purge: new(clusterpb.PurgeRequest)}}, "purge ", true},
		"a purge": {&clusterpb.Request{Call: &clusterpb.Request_Purge{Purge: &clusterpb.PurgeRequest{
			Instances: []string{"a", "b"},
		}}}, "purge a", true},
	} {
		asked = nil
		err := (&nodeService{node}).authorize(testContext(t), Principal{PrincipalClient, "c"}, c.request)
		if strings.Join(asked, ",") != c.asked || errors.Is(err, ErrNotAuthorized) != c.rejected {
			t.Errorf("%s: asked about %q, %v; want %q, rejected %t", what, asked, err, c.asked, c.rejected)
		}
	}
}
