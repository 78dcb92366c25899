package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// ledger keeps a sum of at most 100, which updates raise, until it is closed. A raise by 0 waits
// for an event; a raise by a negative number fails.
var (
	ledgerOrchestration = replay.Orchestration[int, int]("ledger")
	raiseUpdate         = replay.Update[int, int]("raise")
	closedEvent         = replay.Event[int]("closed")
	errLow              = replay.NewError("test.low", "too low")
)

func ledgerOrchestrationBody(ctx *replay.Context, sum int) (int, error) {
	err := raiseUpdate.Handle(ctx, func(n int) error {
		if sum+n > 100 {
			return fmt.Errorf("%w: %d", errTest, sum)
		}
		return nil
	}, func(ctx *replay.Context, n int) (int, error) {
		if n == 0 {
			_, err := word.Wait(ctx)
			return sum, err
		}
		if n < 0 {
			return 0, errLow
		}
		if _, err := double.Call(ctx, n); err != nil {
			return 0, err
		}
		sum += n
		return sum, nil
	})
	if err != nil {
		return 0, err
	}
	again, err := closedEvent.Wait(ctx)
	if err == nil && again > 0 {
		err = ledgerOrchestration.ContinueAsNew(ctx, sum)
	}
	return sum, err
}

func ledgerDefinitions() []replay.Definition {
	return append(definitions(), ledgerOrchestration.Bind(ledgerOrchestrationBody))
}

// countEvents counts the events of an execution for which a condition holds.
func countEvents(t *testing.T, client *Client, id string, execution uint64, holds func(history.Event) bool) int {
	t.Helper()
	recorded, err := client.HistoryOf(testContext(t), id, execution)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, event := range recorded.Events {
		if holds(event) {
			n++
		}
	}
	return n
}

func hasRequestID(id string) func(history.Event) bool {
	return func(event history.Event) bool { return event.RequestID() == id }
}

func isUpdateEvent(event history.Event) bool {
	return strings.HasPrefix(event.Name, engine.UpdatePrefix)
}

