package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/baggage"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A shipment is handled by activities on the nodes in its tags. It starts a smaller one as a child,
// a chained one and, in an activity, an independent one, and reports to the collector.
type shipment struct {
	Tags      []string
	Depth     int
	Collector string
	Waits     bool // for an event, in an execution of its own
	Silent    bool // starts nothing
}

var (
	tenantHeader = replay.Header("tenant")
	shipments    = replay.Orchestration[shipment, []string]("shipment")
	reports      = replay.Orchestration[int, []string]("reports")
	handle       = replay.Activity[shipment, string]("handle")
	startOther   = replay.Activity[shipment, string]("start other")
	reported     = replay.Event[string]("reported")
	tenantUpdate = replay.Update[string, string]("tenant")
)

// startsOther is the body of the activity that starts an independent shipment. It sets no header.
func startsOther(ctx context.Context, p shipment) (string, error) {
	client, ok := ClientFrom(ctx)
	if !ok {
		return "", errors.New("no client")
	}
	id := "other-" + replay.ActivityInfo(ctx).Instance
	if _, err := StartRun(ctx, client, shipments, id, p, Attach()); err != nil {
		return "", err
	}
	return id, Send(ctx, client, p.Collector, reported, "from activity", RequestID(replay.ActivityInfo(ctx).IdempotencyKey()))
}

func shipmentBody(ctx *replay.Context, p shipment) (seen []string, err error) {
	of, _ := tenantHeader.Value(ctx)
	err = tenantUpdate.Handle(ctx, nil, func(ctx *replay.Context, in string) (string, error) {
		of, _ := tenantHeader.Value(ctx)
		handled, err := handle.Call(ctx, shipment{})
		return in + " " + of + " " + handled, err
	})
	if err != nil {
		return nil, err
	}
	if p.Waits {
		if _, err := word.Wait(ctx); err != nil {
			return nil, err
		}
		p.Waits = false
		return nil, shipments.ContinueAsNew(ctx, p)
	}
	seen = append(seen, "run of "+of)
	for _, tag := range p.Tags {
		handled, err := handle.Call(ctx, p, replay.Tag(tag), replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond}))
		if err != nil {
			return nil, err
		}
		seen = append(seen, "activity of "+handled)
	}
	if p.Silent {
		return seen, nil
	}
	last := shipment{Tags: p.Tags, Silent: true}
	if err := shipments.Chain(ctx, last, replay.ChildID("chained-"+ctx.InstanceID())); err != nil {
		return nil, err
	}
	if _, err := startOther.Call(ctx, shipment{Silent: true, Tags: p.Tags, Collector: p.Collector}); err != nil {
		return nil, err
	}
	if err := reported.SendTo(ctx, p.Collector, "from "+ctx.InstanceID()); err != nil || p.Depth == 0 {
		return seen, err
	}
	p.Depth--
	below, err := shipments.Call(ctx, p, replay.ChildID("child-"+ctx.InstanceID()))
	return append(seen, below...), err
}

// shipmentDefinitions binds the orchestrations; node n handles a shipment in the second attempt.
func shipmentDefinitions(node string) []replay.Definition {
	return append(definitions(), shipments.Bind(shipmentBody), startOther.Bind(startsOther),
		handle.Bind(func(ctx context.Context, _ shipment) (string, error) {
			if replay.ActivityInfo(ctx).Number == 1 {
				return "", errTest
			}
			of, _ := tenantHeader.From(ctx)
			member := baggage.FromContext(ctx).Member("tenant").Value()
			if member != "" {
				of += ", baggage " + member
			}
			return of + " on " + node, nil
		}),
		reports.Bind(func(ctx *replay.Context, n int) (from []string, err error) {
			for range n {
				event := reported.Subscribe(ctx)
				text, err := event.Await(ctx)
				if err != nil {
					return nil, err
				}
				of, _ := event.Header(tenantHeader)
				from = append(from, text+" of "+of)
			}
			slices.Sort(from)
			return from, nil
		}))
}

