package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/admission"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// tally continues as new after every few words, and sums the values of its updates.
var tally = replay.Orchestration[int, int]("tally")

func tallyBody(ctx *replay.Context, sum int) (int, error) {
	err := raiseUpdate.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) {
		sum += n
		return sum, nil
	})
	if err != nil {
		return 0, err
	}
	for range 3 {
		if _, err := word.Wait(ctx); err != nil {
			return 0, err
		}
	}
	if err := replay.AwaitUpdates(ctx); err != nil {
		return 0, err
	}
	return 0, tally.ContinueAsNew(ctx, sum)
}

func tallyDefinitions() []replay.Definition { return append(definitions(), tally.Bind(tallyBody)) }

// A lossyCaller loses the answers of the next calls on request: after the call was executed, and
// after something else has happened.
type lossyCaller struct {
	next      admission.Asker
	meanwhile func()
	toLose    atomic.Int64 // answers
}

func (l *lossyCaller) call(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
	armed := l.disarm()
	response := l.next(ctx, r)
	if !armed {
		return response
	}
	if failure := response.GetFailure(); failure != nil && failure.NotExecuted {
		l.toLose.Add(1)
		return response
	}
	l.meanwhile()
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeUnknown, Message: "the answer was lost"}}
}

// disarm reports whether the answer of a call is to be lost.
func (l *lossyCaller) disarm() bool {
	for {
		n := l.toLose.Load()
		if n == 0 || l.toLose.CompareAndSwap(n, n-1) {
			return n > 0
		}
	}
}

// loseNextAnswers loses the next n answers, each after meanwhile has returned.
func (l *lossyCaller) loseNextAnswers(n int64, meanwhile func()) {
	l.meanwhile = meanwhile
	l.toLose.Store(n)
}

func newLossyNode(node *Node) *lossyCaller {
	l := &lossyCaller{next: node.router.callLeader}
	node.ask = l.call
	return l
}

func newLossyRemote(client *Client) *lossyCaller {
	r := client.transport.(*remoteTransport)
	reach := r.callNode
	l := new(lossyCaller)
	r.callNode = func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
		if request.GetMembers() != nil || request.Stale {
			return reach(ctx, address, request)
		}
		once := &lossyCaller{next: func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response { return reach(ctx, address, r) }, meanwhile: l.meanwhile}
		if l.disarm() {
			once.toLose.Store(1)
		}
		response := once.call(ctx, request)
		l.toLose.Add(once.toLose.Load())
		return response
	}
	return l
}

