package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
)

// Programs call it for each request.
func TestNode_ClientIsAllocatedOnce(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	if first, second := node.Client(), node.Client(); first != second {
		t.Error("two calls return two clients")
	}
}

func TestStart_ExistingID(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	client := node.Client()
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, waiter, "w", "a", RequestID("r1")); err != nil {
		t.Fatal(err)
	}
	if _, err := StartRun(ctx, client, waiter, "w", "b"); !errors.Is(err, ErrInstanceExists) {
		t.Errorf("a second start: %v; want ErrInstanceExists", err)
	}
	if _, err := StartRun(ctx, client, waiter, "w", "a", RequestID("r1")); err != nil {
		t.Errorf("the same start repeated: %v", err)
	}
	run, err := StartRun(ctx, client, waiter, "w", "c", Attach())
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	if err := Send(ctx, client, "w", word, "!"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "a!" {
		t.Errorf("got %q, %v; want the result of the first start", got, err)
	}
	if _, err := StartRun(ctx, client, waiter, "w", "d"); !errors.Is(err, ErrInstanceExists) {
		t.Errorf("a start after the end: %v; want ErrInstanceExists", err)
	}
}

func TestSend_RejectsUnknownAndEndedInstances(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	if err := Send(ctx, node.Client(), "unknown", word, "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("to an unknown instance: %v; want ErrNotFound", err)
	}
	if _, err := Call(ctx, node.Client(), doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, node.Client(), "d", word, "x"); !errors.Is(err, ErrEnded) {
		t.Errorf("to an ended instance: %v; want ErrEnded", err)
	}
}

func TestWait_ReportsEachEndState(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	_, err := Call(ctx, node.Client(), failingOrchestration, "e", "error")
	var ended *RunError
	if !errors.As(err, &ended) || ended.State != Failed || ended.Err.Error() != errTest.Error() {
		t.Errorf("a failed run: %v", err)
	}
	_, err = Call(ctx, node.Client(), failingOrchestration, "p", "panic")
	var panicked *replay.PanicError
	if !errors.As(err, &panicked) || !strings.Contains(panicked.Stack, "helpers_test.go") {
		t.Errorf("a run that panicked: %v", err)
	}
	if got, err := Call(ctx, node.Client(), doubled, "d", 1); err != nil || got != 2 {
		t.Errorf("other instances go on: %d, %v", got, err)
	}
	status, err := node.Client().Get(ctx, "e")
	if err != nil || status.State != Failed || !status.Ended() || status.Name != "failing" {
		t.Errorf("status %+v, %v", status, err)
	}
}

func TestClient_ChecksArguments(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	for _, id := range []string{"", strings.Repeat("x", 129), "a b", "a\nb", "é", "a\x00"} {
		_, err := StartRun(ctx, node.Client(), doubled, id, 1)
		var wrong *replay.InvalidError
		if !errors.As(err, &wrong) || wrong.Field != "instance ID" {
			t.Errorf("ID %q: %v", id, err)
		}
	}
	_, err := StartRun(ctx, node.Client(), waiter, "big", strings.Repeat("x", replay.PayloadMax))
	var large *replay.PayloadTooLargeError
	if !errors.As(err, &large) {
		t.Errorf("a large payload: %v", err)
	}
	unknown := replay.Orchestration[int, int]("unknown")
	if _, err := StartRun(ctx, node.Client(), unknown, "u", 1); !isNotRegistered(err, "orchestration") {
		t.Errorf("without code: %v; want a NotRegisteredError", err)
	}
	if _, err := node.Client().Get(ctx, "u"); !errors.Is(err, ErrNotFound) {
		t.Errorf("nothing was started: %v; want ErrNotFound", err)
	}
}

func TestHistory_GaplessAndPrintable(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	if _, err := Call(ctx, node.Client(), doubled, "d", 4); err != nil {
		t.Fatal(err)
	}
	history, err := node.Client().History(ctx, "d")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`OrchestrationStarted name="doubled" input=4`,
		`ActivityScheduled name="double" input=4`,
		`ActivityCompleted source_event_id=2 result=8 attempts=1`,
		`OrchestrationCompleted output=8`,
	}
	lines := strings.Split(strings.TrimSuffix(history.String(), "\n"), "\n")
	for i, event := range history.Events {
		if event.EventID != uint64(i+1) || event.String() != want[i] || !strings.HasSuffix(lines[i], want[i]) {
			t.Errorf("event %d: %d %s; line %q", i+1, event.EventID, event, lines[i])
		}
	}
}

func TestActivity_TooLargeResultFails(t *testing.T) {
	large := replay.Activity[int, string]("large")
	caller := replay.Orchestration[int, string]("caller")
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{
		large.Bind(func(_ context.Context, n int) (string, error) { return strings.Repeat("x", n), nil }),
		caller.Bind(func(ctx *replay.Context, n int) (string, error) { return large.Call(ctx, n) }),
	}})
	_, err := Call(testContext(t), node.Client(), caller, "c", replay.PayloadMax)
	if err == nil || !strings.Contains(err.Error(), "at most 1048576") {
		t.Errorf("got %v", err)
	}
}

func TestStep_TooLargeTerminatesInstance(t *testing.T) {
	big := replay.Activity[string, int]("big")
	caller := replay.Orchestration[int, int]("caller")
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{
		big.Bind(func(_ context.Context, s string) (int, error) { return len(s), nil }),
		caller.Bind(func(ctx *replay.Context, n int) (int, error) {
			var all []*replay.Future[int]
			for range n {
				all = append(all, big.Start(ctx, strings.Repeat("x", 1<<19)))
			}
			sizes, err := replay.All(ctx, all...)
			return len(sizes), err
		}),
	}})
	ctx := testContext(t)
	_, err := Call(ctx, node.Client(), caller, "c", 10)
	if !errors.Is(err, replay.ErrTerminated) || !strings.Contains(err.Error(), "limit") {
		t.Errorf("ten of half a MiB: %v", err)
	}
	history, err := node.Client().History(ctx, "c")
	if err != nil || len(history.Events) != 2 || history.Events[1].Type != "OrchestrationTerminated" {
		t.Errorf("history %v, %v", history, err)
	}
	if got, err := Call(ctx, node.Client(), caller, "d", 5); err != nil || got != 5 {
		t.Errorf("five of half a MiB: %d, %v", got, err)
	}
}