func TestUpdate_ReturnsResult(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeersWith(t, 3, ledgerDefinitions()...)
	ctx, client := testContext(t), nodes[0].Client()
	run, err := StartRun(ctx, client, ledgerOrchestration, "l", 1)
	if err != nil {
		t.Fatal(err)
	}
	want := 1
	for i, node := range nodes {
		want += i + 10
		if got, err := CallUpdate(ctx, node.Client(), "l", raiseUpdate, i+10); err != nil || got != want {
			t.Errorf("on %s: %d, %v; want %d", node.ID(), got, err, want)
		}
	}
	before := countEvents(t, client, "l", 0, isUpdateEvent)
	for name, c := range map[string]struct {
		err  func() error
		want func(error) bool
	}{
		"rejected": {func() error { _, err := CallUpdate(ctx, client, "l", raiseUpdate, 90); return err }, func(err error) bool {
			var rejected *RejectedError
			return errors.As(err, &rejected) && strings.HasSuffix(err.Error(), "as wanted: 34")
		}},
		"of another type": {func() error {
			_, err := CallUpdate(ctx, client, "l", replay.Update[string, int]("raise"), "x")
			return err
		}, func(err error) bool {
			return errors.As(err, new(*RejectedError))
		}},
		"without a handler": {func() error { _, err := CallUpdate(ctx, client, "l", replay.Update[int, int]("other"), 1); return err }, func(err error) bool {
			var none *replay.NotRegisteredError
			return errors.As(err, &none) && none.Name == "other" && !errors.As(err, new(*RejectedError))
		}},
		"of nobody": {func() error { _, err := CallUpdate(ctx, client, "unknown", raiseUpdate, 1); return err }, func(err error) bool { return errors.Is(err, ErrNotFound) }},
		"no input": {func() error {
			_, err := CallUpdate(ctx, client, "l", replay.Update[chan int, int]("raise"), nil)
			return err
		}, func(err error) bool { return err != nil }},
		"no name": {func() error { _, err := CallUpdate(ctx, client, "l", replay.Update[int, int](""), 1); return err }, isInvalidError},
		"a long ID": {func() error {
			_, err := CallUpdate(ctx, client, "l", raiseUpdate, 1, RequestID(strings.Repeat("x", 257)))
			return err
		}, isInvalidError},
		"no such ID": {func() error { _, err := CallUpdate(ctx, client, "", raiseUpdate, 1); return err }, isInvalidError},
	} {
		if err := c.err(); !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := countEvents(t, client, "l", 0, isUpdateEvent); after != before || before != 6 {
		t.Errorf("%d events of updates, then %d; rejected updates must not be recorded", before, after)
	}
	if _, err := CallUpdate(ctx, client, "l", raiseUpdate, -1); !errors.Is(err, errLow) || errors.As(err, new(*RejectedError)) {
		t.Errorf("an update that fails: %v", err)
	}
	if err := Send(ctx, client, "l", closedEvent, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != want {
		t.Errorf("%d, %v; want %d", got, err, want)
	}
	if _, err := CallUpdate(ctx, client, "l", raiseUpdate, 1); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v; want ErrEnded", err)
	}
	expectSameHistories(t, nodes)
}

func isInvalidError(err error) bool { return errors.As(err, new(*replay.InvalidError)) }

func isNotRegistered(err error, kind string) bool {
	var none *replay.NotRegisteredError
	return errors.As(err, &none) && none.Kind == kind
}

func TestUpdate_AbortedWhenInstanceEnds(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context, client *Client) error{
		"completed":        func(ctx context.Context, client *Client) error { return Send(ctx, client, "l", closedEvent, 0) },
		"continued as new": func(ctx context.Context, client *Client) error { return Send(ctx, client, "l", closedEvent, 1) },
		"terminated":       func(ctx context.Context, client *Client) error { return client.Terminate(ctx, "l", "") },
	} {
		t.Run(name, func(t *testing.T) {
			node := startNode(t, Config{InMemory: true, Definitions: ledgerDefinitions()})
			ctx, client := testContext(t), node.Client()
			if _, err := StartRun(ctx, client, ledgerOrchestration, "l", 1); err != nil {
				t.Fatal(err)
			}
			outcome := make(chan error)
			go func() {
				_, err := CallUpdate(ctx, client, "l", raiseUpdate, 0)
				outcome <- err
			}()
			awaitEvent(t, client, "l", isUpdateEvent)
			if err := end(ctx, client); err != nil {
				t.Fatal(err)
			}
			if err := <-outcome; !errors.Is(err, ErrUpdateAborted) {
				t.Errorf("%v; want ErrUpdateAborted", err)
			}
		})
	}
}

func TestSend_RejectsEventIDOfOtherInput(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgerDefinitions()})
	ctx, client := testContext(t), node.Client()
	run, err := StartRun(ctx, client, ledgerOrchestration, "l", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CallUpdate(ctx, client, "l", raiseUpdate, 1, RequestID("of an update")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Send(ctx, client, "l", word, "", RequestID("of an event")); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"of an update", "of an event"} {
		if err := Send(ctx, client, "l", closedEvent, 0, RequestID(id)); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("an event with the ID %s: %v; want ErrRequestID", id, err)
		}
		_, err := SendOrStart(ctx, client, ledgerOrchestration, "l", 1, closedEvent, 0, RequestID(id))
		if !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("SendOrStart with the ID %s: %v; want ErrRequestID", id, err)
		}
	}
	if many := countEvents(t, client, "l", 0, hasRequestID("of an event")); many != 1 {
		t.Errorf("%d events recorded; want 1", many)
	}
	if err := Send(ctx, client, "l", closedEvent, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != 2 {
		t.Errorf("%d, %v; want 2", got, err)
	}
}

// An observedTransport reports when a follow begins.
type observedTransport struct {
	caller
	onFollow func()
}

func (o observedTransport) follow(ctx context.Context, id string, from history.Position, pass func(recordedEvent) bool) error {
	o.onFollow()
	return o.caller.follow(ctx, id, from, pass)
}

