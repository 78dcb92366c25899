package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/replay"
)

// cleaner waits for a word and cleans up, however the wait ends.
var cleaner = replay.Orchestration[int, string]("cleaner")

func cleanerBody(ctx *replay.Context, n int) (string, error) {
	ctx.OnClose(func(ctx *replay.Context, _ error) error {
		_, err := double.Call(ctx, n)
		return err
	})
	return word.Wait(ctx)
}

func TestCancel_InstanceCleansUp(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), cleaner.Bind(cleanerBody))})
	ctx, client := testContext(t), node.Client()
	run, err := StartRun(ctx, client, cleaner, "c", 21)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := client.Cancel(ctx, "c", "enough"); err != nil && !errors.Is(err, ErrEnded) {
			t.Fatal(err)
		}
	}
	_, err = run.Wait(ctx)
	var ended *RunError
	if !errors.As(err, &ended) || ended.State != Canceled || !errors.Is(err, replay.ErrCanceled) || !strings.Contains(err.Error(), "enough") {
		t.Errorf("got %v", err)
	}
	history, err := client.History(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	if got := history.String(); strings.Count(got, "OrchestrationCancelRequested") != 1 || !strings.Contains(got, "result=42") {
		t.Errorf("history:\n%s", got)
	}
	if err := client.Cancel(ctx, "c", "again"); !errors.Is(err, ErrEnded) {
		t.Errorf("cancel after the end: %v; want ErrEnded", err)
	}
	if err := client.Cancel(ctx, "unknown", ""); !errors.Is(err, ErrNotFound) {
		t.Errorf("cancel nobody: %v; want ErrNotFound", err)
	}
}

func TestSuspend_BuffersInputUntilResume(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	run, err := StartRun(ctx, client, waiter, "w", "got ")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(client.Suspend(ctx, "w", "look into it"), Send(ctx, client, "w", word, "it")); err != nil {
		t.Fatal(err)
	}
	if status, err := client.Get(ctx, "w"); err != nil || status.State != Suspended {
		t.Errorf("status %+v, %v; want suspended", status, err)
	}
	if err := client.Resume(ctx, "w", "fine"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "got it" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTerminate_DoesNotRunCode(t *testing.T) {
	child := replay.Orchestration[string, string]("child")
	parent := replay.Orchestration[string, string]("parent")
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(),
		child.Bind(waiterBody),
		parent.Bind(func(ctx *replay.Context, in string) (string, error) {
			return child.Call(ctx, in, replay.ChildID("kid"), replay.OnParentClose(replay.TerminateChild))
		}),
	)})
	ctx, client := testContext(t), node.Client()
	run, err := StartRun(ctx, client, parent, "p", "")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child runs", func() bool {
		_, err := client.Get(ctx, "kid")
		return err == nil
	})
	if err := client.Terminate(ctx, "p", "stop it"); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(ctx); !errors.Is(err, replay.ErrTerminated) || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("parent: %v", err)
	}
	if status, err := client.Wait(ctx, "kid"); err != nil || status.State != Terminated {
		t.Errorf("child: %+v, %v; want it terminated with its parent", status, err)
	}
}

