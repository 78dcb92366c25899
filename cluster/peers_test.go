package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

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
			if node.Leading() {
				leader = node
				return true
			}
		}
		return false
	})
	return leader
}

// sameHistories waits until every node has applied the same, and fails the test
// if they do not come to that.
func sameHistories(t *testing.T, nodes []*Node) {
	t.Helper()
	eventually(t, "all nodes have the same histories", func() bool {
		first := nodes[0].journal.Digest()
		for _, node := range nodes[1:] {
			if node.journal.Digest() != first {
				return false
			}
		}
		return true
	})
}

func TestCallsToAnyOfThreeNodesReachTheLeader(t *testing.T) {
	noGoroutinesLeft(t)
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	var calls sync.WaitGroup
	for i := range 60 {
		client := nodes[i%3].Client()
		calls.Go(func() {
			if got, err := Call(ctx, client, fifth, fmt.Sprintf("five-%d", i), i); err != nil || got != 32*i {
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
		if _, err := StartRun(ctx, node.Client(), fifth, "five-7", 1); !errors.Is(err, ErrInstanceExists) {
			t.Errorf("on %s: a second start: %v", node.ID(), err)
		}
		if err := Send(ctx, node.Client(), "nobody", word, "x"); !errors.Is(err, ErrNotFound) {
			t.Errorf("on %s: an event to nobody: %v", node.ID(), err)
		}
	}
	sameHistories(t, nodes)
}

func TestWhenTheLeaderStopsAnotherGoesOn(t *testing.T) {
	noGoroutinesLeft(t)
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
	sameHistories(t, others)
}

func TestWithoutAMajorityACallSaysThatNothingWasDone(t *testing.T) {
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

func TestConnectionsThatAreNotOursAreClosed(t *testing.T) {
	noGoroutinesLeft(t)
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
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if n, err := io.Copy(io.Discard, conn); n > 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %d bytes, %v; want the connection closed without a word", name, n, err)
		}
		_ = conn.Close()
	}
	if got, err := Call(testContext(t), nodes[0].Client(), doubled, "d", 1); err != nil || got != 2 {
		t.Errorf("after that: %d, %v", got, err)
	}
}

func TestNodesOfAProtocolTooFarAwayAreRefused(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	for _, version := range []uint32{protocolVersion + 2, protocolVersion + 100} {
		request := &clusterpb.Request{Protocol: version, Instance: "x", Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}}
		response := node.serve(testContext(t), request)
		if !errors.Is(failed(response.Failure), ErrProtocol) {
			t.Errorf("version %d: %v", version, response)
		}
	}
}