func TestUpdate_AbandonedCallSaysAccepted(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgerDefinitions(), Listen: loopbackAddress(t)})
	remote := dialNodes(t, DialConfig{}, node)
	if _, err := StartRun(testContext(t), node.Client(), ledgerOrchestration, "l", 1); err != nil {
		t.Fatal(err)
	}
	for name, client := range map[string]*Client{"node": node.Client(), "remote": remote} {
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		stopping := &Client{transport: observedTransport{client.transport, cancel}, converter: client.converter}
		_, err := CallUpdate(ctx, stopping, "l", raiseUpdate, 0, RequestID(name))
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.NotExecuted || !errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), "the update was accepted, but its result is not known yet") {
			t.Errorf("%s: %v; want an UnavailableError that says that the update was accepted", name, err)
		}
		if err := Send(testContext(t), client, "l", word, ""); err != nil {
			t.Fatal(err)
		}
		if got, err := CallUpdate(testContext(t), client, "l", raiseUpdate, 0, RequestID(name)); err != nil || got != 1 {
			t.Errorf("%s, again: %d, %v; want 1", name, got, err)
		}
	}
}

// awaitEvent waits until an event is in the history of a run.
func awaitEvent(t *testing.T, client *Client, id string, holds func(history.Event) bool) {
	t.Helper()
	for r, err := range client.Watch(testContext(t), id, history.Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		if holds(r) {
			return
		}
	}
	t.Fatal("the run ended without it")
}

// A validated update may be recorded after the instance has continued as new, before the new code
// has set its handler.
func TestUpdate_WaitsForHandlerAcrossContinueAsNew(t *testing.T) {
	late := replay.Orchestration[int, string]("late")
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), late.Bind(func(ctx *replay.Context, n int) (string, error) {
		if ctx.Execution() > 1 {
			err := raiseUpdate.Handle(ctx, nil, func(_ *replay.Context, n int) (int, error) { return n, nil })
			_, waitErr := closedEvent.Wait(ctx)
			return "", errors.Join(err, waitErr)
		}
		if _, err := word.Wait(ctx); err != nil {
			return "", err
		}
		return "", late.ContinueAsNew(ctx, n)
	}))})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, late, "l", 1); err != nil {
		t.Fatal(err)
	}
	// As if it had been validated.
	accepted := &clusterpb.SendRequest{Name: engine.UpdatePrefix + "raise", Data: &journalpb.Payload{Data: []byte("7")}, RequestId: "u"}
	if _, err := instances.Await(ctx, instances.Deliver(node.partitionOf("l").actorPartition.Load(), "l", instances.ExternalEvent(accepted))); err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error)
	go func() {
		output, err := awaitUpdate(ctx, client, "l", history.Position{Execution: 1, EventID: 3}, "u")
		if err == nil && string(output.GetData()) != "7" {
			err = fmt.Errorf("output %s", output.GetData())
		}
		outcome <- err
	}()
	if err := Send(ctx, client, "l", word, ""); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Error(err)
	}
	if got, err := CallUpdate(ctx, client, "l", raiseUpdate, 8, RequestID("u")); err != nil || got != 7 {
		t.Errorf("the same request again: %d, %v; want its result, 7", got, err)
	}
}

func TestRequestID_NamesOneRequest(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgerDefinitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, ledgerOrchestration, "l", 1); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, client, "l", word, "", RequestID("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := CallUpdate(ctx, client, "l", raiseUpdate, 1, RequestID("x")); !errors.Is(err, ErrRequestIDReused) {
		t.Errorf("an update with the ID of an event: %v; want ErrRequestID", err)
	}
	for range 3 {
		if got, err := CallUpdate(ctx, client, "l", raiseUpdate, 90, RequestID("y")); err != nil || got != 91 {
			t.Errorf("%d, %v; want 91, although it would be rejected now", got, err)
		}
	}
	if err := Send(ctx, client, "l", closedEvent, 0); err != nil {
		t.Fatal(err)
	}
	if got, err := CallUpdate(ctx, client, "l", raiseUpdate, 90, RequestID("y")); err != nil || got != 91 {
		t.Errorf("after the end: %d, %v; want 91", got, err)
	}
	if _, err := CallUpdate(ctx, client, "l", raiseUpdate, 90, RequestID("z")); !errors.Is(err, ErrEnded) {
		t.Errorf("another after the end: %v; want ErrEnded", err)
	}
}

