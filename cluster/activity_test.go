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

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	ask   = replay.Activity[string, string]("ask")
	asked = replay.Orchestration[string, string]("asked")
)

// desk keeps the tokens of what was asked.
type desk struct {
	mu     sync.Mutex
	tokens []string
}

func (d *desk) definitions(options ...replay.ActivityOption) []replay.Definition {
	return []replay.Definition{
		ask.Bind(func(ctx context.Context, _ string) (string, error) {
			if err := replay.Heartbeat(ctx, "asked"); err != nil {
				return "", err
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			d.tokens = append(d.tokens, replay.ActivityInfo(ctx).Token())
			return "", replay.ErrPending
		}),
		asked.Bind(func(ctx *replay.Context, text string) (string, error) { return ask.Call(ctx, text, options...) }),
		waiter.Bind(waiterBody),
	}
}

func (d *desk) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tokens[:len(d.tokens):len(d.tokens)]
}

// only waits for the only open operation of an instance to be in a state.
func only(t *testing.T, client *Client, id string, state ActivityState) *OpenOperation {
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

func TestActivityIsCompletedByTokenFromAnyNode(t *testing.T) {
	noGoroutinesLeft(t)
	d := new(desk)
	nodes := startPeersWith(t, 3, d.definitions(replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond}))...)
	ctx := testContext(t)
	run, err := StartRun(ctx, nodes[0].Client(), asked, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	open := only(t, nodes[1].Client(), "a", ActivityPending)
	var details string
	eventually(t, "what was reported is recorded", func() bool {
		open = only(t, nodes[1].Client(), "a", ActivityPending)
		return open.Heartbeat(&details) == nil && details != ""
	})
	if details != "asked" || open.Name != "ask" || open.Kind != "ActivityScheduled" ||
		open.EventID != 2 || open.Failed != 0 || open.LastError != nil || time.Since(open.Since) > patience {
		t.Errorf("open: %+v, reported %q", open, details)
	}
	if err := FailActivity(ctx, nodes[1].Client(), d.all()[0], errWanted); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second attempt", func() bool { return len(d.all()) == 2 })
	open = only(t, nodes[2].Client(), "a", ActivityPending)
	if open.Failed != 1 || open.LastError == nil || open.LastError.Error() != errWanted.Error() {
		t.Errorf("open: %+v", open)
	}
	if err := CompleteActivity(ctx, nodes[2].Client(), d.all()[0], "late"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("by the first token: %v", err)
	}
	for _, node := range nodes {
		if err := CompleteActivity(ctx, node.Client(), d.all()[1], "granted"); err != nil {
			t.Errorf("on %s: %v", node.ID(), err)
		}
	}
	if got, err := run.Wait(ctx); err != nil || got != "granted" {
		t.Errorf("%q, %v", got, err)
	}
	if err := CompleteActivity(ctx, nodes[0].Client(), d.all()[1], "refused"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("another result: %v", err)
	}
	if rest, err := nodes[0].Client().Pending(ctx, "a"); err != nil || len(rest) != 0 {
		t.Errorf("after the end: %v, %v", rest, err)
	}
}