// startShipmentNodes starts nodes that serve their IDs as tags, and waits until headers are
// permitted.
func startShipmentNodes(t *testing.T, n, partitions int, change func(*Config)) []*Node {
	t.Helper()
	var nodes []*Node
	peers := loopbackPeers(t, n)
	for i, peer := range peers {
		config := peerConfig(t, peers, i, shipmentDefinitions(peer.NodeID)...)
		config.Partitions, config.Tags = partitions, []string{peer.NodeID}
		change(&config)
		nodes = append(nodes, startNode(t, config))
	}
	awaitHeaders(t, nodes)
	return nodes
}

func awaitHeaders(t *testing.T, nodes []*Node) {
	t.Helper()
	eventually(t, "the leaders permit headers", func() bool {
		leaders := 0
		for _, node := range nodes {
			for _, led := range node.ledPartitions() {
				if led.journal.Protocol() >= state.HeadersProtocol {
					leaders++
				}
			}
		}
		return leaders == len(nodes[0].partitions)
	})
}

func resultOf[O any](t *testing.T, client *Client, id string) O {
	t.Helper()
	status, err := client.Wait(testContext(t), id)
	var output O
	if err == nil {
		err = status.Output(&output)
	}
	if err != nil || status.State != Completed {
		t.Fatalf("%s: %+v, %v", id, status, err)
	}
	return output
}

// The tenant of a client's call reaches everything that follows from it, on all nodes and in all
// partitions, and after the leader of each partition has changed.
func TestHeaders_ReachAllNodesAndPartitions(t *testing.T) {
	t.Parallel()
	nodes := startShipmentNodes(t, 3, testPartitions, func(*Config) {})
	setsTenant := func(ctx context.Context, call replay.ClientCall, next func(context.Context) error) error {
		return next(tenantHeader.With(ctx, "acme"))
	}
	ctx, client := testContext(t), dialNodes(t, DialConfig{ClientInterceptors: []replay.ClientInterceptor{setsTenant}}, nodes...)
	const depth = 2
	if _, err := StartRun(ctx, nodes[0].Client(), reports, "reports", 2*(depth+1)); err != nil {
		t.Fatal(err)
	}
	order := shipment{Tags: []string{"n1", "n2", "n3"}, Depth: depth, Collector: "reports", Waits: true}
	run, err := StartRun(ctx, client, shipments, "p", order)
	if err != nil {
		t.Fatal(err)
	}
	for partition := range nodes[0].partitions {
		leader := leaderOfInstance(t, nodes, idInPartition("any", partition))
		if err := leader.partitions[partition].journal.TransferLeadership(ctx); err != nil {
			t.Logf("transfer: %v", err) // leadership was lost by itself
		}
	}
	if got, err := CallUpdate(ctx, nodes[1].Client(), "p", tenantUpdate, "in"); err != nil || !strings.HasPrefix(got, "in acme acme on n") {
		t.Errorf("update without a header: %q, %v", got, err)
	}
	if got, err := CallUpdate(tenantHeader.With(ctx, "umbrella"), nodes[1].Client(), "p", tenantUpdate, "in"); err != nil || !strings.HasPrefix(got, "in umbrella umbrella on n") {
		t.Errorf("update with a header: %q, %v", got, err)
	}
	if err := Send(ctx, nodes[0].Client(), "p", word, "continue"); err != nil {
		t.Fatal(err)
	}
	one := []string{"run of acme", "activity of acme on n1", "activity of acme on n2", "activity of acme on n3"}
	if seen, err := run.Wait(ctx); err != nil || !slices.Equal(seen, slices.Repeat(one, depth+1)) {
		t.Errorf("%q, %v", seen, err)
	}
	var want []string
	for level := range depth + 1 {
		id := strings.Repeat("child-", level) + "p"
		want = append(want, "from "+id+" of acme", "from activity of acme")
		for _, started := range []string{"chained-" + id, "other-" + id} {
			if seen := resultOf[[]string](t, client, started); !slices.Equal(seen, one) {
				t.Errorf("%s: %q", started, seen)
			}
		}
	}
	slices.Sort(want)
	if got := resultOf[[]string](t, client, "reports"); !slices.Equal(got, want) {
		t.Errorf("reports %q, want %q", got, want)
	}
	expectSameHistories(t, nodes)
}

