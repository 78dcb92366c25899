package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// dialNodes returns a remote client of nodes without TLS.
func dialNodes(t *testing.T, config DialConfig, nodes ...*Node) *Client {
	t.Helper()
	for _, node := range nodes {
		config.Addresses = append(config.Addresses, node.config.Listen)
	}
	if config.Logger == nil {
		config.Logger = testLogger()
	}
	client, err := Dial(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// observeLifecycle returns what a client observes over the whole life of instances, as text.
func observeLifecycle(ctx context.Context, client *Client, prefix string) (seen []string) {
	note := func(what string, values ...any) { seen = append(seen, what+": "+fmt.Sprint(values...)) }
	id := func(name string) string { return prefix + name }
	noteErr := func(what string, err error) {
		text := "none"
		if err != nil {
			text = strings.ReplaceAll(err.Error(), prefix, "")
		}
		note(what, text)
	}
	sum, err := Call(ctx, client, fiveActivities, id("fifth"), 3)
	note("call", sum)
	noteErr("its error", err)
	_, err = StartRun(ctx, client, fiveActivities, id("fifth"), 3)
	note("a second start", errors.Is(err, ErrInstanceExists))
	_, err = StartRun(ctx, client, ledgerOrchestration, id("ledger"), 10, Tags(map[string]string{"of": prefix}))
	noteErr("start", err)
	raised, err := CallUpdate(ctx, client, id("ledger"), raiseUpdate, 5)
	note("update", raised)
	noteErr("its error", err)
	_, err = CallUpdate(ctx, client, id("ledger"), raiseUpdate, 500)
	noteErr("one that is rejected", err)
	_, err = CallUpdate(ctx, client, id("ledger"), raiseUpdate, -1)
	note("one that fails", errors.Is(err, errLow))
	_, err = Query(ctx, client, id("ledger"), replay.Query[int, int]("none"), 1)
	note("query of one that has none", isNotRegistered(err, "query"))
	pending, err := client.Pending(ctx, id("ledger"))
	note("pending", len(pending), err)
	noteErr("suspend", client.Suspend(ctx, id("ledger"), "a"))
	noteErr("resume", client.Resume(ctx, id("ledger"), "b"))
	noteErr("send", Send(ctx, client, id("ledger"), closedEvent, 0))
	status, err := client.Wait(ctx, id("ledger"))
	noteErr("wait", err)
	note("state", status.State, status.LastEventID)
	recorded, err := client.History(ctx, id("ledger"))
	noteErr("history", err)
	note("events", len(recorded.Events))
	positions, err := collectWatch(ctx, client, id("ledger"), history.Position{})
	note("watched", positions)
	noteErr("its error", err)
	executions, err := client.Executions(ctx, id("ledger"))
	note("executions", len(executions), err)
	page, err := client.List(ctx, Filter{Tags: map[string]string{"of": prefix}}, "", 0)
	note("list", len(page.Instances), err)
	n, err := client.Count(ctx, Filter{IDPrefix: prefix})
	note("count", n, err)
	_, err = Call(ctx, client, failingOrchestration, id("failing"), "")
	noteErr("a failure", err)
	run, err := SendOrStart(ctx, client, waiter, id("waiter"), "got ", word, "it")
	noteErr("send or start", err)
	got, err := run.Wait(ctx)
	note("its result", got, err)
	noteErr("send to nobody", Send(ctx, client, id("unknown"), word, ""))
	noteErr("cancel of one that has ended", client.Cancel(ctx, id("waiter"), ""))
	_, err = client.Wait(ctx, id("unknown"))
	noteErr("wait for nobody", err)
	_, err = collectWatch(ctx, client, id("unknown"), history.Position{})
	noteErr("watch nobody", err)
	noteErr("a wrong ID", client.Cancel(ctx, "no ID", ""))
	purged, err := client.Purge(ctx, id("waiter"), id("unknown"))
	note("purge", purged, err)
	_, err = client.Get(ctx, id("waiter"), Stale())
	note("a stale read", err == nil || errors.Is(err, ErrNotFound))
	return seen
}

func TestRemoteClient_MatchesNodeClient(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeersWith(t, 3, ledgerDefinitions()...)
	ctx := testContext(t)
	want := observeLifecycle(ctx, leaderOf(t, nodes).Client(), "embedded-")
	for i, node := range nodes {
		got := observeLifecycle(ctx, dialNodes(t, DialConfig{}, node), fmt.Sprintf("remote-%d-", i))
		if !slices.Equal(got, want) {
			t.Errorf("through %s:\n%s\nwant\n%s", node.ID(), strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A watch and a wait continue at other nodes, without a gap or a repetition, after the node that
// answered them is gone.
func TestRemoteClient_SurvivesNodeLoss(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeersWith(t, 3, append(definitions(), counter.Bind(counterBody))...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	client := dialNodes(t, DialConfig{}, nodes...)
	run, err := StartRun(ctx, client, counter, "c", counterState{Round: 1})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- errOf(run.Wait(ctx)) }()
	var positions []string
	n := 0
	for r, err := range client.Watch(ctx, "c", history.Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		positions = append(positions, fmt.Sprintf("%d.%d", r.Execution, r.EventID))
		if r.Type != "ExternalSubscribed" {
			continue
		}
		if n++; n == 3 {
			if err := leader.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := Send(ctx, client, "c", add, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the wait: %v", err)
	}
	all, err := collectWatch(ctx, client, "c", history.Position{})
	if err != nil || !slices.Equal(positions, all) {
		t.Errorf("%v; want %v, %v", positions, all, err)
	}
}

func TestRemoteClient_ReportsNotExecuted(t *testing.T) {
	checkGoroutineLeaks(t)
	peers := loopbackPeers(t, 1)
	_, err := Dial(context.Background(), DialConfig{Addresses: []string{peers[0].Address}, CallTimeout: 50 * time.Millisecond, Logger: testLogger()})
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || !unavailable.NotExecuted || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("no listener: %v; want NotExecuted and the reason", err)
	}
	nodes := startPeers(t, 3)
	leaderOf(t, nodes)
	client := dialNodes(t, DialConfig{CallTimeout: 300 * time.Millisecond}, nodes...)
	for _, node := range nodes {
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = StartRun(context.Background(), client, doubled, "d", 1)
	if !errors.As(err, &unavailable) || !unavailable.NotExecuted {
		t.Errorf("all nodes gone: %v; want NotExecuted", err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if _, err = client.Get(testContext(t), "d"); !errors.Is(err, ErrClosed) {
		t.Errorf("when it is closed: %v", err)
	}
}

func TestDial_RejectsInvalidConfig(t *testing.T) {
	for name, config := range map[string]DialConfig{
		"no address":     {},
		"no host:port":   {Addresses: []string{"localhost"}},
		"a cluster ID":   {Addresses: []string{"127.0.0.1:1"}, ClusterID: "a/b"},
		"keys not there": {Addresses: []string{"127.0.0.1:1"}, TLS: KeyFiles("none", "none", "none")},
	} {
		var wrong *replay.InvalidError
		if _, err := Dial(testContext(t), config); !errors.As(err, &wrong) {
			t.Errorf("%s: %v; want an InvalidError", name, err)
		}
	}
}

// A fakeNode answers like a node whose knowledge is set by the test.
type fakeNode struct {
	leader  atomic.Pointer[string]
	hanging bool
	calls   atomic.Int32
}

func (f *fakeNode) Serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if request.GetMembers() != nil {
		result := &clusterpb.MembersResult{Members: []*clusterpb.Member{{Node: "s", Address: *f.leader.Load(), Leader: true}}}
		return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: result}}
	}
	f.calls.Add(1)
	if f.hanging {
		<-ctx.Done()
		return new(clusterpb.Response)
	}
	return &clusterpb.Response{Result: &clusterpb.Response_Send{Send: new(clusterpb.SendResult)}}
}

func (*fakeNode) ServeWorker(grpc.ServerStream) error     { return nil }
func (*fakeNode) ServeStartBatch(grpc.ServerStream) error { return nil }

// A hanging node keeps its connections. A call in flight to it moves to the new leader as soon as
// other nodes know that one.
func TestRemoteClient_CallLeavesHangingLeader(t *testing.T) {
	checkGoroutineLeaks(t)
	var servers []*fakeNode
	var addresses []string
	for i := range 2 {
		mux, err := transport.Listen("127.0.0.1:0", &transport.Dialer{Links: transport.NewLinks(nil, 1)}, nil, testLogger())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(mux.Close)
		server := &fakeNode{hanging: i == 0}
		calls := serveCalls(server, mux)
		t.Cleanup(calls.Close)
		servers, addresses = append(servers, server), append(addresses, mux.Addr().String())
	}
	servers[0].leader.Store(&addresses[0])
	servers[1].leader.Store(&addresses[0])
	client, err := Dial(testContext(t), DialConfig{Addresses: addresses, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	sent := make(chan error)
	go func() { sent <- Send(testContext(t), client, "i", word, "") }()
	eventually(t, "the leader that hangs is called", func() bool { return servers[0].calls.Load() == 1 })
	servers[1].leader.Store(&addresses[1])
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// newHangingRemote is a client of three nodes, of which some do not answer.
func newHangingRemote(t *testing.T, hangs func(address string) bool) (r *remoteTransport, asked func(address string) int) {
	t.Helper()
	var mu sync.Mutex
	counts := make(map[string]int)
	r = &remoteTransport{
		config: DialConfig{CallTimeout: time.Minute}, pool: newCallPool(nil), closing: make(chan struct{}),
		addresses: []string{"a", "b", "c"}, partitions: []*remotePartition{newRemotePartition("a")}, anyNodeAddress: "a",
		callNode: func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
			mu.Lock()
			counts[address]++
			mu.Unlock()
			switch {
			case hangs(address):
				<-ctx.Done()
				return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeUnknown}}
			case request.GetMembers() != nil:
				var members []*clusterpb.Member
				for _, at := range []string{"a", "b", "c"} {
					members = append(members, &clusterpb.Member{Node: "node-" + at, Address: at})
				}
				return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: &clusterpb.MembersResult{Members: members}}}
			}
			return &clusterpb.Response{Result: &clusterpb.Response_Wait{Wait: &clusterpb.WaitResult{Status: &clusterpb.Status{Instance: address}}}}
		},
	}
	r.running.Go(r.runProber)
	t.Cleanup(func() { _ = r.release() })
	return r, func(address string) int {
		mu.Lock()
		defer mu.Unlock()
		return counts[address]
	}
}

func TestRemoteClient_WaitLeavesHangingNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newHangingRemote(t, func(address string) bool { return address != "c" })
		begin := time.Now()
		status, err := r.await(t.Context(), "i", runRef{first: 1})
		if err != nil || status.Instance != "c" {
			t.Fatalf("%v, %v", status, err)
		}
		// The second hanging node gets twice the time.
		if elapsed := time.Since(begin); elapsed > 4*time.Second {
			t.Errorf("it took %v", elapsed)
		}
		r.switchAddress(&r.anyNodeAddress, "c", "b")
		begin = time.Now()
		if _, err := r.await(t.Context(), "i", runRef{first: 1}); err != nil || time.Since(begin) > 3*time.Second {
			t.Errorf("again: %v after %v", err, time.Since(begin))
		}
	})
}

func TestRemoteClient_AsksAllNodesForLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var knows atomic.Pointer[string] // the address of the node that is in contact with the leader
		r := &remoteTransport{
			config: DialConfig{CallTimeout: time.Minute}, pool: newCallPool(nil), closing: make(chan struct{}),
			addresses: []string{"rejected", "hangs", "healthy"}, partitions: []*remotePartition{newRemotePartition("rejected")}, anyNodeAddress: "rejected",
			callNode: func(ctx context.Context, address string, _ *clusterpb.Request) *clusterpb.Response {
				if address == "hangs" {
					<-ctx.Done()
					return wire.NotLeader("it hangs")
				}
				members := []*clusterpb.Member{{Node: "n0", Address: "rejected"}, {Node: "n2", Address: "healthy", Leader: address == *knows.Load()}}
				return &clusterpb.Response{Result: &clusterpb.Response_Members{Members: &clusterpb.MembersResult{Members: members}}}
			},
		}
		t.Cleanup(func() { _ = r.release() })
		client := &Client{transport: r}
		leads := func() bool {
			begin := time.Now()
			members, err := client.Members(t.Context())
			if err != nil || len(members) != 2 || time.Since(begin) > membersWait {
				t.Fatalf("%v, %v after %v", members, err, time.Since(begin))
			}
			return members[1].Leader
		}
		nobody, healthy := "", "healthy"
		knows.Store(&nobody)
		if leads() {
			t.Error("a leader is named that no node knows")
		}
		knows.Store(&healthy)
		if !leads() {
			t.Error("no leader; want the one that another node knows")
		}
		if got := r.loadAddress(&r.partitions[0].leaderAddress); got != healthy {
			t.Errorf("the next call goes to %q; want the leader", got)
		}
	})
}

// If every node is slow, the timeout grows until one answers.
func TestRemoteClient_WaitEndsWhenAllNodesAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, asked := newHangingRemote(t, func(string) bool { time.Sleep(3 * time.Second); return false })
		if status, err := r.await(t.Context(), "i", runRef{first: 1}); err != nil || status.Instance == "" {
			t.Fatalf("%v, %v", status, err)
		}
		if n := asked("a") + asked("b") + asked("c"); n > 30 {
			t.Errorf("asked %d times", n)
		}
	})
}