func TestPendingActivityOutlivesItsLeader(t *testing.T) {
	noGoroutinesLeft(t)
	d := new(desk)
	nodes := startPeersWith(t, 3, d.definitions()...)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	var other *Node
	for _, node := range nodes {
		if node != leader {
			other = node
		}
	}
	run, err := StartRun(ctx, other.Client(), asked, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	only(t, other.Client(), "a", ActivityPending)
	eventually(t, "that it is pending is recorded", func() bool {
		for open := range leader.of("a").journal.OpenOf("a") {
			return open.Attempt.GetPending()
		}
		return false
	})
	if err := leader.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	only(t, other.Client(), "a", ActivityPending)
	if err := CompleteActivity(ctx, other.Client(), d.all()[0], "granted"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != "granted" || len(d.all()) != 1 {
		t.Errorf("%q after %d attempts, %v", got, len(d.all()), err)
	}
}

func TestWrongTokensAreRefused(t *testing.T) {
	d := new(desk)
	node := startNode(t, Config{InMemory: true, Definitions: d.definitions()})
	ctx, client := testContext(t), node.Client()
	var wrong *replay.TokenError
	if err := CompleteActivity(ctx, client, "no token", 1); !errors.As(err, &wrong) {
		t.Errorf("no token: %v", err)
	}
	stranger := &replay.Attempt{Instance: "nobody", Execution: 1, EventID: 2, Number: 1}
	if err := FailActivity(ctx, client, stranger.Token(), errWanted); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("nobody's token: %v", err)
	}
	var input *InputError
	if err := FailActivity(ctx, client, stranger.Token(), nil); !errors.As(err, &input) {
		t.Errorf("no failure: %v", err)
	}
	if err := CompleteActivity(ctx, client, stranger.Token(), make(chan int)); err == nil {
		t.Error("a value that cannot be encoded")
	}
}

func TestPendingShowsWhatAnInstanceWaitsFor(t *testing.T) {
	d := new(desk)
	node := startNode(t, Config{InMemory: true, Tags: []string{"disk"}, Definitions: append(d.definitions(replay.Tag("gpu")),
		doubled.Bind(func(ctx *replay.Context, n int) (int, error) {
			double.Start(ctx, n)
			ctx.Timer(time.Hour)
			waiter.Start(ctx, "", replay.ChildID("child"))
			_, err := word.Wait(ctx)
			return 0, err
		}))})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, asked, "a", ""); err != nil {
		t.Fatal(err)
	}
	only(t, client, "a", ActivityWaitingForTag)
	if _, err := StartRun(ctx, client, doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	var operations []*OpenOperation
	eventually(t, "the activity has been looked at", func() bool {
		var err error
		if operations, err = client.Pending(ctx, "d"); err != nil {
			t.Fatal(err)
		}
		return len(operations) == 4 && operations[0].State != ""
	})
	if o := operations[0]; o.Kind != "ActivityScheduled" || o.Name != "double" || o.State != ActivityWaitingForCode {
		t.Errorf("the activity: %+v", o)
	}
	if o := operations[1]; o.Kind != "TimerCreated" || o.FireAt.Sub(o.Since) != time.Hour {
		t.Errorf("the timer: %+v", o)
	}
	if o := operations[2]; o.Kind != "SubOrchestrationScheduled" || o.Name != "waiter" || o.ChildID != "child" {
		t.Errorf("the child: %+v", o)
	}
	if o := operations[3]; o.Kind != "ExternalSubscribed" || o.Name != "word" || o.EventID != 5 || o.Execution != 1 {
		t.Errorf("the subscription: %+v", o)
	}
	if _, err := client.Pending(ctx, "nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("of nobody: %v", err)
	}
	if _, err := client.Pending(ctx, ""); !errors.As(err, new(*InputError)) {
		t.Errorf("without an ID: %v", err)
	}
}

// A result for an instance that cannot take it is answered at once, kept as long
// as this node leads, and can be brought again whoever leads.
func TestACompletionForAStalledInstanceIsAnswered(t *testing.T) {
	noGoroutinesLeft(t)
	dir, d, ctx := t.TempDir(), new(desk), testContext(t)
	var other atomic.Bool
	good := d.definitions()
	changed := append(good[:1:1], asked.Bind(func(ctx *replay.Context, text string) (string, error) {
		if other.Load() {
			return word.Wait(ctx)
		}
		return ask.Call(ctx, text)
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
		if _, err := StartRun(ctx, node.Client(), asked, id, coalCanary); err != nil {
			t.Fatal(err)
		}
		eventually(t, "that it is pending is recorded", func() bool {
			for open := range node.of(id).journal.OpenOf(id) {
				return open.Attempt.GetPending() && len(d.all()) == i+1
			}
			return false
		})
	}
	refused := func(client *Client, token, value string) {
		t.Helper()
		err := CompleteActivity(ctx, client, token, value)
		if !errors.Is(err, ErrStalled) || strings.Contains(err.Error(), coalCanary) {
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
	refused(node.Client(), d.all()[0], "granted")
	refused(node.Client(), d.all()[0], "too late")
	other.Store(false)
	if err := node.Client().Retry(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	ends(node.Client(), "a")
	if err := CompleteActivity(ctx, node.Client(), d.all()[0], "granted"); err != nil {
		t.Errorf("again, after it was recorded: %v", err)
	}
	if err := CompleteActivity(ctx, node.Client(), d.all()[0], "too late"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("another, after one was recorded: %v", err)
	}

	node = restart(node, good[0]) // no code for the orchestration
	refused(node.Client(), d.all()[1], "forgotten")
	node = restart(node, good...)
	if err := CompleteActivity(ctx, node.Client(), d.all()[1], "granted"); err != nil {
		t.Fatal(err)
	}
	ends(node.Client(), "b")
}

// Of many who end an attempt at once, on any node, one does.
func TestOfManyCompletionsByOneTokenOneIsRecorded(t *testing.T) {
	noGoroutinesLeft(t)
	d := new(desk)
	nodes := startPeersWith(t, 3, d.definitions()...)
	ctx := testContext(t)
	run, err := StartRun(ctx, nodes[0].Client(), asked, "a", "")
	if err != nil {
		t.Fatal(err)
	}
	only(t, nodes[0].Client(), "a", ActivityPending)
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
		answers <- answer{"failed", FailActivity(ctx, nodes[0].Client(), token, replay.NonRetryable(errWanted))}
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
		t.Errorf("%q, %v; taken: %v", got, err, taken)
	}
	ended := func(event *journalpb.Event) bool { return event.SourceEventId == 2 }
	if n := countEvents(t, nodes[0].Client(), "a", 0, ended); n != 1 {
		t.Errorf("%d ends of the activity", n)
	}
	sameHistories(t, nodes)
}

// A token is that of one attempt in one execution.
func TestTheTokenOfAnEarlierExecutionEndsNothing(t *testing.T) {
	noGoroutinesLeft(t)
	d, repeats := new(desk), replay.Orchestration[int, string]("repeats")
	// The first execution has an answer, the second gives up asking.
	body := func(ctx *replay.Context, n int) (string, error) {
		future := ask.Start(ctx, "")
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
		eventually(t, "it was asked", func() bool { return len(d.all()) >= n })
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
			t.Errorf("%s: what was recorded, again: %v", when, err)
		}
		if err := complete(first, "other"); !errors.Is(err, ErrActivityClosed) {
			t.Errorf("%s: another result: %v", when, err)
		}
		if err := FailActivity(ctx, node.Client(), first, errWanted); !errors.Is(err, ErrActivityClosed) {
			t.Errorf("%s: a failure after the result: %v", when, err)
		}
		if err := complete(asked(2), "late"); !errors.Is(err, ErrActivityClosed) {
			t.Errorf("%s: the result of what was given up: %v", when, err)
		}
	}
	expect("while the third runs")
	eventually(t, "that the third is pending is recorded", func() bool {
		for open := range node.of("r").journal.OpenOf("r") {
			return open.Attempt.GetPending()
		}
		return false
	})
	node = restart(t, node)
	expect("after a restart")
	if err := complete(third, "three"); err != nil {
		t.Fatal(err)
	}
	if got := outcome(t, node.Client(), "r"); got != "completed three" {
		t.Error(got)
	}
	expect("after the end")
	if executions, err := node.Client().Executions(ctx, "r"); err != nil || len(executions) != 3 || executions[2].Events != 4 {
		t.Errorf("%+v, %v; want nothing recorded but what counts", executions, err)
	}
}