func TestStalledInstance_TerminateOrRetry(t *testing.T) {
	flip := false
	flaky := replay.Orchestration[int, int]("flaky")
	one, two := replay.Event[int]("one"), replay.Event[int]("two")
	node := startNode(t, Config{InMemory: true, ResidentMax: 1, Definitions: append(definitions(), flaky.Bind(func(ctx *replay.Context, n int) (int, error) {
		if flip {
			return two.Wait(ctx)
		}
		return one.Wait(ctx)
	}))})
	ctx, client := testContext(t), node.Client()
	start := func(id string) *Run[int] {
		run, err := StartRun(ctx, client, flaky, id, 1)
		if err != nil {
			t.Fatal(err)
		}
		awaitIdle(t, node)
		return run
	}
	a, b := start("a"), start("b")
	if _, err := StartRun(ctx, client, waiter, "w", ""); err != nil { // out of memory with them
		t.Fatal(err)
	}
	awaitIdle(t, node)
	flip = true
	sent := make(chan error, 2)
	for _, id := range []string{"a", "b"} {
		go func() { sent <- Send(ctx, client, id, one, 7) }()
		eventually(t, id+" is stalled", func() bool {
			status, err := client.Get(ctx, id)
			return err == nil && status.State == Stalled && status.Mismatch.EventID == 2
		})
	}
	stalled, err := client.List(ctx, Filter{States: []State{Stalled}}, "", 0)
	if err != nil || len(stalled.Instances) != 2 {
		t.Errorf("stalled ones: %+v, %v", stalled, err)
	}
	if err := client.Terminate(ctx, "a", "hopeless"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Wait(ctx); !errors.Is(err, replay.ErrTerminated) {
		t.Errorf("a: %v", err)
	}
	if err := <-sent; !errors.Is(err, ErrEnded) {
		t.Errorf("the event that waited for a: %v; want ErrEnded", err)
	}
	flip = false
	if err := client.Retry(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if err := client.Retry(ctx, "a"); !errors.Is(err, ErrNotStalled) || !strings.Contains(err.Error(), "it is terminated") {
		t.Errorf("a retry of what is terminated: %v; want ErrNotStalled, and the state", err)
	}
	if err := <-sent; err != nil {
		t.Errorf("the event that waited for b: %v", err)
	}
	if got, err := b.Wait(ctx); err != nil || got != 7 {
		t.Errorf("b: %d, %v", got, err)
	}
}

// counter counts the events of each execution up to a limit, then continues as new, and ends after
// the last round.
type counterState struct{ Round, Total int }

var (
	counter = replay.Orchestration[counterState, counterState]("counter")
	add     = replay.Event[int]("add")
)

func counterBody(ctx *replay.Context, c counterState) (counterState, error) {
	if err := replay.SetStatus(ctx, c); err != nil {
		return c, err
	}
	for range 2 {
		n, err := add.Wait(ctx)
		if err != nil {
			return c, err
		}
		c.Total += n
	}
	c.Round++
	if c.Round == 5 {
		return c, nil
	}
	return c, counter.ContinueAsNew(ctx, c)
}

func TestContinueAsNew_CarriesEventsOver(t *testing.T) {
	checkGoroutineLeaks(t)
	dir := t.TempDir()
	code := append(definitions(), counter.Bind(counterBody))
	node := startNode(t, Config{Dir: dir, Definitions: code})
	ctx := testContext(t)
	if _, err := StartRun(ctx, node.Client(), counter, "c", counterState{}); err != nil {
		t.Fatal(err)
	}
	for n := range 7 {
		if err := Send(ctx, node.Client(), "c", add, n); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three rounds are over", func() bool {
		status, err := node.Client().Get(ctx, "c")
		var c counterState
		return err == nil && status.CustomStatus(&c) == nil && c.Round == 3 && status.Execution == 4
	})
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: code})
	for n := 7; n < 10; n++ {
		if err := Send(ctx, node.Client(), "c", add, n); err != nil {
			t.Fatal(err)
		}
	}
	run, err := StartRun(ctx, node.Client(), counter, "c", counterState{}, Attach())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != (counterState{5, 45}) {
		t.Errorf("got %+v, %v", got, err)
	}
	first, err := node.Client().HistoryOf(ctx, "c", 1)
	if err != nil || first.Events[len(first.Events)-1].Type != "OrchestrationContinuedAsNew" {
		t.Errorf("the first execution: %v, %v", first, err)
	}
}

