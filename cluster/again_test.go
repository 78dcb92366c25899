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
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// tally continues as new after every few words, and adds up what its updates say.
var tally = replay.Orchestration[int, int]("tally")

func tallyBody(ctx *replay.Context, sum int) (int, error) {
	err := raise.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) {
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

func tallies() []replay.Definition { return append(definitions(), tally.Bind(tallyBody)) }

// A lossy asker loses one answer when it is told to: of the next call, after that was
// carried out, and after something else has happened.
type lossy struct {
	ask       asker
	meanwhile func()
	armed     atomic.Bool
}

func (l *lossy) attempt(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
	armed := l.armed.CompareAndSwap(true, false)
	response := l.ask(ctx, r)
	if !armed {
		return response
	}
	if failure := response.GetFailure(); failure != nil && failure.NotExecuted {
		l.armed.Store(true)
		return response
	}
	l.meanwhile()
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: "the answer was lost"}}
}

// loseNext has the next answer lost, after meanwhile has returned.
func (l *lossy) loseNext(meanwhile func()) {
	l.meanwhile = meanwhile
	l.armed.Store(true)
}

func lossyNode(node *Node) *lossy {
	l := &lossy{ask: node.attempt}
	node.ask = l.attempt
	return l
}

func lossyRemote(client *Client) *lossy {
	r := client.access.(*remote)
	reach := r.reach
	l := new(lossy)
	r.reach = func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
		if request.GetMembers() != nil || request.Stale {
			return reach(ctx, address, request)
		}
		once := &lossy{ask: func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response { return reach(ctx, address, r) }, meanwhile: l.meanwhile}
		once.armed.Store(l.armed.CompareAndSwap(true, false))
		response := once.attempt(ctx, request)
		if once.armed.Load() {
			l.armed.Store(true)
		}
		return response
	}
	return l
}

