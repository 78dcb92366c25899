package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// startPeers starts a cluster of n nodes in this process.
func startPeers(t *testing.T, n int) []*Node {
	t.Helper()
	return startPeersWith(t, n, definitions()...)
}

func startPeersWith(t *testing.T, n int, definitions ...replay.Definition) []*Node {
	t.Helper()
	peers := loopbackPeers(t, n)
	var nodes []*Node
	for i := range peers {
		nodes = append(nodes, startNode(t, peerConfig(t, peers, i, definitions...)))
	}
	return nodes
}

func leaderOf(t *testing.T, nodes []*Node) *Node {
	t.Helper()
	var leader *Node
	eventually(t, "a node leads", func() bool {
		for _, node := range nodes {
			if node.IsLeader() {
				leader = node
				return true
			}
		}
		return false
	})
	return leader
}

// expectSameHistories waits until every node has applied the same, and fails the test if they never
// do.
func expectSameHistories(t *testing.T, nodes []*Node) {
	t.Helper()
	eventually(t, "all nodes have the same histories", func() bool {
		for i, g := range nodes[0].partitions {
			first := g.journal.Digest()
			for _, node := range nodes[1:] {
				if node.partitions[i].journal.Digest() != first {
					return false
				}
			}
		}
		return true
	})
}

func TestCluster_AnyNodeReachesLeader(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	var calls sync.WaitGroup
	for i := range 60 {
		client := nodes[i%3].Client()
		calls.Go(func() {
			if got, err := Call(ctx, client, fiveActivities, fmt.Sprintf("five-%d", i), i); err != nil || got != 32*i {
				t.Errorf("call %d: %d, %v", i, got, err)
			}
		})
	}
	calls.Wait()
	for _, node := range nodes {
		status, err := node.Client().Get(ctx, "five-7")
		if err != nil || status.State != Completed {
			t.Errorf("on %s: %+v, %v", node.ID(), status, err)
		}
		history, err := node.Client().History(ctx, "five-7")
		if err != nil || len(history.Events) != 12 {
			t.Errorf("on %s: history %v, %v", node.ID(), history, err)
		}
		if _, err := StartRun(ctx, node.Client(), fiveActivities, "five-7", 1); !errors.Is(err, ErrInstanceExists) {
			t.Errorf("on %s: a second start: %v", node.ID(), err)
		}
		if err := Send(ctx, node.Client(), "unknown", word, "x"); !errors.Is(err, ErrNotFound) {
			t.Errorf("on %s: an event to an unknown instance: %v", node.ID(), err)
		}
	}
	expectSameHistories(t, nodes)
}

func TestCluster_FailsOverWhenLeaderStops(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != leader {
			others = append(others, node)
		}
	}
	run, err := StartRun(ctx, others[0].Client(), waiter, "w", "got ")
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, others[1].Client(), "w", word, "it"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "got it" {
		t.Errorf("got %q, %v", got, err)
	}
	expectSameHistories(t, others)
}

func TestCluster_NoMajorityIsNotExecuted(t *testing.T) {
	peers := loopbackPeers(t, 3)
	config := peerConfig(t, peers, 0, definitions()...)
	config.CallTimeout = 300 * time.Millisecond
	node := startNode(t, config)
	_, err := StartRun(context.Background(), node.Client(), doubled, "d", 1)
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || !unavailable.NotExecuted {
		t.Errorf("got %v; want that nothing was done", err)
	}
}

// A former leader that does not know of its successor does not answer that something does not
// exist: the new leader may have created it.
func TestCluster_OnlyLeaderAnswersNotFound(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, doubled, "ended", 1); err != nil {
		t.Fatal(err)
	}
	calls := map[string]struct {
		do   func(ctx context.Context) error
		want error
	}{
		"an event to no instance":       {func(ctx context.Context) error { return Send(ctx, client, "unknown", word, "") }, ErrNotFound},
		"an event after the end":        {func(ctx context.Context) error { return Send(ctx, client, "ended", word, "") }, ErrEnded},
		"a start of an existing ID":     {func(ctx context.Context) error { return errOf(StartRun(ctx, client, doubled, "ended", 1)) }, ErrInstanceExists},
		"a cancellation of no instance": {func(ctx context.Context) error { return client.Cancel(ctx, "unknown", "") }, ErrNotFound},
		"a termination of no instance":  {func(ctx context.Context) error { return client.Terminate(ctx, "unknown", "") }, ErrNotFound},
		"a retry of no instance":        {func(ctx context.Context) error { return client.Retry(ctx, "unknown") }, ErrNotFound},
	}
	for name, call := range calls {
		if err := call.do(ctx); !errors.Is(err, call.want) {
			t.Errorf("%s: %v; want %v", name, err, call.want)
		}
	}
	for name, call := range calls {
		limited, abandon := context.WithCancel(ctx)
		rejected := func(context.Context) error {
			abandon() // it would continue until there is a leader
			return journal.ErrNotLeader
		}
		for _, g := range node.partitions {
			g.barrier = rejected
		}
		var unavailable *UnavailableError
		if err := call.do(limited); !errors.As(err, &unavailable) || !unavailable.NotExecuted || errors.Is(err, call.want) {
			t.Errorf("%s, by one that does not lead: %v; want that nothing was done", name, err)
		}
	}
}

// The called node needs a while to notice that its call has ended.
type slowNode struct{ called, returned atomic.Bool }

func (s *slowNode) Serve(ctx context.Context, _ *clusterpb.Request) *clusterpb.Response {
	s.called.Store(true)
	<-ctx.Done()
	for range 10_000 {
		runtime.Gosched()
	}
	s.returned.Store(true)
	return new(clusterpb.Response)
}

func (*slowNode) ServeWorker(grpc.ServerStream) error     { return nil }
func (*slowNode) ServeStartBatch(grpc.ServerStream) error { return nil }

func TestCallServer_CloseWaitsForCalls(t *testing.T) {
	checkGoroutineLeaks(t)
	dialer := &transport.Dialer{Links: transport.NewLinks(nil, 1)}
	mux, err := transport.Listen("127.0.0.1:0", dialer, nil, testLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer mux.Close()
	called := new(slowNode)
	server, pool := serveCalls(called, mux), newCallPool(dialer)
	defer pool.Close()
	ctx, answered := testContext(t), make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = pool.Call(ctx, mux.Addr().String(), new(clusterpb.Request))
	}()
	eventually(t, "the call has arrived", called.called.Load)
	server.Close()
	if !called.returned.Load() {
		t.Error("closed while a call was being served")
	}
	<-answered
}

func TestMux_ClosesForeignConnections(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeers(t, 3)
	leaderOf(t, nodes)
	address := nodes[0].config.Listen
	for name, garbage := range map[string]string{
		"http":            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"other version":   "tenuto\x02r",
		"unknown purpose": "tenuto\x01?",
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
		if n, err := io.Copy(io.Discard, conn); n > 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %d bytes, %v; want the connection closed without a word", name, n, err)
		}
		_ = conn.Close()
	}
	if got, err := Call(testContext(t), nodes[0].Client(), doubled, "d", 1); err != nil || got != 2 {
		t.Errorf("after that: %d, %v", got, err)
	}
}

func TestProtocol_RejectsDistantVersions(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	for _, version := range []uint32{protocolVersion + 2, protocolVersion + 100} {
		request := &clusterpb.Request{Protocol: version, Instance: "x", Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
		response := node.dispatcher.serve(testContext(t), request)
		if !errors.Is(fromFailure(response.Failure), ErrProtocol) {
			t.Errorf("version %d: %v", version, response)
		}
	}
}
