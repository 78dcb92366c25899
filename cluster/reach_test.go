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
	"google.golang.org/grpc/connectivity"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Of an error that is several things at once, the part that leaves the outcome open decides.
func TestAnOpenOutcomeIsNeverToldAsNothingDone(t *testing.T) {
	for _, open := range []error{
		journal.ErrUnknownOutcome, context.Canceled, context.DeadlineExceeded,
		&UnavailableError{Err: errWanted}, &UnavailableError{Err: &BusyError{}}, &UnavailableError{Err: ErrRemoved},
	} {
		for _, other := range []error{
			ErrRemoved, ErrNotFound, ErrEnded, ErrInstanceExists, ErrNotAuthorized, &BusyError{}, &InputError{}, &VersionError{},
			journal.ErrBusy, journal.ErrNotLeader, journal.ErrClosed, actors.ErrStopped,
		} {
			for _, err := range []error{fmt.Errorf("%w: %w", open, other), fmt.Errorf("%w: %w", other, open), errors.Join(other, open)} {
				if f := failure(err); f.NotExecuted || f.Code != codeUnknown {
					t.Errorf("%v is told as %v; want an unknown outcome", err, f)
				}
			}
		}
	}
	for range 100 { // the first of several sentinels, and not one of them
		if f := failure(fmt.Errorf("%w: %w", ErrGroups, ErrNotFound)); f.Code != codeNotFound {
			t.Fatalf("told as %v; want %s", f, codeNotFound)
		}
	}
	if f := failure(&UnavailableError{NotExecuted: true, Err: context.Canceled}); !f.NotExecuted {
		t.Errorf("nothing was done, and it is told as %v", f)
	}
}

// silentPeer accepts connections and says nothing.
func silentPeer(t *testing.T) (address string, connected *atomic.Int32) {
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

func TestConnectingToASilentPeerEndsWhenTheNodeCloses(t *testing.T) {
	address, connected := silentPeer(t)
	node := startNode(t, Config{InMemory: true, Listen: "127.0.0.1:0", Groups: 1, Definitions: definitions()})
	errs := make(chan error, 2)
	go func() { errs <- second(node.port.raft.Dial(address, time.Hour)) }()
	go func() { errs <- second(node.dialer.dial(context.Background(), address, forCalls)) }()
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

// A heldCall is a node that answers no report, and notes when each has come and why it ended.
type heldCall struct {
	came  chan struct{}
	ended chan error
}

func (h *heldCall) serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
	if request.GetEnrol() != nil {
		h.came <- struct{}{}
		<-ctx.Done()
		h.ended <- ctx.Err()
	}
	return notLeader("it says nothing")
}

func (*heldCall) employ(grpc.ServerStream) error   { return nil }
func (*heldCall) startAll(grpc.ServerStream) error { return nil }

// foundPair founds a cluster of two nodes and one group, closes both, and returns the
// configuration of the first and the address of the second.
func foundPair(t *testing.T) (config Config, other string) {
	t.Helper()
	peers := loopbackPeers(t, 2)
	var nodes []*Node
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		config.Groups = 1
		nodes = append(nodes, startNode(t, config))
	}
	first := nodes[0]
	eventually(t, "the first node knows both members", func() bool { return len(first.groups[0].journal.Members()) == 2 })
	for _, node := range nodes {
		if err := node.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return first.config, peers[1].Address
}

func TestAReportToASilentPeerEndsWhenTheNodeCloses(t *testing.T) {
	noGoroutinesLeft(t)
	config, address := foundPair(t) // a node that is no member reports to nobody
	port, err := listen(address, &dialer{links: newLinks(nil)}, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.close)
	peer := &heldCall{came: make(chan struct{}, 100), ended: make(chan error, 100)}
	calls := serveCalls(peer, port.calls)
	t.Cleanup(calls.close)
	node := startNode(t, config)
	reported := make(chan error, 1)
	go func() { reported <- node.report(node.life) }()
	<-peer.came
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-reported; err == nil {
		t.Error("the report has succeeded")
	}
	if err := <-peer.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the report has ended with %v; want that it was canceled", err)
	}
}

func TestNodesThatAreGoneAreNotDialedForEver(t *testing.T) {
	noGoroutinesLeft(t)
	dialer := &dialer{links: newLinks(nil)}
	port, err := listen("127.0.0.1:0", dialer, nil, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.close)
	calls := serveCalls(new(stranger), port.calls)
	t.Cleanup(calls.close)
	there, gone := port.listener.Addr().String(), loopbackAddress(t)
	pool := newCallPool(dialer)
	defer pool.close()
	ctx := testContext(t)
	if _, err := pool.call(ctx, there, &clusterpb.Request{Call: &clusterpb.Request_Send{Send: new(clusterpb.SendRequest)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.call(ctx, gone, new(clusterpb.Request)); !errors.As(err, new(*unreachedError)) {
		t.Fatalf("%v; want that nobody is there", err)
	}
	dialed := pool.nodes[gone]
	pool.forget(time.Now())
	if pool.nodes[gone] == nil {
		t.Error("a node was forgotten that was called just now")
	}
	pool.forget(time.Now().Add(2 * forgetAfter))
	if pool.nodes[gone] != nil || dialed.GetState() != connectivity.Shutdown {
		t.Errorf("a node that is gone: %v is %v; want it shut down and forgotten", pool.nodes[gone], dialed.GetState())
	}
	if pool.nodes[there] == nil {
		t.Error("a node was forgotten to which there is a connection")
	}
	if _, err := pool.call(ctx, gone, new(clusterpb.Request)); !errors.As(err, new(*unreachedError)) {
		t.Errorf("called again: %v; want that nobody is there", err)
	}
}

// laggingFollower has one node answer waits and watches as one does that is behind what the
// client has been told: it holds them, unless a request says what its sender has seen.
func laggingFollower(client *Client, address string, applied uint64) {
	r := client.access.(*remote)
	reach := r.reach
	r.reach = func(ctx context.Context, to string, request *clusterpb.Request) *clusterpb.Response {
		if to != address || request.GetWatch() == nil {
			return reach(ctx, to, request)
		}
		if request.SeenIndex > applied {
			return notLeader("it is behind")
		}
		<-ctx.Done()
		return &clusterpb.Response{Result: &clusterpb.Response_Watch{Watch: &clusterpb.WatchResult{
			Execution: request.GetWatch().Execution, EventId: request.GetWatch().EventId, Run: request.GetWatch().Run,
		}}}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nearest = address
}

func TestAnUpdateIsNotWaitedForAtANodeThatIsBehindIt(t *testing.T) {
	noGoroutinesLeft(t)
	nodes := startPeersWith(t, 3, ledgers()...)
	ctx, leader := testContext(t), leaderOf(t, nodes)
	if _, err := StartRun(ctx, leader.Client(), ledger, "l", 1); err != nil {
		t.Fatal(err)
	}
	follower := nodes[(slices.Index(nodes, leader)+1)%3]
	for what, call := range map[string]func(client *Client) error{
		"update": func(client *Client) error { return second(CallUpdate(ctx, client, "l", raise, 1)) },
		"watch after an event": func(client *Client) error {
			if err := Send(ctx, client, "l", word, "x"); err != nil {
				return err
			}
			for r, err := range client.Watch(ctx, "l", Position{}) {
				if err != nil || r.Event.GetExternalEvent().GetName() == "word" {
					return err
				}
			}
			return errors.New("the watch has ended")
		},
	} {
		client := dialNodes(t, DialConfig{}, nodes...)
		laggingFollower(client, follower.config.Listen, leader.of("l").journal.AppliedIndex())
		if err := call(client); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