// countAll counts the events of all executions for which a condition holds.
func countAll(t *testing.T, client *Client, id string, holds func(*journalpb.Event) bool) (n int) {
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

// Two calls whose answers are lost while 600 other events are recorded, and the instance
// continues as new 200 times.
func TestACallIsRecordedOnceHoweverMuchIsRecordedBeforeItsRepetition(t *testing.T) {
	single := startNewest(t, Config{Definitions: tallies()})
	peers := startPeersWith(t, 3, tallies()...)
	leader := leaderOf(t, peers)
	eventually(t, "the newest protocol", func() bool { return leader.of("").journal.Protocol() == protocolVersion })
	follower := peers[0]
	if follower == leader {
		follower = peers[1]
	}
	remote := dialNodes(t, DialConfig{refreshEvery: -1}, peers...)
	for name, by := range map[string]struct {
		client *Client
		others *Client // what happens meanwhile is theirs
		lossy  *lossy
	}{
		"in process":           {single.Client(), single.Client(), lossyNode(single)},
		"through another node": {follower.Client(), leader.Client(), lossyNode(follower)},
		"through Dial":         {remote, leader.Client(), lossyRemote(remote)},
	} {
		t.Run(name, func(t *testing.T) { repeatsLate(t, strings.ReplaceAll(name, " ", "-"), by.client, by.others, by.lossy) })
	}
}

// sendAtOnce sends so many events and returns when they are recorded.
func sendAtOnce(t *testing.T, client *Client, id string, n int) {
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

func repeatsLate(t *testing.T, id string, client, others *Client, lossy *lossy) {
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, tally, id, 0); err != nil {
		t.Fatal(err)
	}
	meanwhile := func() { sendAtOnce(t, others, id, 600) }
	isWord := func(text string) func(*journalpb.Event) bool {
		return func(e *journalpb.Event) bool { return string(e.GetExternalEvent().GetData().GetData()) == `"`+text+`"` }
	}
	isUpdate := func(e *journalpb.Event) bool {
		return e.GetExternalEvent().GetName() == replay.UpdatePrefix+raise.Name()
	}
	for _, c := range []struct {
		name  string
		call  func() error
		also  func() error // meanwhile
		count func(*journalpb.Event) bool
	}{
		{"event", func() error { return Send(ctx, client, id, word, "once") }, nil, isWord("once")},
		{"named event", func() error { return Send(ctx, client, id, word, "named", EventID("n")) }, nil, isWord("named")},
		{"event of SendOrStart", func() error {
			_, err := SendOrStart(ctx, client, tally, id, 0, word, "sent")
			return err
		}, nil, isWord("sent")},
		{"update", func() error {
			sum, err := CallUpdate(ctx, client, id, raise, 7)
			if err == nil && sum != 7 {
				err = fmt.Errorf("the sum is %d", sum)
			}
			return err
		}, nil, isUpdate},
		{
			"suspension", func() error { return client.Suspend(ctx, id, "") }, func() error { return others.Resume(ctx, id, "") },
			func(e *journalpb.Event) bool { return e.GetOrchestrationSuspended() != nil },
		},
	} {
		lossy.loseNext(func() {
			if c.also != nil {
				if err := c.also(); err != nil {
					t.Error(err)
				}
			}
			meanwhile()
		})
		if err := c.call(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if lossy.armed.Load() {
			t.Errorf("%s: no answer was lost", c.name)
		}
		if n := countAll(t, others, id, c.count); n != 1 {
			t.Errorf("%s: recorded %d times", c.name, n)
		}
	}
}

// The first attempt never arrives, and there is no trace of it when the call is repeated.
func TestACallThatDidNotArriveIsRecordedHoweverMuchIsRecordedBeforeItsRepetition(t *testing.T) {
	node := startNewest(t, Config{Definitions: tallies()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	var lost atomic.Bool
	node.ask = func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
		if (r.GetUpdate() != nil || r.GetSend().GetName() == aside.Name()) && lost.CompareAndSwap(false, true) {
			sendAtOnce(t, client, "t", 600)
			return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: "the request was lost"}}
		}
		return node.attempt(ctx, r)
	}
	if err := Send(ctx, client, "t", aside, "x"); err != nil || !lost.Swap(false) {
		t.Errorf("the event: %v", err)
	}
	if sum, err := CallUpdate(ctx, client, "t", raise, 7); err != nil || sum != 7 || !lost.Swap(false) {
		t.Errorf("the update: %d, %v", sum, err)
	}
	if n := countAll(t, client, "t", func(e *journalpb.Event) bool { return e.GetExternalEvent().GetName() == aside.Name() }); n != 1 {
		t.Errorf("the event is recorded %d times", n)
	}
}

// The run that a call has reached is purged, or has ended, and another one begins under its
// ID, before the call is repeated: the other run gets nothing of it.
func TestARepetitionDoesNotReachALaterRun(t *testing.T) {
	node := startNewest(t, Config{Definitions: tallies()})
	lossy := lossyNode(node)
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
		"named event":  func(id string) error { return Send(ctx, client, id, word, "x", EventID("n")) },
		"update":       func(id string) error { _, err := CallUpdate(ctx, client, id, raise, 1); return err },
		"cancellation": func(id string) error { return client.Cancel(ctx, id, "") },
		"termination":  func(id string) error { return client.Terminate(ctx, id, "another") },
		"suspension":   func(id string) error { return client.Suspend(ctx, id, "") },
		"event of SendOrStart": func(id string) error {
			_, err := SendOrStart(ctx, client, tally, id, 0, word, "x")
			return err
		},
	} {
		for how, free := range map[string]func(id string){
			"purged":   func(id string) { end(id); purgeOne(t, client, id) },
			"replaced": end,
		} {
			t.Run(name+" to one that is "+how, func(t *testing.T) {
				id := strings.ReplaceAll(name, " ", "-") + "-" + how
				begin(id)
				lossy.loseNext(func() { free(id); begin(id) })
				err := call(id)
				var unavailable *UnavailableError
				if !errors.As(err, &unavailable) || unavailable.NotExecuted || !errors.Is(err, actors.ErrForgotten) {
					t.Errorf("%v; want that the outcome is unknown", err)
				}
				if n := countEvents(t, client, id, 0, func(*journalpb.Event) bool { return true }); n != 2 {
					t.Errorf("the later run has %d events; want its own 2", n)
				}
			})
		}
	}
}

