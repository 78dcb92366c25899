package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

var (
	flakyRun    = replay.Orchestration[int, string]("flaky run")
	flakyParent = replay.Orchestration[string, string]("parent of a flaky run")
)

// flakyBody fails after a word, in all attempts before the one that succeeds.
func flakyBody(ctx *replay.Context, succeeds int) (string, error) {
	text, err := word.Wait(ctx)
	if err == nil && ctx.Attempt() < succeeds {
		err = fmt.Errorf("attempt %d got %q", ctx.Attempt(), text)
	}
	return fmt.Sprint(text, ctx.Attempt()), err
}

func runDefinitions() []replay.Definition {
	return append(definitions(), flakyRun.Bind(flakyBody), flakyParent.Bind(func(ctx *replay.Context, childID string) (string, error) {
		return flakyRun.Call(ctx, 2, replay.ChildID(childID), replay.Retry(fastRetry))
	}), summarizer.Bind(summarizerBody))
}

var summarizer = replay.Orchestration[string, string]("summarizer")

// summarizerBody starts a child and a chained instance with summaries, and continues as new after a
// word.
func summarizerBody(ctx *replay.Context, input string) (string, error) {
	if input != "" {
		return word.Wait(ctx)
	}
	waiter.Start(ctx, "", replay.ChildID(ctx.InstanceID()+"-child"), replay.OnParentClose(replay.AbandonChild), replay.Summary("its child"))
	if err := waiter.Chain(ctx, "", replay.ChildID(ctx.InstanceID()+"-chained"), replay.Summary("its successor")); err != nil {
		return "", err
	}
	if _, err := word.Wait(ctx); err != nil {
		return "", err
	}
	return "", summarizer.ContinueAsNew(ctx, "again")
}

var fastRetry = replay.RetryPolicy{InitialInterval: 10 * time.Millisecond, MaxAttempts: 3}

