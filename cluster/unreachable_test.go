package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// If an error wraps several, the one with an unknown outcome decides.
func TestFailure_UnknownOutcomeWins(t *testing.T) {
	for _, open := range []error{
		journal.ErrUnknownOutcome, context.Canceled, context.DeadlineExceeded,
		&UnavailableError{Err: errTest}, &UnavailableError{Err: &BusyError{}}, &UnavailableError{Err: ErrRemoved},
	} {
		for _, other := range []error{
			ErrRemoved, ErrNotFound, ErrEnded, ErrInstanceExists, ErrNotAuthorized, &BusyError{}, &replay.InvalidError{}, &VersionError{},
			journal.ErrBusy, journal.ErrNotLeader, journal.ErrClosed, actors.ErrStopped,
		} {
			for _, err := range []error{fmt.Errorf("%w: %w", open, other), fmt.Errorf("%w: %w", other, open), errors.Join(other, open)} {
				if f := toFailure(err); f.NotExecuted || f.Code != wire.CodeUnknown {
					t.Errorf("%v became %v; want an unknown outcome", err, f)
				}
			}
		}
	}
	for range 100 { // the first of several sentinels must always win
		if f := toFailure(fmt.Errorf("%w: %w", ErrPartitionCount, ErrNotFound)); f.Code != wire.CodeNotFound {
			t.Fatalf("got %v; want %s", f, wire.CodeNotFound)
		}
	}
	if f := toFailure(&UnavailableError{NotExecuted: true, Err: context.Canceled}); !f.NotExecuted {
		t.Errorf("nothing was done, but the failure is %v", f)
	}
}

// startUnresponsivePeer accepts connections and sends nothing.
func startUnresponsivePeer(t *testing.T) (address string, connected *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connected = new(atomic.Int32)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connected.Add(1)
			go func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() }()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String(), connected
}

func TestDialer_ConnectEndsWhenNodeCloses(t *testing.T) {
	address, connected := startUnresponsivePeer(t)
	node := startNode(t, Config{InMemory: true, Listen: "127.0.0.1:0", Partitions: 1, Definitions: definitions()})
	errs := make(chan error, 2)
	go func() { errs <- errOf(node.mux.NetworkOf(0).Dial(address, time.Hour)) }()
	go func() { errs <- errOf(node.dialer.Dial(context.Background(), address, transport.Calls)) }()
	eventually(t, "both have connected", func() bool { return connected.Load() == 2 })
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("%v; want that it was canceled, not that its time was over", err)
		}
	}
}

// A hangingNode never answers an announcement. It records when each arrived and why it ended.
type hangingNode struct {
	arrived chan struct{}
	ended   chan error
}

func (h *hangingNode) Serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if join := request.GetJoin(); join != nil && !join.CheckPartitionsOnly { // a question at the start has another limit
		h.arrived <- struct{}{}
		<-ctx.Done()
		h.ended <- ctx.Err()
	}
	return wire.NotLeader("it says nothing")
}

func (*hangingNode) ServeWorker(grpc.ServerStream) error     { return nil }
func (*hangingNode) ServeStartBatch(grpc.ServerStream) error { return nil }

// foundPair founds a cluster of two nodes and one partition and closes both. It returns the
// configuration of the first and the address of the second.
func foundPair(t *testing.T) (config Config, other string) {
	t.Helper()
	peers := loopbackPeers(t, 2)
	var nodes []*Node
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		config.Partitions = 1
		nodes = append(nodes, startNode(t, config))
	}
	first := nodes[0]
	eventually(t, "the first node knows both members", func() bool { return len(first.partitions[0].journal.Members()) == 2 })
	for _, node := range nodes {
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return first.config, peers[1].Address
}

func TestMembership_ReportEndsWhenNodeCloses(t *testing.T) {
	checkGoroutineLeaks(t)
	config, address := foundPair(t) // a node that is not a member announces itself to no node
	mux, err := transport.Listen(address, &transport.Dialer{Links: transport.NewLinks(nil, 1)}, nil, testLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mux.Close)
	peer := &hangingNode{arrived: make(chan struct{}, 100), ended: make(chan error, 100)}
	calls := serveCalls(peer, mux)
	t.Cleanup(calls.Close)
	node := startNode(t, config)
	reported := make(chan error, 1)
	go func() { reported <- node.announcer.announce(node.ctx) }()
	<-peer.arrived
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-reported; err == nil {
		t.Error("the announcement succeeded")
	}
	if err := <-peer.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the announcement ended with %v; want a canceled context", err)
	}
}

// simulateLaggingFollower makes a node answer waits and watches like one that is behind what the
// client has seen: it holds them, unless a request says what its sender has seen.
func simulateLaggingFollower(client *Client, address string, applied uint64) {
	r := client.transport.(*remoteTransport)
	reach := r.callNode
	r.callNode = func(ctx context.Context, to string, request *clusterpb.Request) *clusterpb.Response {
		if to != address || request.GetWatch() == nil {
			return reach(ctx, to, request)
		}
		if request.SeenIndex > applied {
			return wire.NotLeader("it is behind")
		}
		<-ctx.Done()
		return &clusterpb.Response{Result: &clusterpb.Response_Watch{Watch: &clusterpb.WatchResult{
			Execution: request.GetWatch().Execution, EventId: request.GetWatch().EventId, Run: request.GetWatch().Run,
		}}}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.anyNodeAddress = address
}

func TestUpdate_NotAwaitedOnLaggingNode(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeersWith(t, 3, ledgerDefinitions()...)
	ctx, leader := testContext(t), leaderOf(t, nodes)
	if _, err := StartRun(ctx, leader.Client(), ledgerOrchestration, "l", 1); err != nil {
		t.Fatal(err)
	}
	follower := nodes[(slices.Index(nodes, leader)+1)%3]
	for what, call := range map[string]func(client *Client) error{
		"update": func(client *Client) error { return errOf(CallUpdate(ctx, client, "l", raiseUpdate, 1)) },
		"watch after an event": func(client *Client) error {
			if err := Send(ctx, client, "l", word, "x"); err != nil {
				return err
			}
			for r, err := range client.Watch(ctx, "l", history.Position{}) {
				if err != nil || r.Type == "ExternalEvent" && r.Name == word.Name() {
					return err
				}
			}
			return errors.New("the watch has ended")
		},
	} {
		client := dialNodes(t, DialConfig{membersRefreshInterval: -1}, nodes...)
		simulateLaggingFollower(client, follower.config.Listen, leader.partitionOf("l").journal.AppliedIndex())
		if err := call(client); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