func TestHeaders_SurviveRestart(t *testing.T) {
	config := Config{Dir: t.TempDir(), Definitions: shipmentDefinitions("n1")}
	node := startNode(t, config)
	awaitHeaders(t, []*Node{node})
	ctx := tenantHeader.With(testContext(t), "acme")
	if _, err := StartRun(ctx, node.Client(), shipments, "p", shipment{Tags: []string{""}, Waits: true, Silent: true}); err != nil {
		t.Fatal(err)
	}
	node = restart(t, node)
	if _, err := SendOrStart(testContext(t), node.Client(), shipments, "p", shipment{}, word, "continue"); err != nil {
		t.Fatal(err)
	}
	if seen := resultOf[[]string](t, node.Client(), "p"); !slices.Equal(seen, []string{"run of acme", "activity of acme on n1"}) {
		t.Errorf("%q", seen)
	}
	if _, err := SendOrStart(ctx, node.Client(), reports, "r", 1, reported, "first"); err != nil {
		t.Fatal(err)
	}
	if got := resultOf[[]string](t, node.Client(), "r"); !slices.Equal(got, []string{"first of acme"}) {
		t.Errorf("event that was sent with a start: %q", got)
	}
	executions, err := node.Client().Executions(testContext(t), "p")
	if err != nil || len(executions) != 2 {
		t.Fatalf("%+v, %v", executions, err)
	}
	text := countEvents(t, node.Client(), "p", 2, func(event history.Event) bool {
		encoded, err := event.MarshalJSON()
		return err == nil && strings.Contains(string(encoded), `"headers":[{"name":"tenant","value":"acme"}]`) &&
			strings.HasSuffix(event.String(), `headers={tenant="acme"}`)
	})
	if text != 2 {
		t.Errorf("%d events of the second execution show headers, want the start and the call", text)
	}
}

func TestHeaders_Baggage(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: shipmentDefinitions("n1"), BaggageHeaders: []string{"tenant", "absent"}})
	awaitHeaders(t, []*Node{node})
	client := node.Client()
	member, err := baggage.NewMemberRaw("tenant", "Ä & b")
	if err != nil {
		t.Fatal(err)
	}
	members, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	ctx := baggage.ContextWithBaggage(testContext(t), members)
	for of, ctx := range map[string]context.Context{"Ä & b": ctx, "acme": tenantHeader.With(ctx, "acme")} {
		got, err := Call(ctx, client, shipments, "p-"+fmt.Sprint(len(of)), shipment{Tags: []string{""}, Silent: true})
		if want := []string{"run of " + of, "activity of " + of + ", baggage " + of + " on n1"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	got, err := Call(testContext(t), client, shipments, "none", shipment{Tags: []string{""}, Silent: true})
	if err != nil || !slices.Equal(got, []string{"run of ", "activity of  on n1"}) {
		t.Errorf("without baggage: %q, %v", got, err)
	}
	member, _ = baggage.NewMemberRaw("tenant", strings.Repeat("x", 1025))
	members, _ = baggage.New(member)
	var invalid *replay.InvalidError
	if _, err := StartRun(baggage.ContextWithBaggage(testContext(t), members), client, shipments, "long", shipment{}); !errors.As(err, &invalid) || invalid.Field != `header "tenant"` {
		t.Errorf("a member that is too long: %v", err)
	}
}

// Until every member passes headers on, an input with headers is rejected.
func TestHeaders_NeedProtocol(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: shipmentDefinitions("n1"), protocol: state.HeadersProtocol - 1})
	client, plain := node.Client(), testContext(t)
	if _, err := StartRun(plain, client, shipments, "p", shipment{Waits: true}); err != nil {
		t.Fatal(err)
	}
	ctx := tenantHeader.With(plain, "acme")
	for call, err := range map[string]error{
		"StartRun":    errOf(StartRun(ctx, client, shipments, "q", shipment{})),
		"SendOrStart": errOf(SendOrStart(ctx, client, shipments, "q", shipment{}, word, "x")),
		"Send":        Send(ctx, client, "p", word, "x"),
		"CallUpdate":  errOf(CallUpdate(ctx, client, "p", tenantUpdate, "x")),
	} {
		if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "headers need protocol 4 on every member") {
			t.Errorf("%s: %v", call, err)
		}
	}
	if _, err := client.Get(plain, "q"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a rejected start had an effect: %v", err)
	}
	if err := Send(plain, client, "p", word, "x"); err != nil {
		t.Errorf("without headers: %v", err)
	}
}

