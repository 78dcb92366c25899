package cluster

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Children, chained starts and continue-as-new, on real nodes that restart or change the leader
// meanwhile.

// restart stops a node and starts another with its directory and code.
func restart(t *testing.T, node *Node) *Node {
	t.Helper()
	if err := node.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return startNode(t, Config{Dir: node.config.Dir, Partitions: node.config.Partitions, Definitions: node.config.Definitions})
}

func hasEventType(eventType history.EventType) func(history.Event) bool {
	return func(event history.Event) bool { return event.Type == eventType }
}

func TestChild_ContinuedAsNewCompletesOnce(t *testing.T) {
	checkGoroutineLeaks(t)
	parent := replay.Orchestration[int, counterState]("parent")
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: append(definitions(), counter.Bind(counterBody),
		parent.Bind(func(ctx *replay.Context, round int) (counterState, error) {
			return counter.Call(ctx, counterState{Round: round}, replay.ChildID("child"))
		}))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), parent, "p", 1); err != nil {
		t.Fatal(err)
	}
	for n := range 8 { // two in each of the rounds 1 to 4
		if n%3 == 2 {
			node = restart(t, node)
		}
		eventually(t, "the child is there", func() bool {
			err := Send(ctx, node.Client(), "child", add, n, RequestID(fmt.Sprint(n)))
			if err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	run, err := StartRun(ctx, node.Client(), parent, "p", 1, Attach())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != (counterState{Round: 5, Total: 28}) {
		t.Errorf("the parent got %+v, %v; want the final result", got, err)
	}
	node = restart(t, node) // the new leader recovers reports of ends
	if n := countEvents(t, node.Client(), "p", 0, hasEventType(history.SubOrchestrationCompleted)); n != 1 {
		t.Errorf("the result came %d times", n)
	}
	if history, err := node.Client().History(ctx, "p"); err != nil || len(history.Events) != 4 {
		t.Errorf("%v, %v; want a start, a child, its end, an end", history, err)
	}
	executions, err := node.Client().Executions(ctx, "child")
	if err != nil || len(executions) != 4 || executions[0].State != ContinuedAsNew || executions[3].State != Completed {
		t.Errorf("the child's executions: %+v, %v", executions, err)
	}
	for execution := range uint64(4) {
		started, err := node.Client().HistoryOf(ctx, "child", execution+1)
		if err != nil || eventpb.Message(started.Events[0]).GetOrchestrationStarted().GetParent().GetInstance() != "p" {
			t.Errorf("execution %d does not know its parent: %v, %v", execution+1, started, err)
		}
	}
}

type loopInput struct{ Left, Sum int }

// eternalLoop awaits a child in each execution, until none is left.
var eternalLoop = replay.Orchestration[loopInput, int]("eternal")

func eternalLoopBody(ctx *replay.Context, in loopInput) (int, error) {
	got, err := doubled.Call(ctx, in.Left)
	if err != nil {
		return 0, err
	}
	in.Sum += got
	if in.Left == 0 {
		return in.Sum, nil
	}
	in.Left--
	return 0, eternalLoop.ContinueAsNew(ctx, in)
}

func TestChild_AwaitedInEternalLoop(t *testing.T) {
	checkGoroutineLeaks(t)
	const again = 20
	nodes := startPeersWith(t, 3, append(definitions(), eternalLoop.Bind(eternalLoopBody))...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var others []*Node
	for _, node := range nodes {
		if node != leader {
			others = append(others, node)
		}
	}
	client := others[0].Client()
	run, err := StartRun(ctx, client, eternalLoop, "e", loopInput{Left: again})
	if err != nil {
		t.Fatal(err)
	}
	for recorded, err := range client.Watch(ctx, "e", history.Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		if recorded.Execution == again/2 {
			break
		}
	}
	if err := leader.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != again*(again+1) {
		t.Errorf("%d, %v; want %d", got, err, again*(again+1))
	}
	executions, err := client.Executions(ctx, "e")
	if err != nil || len(executions) != again+1 {
		t.Fatalf("%d executions, %v; want %d", len(executions), err, again+1)
	}
	for _, execution := range executions {
		history, err := client.HistoryOf(ctx, "e", execution.Number)
		if err != nil || len(history.Events) != 4 || history.Events[2].Type != "SubOrchestrationCompleted" {
			t.Errorf("execution %d: %v, %v", execution.Number, history, err)
		}
		child, err := client.Get(ctx, derivedID(t, client, "e", execution.Number, 2))
		if err != nil || child.State != Completed || child.ParentID != "e" || child.Execution != 1 {
			t.Errorf("the child of execution %d: %+v, %v", execution.Number, child, err)
		}
	}
	if n, err := client.Count(ctx, Filter{}); err != nil || n != again+2 {
		t.Errorf("%d instances, %v; want the loop and a child for each execution", n, err)
	}
	expectSameHistories(t, others)
}

// Operations scheduled in the step that ends an execution are canceled in that step and leave no
// trace; a chained start is not an operation and stays.
func TestContinueAsNew_ChildrenAndChainsOfLastStep(t *testing.T) {
	checkGoroutineLeaks(t)
	restless := replay.Orchestration[string, string]("restless")
	body := func(ctx *replay.Context, input string) (string, error) {
		if input == "again" {
			return word.Wait(ctx)
		}
		waiter.Start(ctx, "", replay.ChildID("open"))
		waiter.Start(ctx, "", replay.ChildID("abandoned"), replay.OnParentClose(replay.AbandonChild))
		if _, err := word.Wait(ctx); err != nil {
			return "", err
		}
		waiter.Start(ctx, "", replay.ChildID("last"))
		waiter.Start(ctx, "", replay.ChildID("last-abandoned"), replay.OnParentClose(replay.AbandonChild))
		if err := waiter.Chain(ctx, "chained ", replay.ChildID("chained")); err != nil {
			return "", err
		}
		return "", restless.ContinueAsNew(ctx, "again")
	}
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: append(definitions(), restless.Bind(body))})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), restless, "r", ""); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"open", "abandoned"} {
		eventually(t, id+" is there", func() bool { return errOf(node.Client().Get(ctx, id)) == nil })
	}
	if err := Send(ctx, node.Client(), "r", word, "on"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the chained one is there", func() bool { return errOf(node.Client().Get(ctx, "chained")) == nil })
	if status, err := node.Client().Wait(ctx, "open"); err != nil || status.State != Canceled {
		t.Errorf("the child that was open: %+v, %v", status, err)
	}
	node = restart(t, node)
	for id, want := range map[string]State{"abandoned": Running, "chained": Running, "r": Running} {
		if status, err := node.Client().Get(ctx, id); err != nil || status.State != want {
			t.Errorf("%s: %+v, %v; want it %s", id, status, err, want)
		}
	}
	for _, id := range []string{"last", "last-abandoned"} {
		if _, err := node.Client().Get(ctx, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s was started: %v", id, err)
		}
	}
	if err := errors.Join(Send(ctx, node.Client(), "r", word, "end"), Send(ctx, node.Client(), "chained", word, "end")); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"r": "completed end", "chained": "completed chained end"} {
		if got := awaitOutcome(t, node.Client(), id); got != want {
			t.Errorf("%s: %s; want %s", id, got, want)
		}
	}
	if n := countEvents(t, node.Client(), "r", 1, hasEventType(history.OrchestrationChained)); n != 1 {
		t.Errorf("%d chained starts in the history", n)
	}
}

