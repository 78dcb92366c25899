package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
	"github.com/tenuto-dev/tenuto/cluster/internal/retention"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// collectWatch collects the events of a watch as execution.event_id, and its error.
func collectWatch(ctx context.Context, client *Client, id string, from history.Position) (positions []string, err error) {
	for r, err := range client.Watch(ctx, id, from) {
		if err != nil {
			return positions, err
		}
		positions = append(positions, fmt.Sprintf("%d.%d", r.Execution, r.EventID))
	}
	return positions, nil
}

func TestWatch_YieldsEventsAsCommitted(t *testing.T) {
	checkGoroutineLeaks(t)
	nodes := startPeersWith(t, 3, append(definitions(), counter.Bind(counterBody))...)
	ctx := testContext(t)
	if _, err := StartRun(ctx, nodes[0].Client(), counter, "c", counterState{Round: 3}); err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		positions []string
		err       error
	}
	outcomes := make(chan outcome)
	for _, node := range nodes {
		go func() {
			positions, err := collectWatch(ctx, node.Client(), "c", history.Position{})
			outcomes <- outcome{positions, err}
		}()
	}
	// Each event is sent after the one before it was seen.
	n := 0
	for r, err := range nodes[1].Client().Watch(ctx, "c", history.Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Type == "ExternalSubscribed" {
			n++
			if err := Send(ctx, nodes[2].Client(), "c", add, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Started, StatusSet, then subscription and event twice, and the end.
	want := []string{"1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7"}
	for range nodes {
		if o := <-outcomes; o.err != nil || !slices.Equal(o.positions, want) {
			t.Errorf("%v, %v; want %v", o.positions, o.err, want)
		}
	}
	for from, want := range map[history.Position][]string{
		{Execution: 1, EventID: 6}:  want[5:],
		{Execution: 1, EventID: 0}:  want,
		{Execution: 0, EventID: 7}:  want[6:],
		{Execution: 1, EventID: 8}:  want[7:],
		{Execution: 2, EventID: 1}:  want[7:],
		{Execution: 2, EventID: 7}:  want[13:],
		{Execution: 2, EventID: 8}:  nil,
		{Execution: 1, EventID: 99}: nil,
	} {
		if positions, err := collectWatch(ctx, nodes[0].Client(), "c", from); err != nil || !slices.Equal(positions, want) {
			t.Errorf("from %v: %v, %v; want %v", from, positions, err, want)
		}
	}
}

func TestWatch_ResumesWhereItBroke(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), counter.Bind(counterBody))})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, counter, "c", counterState{Round: 2}); err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		if err := Send(ctx, client, "c", add, n); err != nil {
			t.Fatal(err)
		}
	}
	all, err := collectWatch(ctx, client, "c", history.Position{})
	var got []string
	for at, over := (history.Position{}), false; !over; {
		over = true
		for r, err := range client.Watch(ctx, "c", at) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%d.%d", r.Execution, r.EventID))
			at, over = r.Next(), false
			break
		}
	}
	if !slices.Equal(got, all) || err != nil {
		t.Errorf("one at a time: %v, %v; want %v", got, err, all)
	}
}