// Each attempt of a run, and of a child in any partition, is on another leader. Waits and watches
// of all clients follow the attempts.
func TestRunRetry_AttemptsOnSeveralLeaders(t *testing.T) {
	t.Parallel()
	nodes := startPeersWith(t, 3, runDefinitions()...)
	ctx, client := testContext(t), dialNodes(t, DialConfig{}, nodes...)
	eventually(t, "the cluster speaks the protocol of run options", func() bool {
		for _, id := range []string{"f", "p", "c"} {
			if leaderOfInstance(t, nodes, id).partitionOf(id).journal.Protocol() < state.RunOptionsProtocol {
				return false
			}
		}
		return true
	})
	run, err := StartRun(ctx, client, flakyRun, "f", 3, replay.Retry(fastRetry), RequestID("once"))
	if err != nil {
		t.Fatal(err)
	}
	parent, err := StartRun(ctx, client, flakyParent, "p", "c")
	if err != nil {
		t.Fatal(err)
	}
	var watched []history.EventType
	watching := make(chan error, 1)
	go func() {
		for event, err := range nodes[2].Client().Watch(ctx, "f", history.Position{}) {
			if err != nil {
				watching <- err
				return
			}
			if event.Type == history.OrchestrationStarted || event.Type.EndsExecution() {
				watched = append(watched, event.Type)
			}
		}
		watching <- nil
	}()
	for attempt := 1; attempt <= 3; attempt++ {
		eventually(t, "the next attempt", func() bool {
			status, err := client.Get(ctx, "f")
			return err == nil && status.Execution == uint64(attempt)
		})
		if err := Send(ctx, client, "f", word, "a"); err != nil {
			t.Fatal(err)
		}
		if attempt <= 2 {
			eventually(t, "the child", func() bool { return Send(ctx, client, "c", word, "b") == nil })
		}
		if err := leaderOfInstance(t, nodes, "f").partitionOf("f").journal.TransferLeadership(ctx); err != nil {
			t.Logf("transfer: %v", err) // leadership was lost by itself
		}
	}
	if got, err := run.Wait(ctx); err != nil || got != "a3" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := parent.Wait(ctx); err != nil || got != "b2" {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-watching; err != nil || fmt.Sprint(watched) != "[OrchestrationStarted OrchestrationContinuedAsNew OrchestrationStarted OrchestrationContinuedAsNew OrchestrationStarted OrchestrationCompleted]" {
		t.Errorf("watched %v, %v", watched, err)
	}
	// The policy is not compared.
	again, err := StartRun(ctx, client, flakyRun, "f", 3, RequestID("once"))
	if err != nil || again.Attached {
		t.Errorf("repeated start: %+v, %v", again, err)
	}
	executions, err := client.Executions(ctx, "f")
	if err != nil || len(executions) != 3 {
		t.Fatalf("%+v, %v", executions, err)
	}
	for i, want := range []string{`attempt 1 got "a"`, `attempt 2 got "a"`, "<nil>"} {
		if got := fmt.Sprint(executions[i].Err); got != want || (executions[i].State == ContinuedAsNew) != (i < 2) {
			t.Errorf("execution %d: %s, %v; want %s", i+1, got, executions[i].State, want)
		}
	}
	first, err := client.HistoryOf(ctx, "f", 1)
	if err != nil || !strings.Contains(first.String(), `retried="attempt 1 got \"a\""`) {
		t.Errorf("%v, %v", first, err)
	}
}

// An attempt continues after the only node was closed during the backoff.
func TestRunRetry_ContinuesAfterRestart(t *testing.T) {
	t.Parallel()
	config := Config{NodeID: "n", Listen: loopbackAddress(t), Dir: t.TempDir(), Definitions: runDefinitions(), Logger: testLogger()}
	ctx := testContext(t)
	first := startNode(t, config)
	eventually(t, "the node speaks the protocol of run options", func() bool {
		return first.partitionOf("f").journal.Protocol() >= state.RunOptionsProtocol
	})
	policy := replay.RetryPolicy{InitialInterval: time.Second, MaxAttempts: 2}
	if _, err := StartRun(ctx, first.Client(), flakyRun, "f", 2, replay.Retry(policy)); err != nil {
		t.Fatal(err)
	}
	if err := Send(ctx, first.Client(), "f", word, "a"); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := startNode(t, config)
	if err := Send(ctx, second.Client(), "f", word, "b"); err != nil {
		t.Fatal(err)
	}
	status, err := second.Client().Wait(ctx, "f")
	var got string
	if err != nil || status.Output(&got) != nil || got != "b2" || status.Execution != 2 {
		t.Errorf("%+v, %q, %v", status, got, err)
	}
}

// An older member would not retry: options of runs are refused, also those of children.
func TestRunRetry_RejectedByOldProtocol(t *testing.T) {
	config := Config{Definitions: runDefinitions(), InMemory: true}
	config.protocol = state.RunOptionsProtocol - 1
	client := startNode(t, config).Client()
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, flakyRun, "f", 1, replay.Retry(fastRetry)); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "Retry") {
		t.Errorf("a run: %v", err)
	}
	if _, err := StartRun(ctx, client, flakyParent, "p", "c"); !errors.Is(err, ErrProtocol) {
		t.Errorf("a child: %v", err)
	}
	if _, err := StartRun(ctx, client, flakyRun, "s", 1, replay.Summary("s")); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "Summary") {
		t.Errorf("a summary: %v", err)
	}
	if _, err := StartRun(ctx, client, summarizer, "t", ""); !errors.Is(err, ErrProtocol) {
		t.Errorf("a child with a summary: %v", err)
	}
	for _, id := range []string{"f", "p", "c", "s", "t", "t-child", "t-chained"} {
		if _, err := client.Get(ctx, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s exists: %v", id, err)
		}
	}
	if _, err := StartRun(ctx, client, flakyRun, "plain", 1); err != nil {
		t.Errorf("without options: %v", err)
	}
}

