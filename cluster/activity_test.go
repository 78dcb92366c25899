package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors/activity"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	asyncActivity      = replay.Activity[string, string]("ask")
	asyncOrchestration = replay.Orchestration[string, string]("asked")
)

// tokenCollector keeps the tokens of attempts.
type tokenCollector struct {
	mu     sync.Mutex
	tokens []string
}

func (t *tokenCollector) definitions(options ...replay.Option) []replay.Definition {
	return []replay.Definition{
		asyncActivity.Bind(func(ctx context.Context, _ string) (string, error) {
			if err := replay.Heartbeat(ctx, "asked"); err != nil {
				return "", err
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.tokens = append(t.tokens, replay.ActivityInfo(ctx).Token())
			return "", replay.ErrResultPending
		}),
		asyncOrchestration.Bind(func(ctx *replay.Context, text string) (string, error) {
			return asyncActivity.Call(ctx, text, options...)
		}),
		waiter.Bind(waiterBody),
	}
}

func (t *tokenCollector) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tokens[:len(t.tokens):len(t.tokens)]
}

// awaitOnlyOperation waits until the only open operation of an instance is in a state.
func awaitOnlyOperation(t *testing.T, client *Client, id string, state activity.State) *OpenOperation {
	t.Helper()
	var found *OpenOperation
	eventually(t, "the activity is "+string(state), func() bool {
		operations, err := client.Pending(testContext(t), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(operations) != 1 || operations[0].State != state {
			return false
		}
		found = operations[0]
		return true
	})
	return found
}

func TestActivityToken_CompletesFromAnyNode(t *testing.T) {
	checkGoroutineLeaks(t)
	d := new(tokenCollector)
	nodes := startPeersWith(t, 3, d.definitions(replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond}))...)
	ctx := testContext(t)
	run, err := StartRun(ctx, nodes[0].Client(), asyncOrchestration, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	open := awaitOnlyOperation(t, nodes[1].Client(), "a", ActivityPending)
	var details string
	eventually(t, "the heartbeat is recorded", func() bool {
		open = awaitOnlyOperation(t, nodes[1].Client(), "a", ActivityPending)
		return open.Heartbeat(&details) == nil && details != ""
	})
	if details != "asked" || open.Name != "ask" || open.EventType != "ActivityScheduled" ||
		open.EventID != 2 || open.FailedAttempts != 0 || open.LastError != nil || time.Since(open.Since) > testTimeout {
		t.Errorf("open: %+v, heartbeat %q", open, details)
	}
	if err := FailActivity(ctx, nodes[1].Client(), d.all()[0], errTest); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second attempt", func() bool { return len(d.all()) == 2 })
	open = awaitOnlyOperation(t, nodes[2].Client(), "a", ActivityPending)
	if open.FailedAttempts != 1 || open.LastError == nil || open.LastError.Error() != errTest.Error() {
		t.Errorf("open: %+v", open)
	}
	if err := CompleteActivity(ctx, nodes[2].Client(), d.all()[0], "late"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("first token: %v", err)
	}
	for _, node := range nodes {
		if err := CompleteActivity(ctx, node.Client(), d.all()[1], "granted"); err != nil {
			t.Errorf("on %s: %v", node.ID(), err)
		}
	}
	if got, err := run.Wait(ctx); err != nil || got != "granted" {
		t.Errorf("%q, %v", got, err)
	}
	if err := CompleteActivity(ctx, nodes[0].Client(), d.all()[1], "rejected"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("another result: %v", err)
	}
	if rest, err := nodes[0].Client().Pending(ctx, "a"); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %v, %v", rest, err)
	}
}