// countEventsOfAll counts the events of all executions that satisfy a condition.
func countEventsOfAll(t *testing.T, client *Client, id string, holds func(history.Event) bool) (n int) {
	t.Helper()
	executions, err := client.Executions(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, execution := range executions {
		n += countEvents(t, client, id, execution.Number, holds)
	}
	return n
}

// Five calls lose their answers while 600 other events are recorded and the instance continues as
// new 200 times: more than the request IDs that an execution takes over.
func TestRetriedCall_RecordedOnceAfterManyEvents(t *testing.T) {
	t.Parallel()
	single := startNewestProtocol(t, Config{Definitions: tallyDefinitions()})
	peers := startPeersWith(t, 3, tallyDefinitions()...)
	leader := leaderOf(t, peers)
	eventually(t, "the newest protocol", func() bool { return leader.partitionOf("").journal.Protocol() == protocolVersion })
	follower := peers[0]
	if follower == leader {
		follower = peers[1]
	}
	remote := dialNodes(t, DialConfig{membersRefreshInterval: -1}, peers...)
	for name, by := range map[string]struct {
		client *Client
		others *Client // for what happens meanwhile
		lossy  *lossyCaller
	}{
		"in process":           {single.Client(), single.Client(), newLossyNode(single)},
		"through another node": {follower.Client(), leader.Client(), newLossyNode(follower)},
		"through Dial":         {remote, leader.Client(), newLossyRemote(remote)},
	} {
		t.Run(name, func(t *testing.T) {
			testLateRetries(t, strings.ReplaceAll(name, " ", "-"), by.client, by.others, by.lossy)
		})
	}
}

// sendConcurrently sends n events and returns after they are recorded.
func sendConcurrently(t *testing.T, client *Client, id string, n int) {
	ctx, left := testContext(t), new(atomic.Int64)
	left.Store(int64(n))
	var sending sync.WaitGroup
	for range 30 {
		sending.Go(func() {
			for left.Add(-1) >= 0 {
				if err := Send(ctx, client, id, word, "another"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sending.Wait()
}

func testLateRetries(t *testing.T, id string, client, others *Client, lossy *lossyCaller) {
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, tally, id, 0); err != nil {
		t.Fatal(err)
	}
	isWord := func(text string) func(history.Event) bool {
		return func(e history.Event) bool { return strings.Contains(e.String(), `data="`+text+`"`) }
	}
	calls := []struct {
		name   string
		call   func() error
		counts func(history.Event) bool
	}{
		{"event", func() error { return Send(ctx, client, id, word, "once") }, isWord("once")},
		{"named event", func() error { return Send(ctx, client, id, word, "named", RequestID("n")) }, isWord("named")},
		{"event of SendOrStart", func() error {
			_, err := SendOrStart(ctx, client, tally, id, 0, word, "sent")
			return err
		}, isWord("sent")},
		{"update", func() error {
			sum, err := CallUpdate(ctx, client, id, raiseUpdate, 7)
			if err == nil && sum != 7 {
				err = fmt.Errorf("the sum is %d", sum)
			}
			return err
		}, func(e history.Event) bool { return e.Name == engine.UpdatePrefix+raiseUpdate.Name() }},
		{"suspension", func() error { return client.Suspend(ctx, id, "") }, hasEventType(history.OrchestrationSuspended)},
	}
	inputs, suspension := calls[:len(calls)-1], calls[len(calls)-1]
	lost, retry := new(atomic.Int64), make(chan struct{})
	lossy.loseNextAnswers(int64(len(inputs)), func() {
		if lost.Add(1) < int64(len(inputs)) {
			select {
			case <-retry:
			case <-ctx.Done():
			}
			return
		}
		defer close(retry)
		lossy.loseNextAnswers(1, func() {
			if err := others.Resume(ctx, id, ""); err != nil {
				t.Error(err)
			}
			sendConcurrently(t, others, id, 600)
		})
		if err := suspension.call(); err != nil {
			t.Errorf("%s: %v", suspension.name, err)
		}
	})
	var calling sync.WaitGroup
	for _, c := range inputs {
		calling.Go(func() {
			if err := c.call(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
	calling.Wait()
	if left := lossy.toLose.Load(); left > 0 || lost.Load() < int64(len(inputs)) {
		t.Errorf("%d answers were lost, %d were not", lost.Load(), left)
	}
	recorded := make(map[string]int)
	countEventsOfAll(t, others, id, func(e history.Event) bool {
		for _, c := range calls {
			if c.counts(e) {
				recorded[c.name]++
			}
		}
		return false
	})
	for _, c := range calls {
		if n := recorded[c.name]; n != 1 {
			t.Errorf("%s: recorded %d times", c.name, n)
		}
	}
}

// The first attempt never arrives, and leaves no trace for the retry.
func TestRetriedCall_RecordedAfterLostRequest(t *testing.T) {
	node := startNewestProtocol(t, Config{Definitions: tallyDefinitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	var lost atomic.Bool
	node.ask = func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
		if (r.GetUpdate() != nil || r.GetSend().GetName() == unreadEvent.Name()) && lost.CompareAndSwap(false, true) {
			sendConcurrently(t, client, "t", 600)
			return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeUnknown, Message: "the request was lost"}}
		}
		return node.router.callLeader(ctx, r)
	}
	if err := Send(ctx, client, "t", unreadEvent, "x"); err != nil || !lost.Swap(false) {
		t.Errorf("the event: %v", err)
	}
	if sum, err := CallUpdate(ctx, client, "t", raiseUpdate, 7); err != nil || sum != 7 || !lost.Swap(false) {
		t.Errorf("the update: %d, %v", sum, err)
	}
	if n := countEventsOfAll(t, client, "t", func(e history.Event) bool { return e.Type == history.ExternalEvent && e.Name == unreadEvent.Name() }); n != 1 {
		t.Errorf("the event is recorded %d times", n)
	}
}

// The run that a call has reached is purged, or has ended, and another run begins under its ID
// before the retry: the new run receives nothing.
func TestRetriedCall_DoesNotReachLaterInstance(t *testing.T) {
	node := startNewestProtocol(t, Config{Definitions: tallyDefinitions()})
	lossy := newLossyNode(node)
	ctx, client := testContext(t), node.Client()
	begin := func(id string) {
		if _, err := StartRun(ctx, client, tally, id, 0, ReuseWhenEnded()); err != nil {
			t.Fatal(err)
		}
	}
	end := func(id string) {
		if err := client.Terminate(ctx, id, "by hand"); err != nil && !errors.Is(err, ErrEnded) {
			t.Fatal(err)
		}
	}
	for name, call := range map[string]func(id string) error{
		"event":        func(id string) error { return Send(ctx, client, id, word, "x") },
		"named event":  func(id string) error { return Send(ctx, client, id, word, "x", RequestID("n")) },
		"update":       func(id string) error { _, err := CallUpdate(ctx, client, id, raiseUpdate, 1); return err },
		"cancellation": func(id string) error { return client.Cancel(ctx, id, "") },
		"termination":  func(id string) error { return client.Terminate(ctx, id, "another") },
		"suspension":   func(id string) error { return client.Suspend(ctx, id, "") },
		"event of SendOrStart": func(id string) error {
			_, err := SendOrStart(ctx, client, tally, id, 0, word, "x")
			return err
		},
	} {
		for how, free := range map[string]func(id string){
			"purged":   func(id string) { end(id); purgeOneInstance(t, client, id) },
			"replaced": end,
		} {
			t.Run(name+" to one that is "+how, func(t *testing.T) {
				id := strings.ReplaceAll(name, " ", "-") + "-" + how
				begin(id)
				lossy.loseNextAnswers(1, func() { free(id); begin(id) })
				err := call(id)
				var unavailable *UnavailableError
				if !errors.As(err, &unavailable) || unavailable.NotExecuted || !errors.Is(err, actors.ErrForgotten) {
					t.Errorf("%v; want that the outcome is unknown", err)
				}
				if n := countEvents(t, client, id, 0, func(history.Event) bool { return true }); n != 2 {
					t.Errorf("the later run has %d events; want its own 2", n)
				}
			})
		}
	}
}

// The run that may have recorded an input is purged before the retry.
func TestRetriedCall_PurgedInstanceIsUnknownOutcome(t *testing.T) {
	node := startNewestProtocol(t, Config{Definitions: tallyDefinitions()})
	lossy := newLossyNode(node)
	ctx, client := testContext(t), node.Client()
	for name, call := range map[string]func(id string) error{
		"event":        func(id string) error { return Send(ctx, client, id, word, "x") },
		"named event":  func(id string) error { return Send(ctx, client, id, word, "x", RequestID("n")) },
		"update":       func(id string) error { _, err := CallUpdate(ctx, client, id, raiseUpdate, 1); return err },
		"cancellation": func(id string) error { return client.Cancel(ctx, id, "") },
		"termination":  func(id string) error { return client.Terminate(ctx, id, "another") },
		"suspension":   func(id string) error { return client.Suspend(ctx, id, "") },
	} {
		t.Run(name, func(t *testing.T) {
			if err := call("unknown"); !errors.Is(err, ErrNotFound) || errors.As(err, new(*UnavailableError)) {
				t.Errorf("a first attempt: %v; want ErrNotFound", err)
			}
			id := strings.ReplaceAll(name, " ", "-")
			if _, err := StartRun(ctx, client, tally, id, 0); err != nil {
				t.Fatal(err)
			}
			lossy.loseNextAnswers(1, func() {
				if err := client.Terminate(ctx, id, "by hand"); err != nil && !errors.Is(err, ErrEnded) {
					t.Error(err)
				}
				purgeOneInstance(t, client, id)
			})
			err := call(id)
			var unavailable *UnavailableError
			if !errors.As(err, &unavailable) || unavailable.NotExecuted || !errors.Is(err, actors.ErrForgotten) {
				t.Errorf("%v; want that the outcome is unknown", err)
			}
		})
	}
}

// A purge whose answer was lost is retried after another run has begun and ended.
func TestRetriedPurge_KeepsLaterInstance(t *testing.T) {
	node := startNewestProtocol(t, Config{Definitions: tallyDefinitions()})
	lossy := newLossyNode(node)
	ctx, client := testContext(t), node.Client()
	run := func() {
		if _, err := StartRun(ctx, client, tally, "t", 0); err != nil {
			t.Fatal(err)
		}
		if err := client.Terminate(ctx, "t", ""); err != nil {
			t.Fatal(err)
		}
	}
	run()
	lossy.loseNextAnswers(1, run)
	_, err := client.Purge(ctx, "t")
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || unavailable.NotExecuted {
		t.Errorf("%v; want that the outcome is unknown", err)
	}
	if _, err := client.Get(ctx, "t"); err != nil {
		t.Errorf("the later run: %v", err)
	}
	lossy.loseNextAnswers(1, func() {})
	if _, err := client.Purge(ctx, "t"); err != nil {
		t.Errorf("a purge that is repeated with nothing begun since: %v", err)
	}
	if _, err := client.Get(ctx, "t"); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is still there: %v", err)
	}
}

// The run that an event has reached ends before the retry, which could begin another run: the event
// was recorded.
func TestRetriedSendOrStart_DoesNotStartAgain(t *testing.T) {
	node := startNewestProtocol(t, Config{Definitions: tallyDefinitions()})
	lossy := newLossyNode(node)
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	lossy.loseNextAnswers(1, func() {
		if err := client.Terminate(ctx, "t", ""); err != nil {
			t.Error(err)
		}
	})
	run, err := SendOrStart(ctx, client, tally, "t", 0, word, "x", ReuseWhenEnded())
	if err != nil || run.run.first != 1 {
		t.Errorf("run %v, %v; want the one that has ended", run, err)
	}
	if executions, err := client.Executions(ctx, "t"); err != nil || len(executions) != 1 {
		t.Errorf("executions %v, %v", executions, err)
	}
}

// The first call of a remote client is lost before it arrives. The client has only seen the index
// that a node reported when it was dialed.
func TestRetriedCall_FirstCallOfRemoteClient(t *testing.T) {
	nodes := startPeersWith(t, 1, tallyDefinitions()...)
	ctx, node := testContext(t), leaderOf(t, nodes)
	eventually(t, "the newest protocol", func() bool { return node.partitionOf("").journal.Protocol() == protocolVersion })
	if _, err := StartRun(ctx, node.Client(), tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	client := dialNodes(t, DialConfig{membersRefreshInterval: -1}, node)
	r := client.transport.(*remoteTransport)
	reach, lost := r.callNode, false
	r.callNode = func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
		if !lost && request.GetSend() != nil {
			lost = true
			return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeUnknown, Message: "the request was lost"}}
		}
		return reach(ctx, address, request)
	}
	if err := Send(ctx, client, "t", word, "x"); err != nil || !lost {
		t.Errorf("%v; lost: %t", err, lost)
	}
}

// A build before protocol 3 has no request horizons, so none is recorded before the cluster speaks
// that protocol.
func TestRequestHorizon_NeedsProtocol3(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: tallyDefinitions(), protocol: incarnationsProtocol - 1})
	client := node.Client()
	if _, err := StartRun(testContext(t), client, tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	sendConcurrently(t, client, "t", 7)
	n := countEventsOfAll(t, client, "t", func(e history.Event) bool {
		started := eventpb.Message(e).GetOrchestrationStarted()
		return started.GetRequestHorizon() != 0 || len(started.GetRequestIdMarks()) > 0
	})
	if n != 0 {
		t.Errorf("%d executions have one", n)
	}
}