func TestRunRetry_RejectsInvalidPolicy(t *testing.T) {
	node := startNode(t, Config{Definitions: runDefinitions(), InMemory: true})
	for _, codes := range [][]string{make([]string, 101), {""}, {"\xff"}, {strings.Repeat("x", 129)}} {
		var invalid *replay.InvalidError
		_, err := StartRun(testContext(t), node.Client(), flakyRun, "f", 1, replay.Retry(replay.RetryPolicy{NonRetryableCodes: codes}))
		if !errors.As(err, &invalid) || invalid.Field != "option Retry" {
			t.Errorf("%.20q: %v", codes, err)
		}
		received := &clusterpb.Request{Instance: "f", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{
			Name: "flaky run", Retry: &journalpb.RetryPolicy{NonRetryableCodes: codes},
		}}}
		if err := checkRequest(proto.CloneOf(received), 100); !errors.As(err, &invalid) || invalid.Field != "option Retry" {
			t.Errorf("received %.20q: %v", codes, err)
		}
	}
}

// A summary is in the status and in lists, of runs, children and chained instances, on every node,
// after continue-as-new, and after a restart. It belongs to one run.
func TestSummary_InStatusAndLists(t *testing.T) {
	config := Config{NodeID: "n", Listen: loopbackAddress(t), Dir: t.TempDir(), Partitions: 4, Definitions: runDefinitions(), Logger: testLogger()}
	ctx := testContext(t)
	node := startNode(t, config)
	eventually(t, "the node speaks the protocol of run options", func() bool {
		for _, pa := range node.partitions {
			if pa.journal.Protocol() < state.RunOptionsProtocol {
				return false
			}
		}
		return true
	})
	client := node.Client()
	run, err := StartRun(ctx, client, summarizer, "s", "", replay.Summary("the ünique one"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := StartRun(ctx, client, waiter, "without", ""); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"s": "the ünique one", "s-child": "its child", "s-chained": "its successor", "without": ""}
	check := func() {
		t.Helper()
		for id, text := range want {
			eventually(t, id, func() bool { _, err := client.Get(ctx, id); return err == nil })
			if status, err := client.Get(ctx, id); err != nil || status.Summary != text {
				t.Errorf("%s: %+v, %v", id, status, err)
			}
		}
		page, err := client.List(ctx, Filter{}, "", 0)
		if err != nil || len(page.Instances) != len(want) {
			t.Fatalf("%+v, %v", page, err)
		}
		for _, status := range page.Instances {
			if status.Summary != want[status.InstanceID] {
				t.Errorf("listed %s with %q", status.InstanceID, status.Summary)
			}
		}
	}
	check()
	if err := Send(ctx, client, "s", word, ""); err != nil {
		t.Fatal(err)
	}
	check()
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, config)
	client = node.Client()
	check()
	if err := Send(ctx, client, "s", word, ""); err != nil {
		t.Fatal(err)
	}
	if status, err := client.Wait(ctx, "s"); err != nil || status.Summary != "the ünique one" || status.Execution != 2 {
		t.Errorf("%+v, %v", status, err)
	}
	if _, err := StartRun(ctx, client, waiter, "s", "", ReuseWhenEnded()); err != nil {
		t.Fatal(err)
	}
	if status, err := client.wait(ctx, "s", run.run); err != nil || status.Summary != "the ünique one" {
		t.Errorf("the earlier run: %+v, %v", status, err)
	}
	want["s"] = ""
	check()
}

func TestSummary_RejectsInvalid(t *testing.T) {
	node := startNode(t, Config{Definitions: runDefinitions(), InMemory: true})
	for _, text := range []string{strings.Repeat("x", 201), "\xff", "\x1b[2J"} {
		var invalid *replay.InvalidError
		if _, err := StartRun(testContext(t), node.Client(), flakyRun, "f", 1, replay.Summary(text)); !errors.As(err, &invalid) || invalid.Field != "option Summary" {
			t.Errorf("%.20q: %v", text, err)
		}
		received := &clusterpb.Request{Instance: "f", Call: &clusterpb.Request_Start{Start: &clusterpb.StartRequest{Name: "flaky run", Summary: text}}}
		if err := checkRequest(received, 100); !errors.As(err, &invalid) || invalid.Field != "option Summary" {
			t.Errorf("received %.20q: %v", text, err)
		}
	}
}