func TestUpdate_ContinuesWithoutCaller(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgerDefinitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, ledgerOrchestration, "l", 1); err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithCancel(ctx)
	outcome := make(chan error)
	go func() {
		_, err := CallUpdate(limited, client, "l", raiseUpdate, 0, RequestID("u"))
		outcome <- err
	}()
	awaitEvent(t, client, "l", isUpdateEvent)
	cancel()
	if err := <-outcome; !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want that of its context", err)
	}
	if err := Send(ctx, client, "l", word, ""); err != nil {
		t.Fatal(err)
	}
	if got, err := CallUpdate(ctx, client, "l", raiseUpdate, 0, RequestID("u")); err != nil || got != 1 {
		t.Errorf("%d, %v", got, err)
	}
}

// Users make every call twice under one request ID, without knowing the first outcome, while
// leaders change.
func TestRequestID_OneEffectWhileLeadersChange(t *testing.T) {
	checkGoroutineLeaks(t)
	const instances = 24
	nodes := startPeersWith(t, 3, ledgerDefinitions()...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != leader {
			others = append(others, node)
		}
	}
	begun := make(chan bool, instances)
	var users sync.WaitGroup
	for i := range instances {
		users.Go(func() { useLedger(t, ctx, others, fmt.Sprintf("l-%d", i), begun) })
	}
	for range instances / 3 {
		<-begun
	}
	if err := leader.Close(); err != nil {
		t.Error(err)
	}
	users.Wait()
	for i := range instances {
		id := fmt.Sprintf("l-%d", i)
		for request, want := range map[string]int{"word": 1, "raise": 1, "closed": 1} {
			if n := countEvents(t, others[0].Client(), id, 1, hasRequestID(request)); n != want {
				t.Errorf("%s: %d events of %s; want %d", id, n, request, want)
			}
		}
		if n := countEvents(t, others[0].Client(), id, 1, isUpdateEvent); n != 2 {
			t.Errorf("%s: %d events of the update; want it accepted once and done once", id, n)
		}
	}
	expectSameHistories(t, others)
}

func useLedger(t *testing.T, ctx context.Context, nodes []*Node, id string, begun chan<- bool) {
	var runs []*Run[int]
	for _, node := range nodes {
		run, err := StartRun(ctx, node.Client(), ledgerOrchestration, id, 1, RequestID("start"))
		if err != nil {
			t.Errorf("start %s: %v", id, err)
			return
		}
		runs = append(runs, run)
	}
	begun <- true
	for _, node := range nodes {
		if err := Send(ctx, node.Client(), id, word, "", RequestID("word")); err != nil {
			t.Errorf("send to %s: %v", id, err)
		}
	}
	for _, node := range nodes {
		if got, err := CallUpdate(ctx, node.Client(), id, raiseUpdate, 90, RequestID("raise")); err != nil || got != 91 {
			t.Errorf("update %s: %d, %v", id, got, err)
		}
	}
	for i, node := range nodes {
		if err := Send(ctx, node.Client(), id, closedEvent, 0, RequestID("closed")); err != nil {
			t.Errorf("close %s: %v", id, err)
		}
		if got, err := runs[i].Wait(ctx); err != nil || got != 91 {
			t.Errorf("%s: %d, %v", id, got, err)
		}
	}
}

// loseFirstAnswers drops the first n answers to each call of a node, after the call was executed.
func loseFirstAnswers(node *Node, n int) {
	lost := make(map[*clusterpb.Request]int)
	node.ask = func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
		response := node.router.callLeader(ctx, r)
		if failure := response.GetFailure(); lost[r] == n || failure != nil && failure.NotExecuted {
			return response
		}
		lost[r]++
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: wire.CodeUnknown, Message: "the answer was lost"}}
	}
}