func TestChain_InstancesAreIndependent(t *testing.T) {
	chainer := replay.Orchestration[int, string]("chainer")
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), chainer.Bind(func(ctx *replay.Context, n int) (string, error) {
		if err := doubled.Chain(ctx, n, replay.ChildID("named")); err != nil {
			return "", err
		}
		return "done", doubled.Chain(ctx, n+1)
	}))})
	ctx, client := testContext(t), node.Client()
	if got, err := Call(ctx, client, chainer, "c", 4); err != nil || got != "done" {
		t.Fatalf("got %q, %v", got, err)
	}
	for id, want := range map[string]int{"named": 8, derivedID(t, client, "c", 1, 3): 10} {
		eventually(t, id+" exists", func() bool {
			_, err := client.Get(ctx, id)
			return err == nil
		})
		status, err := client.Wait(ctx, id)
		var got int
		if err != nil || status.Output(&got) != nil || got != want || status.ParentID != "" {
			t.Errorf("%s: %d, %+v, %v", id, got, status, err)
		}
	}
}

func TestVersions_PinnedAndNewestForNewInstances(t *testing.T) {
	versioned := replay.Orchestration[string, string]("versioned")
	body := func(name string) func(*replay.Context, string) (string, error) {
		return func(ctx *replay.Context, in string) (string, error) {
			got, err := word.Wait(ctx)
			return name + " " + ctx.Version() + " " + got, err
		}
	}
	dir, ctx := t.TempDir(), testContext(t)
	node := startNode(t, Config{Dir: dir, Definitions: []replay.Definition{versioned.Bind(body("old"), replay.Version("1.9"))}})
	if _, err := StartRun(ctx, node.Client(), versioned, "a", ""); err != nil {
		t.Fatal(err)
	}
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: []replay.Definition{versioned.Bind(body("new"), replay.Version("1.10"))}})
	eventually(t, "the instance waits for its version", func() bool {
		status, err := node.Client().Get(ctx, "a")
		return err == nil && status.State == WaitingForCode
	})
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: []replay.Definition{
		versioned.Bind(body("new"), replay.Version("1.10")), versioned.Bind(body("old"), replay.Version("1.9")),
	}})
	for id, want := range map[string]string{"a": "old 1.9 x", "b": "new 1.10 x"} {
		run, err := SendOrStart(ctx, node.Client(), versioned, id, "", word, "x")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := run.Wait(ctx); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", id, got, err, want)
		}
	}
}

func TestStartAt_DelaysStart(t *testing.T) {
	clock := replay.Orchestration[int, time.Time]("clock")
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{
		clock.Bind(func(ctx *replay.Context, _ int) (time.Time, error) { return ctx.Now(), nil }),
	}})
	at := time.Now().Add(150 * time.Millisecond)
	got, err := Call(testContext(t), node.Client(), clock, "c", 0, StartAt(at))
	if err != nil || got.Before(at.Round(0)) {
		t.Errorf("began at %v, %v; want not before %v", got, err, at)
	}
}

func TestStart_ReusesIDs(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := StartRun(ctx, client, doubled, "d", 2, ReuseWhenFailed()); !errors.Is(err, ErrInstanceExists) {
		t.Errorf("a completed run with ReuseWhenFailed: %v", err)
	}
	first, err := StartRun(ctx, client, doubled, "d", 1, Attach())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Call(ctx, client, doubled, "d", 2, ReuseWhenEnded()); err != nil || got != 4 {
		t.Errorf("a second run: %d, %v", got, err)
	}
	if got, err := first.Wait(ctx); err != nil || got != 2 {
		t.Errorf("the first run keeps its result: %d, %v; want 2", got, err)
	}
	status, err := client.Get(ctx, "d")
	if err != nil || status.Execution != 2 || status.FirstExecution != 2 {
		t.Errorf("status %+v, %v", status, err)
	}
	if history, err := client.HistoryOf(ctx, "d", 1); err != nil || len(history.Events) != 4 {
		t.Errorf("the first run's history: %v, %v", history, err)
	}
	if _, err := Call(ctx, client, failingOrchestration, "f", "error"); err == nil {
		t.Fatal("failing has not failed")
	}
	if _, err := StartRun(ctx, client, failingOrchestration, "f", "error", ReuseWhenFailed()); err != nil {
		t.Errorf("a failed run with ReuseWhenFailed: %v", err)
	}
}