func TestHeaders_CheckedOnArrival(t *testing.T) {
	header := func(name, value string) *journalpb.Header { return &journalpb.Header{Name: name, Value: value} }
	for reason, headers := range map[string][]*journalpb.Header{
		`headers are not sorted: "a" after "b"`:                          {header("b", ""), header("a", "")},
		`headers are not sorted: "a" after "a"`:                          {header("a", ""), header("a", "")},
		`name of a header is "": 1 to 128 of a-z 0-9 . _ - are allowed`:  {nil},
		`name of a header is "Ä": 1 to 128 of a-z 0-9 . _ - are allowed`: {header("Ä", "")},
		`header "a" has 1025 bytes: at most 1024 are allowed`:            {header("a", strings.Repeat("x", 1025))},
		`header "a" is not UTF-8`:                                        {header("a", "\xff")},
	} {
		send := &clusterpb.SendRequest{Name: "e", Headers: headers}
		for _, request := range []*clusterpb.Request{
			{Instance: "i", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "o", Headers: headers}}},
			{Instance: "i", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "o", Send: send}}},
			{Instance: "i", Call: &clusterpb.Request_Send{Send: send}},
			{Instance: "i", Call: &clusterpb.Request_Update{Update: &clusterpb.UpdateRequest{Name: "u", Headers: headers}}},
		} {
			if err := checkRequest(request, 1<<20); err == nil || err.Error() != "tenuto: "+reason {
				t.Errorf("%T: %v; want %s", request.Call, err, reason)
			}
		}
	}
}

func TestConfig_RejectsInvalidInterceptorsAndBaggage(t *testing.T) {
	many := slices.Repeat([]string{"h"}, 33)
	for field, config := range map[string]Config{
		"OrchestrationInterceptors has nil at index 0": {OrchestrationInterceptors: []replay.OrchestrationInterceptor{nil}},
		"ActivityInterceptors has nil at index 1": {ActivityInterceptors: []replay.ActivityInterceptor{
			func(ctx context.Context, next func(context.Context) error) error { return next(ctx) }, nil,
		}},
		"ClientInterceptors has nil at index 0":   {ClientInterceptors: []replay.ClientInterceptor{nil}},
		`BaggageHeaders has "A": 1 to 128 of `:    {BaggageHeaders: []string{"A"}},
		"BaggageHeaders has 33 names: at most 32": {BaggageHeaders: many},
	} {
		config.InMemory = true
		if _, err := Start(testContext(t), config); err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%v; want %s", err, field)
		}
	}
	for field, config := range map[string]DialConfig{
		"ClientInterceptors has nil":            {ClientInterceptors: []replay.ClientInterceptor{nil}},
		"BaggageHeaders has 33 names: at most ": {BaggageHeaders: many},
	} {
		config.Addresses = []string{"127.0.0.1:1"}
		if _, err := Dial(testContext(t), config); err == nil || !strings.Contains(err.Error(), "DialConfig."+field) {
			t.Errorf("%v; want %s", err, field)
		}
	}
}