// The run that may have recorded an input is purged before the call is repeated.
func TestARepetitionToAnInstanceThatWasPurgedHasAnUnknownOutcome(t *testing.T) {
	node := startNewest(t, Config{Definitions: tallies()})
	lossy := lossyNode(node)
	ctx, client := testContext(t), node.Client()
	for name, call := range map[string]func(id string) error{
		"event":        func(id string) error { return Send(ctx, client, id, word, "x") },
		"named event":  func(id string) error { return Send(ctx, client, id, word, "x", EventID("n")) },
		"update":       func(id string) error { _, err := CallUpdate(ctx, client, id, raise, 1); return err },
		"cancellation": func(id string) error { return client.Cancel(ctx, id, "") },
		"termination":  func(id string) error { return client.Terminate(ctx, id, "another") },
		"suspension":   func(id string) error { return client.Suspend(ctx, id, "") },
	} {
		t.Run(name, func(t *testing.T) {
			if err := call("nobody"); !errors.Is(err, ErrNotFound) || errors.As(err, new(*UnavailableError)) {
				t.Errorf("a first attempt: %v; want ErrNotFound", err)
			}
			id := strings.ReplaceAll(name, " ", "-")
			if _, err := StartRun(ctx, client, tally, id, 0); err != nil {
				t.Fatal(err)
			}
			lossy.loseNext(func() {
				if err := client.Terminate(ctx, id, "by hand"); err != nil && !errors.Is(err, ErrEnded) {
					t.Error(err)
				}
				purgeOne(t, client, id)
			})
			err := call(id)
			var unavailable *UnavailableError
			if !errors.As(err, &unavailable) || unavailable.NotExecuted || !errors.Is(err, actors.ErrForgotten) {
				t.Errorf("%v; want that the outcome is unknown", err)
			}
		})
	}
}

// A purge whose answer was lost is repeated when another run has begun and ended.
func TestARepeatedPurgeDoesNotRemoveALaterRun(t *testing.T) {
	node := startNewest(t, Config{Definitions: tallies()})
	lossy := lossyNode(node)
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
	lossy.loseNext(run)
	_, err := client.Purge(ctx, "t")
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || unavailable.NotExecuted {
		t.Errorf("%v; want that the outcome is unknown", err)
	}
	if _, err := client.Get(ctx, "t"); err != nil {
		t.Errorf("the later run: %v", err)
	}
	lossy.loseNext(func() {})
	if _, err := client.Purge(ctx, "t"); err != nil {
		t.Errorf("a purge that is repeated with nothing begun since: %v", err)
	}
	if _, err := client.Get(ctx, "t"); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is still there: %v", err)
	}
}

// The run that an event has reached ends before the call is repeated, which may begin
// another run: the event was taken.
func TestARepeatedEventDoesNotBeginAnotherRun(t *testing.T) {
	node := startNewest(t, Config{Definitions: tallies()})
	lossy := lossyNode(node)
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	lossy.loseNext(func() {
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

// The first call of a remote client is lost before it arrives. The client has seen nothing
// but what a node told when it was dialed.
func TestTheFirstCallOfARemoteClientIsRepeated(t *testing.T) {
	nodes := startPeersWith(t, 1, tallies()...)
	ctx, node := testContext(t), leaderOf(t, nodes)
	eventually(t, "the newest protocol", func() bool { return node.of("").journal.Protocol() == protocolVersion })
	if _, err := StartRun(ctx, node.Client(), tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	client := dialNodes(t, DialConfig{refreshEvery: -1}, node)
	r := client.access.(*remote)
	reach, lost := r.reach, false
	r.reach = func(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
		if !lost && request.GetSend() != nil {
			lost = true
			return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: "the request was lost"}}
		}
		return reach(ctx, address, request)
	}
	if err := Send(ctx, client, "t", word, "x"); err != nil || !lost {
		t.Errorf("%v; lost: %t", err, lost)
	}
}

// A build of the protocol before has no horizons, and nothing is recorded that it does not
// know.
func TestHorizonsAreOfTheNewestProtocol(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: tallies(), protocol: protocolVersion - 1})
	client := node.Client()
	if _, err := StartRun(testContext(t), client, tally, "t", 0); err != nil {
		t.Fatal(err)
	}
	sendAtOnce(t, client, "t", 7)
	n := countAll(t, client, "t", func(e *journalpb.Event) bool {
		started := e.GetOrchestrationStarted()
		return started.GetRequestHorizon() != 0 || len(started.GetRequestIdMarks()) > 0
	})
	if n != 0 {
		t.Errorf("%d executions have one", n)
	}
}
