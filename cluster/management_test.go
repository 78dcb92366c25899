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
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func TestInstance_States(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), counter.Bind(counterBody))})
	ctx, client := testContext(t), node.Client()
	state := func(id string) string {
		status, err := client.Get(ctx, id)
		if errors.Is(err, ErrNotFound) {
			return "not found"
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := client.Get(ctx, id); err != nil || again.State != status.State || again.UpdatedAt != status.UpdatedAt {
			t.Errorf("%s: %+v, read again %+v, %v", id, status, again, err)
		}
		return fmt.Sprintf("%s %d", status.State, status.Execution)
	}
	expect := func(want map[string]string) {
		t.Helper()
		for id, required := range want {
			if got := state(id); got != required {
				t.Errorf("%s: %s; want %s", id, got, required)
			}
		}
	}
	expect(map[string]string{"a": "not found", "f": "not found"})
	for _, id := range []string{"a", "b", "c"} {
		if _, err := StartRun(ctx, client, waiter, id, ""); err != nil {
			t.Fatal(err)
		}
	}
	_, failed := Call(ctx, client, failingOrchestration, "f", "")
	_, counted := StartRun(ctx, client, counter, "n", counterState{Round: 3})
	if failed == nil || counted != nil {
		t.Fatal(failed, counted)
	}
	expect(map[string]string{"a": "running 1", "b": "running 1", "c": "running 1", "f": "failed 1", "n": "running 1"})
	for i := range 2 {
		if err := Send(ctx, client, "n", add, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(Send(ctx, client, "a", word, ""), client.Cancel(ctx, "b", "")); err != nil {
		t.Fatal(err)
	}
	_ = awaitEndState(t, client, "b")
	expect(map[string]string{"a": "completed 1", "b": "canceled 1", "c": "running 1", "f": "failed 1", "n": "running 2"})
	for state, want := range map[State]int{Running: 2, Completed: 1, Canceled: 1, Failed: 1, Terminated: 0} {
		if n, err := client.Count(ctx, Filter{States: []State{state}}); err != nil || n != want {
			t.Errorf("%d %s, %v; want %d", n, state, err, want)
		}
	}
}

func awaitEndState(t *testing.T, client *Client, id string) State {
	t.Helper()
	status, err := client.Wait(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return status.State
}

func TestStart_ConcurrentStartsBeginOneInstance(t *testing.T) {
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	var begun atomic.Int32
	var starts sync.WaitGroup
	for i := range 30 {
		starts.Go(func() {
			_, err := StartRun(ctx, nodes[i%3].Client(), waiter, "w", fmt.Sprint(i))
			if err == nil {
				begun.Add(1)
			} else if !errors.Is(err, ErrInstanceExists) {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	if n := countEvents(t, nodes[0].Client(), "w", 0, hasEventType(history.OrchestrationStarted)); n != 1 || begun.Load() != 1 {
		t.Errorf("%d starts recorded, %d begun", n, begun.Load())
	}
}

func TestList_ByParent(t *testing.T) {
	leaf, mid, root := replay.Orchestration[int, int]("leaf"), replay.Orchestration[int, int]("mid"), replay.Orchestration[int, int]("root")
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{
		leaf.Bind(func(_ *replay.Context, n int) (int, error) { return n, nil }),
		mid.Bind(func(ctx *replay.Context, n int) (int, error) { return leaf.Call(ctx, n) }),
		root.Bind(func(ctx *replay.Context, n int) (int, error) {
			results, err := replay.All(ctx, mid.Start(ctx, n, replay.ChildID("m1")), mid.Start(ctx, n, replay.ChildID("m2")))
			return len(results), err
		}),
	}})
	ctx, client := testContext(t), node.Client()
	if n, err := Call(ctx, client, root, "r", 1); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	leafID := derivedID(t, client, "m1", 1, 2)
	for parent, want := range map[string]string{"r": "m1 m2", "m1": leafID, leafID: "", "unknown": ""} {
		page, err := client.List(ctx, Filter{ParentID: parent}, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, status := range page.Instances {
			ids = append(ids, status.InstanceID)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("children of %s: %s; want %s", parent, got, want)
		}
	}
	child, childErr := client.Get(ctx, "m1")
	parent, parentErr := client.Get(ctx, "r")
	if err := errors.Join(childErr, parentErr); err != nil || child.ParentID != "r" || child.Name != "mid" || parent.ParentID != "" {
		t.Errorf("%+v, %+v, %v", child, parent, err)
	}
}

func TestPurge_ConcurrentPurgesRemoveOnce(t *testing.T) {
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	if _, err := Call(ctx, nodes[0].Client(), doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	var removed atomic.Int32
	var purges sync.WaitGroup
	for _, node := range nodes {
		purges.Go(func() {
			n, err := node.Client().Purge(ctx, "d", "d")
			if err != nil {
				t.Error(err)
			}
			removed.Add(int32(n))
		})
	}
	purges.Wait()
	if removed.Load() != 1 {
		t.Errorf("removed %d times", removed.Load())
	}
	if got, err := Call(ctx, nodes[1].Client(), doubled, "d", 5); err != nil || got != 10 {
		t.Errorf("a new run of the ID: %d, %v", got, err)
	}
	if status, err := nodes[2].Client().Get(ctx, "d"); err != nil || status.Execution != 1 {
		t.Errorf("%+v, %v", status, err)
	}
	expectSameHistories(t, nodes)
}

func TestReads_UnknownInstanceIsNotFound(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"get":          errOf(client.Get(ctx, "unknown")),
		"history":      errOf(client.History(ctx, "unknown")),
		"wait":         errOf(client.Wait(ctx, "unknown")),
		"executions":   errOf(client.Executions(ctx, "unknown")),
		"no execution": errOf(client.HistoryOf(ctx, "d", 2)),
		"retry":        client.Retry(ctx, "unknown"),
		"suspend":      client.Suspend(ctx, "unknown", ""),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v; want ErrNotFound", name, err)
		}
	}
	page, err := client.List(ctx, Filter{IDPrefix: "unknown"}, "", 0)
	if n, countErr := client.Count(ctx, Filter{Name: "none"}); err != nil || countErr != nil || n+len(page.Instances) != 0 {
		t.Errorf("lists of nothing: %d, %+v, %v, %v", n, page, err, countErr)
	}
	if n, err := client.Purge(ctx); n != 0 || err != nil {
		t.Errorf("purge of nothing: %d, %v", n, err)
	}
}

func errOf[T any](_ T, err error) error { return err }

// Completions without an open operation are dropped on arrival, and the instance continues.
func TestCompletions_UnmatchedAreDropped(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	run, err := StartRun(ctx, client, waiter, "w", "")
	if err != nil {
		t.Fatal(err)
	}
	result := &journalpb.Payload{Data: []byte(`"x"`)}
	activity := &journalpb.Event{Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{Result: result}}}
	timer := &journalpb.Event{Body: &journalpb.Event_TimerFired{TimerFired: &journalpb.TimerFired{}}}
	child := &journalpb.Event{Body: &journalpb.Event_SubOrchestrationCompleted{SubOrchestrationCompleted: &journalpb.SubOrchestrationCompleted{Result: result}}}
	for name, event := range map[string]*journalpb.Event{"activity": activity, "timer": timer, "child": child} {
		for _, execution := range []uint64{0, 1, 2} {
			for _, source := range []uint64{0, 1, 2, 999} { // none, the start, the subscription, the future
				event.SourceEventId = source
				answer, err := instances.Await(ctx, instances.Deliver(node.partitionOf("w").actorPartition.Load(), "w", actors.Message{Internal: true, Message: engine.Message{Execution: execution, Event: event}}))
				if err != nil || !answer.Dropped {
					t.Errorf("%s of event %d of execution %d: %+v, %v; want it dropped", name, source, execution, answer, err)
				}
			}
		}
	}
	if err := Send(ctx, client, "w", word, "on"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "on" {
		t.Errorf("%q, %v", got, err)
	}
	if history, err := client.History(ctx, "w"); err != nil || len(history.Events) != 4 {
		t.Errorf("%v, %v", history, err)
	}
}

// stepwise calls four activities, each after an event.
var stepwise = replay.Orchestration[int, int]("stepwise")

func stepwiseBody(ctx *replay.Context, n int) (int, error) {
	for range 4 {
		if _, err := word.Wait(ctx); err != nil {
			return 0, err
		}
		next, err := double.Call(ctx, n)
		if err != nil {
			return 0, err
		}
		n = next
	}
	return n, nil
}

func TestRestart_InstancesContinueAtAnyStep(t *testing.T) {
	checkGoroutineLeaks(t)
	dir, ctx := t.TempDir(), testContext(t)
	code := append(definitions(), stepwise.Bind(stepwiseBody))
	node := startNode(t, Config{Dir: dir, Definitions: code})
	id := func(i int) string { return fmt.Sprintf("s-%d", i) }
	for i := range 5 {
		if _, err := StartRun(ctx, node.Client(), stepwise, id(i), 1); err != nil {
			t.Fatal(err)
		}
		for range i {
			if err := Send(ctx, node.Client(), id(i), word, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, Config{Dir: dir, Definitions: code})
	for i := range 5 {
		for range 4 - i {
			if err := Send(ctx, node.Client(), id(i), word, ""); err != nil {
				t.Fatal(err)
			}
		}
		status, err := node.Client().Wait(ctx, id(i))
		var got int
		if err != nil || status.Output(&got) != nil || got != 16 {
			t.Errorf("%s: %d, %+v, %v", id(i), got, status, err)
		}
		if n := countEvents(t, node.Client(), id(i), 0, hasEventType(history.ActivityCompleted)); n != 4 {
			t.Errorf("%s: %d activities completed; want each once", id(i), n)
		}
	}
}

func TestMissingCode_InstanceWaitsAndCanBeEnded(t *testing.T) {
	upgraded := replay.Orchestration[int, string]("upgraded")
	dir, ctx := t.TempDir(), testContext(t)
	body := func(ctx *replay.Context, n int) (string, error) {
		if n == 0 {
			return "", upgraded.ContinueAsNew(ctx, 1, replay.Version("2"))
		}
		return "by version " + ctx.Version(), nil
	}
	node := startNode(t, Config{Dir: dir, Definitions: []replay.Definition{upgraded.Bind(body, replay.Version("1"))}})
	for _, id := range []string{"goes-on", "ended"} {
		if _, err := StartRun(ctx, node.Client(), upgraded, id, 0); err != nil {
			t.Fatal(err)
		}
		eventually(t, id+" waits for code", func() bool {
			status, err := node.Client().Get(ctx, id)
			return err == nil && status.State == WaitingForCode && status.Execution == 2 && status.Version == "2"
		})
	}
	if err := node.Client().Terminate(ctx, "ended", "never mind"); err != nil {
		t.Fatal(err)
	}
	if n, err := node.Client().Purge(ctx, "ended", "goes-on"); n != 1 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, Config{Dir: dir, Definitions: []replay.Definition{
		upgraded.Bind(body, replay.Version("1")), upgraded.Bind(body, replay.Version("2")),
	}})
	if got := awaitOutcome(t, node.Client(), "goes-on"); got != "completed by version 2" {
		t.Error(got)
	}
}

func TestVersions_OfStartsChildrenChainsContinuations(t *testing.T) {
	versioned, asker := replay.Orchestration[string, string]("versioned"), replay.Orchestration[string, string]("asker")
	body := func(ctx *replay.Context, how string) (string, error) {
		switch how {
		case "on":
			return "", versioned.ContinueAsNew(ctx, "")
		case "on to 1":
			return "", versioned.ContinueAsNew(ctx, "", replay.Version("1"))
		}
		return ctx.Version(), nil
	}
	askerBody := func(ctx *replay.Context, how string) (string, error) {
		switch how {
		case "newest":
			return versioned.Call(ctx, "")
		case "1":
			return versioned.Call(ctx, "", replay.Version("1"))
		}
		return "", versioned.Chain(ctx, "", replay.ChildID(ctx.InstanceID()+"-chained"))
	}
	for newest, options := range map[string][]replay.Option{"10": nil, "9": {replay.Pinned()}} {
		node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{
			versioned.Bind(body, replay.Version("1")), versioned.Bind(body, append(options, replay.Version("9"))...),
			versioned.Bind(body, replay.Version("10")), asker.Bind(askerBody),
		}})
		ctx, client := testContext(t), node.Client()
		var chainErr error
		results := map[string]string{}
		call := func(name string, handle replay.OrchestrationHandle[string, string], input string, options ...replay.Option) {
			got, err := Call(ctx, client, handle, strings.ReplaceAll(name, " ", "-"), input, options...)
			results[name] = strings.TrimSpace(got)
			chainErr = errors.Join(chainErr, err)
		}
		call("start", versioned, "")
		call("start of 1", versioned, "", replay.Version("1"))
		call("continued", versioned, "on", replay.Version("1"))
		call("continued to 1", versioned, "on to 1")
		call("child", asker, "newest")
		call("child of 1", asker, "1")
		call("chain", asker, "chain")
		eventually(t, "the chained one exists", func() bool {
			_, err := client.Get(ctx, "chain-chained")
			return err == nil
		})
		results["chain"] = strings.TrimPrefix(awaitOutcome(t, client, "chain-chained"), "completed ")
		want := map[string]string{
			"start": newest, "start of 1": "1", "continued": newest, "continued to 1": "1", "child": newest, "child of 1": "1", "chain": newest,
		}
		if got := fmt.Sprint(results); chainErr != nil || got != fmt.Sprint(want) {
			t.Errorf("%s, %v; want %v", got, chainErr, want)
		}
	}
}

func TestContext_DescribesExecution(t *testing.T) {
	who := replay.Activity[string, string]("who")
	where := replay.Orchestration[string, string]("where")
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{
		who.Bind(func(ctx context.Context, _ string) (string, error) {
			info := replay.ActivityInfo(ctx)
			return fmt.Sprintf("%s %s %d", info.Name, info.IdempotencyKey(), info.Number), nil
		}),
		where.Bind(func(ctx *replay.Context, _ string) (string, error) {
			if ctx.Execution() == 1 {
				return "", where.ContinueAsNew(ctx, "")
			}
			activity, err := who.Call(ctx, "")
			return fmt.Sprintf("%s/%d %s %s; %s", ctx.InstanceID(), ctx.Execution(), ctx.Version(), ctx.Tags()["k"], activity), err
		}, replay.Version("7")),
	}})
	got, err := Call(testContext(t), node.Client(), where, "w", "", Tags(map[string]string{"k": "v"}))
	key := (&journalpb.OperationRef{Instance: "w", Incarnation: incarnationOf(t, node.Client(), "w"), Execution: 2, EventId: 2}).Key()
	if want := "w/2 7 v; who " + key + " 1"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}