func TestWatch_EndCauses(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := collectWatch(ctx, client, "unknown", history.Position{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown instance: %v; want ErrNotFound", err)
	}
	var wrong *replay.InvalidError
	if _, err := collectWatch(ctx, client, "no ID", history.Position{}); !errors.As(err, &wrong) {
		t.Errorf("of what is no ID: %v; want an InvalidError", err)
	}
	for _, id := range []string{"purged", "waits", "left"} {
		if _, err := StartRun(ctx, client, waiter, id, ""); err != nil {
			t.Fatal(err)
		}
	}
	ends := make(chan error)
	limited, cancel := context.WithCancel(ctx)
	go func() {
		_, err := collectWatch(limited, client, "waits", history.Position{})
		ends <- err
	}()
	cancel()
	if err := <-ends; !errors.Is(err, context.Canceled) {
		t.Errorf("when its context ends: %v", err)
	}
	// A position far after the end waits until there is nothing to wait for.
	go func() {
		_, err := collectWatch(ctx, client, "purged", history.Position{Execution: 2, EventID: 1})
		ends <- err
	}()
	if err := client.Terminate(ctx, "purged", ""); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Purge(ctx, "purged"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := <-ends; !errors.Is(err, ErrNotFound) {
		t.Errorf("when the instance is purged: %v; want ErrNotFound", err)
	}
	go func() {
		_, err := collectWatch(ctx, client, "left", history.Position{})
		ends <- err
	}()
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ends; !errors.Is(err, ErrClosed) {
		t.Errorf("when the node closes: %v; want ErrClosed", err)
	}
}

func TestWatch_EndsWhenInstanceIsReplaced(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	begin := func() {
		if _, err := StartRun(ctx, client, waiter, "w", ""); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	seen := 0
	for r, err := range client.Watch(ctx, "w", history.Position{}) {
		if err != nil {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("%v; want ErrNotFound", err)
			}
			break
		}
		if seen++; r.EventID == 2 {
			purgeAndRestart(t, node, begin)
		}
	}
	if seen != 2 {
		t.Errorf("%d events", seen)
	}
}

// An instance purged and started again under its ID is another instance.
func TestWait_EndsWhenInstanceIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := startWithRetention(t, Retention{}, "")
		ctx, client := t.Context(), node.Client()
		ends := make(chan error, 2)
		begin := func() *Run[string] {
			run, err := StartRun(ctx, client, waiter, "w", "")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			return run
		}
		run := begin()
		if err := client.Terminate(ctx, "w", ""); err != nil {
			t.Fatal(err)
		}
		second, err := StartRun(ctx, client, waiter, "w", "", ReuseWhenEnded())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := second.Wait(ctx)
			if errors.Is(err, replay.ErrTerminated) {
				err = nil
			}
			ends <- err
		}()
		go func() {
			_, err := collectWatch(ctx, client, "w", history.Position{Execution: 2, EventID: 2})
			ends <- err
		}()
		synctest.Wait()
		if _, err := run.Wait(ctx); !errors.Is(err, replay.ErrTerminated) {
			t.Errorf("the first run: %v", err)
		}
		purgeAndRestart(t, node, func() { begin() })
		for range 2 {
			// A fast waiter may have seen the end.
			if err := <-ends; err != nil && !errors.Is(err, ErrNotFound) {
				t.Errorf("%v; want ErrNotFound", err)
			}
		}
	})
}

// A wait that begins after the purge returns an error, instead of waiting forever.
func TestWait_EndsWhenInstanceIsPurged(t *testing.T) {
	t.Parallel()
	nodes := startPeers(t, 3)
	ctx, client := testContext(t), nodes[0].Client()
	begin := func(options ...replay.Option) *Run[string] {
		run, err := StartRun(ctx, client, waiter, "w", "", options...)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Terminate(ctx, "w", ""); err != nil {
			t.Fatal(err)
		}
		return run
	}
	first := begin()
	second := begin(ReuseWhenEnded())
	if n, err := client.Purge(ctx, "w"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	expectSameHistories(t, nodes)
	for name, run := range map[string]*Run[string]{"the first run": first, "the second run": second} {
		if _, err := run.Wait(ctx); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v; want ErrNotFound", name, err)
		}
	}
	begin()
	expectSameHistories(t, nodes)
	if _, err := second.Wait(ctx); !errors.Is(err, ErrNotFound) {
		t.Errorf("the second run, after another was begun: %v; want ErrNotFound", err)
	}
}