func TestPendingActivity_SurvivesLeaderLoss(t *testing.T) {
	checkGoroutineLeaks(t)
	d := new(tokenCollector)
	nodes := startPeersWith(t, 3, d.definitions()...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var other *Node
	for _, node := range nodes {
		if node != leader {
			other = node
		}
	}
	run, err := StartRun(ctx, other.Client(), asyncOrchestration, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	awaitOnlyOperation(t, other.Client(), "a", ActivityPending)
	eventually(t, "that it is pending is recorded", func() bool {
		for open := range leader.partitionOf("a").journal.InstanceOperations("a") {
			return open.Attempt.GetPending()
		}
		return false
	})
	if err := leader.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	awaitOnlyOperation(t, other.Client(), "a", ActivityPending)
	if err := CompleteActivity(ctx, other.Client(), d.all()[0], "granted"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "granted" || len(d.all()) != 1 {
		t.Errorf("%q after %d attempts, %v", got, len(d.all()), err)
	}
}

func TestActivityToken_RejectsInvalid(t *testing.T) {
	d := new(tokenCollector)
	node := startNode(t, Config{InMemory: true, Definitions: d.definitions()})
	ctx, client := testContext(t), node.Client()
	var wrong *replay.TokenError
	if err := CompleteActivity(ctx, client, "no token", 1); !errors.As(err, &wrong) {
		t.Errorf("no token: %v", err)
	}
	unknownAttempt := &replay.Attempt{Instance: "unknown", Execution: 1, EventID: 2, Number: 1}
	if err := FailActivity(ctx, client, unknownAttempt.Token(), errTest); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("token of an unknown instance: %v", err)
	}
	var input *replay.InvalidError
	if err := FailActivity(ctx, client, unknownAttempt.Token(), nil); !errors.As(err, &input) {
		t.Errorf("no failure: %v", err)
	}
	if err := CompleteActivity(ctx, client, unknownAttempt.Token(), make(chan int)); err == nil {
		t.Error("a value that cannot be encoded")
	}
}

func TestPending_ListsOpenOperations(t *testing.T) {
	d := new(tokenCollector)
	node := startNode(t, Config{InMemory: true, Tags: []string{"disk"}, Definitions: append(d.definitions(replay.Tag("gpu")),
		doubled.Bind(func(ctx *replay.Context, n int) (int, error) {
			double.Start(ctx, n)
			ctx.Timer(time.Hour)
			waiter.Start(ctx, "", replay.ChildID("child"))
			_, err := word.Wait(ctx)
			return 0, err
		}))})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, asyncOrchestration, "a", ""); err != nil {
		t.Fatal(err)
	}
	awaitOnlyOperation(t, client, "a", ActivityWaitingForTag)
	if _, err := StartRun(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	var operations []*OpenOperation
	eventually(t, "the activity waits for code", func() bool {
		var err error
		if operations, err = client.Pending(ctx, "d"); err != nil {
			t.Fatal(err)
		}
		return len(operations) == 4 && operations[0].State != ""
	})
	if o := operations[0]; o.EventType != "ActivityScheduled" || o.Name != "double" || o.State != ActivityWaitingForCode {
		t.Errorf("the activity: %+v", o)
	}
	if o := operations[1]; o.EventType != "TimerCreated" || o.FireAt.Sub(o.Since) != time.Hour {
		t.Errorf("the timer: %+v", o)
	}
	if o := operations[2]; o.EventType != "SubOrchestrationScheduled" || o.Name != "waiter" || o.ChildID != "child" {
		t.Errorf("the child: %+v", o)
	}
	if o := operations[3]; o.EventType != "ExternalSubscribed" || o.Name != "word" || o.EventID != 5 || o.Execution != 1 {
		t.Errorf("the subscription: %+v", o)
	}
	if _, err := client.Pending(ctx, "unknown"); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown instance: %v", err)
	}
	if _, err := client.Pending(ctx, ""); !errors.As(err, new(*replay.InvalidError)) {
		t.Errorf("without an ID: %v", err)
	}
}

// A result for an instance that cannot record it is rejected at once, kept while this node leads,
// and accepted again on any leader.
func TestActivityToken_StalledInstanceAnswersAtOnce(t *testing.T) {
	checkGoroutineLeaks(t)
	dir, d, ctx := t.TempDir(), new(tokenCollector), testContext(t)
	var other atomic.Bool
	good := d.definitions()
	changed := append(good[:1:1], asyncOrchestration.Bind(func(ctx *replay.Context, text string) (string, error) {
		if other.Load() {
			return word.Wait(ctx)
		}
		return asyncActivity.Call(ctx, text)
	}))
	restart := func(node *Node, code ...replay.Definition) *Node {
		t.Helper()
		if err := node.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		return startNode(t, Config{Dir: dir, Definitions: code})
	}
	node := startNode(t, Config{Dir: dir, Definitions: good})
	for i, id := range []string{"a", "b"} {
		if _, err := StartRun(ctx, node.Client(), asyncOrchestration, id, payloadCanary); err != nil {
			t.Fatal(err)
		}
		eventually(t, "that it is pending is recorded", func() bool {
			for open := range node.partitionOf(id).journal.InstanceOperations(id) {
				return open.Attempt.GetPending() && len(d.all()) == i+1
			}
			return false
		})
	}
	rejected := func(client *Client, token, value string) {
		t.Helper()
		err := CompleteActivity(ctx, client, token, value)
		if !errors.Is(err, ErrStalled) || strings.Contains(err.Error(), payloadCanary) {
			t.Errorf("%q for a stalled instance: %v; want ErrStalled, and no payload", value, err)
		}
	}
	ends := func(client *Client, id string) {
		t.Helper()
		status, err := client.Wait(ctx, id)
		var got string
		if err != nil || status.Output(&got) != nil || got != "granted" {
			t.Errorf("%s: %q, %+v, %v", id, got, status, err)
		}
	}

	other.Store(true)
	node = restart(node, changed...)
	rejected(node.Client(), d.all()[0], "granted")
	rejected(node.Client(), d.all()[0], "too late")
	other.Store(false)
	if err := node.Client().Retry(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	ends(node.Client(), "a")
	if err := CompleteActivity(ctx, node.Client(), d.all()[0], "granted"); err != nil {
		t.Errorf("same result after it was recorded: %v", err)
	}
	if err := CompleteActivity(ctx, node.Client(), d.all()[0], "too late"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("another result after one was recorded: %v", err)
	}

	node = restart(node, good[0]) // no code for the orchestration
	rejected(node.Client(), d.all()[1], "forgotten")
	node = restart(node, good...)
	if err := CompleteActivity(ctx, node.Client(), d.all()[1], "granted"); err != nil {
		t.Fatal(err)
	}
	ends(node.Client(), "b")
}

// Of several concurrent completions of an attempt on different nodes, one is recorded.
func TestActivityToken_ConcurrentCompletionsRecordOne(t *testing.T) {
	checkGoroutineLeaks(t)
	d := new(tokenCollector)
	nodes := startPeersWith(t, 3, d.definitions()...)
	ctx := testContext(t)
	run, err := StartRun(ctx, nodes[0].Client(), asyncOrchestration, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	awaitOnlyOperation(t, nodes[0].Client(), "a", ActivityPending)
	token := d.all()[0]
	type answer struct {
		value string
		err   error
	}
	answers := make(chan answer)
	for i := range 12 {
		value := fmt.Sprint(i / 2) // each value twice
		go func() { answers <- answer{value, CompleteActivity(ctx, nodes[i%3].Client(), token, value)} }()
	}
	go func() {
		answers <- answer{"failed", FailActivity(ctx, nodes[0].Client(), token, replay.NonRetryable(errTest))}
	}()
	taken := make(map[string]int)
	for range 13 {
		switch a := <-answers; {
		case a.err == nil:
			taken[a.value]++
		case !errors.Is(a.err, ErrActivityClosed):
			t.Errorf("%s: %v; want ErrActivityClosed", a.value, a.err)
		}
	}
	got, err := run.Wait(ctx)
	if err != nil {
		got = "failed"
	}
	if len(taken) != 1 || taken[got] == 0 {
		t.Errorf("%q, %v; accepted: %v", got, err, taken)
	}
	ended := func(event history.Event) bool { return event.SourceEventID == 2 }
	if n := countEvents(t, nodes[0].Client(), "a", 0, ended); n != 1 {
		t.Errorf("%d ends of the activity", n)
	}
	expectSameHistories(t, nodes)
}

// A token is valid for one attempt in one execution.
func TestActivityToken_IgnoresEarlierExecution(t *testing.T) {
	checkGoroutineLeaks(t)
	d, repeats := new(tokenCollector), replay.Orchestration[int, string]("repeats")
	// The first execution gets a result, the second cancels its activity.
	body := func(ctx *replay.Context, n int) (string, error) {
		future := asyncActivity.Start(ctx, "")
		if n == 2 {
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
			return "", repeats.ContinueAsNew(ctx, 3)
		}
		got, err := future.Await(ctx)
		if err != nil || n == 3 {
			return got, err
		}
		return "", repeats.ContinueAsNew(ctx, 2)
	}
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: append(d.definitions(), repeats.Bind(body))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), repeats, "r", 1); err != nil {
		t.Fatal(err)
	}
	asked := func(n int) string {
		eventually(t, "the activity was called", func() bool { return len(d.all()) >= n })
		return d.all()[n-1]
	}
	complete := func(token, value string) error { return CompleteActivity(ctx, node.Client(), token, value) }
	first := asked(1)
	if err := complete(first, "one"); err != nil {
		t.Fatal(err)
	}
	asked(2)
	if err := Send(ctx, node.Client(), "r", word, ""); err != nil {
		t.Fatal(err)
	}
	third := asked(3)
	expect := func(when string) {
		t.Helper()
		if err := complete(first, "one"); err != nil {
			t.Errorf("%s: the recorded result again: %v", when, err)
		}
		if err := complete(first, "other"); !errors.Is(err, ErrActivityClosed) {
			t.Errorf("%s: another result: %v", when, err)
		}
		if err := FailActivity(ctx, node.Client(), first, errTest); !errors.Is(err, ErrActivityClosed) {
			t.Errorf("%s: a failure after the result: %v", when, err)
		}
		if err := complete(asked(2), "late"); !errors.Is(err, ErrActivityClosed) {
			t.Errorf("%s: a result for the canceled activity: %v", when, err)
		}
	}
	expect("while the third runs")
	eventually(t, "the third attempt is recorded as pending", func() bool {
		for open := range node.partitionOf("r").journal.InstanceOperations("r") {
			return open.Attempt.GetPending()
		}
		return false
	})
	node = restart(t, node)
	expect("after a restart")
	if err := complete(third, "three"); err != nil {
		t.Fatal(err)
	}
	if got := awaitOutcome(t, node.Client(), "r"); got != "completed three" {
		t.Error(got)
	}
	expect("after the end")
	if executions, err := node.Client().Executions(ctx, "r"); err != nil || len(executions) != 3 || executions[2].Events != 4 {
		t.Errorf("%+v, %v; want only valid completions recorded", executions, err)
	}
}