func TestRetriedCall_LostAnswerHasOneEffect(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: ledgerDefinitions()})
	ctx, client := testContext(t), node.Client()
	started := hasEventType(history.OrchestrationStarted)
	run := func(id string) {
		if _, err := StartRun(ctx, client, ledgerOrchestration, id, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		name  string
		call  func(id string) error
		count func(history.Event) bool
	}{
		{"a start", func(id string) error { _, err := StartRun(ctx, client, waiter, id, ""); return err }, started},
		{"a start of what ends at once", func(id string) error { _, err := StartRun(ctx, client, failingOrchestration, id, ""); return err }, started},
		{"a start after another", func(id string) error {
			first, err := StartRun(ctx, client, failingOrchestration, id, "", RequestID("1"))
			if err != nil {
				return err
			}
			if _, err := first.Wait(ctx); !errors.As(err, new(*RunError)) {
				return err
			}
			if _, err := StartRun(ctx, client, failingOrchestration, id, "", RequestID("2"), ReuseWhenEnded()); err != nil {
				return err
			}
			again, err := StartRun(ctx, client, failingOrchestration, id, "", RequestID("1"), ReuseWhenEnded())
			if err == nil && again.run.first != 1 {
				err = fmt.Errorf("the repetition of the first has begun run %d", again.run.first)
			}
			return err
		}, started},
		{"an event", func(id string) error { run(id); return Send(ctx, client, id, word, "") }, hasEventType(history.ExternalEvent)},
		{"an event that ends its run", func(id string) error { run(id); return Send(ctx, client, id, closedEvent, 0) }, hasEventType(history.ExternalEvent)},
		{"an event that continues its run", func(id string) error {
			run(id)
			err := Send(ctx, client, id, closedEvent, 1)
			return errors.Join(err, Send(ctx, client, id, word, ""))
		}, hasEventType(history.ExternalEvent)},
		{"an event that starts a run and ends it", func(id string) error {
			_, err := SendOrStart(ctx, client, ledgerOrchestration, id, 1, closedEvent, 0)
			return err
		}, hasEventType(history.ExternalEvent)},
		{"an event that starts another run and ends it", func(id string) error {
			if _, err := SendOrStart(ctx, client, ledgerOrchestration, id, 1, closedEvent, 0, RequestID("1")); err != nil {
				return err
			}
			_, err := SendOrStart(ctx, client, ledgerOrchestration, id, 1, closedEvent, 0, RequestID("2"), ReuseWhenEnded())
			return err
		}, hasEventType(history.ExternalEvent)},
		{"a cancellation", func(id string) error { run(id); return client.Cancel(ctx, id, "") }, hasEventType(history.OrchestrationCancelRequested)},
		{"a termination", func(id string) error { run(id); return client.Terminate(ctx, id, "x") }, hasEventType(history.OrchestrationTerminated)},
		{"a suspension", func(id string) error { run(id); return client.Suspend(ctx, id, "") }, hasEventType(history.OrchestrationSuspended)},
		{"an update", func(id string) error {
			run(id)
			got, err := CallUpdate(ctx, client, id, raiseUpdate, 90)
			if err == nil && got != 91 {
				err = fmt.Errorf("got %d", got)
			}
			return err
		}, hasEventType(history.ActivityScheduled)},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := fmt.Sprintf("i-%d", i)
			for _, lost := range []int{0, 1, 2} {
				id := fmt.Sprintf("%s-%d", id, lost)
				loseFirstAnswers(node, lost)
				if err := c.call(id); err != nil {
					t.Fatalf("%d lost: %v", lost, err)
				}
				if n := countEvents(t, client, id, 0, c.count); n != 1 {
					t.Errorf("%d lost: %d events; want 1", lost, n)
				}
			}
		})
	}
}

// Users may repeat a call from another program, on another day. A start with the request ID of
// another start is rejected, on the leader before and after a restart, also if a later run has
// begun.
func TestRequestID_StartWithOtherInputIsRejected(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	node := startNode(t, Config{Dir: dir, Definitions: ledgerDefinitions()})
	check := func() {
		t.Helper()
		run, err := StartRun(ctx, node.Client(), doubled, "d", 1, RequestID("r"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Wait(ctx); err != nil { // ReuseWhenEnded needs the end
			t.Fatal(err)
		}
		if _, err := StartRun(ctx, node.Client(), doubled, "d", 2, RequestID("r")); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("with another input: %v", err)
		}
		if _, err := StartRun(ctx, node.Client(), ledgerOrchestration, "d", 1, RequestID("r"), Attach()); !errors.Is(err, ErrRequestIDReused) {
			t.Errorf("of another orchestration: %v", err)
		}
	}
	check()
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, Config{Dir: dir, Definitions: ledgerDefinitions()})
	check()
	if _, err := Call(ctx, node.Client(), doubled, "d", 3, ReuseWhenEnded()); err != nil {
		t.Fatal(err)
	}
	check()
}