func TestWatch_FromBeyondLastEventEnds(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := Call(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	for _, from := range []history.Position{{Execution: 0, EventID: 5}, {Execution: 1, EventID: 6}, {Execution: 1, EventID: 99}} { // the last event is 4
		if positions, err := collectWatch(ctx, client, "d", from); err != nil || positions != nil {
			t.Errorf("from %v: %v, %v; want no event and no error", from, positions, err)
		}
	}
}

func TestWait_ReturnsLastCustomStatus(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), counter.Bind(counterBody))})
	ctx, client := testContext(t), node.Client()
	run := func(options ...replay.Option) {
		if _, err := StartRun(ctx, client, counter, "c", counterState{Round: 4, Total: 7}, options...); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := Send(ctx, client, "c", add, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	run()
	status, err := client.Wait(ctx, "c")
	var customStatus counterState
	if err != nil || status.CustomStatus(&customStatus) != nil || customStatus != (counterState{Round: 4, Total: 7}) {
		t.Errorf("%+v, %v", customStatus, err)
	}
	run(ReuseWhenEnded())
	status, err = client.wait(ctx, "c", runRef{first: 1})
	customStatus = counterState{}
	if err != nil || status.CustomStatus(&customStatus) != nil || customStatus != (counterState{Round: 4, Total: 7}) || status.Execution != 1 {
		t.Errorf("the first run, after the second: %+v, %+v, %v", customStatus, status, err)
	}
}

func purgeAndRestart(t *testing.T, node *Node, begin func()) {
	t.Helper()
	if err := node.Client().Terminate(t.Context(), "w", ""); err != nil {
		t.Fatal(err)
	}
	if n, err := node.Client().Purge(t.Context(), "w"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	begin()
}

func TestInstance_DistinctFromReuseOfItsID(t *testing.T) {
	seen := &journalpb.Instance{FirstExecution: 2, CreatedAt: 7}
	for name, c := range map[string]struct {
		known *journalpb.Instance
		want  bool
	}{
		"the same":                 {&journalpb.Instance{FirstExecution: 2, CreatedAt: 7, Execution: 5}, false},
		"its next run":             {&journalpb.Instance{FirstExecution: 6, CreatedAt: 9}, false},
		"purged, begun again":      {&journalpb.Instance{FirstExecution: 1, CreatedAt: 9}, true},
		"purged, begun that often": {&journalpb.Instance{FirstExecution: 2, CreatedAt: 9}, true},
	} {
		if got := isReplaced(c.known, seen); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestExecutions_OfInstance(t *testing.T) {
	nodes := startPeersWith(t, 3, append(definitions(), counter.Bind(counterBody))...)
	ctx := testContext(t)
	client := nodes[1].Client()
	if _, err := StartRun(ctx, client, counter, "c", counterState{Round: 3}); err != nil {
		t.Fatal(err)
	}
	describe := func(options ...replay.Option) string {
		executions, err := client.Executions(ctx, "c", options...)
		if err != nil {
			return err.Error()
		}
		var b strings.Builder
		for i, e := range executions {
			fmt.Fprintf(&b, "%d %s %d; ", e.Number, e.State, e.Events)
			if e.UpdatedAt.Before(e.StartedAt) || i > 0 && e.StartedAt.Before(executions[i-1].UpdatedAt) {
				t.Errorf("times: %+v", executions)
			}
		}
		return b.String()
	}
	for i, want := range []string{
		"1 running 3; ",
		"1 running 5; ",
		"1 continued as new 7; 2 running 3; ",
		"1 continued as new 7; 2 running 5; ",
		"1 continued as new 7; 2 completed 7; ",
	} {
		eventually(t, want, func() bool { return describe() == want })
		eventually(t, want+"on the replica", func() bool { return describe(Stale()) == want })
		if i < 4 {
			if err := Send(ctx, client, "c", add, i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := StartRun(ctx, client, counter, "c", counterState{Round: 4}, ReuseWhenEnded()); err != nil {
		t.Fatal(err)
	}
	if got, want := describe(), "1 continued as new 7; 2 completed 7; 3 running 3; "; got != want {
		t.Errorf("with another run: %s; want %s", got, want)
	}
	for _, options := range [][]replay.Option{nil, {Stale()}} {
		if _, err := client.Executions(ctx, "unknown", options...); !errors.Is(err, ErrNotFound) {
			t.Errorf("unknown instance: %v", err)
		}
	}
}

// lastEventOf searches by doubling and halving; it must find every length.
func TestHistory_FindsLastEvent(t *testing.T) {
	long := replay.Orchestration[int, int]("long")
	node := startNode(t, Config{InMemory: true, Definitions: []replay.Definition{long.Bind(func(ctx *replay.Context, n int) (int, error) {
		if ctx.Execution() == 20 {
			return n, nil
		}
		for i := range int(ctx.Execution()) {
			if err := replay.SetStatus(ctx, i); err != nil {
				return 0, err
			}
		}
		return 0, long.ContinueAsNew(ctx, n)
	})}})
	ctx := testContext(t)
	if _, err := Call(ctx, node.Client(), long, "l", 1); err != nil {
		t.Fatal(err)
	}
	executions, err := node.Client().Executions(ctx, "l")
	if err != nil || len(executions) != 20 {
		t.Fatal(executions, err)
	}
	for i, e := range executions {
		if want := uint64(i + 3); i < 19 && (e.Number != uint64(i+1) || e.Events != want || e.State != ContinuedAsNew) {
			t.Errorf("%+v; want %d events", e, want)
		}
	}
}

func TestStaleRead_NeedsNoLeader(t *testing.T) {
	nodes := startPeers(t, 3)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	if _, err := Call(ctx, leader.Client(), doubled, "d", 4); err != nil {
		t.Fatal(err)
	}
	fresh, err := leader.Client().Get(ctx, "d")
	if err != nil || fresh.AppliedIndex == 0 {
		t.Fatal(fresh, err)
	}
	var last *Node
	for _, node := range nodes {
		if node != leader {
			last = node
		}
	}
	eventually(t, "the replica has it", func() bool {
		status, err := last.Client().Get(ctx, "d", Stale())
		return err == nil && status.State == Completed && status.AppliedIndex >= fresh.AppliedIndex
	})
	for _, node := range nodes {
		if node != last {
			if err := node.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	client := last.Client()
	history, historyErr := client.History(ctx, "d", Stale())
	page, pageErr := client.List(ctx, Filter{Name: "doubled"}, "", 0, Stale())
	counted, countErr := client.Count(ctx, Filter{States: []State{Completed}}, Stale())
	if err := errors.Join(historyErr, pageErr, countErr); err != nil {
		t.Fatal(err)
	}
	if len(history.Events) != 4 || len(page.Instances) != 1 || counted != 1 || min(history.AppliedIndex, page.AppliedIndex) < fresh.AppliedIndex {
		t.Errorf("%d events, %d instances, %d counted, at %d and %d", len(history.Events), len(page.Instances), counted, history.AppliedIndex, page.AppliedIndex)
	}
	if _, err := client.Get(ctx, "unknown", Stale()); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown instance: %v", err)
	}
	limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := client.Get(limited, "d"); !errors.As(err, new(*UnavailableError)) {
		t.Errorf("a linearizable read without a leader: %v; want an UnavailableError", err)
	}
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(ctx, "d", Stale()); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v; want ErrClosed", err)
	}
}

// Every replica shows the recorded state. What only a leader knows is not part of it.
func TestStateOf_IsTheRecordedState(t *testing.T) {
	under := func(kind journalpb.ConditionKind) *journalpb.Instance {
		return &journalpb.Instance{Suspended: true, Status: journalpb.Status_STATUS_RUNNING, Condition: &journalpb.Condition{Kind: kind}}
	}
	for name, c := range map[string]struct {
		known *journalpb.Instance
		want  State
	}{
		"without code":         {&journalpb.Instance{Name: "unknown", Status: journalpb.Status_STATUS_RUNNING}, Running},
		"suspended":            {&journalpb.Instance{Suspended: true, Status: journalpb.Status_STATUS_RUNNING}, Suspended},
		"ended":                {&journalpb.Instance{Status: journalpb.Status_STATUS_FAILED}, Failed},
		"recorded as stalled":  {under(journalpb.ConditionKind_CONDITION_KIND_STALLED), Stalled},
		"recorded as hung":     {under(journalpb.ConditionKind_CONDITION_KIND_HUNG), Hung},
		"recorded as codeless": {under(journalpb.ConditionKind_CONDITION_KIND_WAITING_FOR_CODE), WaitingForCode},
	} {
		if got := instances.StateOf(c.known); got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
	var _ retention.Store = (*journal.Journal)(nil)
}