// recordCalls returns an interceptor that records each call with its tenant and error.
func recordCalls() (calls func() []string, interceptor replay.ClientInterceptor) {
	var mu sync.Mutex
	var recorded []string
	return func() []string {
			mu.Lock()
			defer mu.Unlock()
			all := recorded
			recorded = nil
			return all
		}, func(ctx context.Context, call replay.ClientCall, next func(context.Context) error) error {
			err := next(ctx)
			of, _ := tenantHeader.From(ctx)
			mu.Lock()
			defer mu.Unlock()
			recorded = append(recorded, fmt.Sprintf("%s %s %s of %s: %v", call.Kind, call.Instance, call.Name, of, err))
			return err
		}
}

func TestClientInterceptors_RunAroundEachCall(t *testing.T) {
	calls, records := recordCalls()
	denied := errors.New("denied")
	outer := func(ctx context.Context, call replay.ClientCall, next func(context.Context) error) error {
		switch call.Instance {
		case "denied":
			return denied
		case "silent":
			return nil
		case "twice":
			return errors.Join(next(ctx), next(ctx))
		case "watched":
			return errors.Join(next(ctx), denied)
		}
		return next(tenantHeader.With(ctx, "acme"))
	}
	node := startNode(t, Config{InMemory: true, Partitions: 1, Definitions: ledgerDefinitions(), ClientInterceptors: []replay.ClientInterceptor{outer, records}})
	awaitHeaders(t, []*Node{node})
	ctx, client := testContext(t), node.Client()
	for _, c := range []struct {
		call func() error
		want []string
	}{
		{func() error { return errOf(StartRun(ctx, client, ledgerOrchestration, "l", 1)) }, []string{"start l ledger"}},
		{func() error { return errOf(CallUpdate(ctx, client, "l", raiseUpdate, 1)) }, []string{"update l raise"}},
		{func() error { return errOf(client.History(ctx, "l", Stale())) }, []string{"history l "}},
		{func() error { return errOf(client.Get(ctx, "l", Stale())) }, []string{"get l "}},
		{func() error { return errOf(client.Pending(ctx, "l")) }, []string{"get l "}},
		{func() error { return errOf(client.Stack(ctx, "l")) }, []string{"query l tenuto.stack"}},
		{func() error { return client.Suspend(ctx, "l", "") }, []string{"suspend l "}},
		{func() error { return client.Resume(ctx, "l", "") }, []string{"resume l "}},
		{func() error { return Send(ctx, client, "l", closedEvent, 0) }, []string{"send l closed"}},
		{func() error { return errOf(client.Wait(ctx, "l")) }, []string{"get l ", "wait l "}},
		{func() error { return errOf(client.List(ctx, Filter{}, "", 0)) }, []string{"list  "}},
		{func() error { return errOf(client.Members(ctx)) }, []string{"see members  "}},
		{func() error {
			for _, err := range client.Watch(ctx, "l", history.Position{}) {
				return err // the reader stops at the first event
			}
			return errTest
		}, []string{"watch l "}},
		{func() error { return errOf(client.Purge(ctx, "l")) }, []string{"purge  "}},
	} {
		err := c.call()
		for i := range c.want {
			c.want[i] += " of acme: <nil>"
		}
		if got := calls(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q, %v; want %q", got, err, c.want)
		}
	}
	for id, text := range map[string]string{
		"denied": "start denied: denied",
		"silent": "start silent: tenuto: interceptor 1 returned nil without a call of next",
		"twice":  "start twice: tenuto: interceptor 1 has called next twice, or after it returned",
	} {
		if _, err := StartRun(ctx, client, doubled, id, 1); err == nil || err.Error() != text || errors.Is(err, denied) != (id == "denied") {
			t.Errorf("%v; want %s", err, text)
		}
	}
	if _, err := StartRun(ctx, client, doubled, "watched", 1); !errors.Is(err, denied) {
		t.Errorf("an interceptor that replaces success: %v", err)
	}
	for _, err := range client.Watch(ctx, "watched", history.Position{}) {
		if err != nil {
			t.Errorf("watch: %v", err)
		}
		break // the interceptor's error comes too late to be yielded
	}
	for _, err := range client.Watch(ctx, "denied", history.Position{}) {
		if !errors.Is(err, denied) {
			t.Errorf("watch: %v", err)
		}
	}
}