func TestRequestID_UserRetryHasOneEffect(t *testing.T) {
	dir, ctx := t.TempDir(), testContext(t)
	node := startNode(t, Config{Dir: dir, Definitions: ledgerDefinitions()})
	call := func() {
		t.Helper()
		run, err := SendOrStart(ctx, node.Client(), ledgerOrchestration, "l", 1, word, "", RequestID("r"))
		if err != nil || run.run.first != 1 {
			t.Errorf("%+v, %v", run, err)
		}
		if n := countEvents(t, node.Client(), "l", 1, hasRequestID("r")); n != 1 {
			t.Errorf("%d events; want 1", n)
		}
		if _, err := StartRun(ctx, node.Client(), doubled, "d", 1, RequestID("r")); err != nil {
			t.Error(err)
		}
	}
	call()
	call()
	if err := Send(ctx, node.Client(), "l", closedEvent, 0); err != nil {
		t.Fatal(err)
	}
	call()
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, Config{Dir: dir}) // without code for a start
	if _, err := StartRun(ctx, node.Client(), doubled, "d", 1, RequestID("r")); err != nil {
		t.Errorf("without code: %v", err)
	}
	if _, err := StartRun(ctx, node.Client(), doubled, "d", 1, RequestID("other")); !isNotRegistered(err, "orchestration") {
		t.Errorf("another start without code: %v; want a NotRegisteredError", err)
	}
}

func TestRetriedCall_RejectedAgain(t *testing.T) {
	node := startNode(t, Config{InMemory: true, CallTimeout: time.Second, Definitions: ledgerDefinitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := StartRun(ctx, client, ledgerOrchestration, "l", 1); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		call func() error
		want error
	}{
		"event":       {func() error { return Send(ctx, client, "d", word, "") }, ErrEnded},
		"named event": {func() error { return Send(ctx, client, "d", word, "", RequestID("x")) }, ErrEnded},
		"cancel":      {func() error { return client.Cancel(ctx, "d", "") }, ErrEnded},
		"terminate":   {func() error { return client.Terminate(ctx, "d", "") }, ErrEnded},
		"start":       {func() error { _, err := StartRun(ctx, client, doubled, "d", 1); return err }, ErrInstanceExists},
		"named start": {func() error { _, err := StartRun(ctx, client, doubled, "d", 1, RequestID("x")); return err }, ErrInstanceExists},
		"update":      {func() error { _, err := CallUpdate(ctx, client, "d", raiseUpdate, 1, RequestID("x")); return err }, ErrEnded},
		"rejection":   {func() error { _, err := CallUpdate(ctx, client, "l", raiseUpdate, 100, RequestID("x")); return err }, nil},
		"code": {func() error {
			_, err := StartRun(ctx, client, replay.Orchestration[int, int]("none"), "n", 1)
			if !isNotRegistered(err, "orchestration") {
				return err
			}
			return errTest
		}, errTest},
	} {
		node.ask = func(ctx context.Context, r *clusterpb.Request) *clusterpb.Response {
			r.Retried = true
			return node.router.callLeader(ctx, r)
		}
		if err := c.call(); !errors.Is(err, c.want) && c.want != nil || err == nil {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}
}

func TestRetriedCall_SearchEndsWithContext(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	if _, err := Call(ctx, node.Client(), doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	if _, event, err := node.partitionOf("d").inputs.FindInput(ctx, "d", instances.Position{}, "no such ID"); event != nil || err != nil {
		t.Errorf("%v, %v; want nothing", event, err)
	}
	if _, _, err := node.partitionOf("unknown").inputs.FindInput(ctx, "unknown", instances.Position{}, "no such ID"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown instance: %v; want ErrNotFound", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := node.partitionOf("d").inputs.FindInput(ended, "d", instances.Position{}, "no such ID"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want it to end with its context", err)
	}
}