// A start with another version of a running instance attaches to what runs, or is rejected.
func TestStart_RunningIDWithOtherVersion(t *testing.T) {
	checkGoroutineLeaks(t)
	versioned := replay.Orchestration[string, string]("versioned")
	body := func(ctx *replay.Context, _ string) (string, error) {
		got, err := word.Wait(ctx)
		return got + " by " + ctx.Version(), err
	}
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: []replay.Definition{
		versioned.Bind(body, replay.Version("1.0.0")), versioned.Bind(body, replay.Version("2.0.0")), waiter.Bind(waiterBody),
	}})
	ctx := testContext(t)
	start := func(options ...replay.Option) (*Run[string], error) {
		return StartRun(ctx, node.Client(), versioned, "v", "", options...)
	}
	if _, err := start(replay.Version("1.0.0"), RequestID("first")); err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string][]replay.Option{
		"plainly":                 {replay.Version("2.0.0")},
		"by another request":      {replay.Version("2.0.0"), RequestID("second")},
		"reusing what has ended":  {replay.Version("2.0.0"), ReuseWhenEnded()},
		"reusing what has failed": {replay.Version("2.0.0"), ReuseWhenFailed()},
		"with the version it has": {replay.Version("1.0.0")},
		"with no version":         nil,
	} {
		if _, err := start(options...); !errors.Is(err, ErrInstanceExists) {
			t.Errorf("%s: %v; want ErrInstanceExists", name, err)
		}
	}
	if _, err := StartRun(ctx, node.Client(), waiter, "v", "", Attach()); !errors.Is(err, ErrInstanceExists) {
		t.Errorf("attached under another name: %v; want ErrInstanceExists", err)
	}
	node = restart(t, node)
	if _, err := start(replay.Version("2.0.0")); !errors.Is(err, ErrInstanceExists) {
		t.Errorf("after a restart: %v; want ErrInstanceExists", err)
	}
	if _, err := start(replay.Version("2.0.0"), RequestID("first")); err != nil {
		t.Errorf("the same request again: %v", err)
	}
	run, err := start(replay.Version("2.0.0"), Attach())
	if err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, node.Client(), "v", word, "done"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "done by 1.0.0" {
		t.Errorf("%q, %v; want it done by the version that was there", got, err)
	}
	history, err := node.Client().History(ctx, "v")
	if err != nil || len(history.Events) != 4 || eventpb.Message(history.Events[0]).GetOrchestrationStarted().Version != "1.0.0" {
		t.Errorf("%v, %v", history, err)
	}
}