func TestClient_ListCountAndPurge(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	for i := range 25 {
		if _, err := Call(ctx, client, doubled, fmt.Sprintf("d-%02d", i), i, Tags(map[string]string{"parity": fmt.Sprint(i % 2)})); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := StartRun(ctx, client, waiter, "w", ""); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		filter Filter
		want   int
	}{
		"all":        {Filter{}, 26},
		"by state":   {Filter{States: []State{Running, Stalled}}, 1},
		"by name":    {Filter{Name: "doubled"}, 25},
		"by prefix":  {Filter{IDPrefix: "d-1"}, 10},
		"by tag":     {Filter{Tags: map[string]string{"parity": "1"}}, 12},
		"by time":    {Filter{CreatedBefore: time.Unix(1, 0)}, 0},
		"by parent":  {Filter{ParentID: "w"}, 0},
		"by version": {Filter{Version: "9"}, 0},
		"together":   {Filter{Name: "doubled", IDPrefix: "d-0", Tags: map[string]string{"parity": "0"}}, 5},
	} {
		if got, err := client.Count(ctx, c.filter); err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, c.want)
		}
	}
	var ids []string
	for after := ""; ; {
		page, err := client.List(ctx, Filter{Name: "doubled"}, after, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, status := range page.Instances {
			ids = append(ids, status.InstanceID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if len(ids) != 25 || ids[0] != "d-00" || ids[24] != "d-24" {
		t.Errorf("pages: %v", ids)
	}
	if n, err := client.Purge(ctx, "d-03", "w", "unknown"); err != nil || n != 1 {
		t.Errorf("purged %d, %v; want only the one that has ended", n, err)
	}
	if _, err := client.Get(ctx, "d-03"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after the purge: %v", err)
	}
	var wrong *replay.InvalidError
	if _, err := client.List(context.Background(), Filter{}, "", 1001); !errors.As(err, &wrong) {
		t.Errorf("a page too large: %v", err)
	}
}

func TestAttach_WithReuseEnsuresRunning(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx := testContext(t)
	start := func() *Run[string] {
		t.Helper()
		run, err := StartRun(ctx, node.Client(), waiter, "w", "", Attach(), ReuseWhenEnded())
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	first, again := start(), start()
	if first.Attached || !again.Attached || again.run != first.run {
		t.Errorf("started %+v, attached to %+v", first, again)
	}
	if err := node.Client().Terminate(ctx, "w", "enough"); err != nil {
		t.Fatal(err)
	}
	if next := start(); next.Attached || next.run == first.run {
		t.Errorf("after the end: %+v", next)
	}
}

func TestTerminateExisting_ReplacesRunOnce(t *testing.T) {
	nodes := startPeersWith(t, 3, definitions()...)
	ctx, client := testContext(t), dialNodes(t, DialConfig{}, nodes...)
	first, err := StartRun(ctx, client, waiter, "w", "first ")
	if err != nil {
		t.Fatal(err)
	}
	for round, node := range nodes {
		execution := uint64(round + 2)
		for range 2 { // the second repeats the first
			run, err := StartRun(ctx, node.Client(), waiter, "w", "next ", TerminateExisting(), RequestID(fmt.Sprint("r", round)))
			if err != nil || run.Attached {
				t.Fatalf("round %d: %+v, %v", round, run, err)
			}
			if status, err := client.Get(ctx, "w"); err != nil || status.Execution != execution || status.FirstExecution != execution {
				t.Fatalf("round %d: %+v, %v; want execution %d", round, status, err, execution)
			}
		}
		if err := leaderOfInstance(t, nodes, "w").partitionOf("w").journal.TransferLeadership(ctx); err != nil {
			t.Logf("transfer: %v", err) // leadership was lost by itself
		}
	}
	var ended *RunError
	if _, err := first.Wait(ctx); !errors.As(err, &ended) || ended.State != Terminated || !strings.Contains(err.Error(), "replaced by a new run") {
		t.Errorf("the first run: %v", err)
	}
	if err := Send(ctx, client, "w", word, "word"); err != nil {
		t.Fatal(err)
	}
	if status, err := client.Wait(ctx, "w"); err != nil || status.State != Completed {
		t.Errorf("%+v, %v", status, err)
	}
	if _, err := StartRun(ctx, client, waiter, "w", "", TerminateExisting(), ReuseWhenFailed()); err != nil {
		t.Errorf("with an option that allows less: %v", err)
	}
	var invalid *replay.InvalidError
	if _, err := StartRun(ctx, client, waiter, "w", "", TerminateExisting(), Attach()); !errors.As(err, &invalid) {
		t.Errorf("with Attach: %v", err)
	}
}

func TestDeadline_CancelsRunOnNextLeader(t *testing.T) {
	t.Parallel()
	nodes := startPeersWith(t, 3, definitions()...)
	ctx, client := testContext(t), dialNodes(t, DialConfig{}, nodes...)
	eventually(t, "the cluster speaks the protocol of deadlines", func() bool {
		return leaderOfInstance(t, nodes, "w").partitionOf("w").journal.Protocol() >= state.DeadlinesProtocol
	})
	run, err := StartRun(ctx, client, waiter, "w", "", Deadline(time.Now().Add(2*time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Hour)
	if _, err := StartRun(ctx, client, waiter, "waits", "", Deadline(deadline)); err != nil {
		t.Fatal(err)
	}
	if err := leaderOfInstance(t, nodes, "w").partitionOf("w").journal.TransferLeadership(ctx); err != nil {
		t.Logf("transfer: %v", err) // leadership was lost by itself
	}
	pending, err := client.Pending(ctx, "waits")
	if err != nil || len(pending) != 2 || !pending[0].FireAt.Equal(deadline.Round(0)) || pending[0].Name != "deadline" || pending[1].Name != "word" {
		t.Errorf("pending %+v, %v; want a timer for %v", pending, err, deadline)
	}
	var ended *RunError
	if _, err := run.Wait(ctx); !errors.As(err, &ended) || ended.State != Canceled || !errors.Is(err, replay.ErrCanceled) {
		t.Errorf("%v", err)
	}
	later := time.Now().Add(time.Hour)
	if _, err := StartRun(ctx, client, waiter, "same", "", Deadline(later), StartAt(later)); err != nil {
		t.Fatal(err)
	}
	pending, err = client.Pending(ctx, "same")
	if err != nil || len(pending) != 2 || pending[0].Name != "deadline" || pending[1].Name != "" || pending[1].EventType != "TimerCreated" {
		t.Errorf("pending %+v, %v; want the timers of the deadline and of StartAt", pending, err)
	}
	if got, err := Call(ctx, client, doubled, "d", 1, Deadline(time.Now().Add(time.Hour))); err != nil || got != 2 {
		t.Errorf("a run that ends before its deadline: %d, %v", got, err)
	}
}

func TestPending_ListsBufferedEvents(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, waiter, "w", "", StartAt(time.Now().Add(time.Hour))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"unknown", "word", "unknown"} {
		if err := Send(ctx, client, "w", replay.Event[string](name), "x"); err != nil {
			t.Fatal(err)
		}
	}
	pending, err := client.Pending(ctx, "w")
	if err != nil || len(pending) != 3 || pending[0].EventType != "TimerCreated" {
		t.Fatalf("%+v, %v", pending, err)
	}
	for i, want := range []OpenOperation{
		{EventType: "ExternalEvent", Name: "unknown", Buffered: 2, Execution: 1},
		{EventType: "ExternalEvent", Name: "word", Buffered: 1, Execution: 1},
	} {
		got := *pending[i+1]
		if got.EventType != want.EventType || got.Name != want.Name || got.Buffered != want.Buffered || got.Execution != want.Execution || !got.Since.IsZero() {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
