package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A quickInput says how a run ends soon after its start.
type quickInput struct {
	Handles  bool // it handles the update
	Awaits   bool // it awaits running updates
	Works    bool // it calls an activity before it ends
	Fails    int  // so many first attempts fail
	FailLate bool // they fail after they have registered the handler
}

var (
	quick       = replay.Orchestration[quickInput, int]("quick run")
	quickWork   = replay.Activity[int, int]("quick work")
	errQuick    = replay.NewError("test.quick", "the attempt fails")
	quickPolicy = replay.RetryPolicy{MaxAttempts: 5, InitialInterval: 1}
)

func quickBody(ctx *replay.Context, in quickInput) (sum int, err error) {
	fails := ctx.Attempt() <= in.Fails
	if fails && !in.FailLate {
		return 0, errQuick
	}
	if in.Handles {
		validate := func(n int) error {
			if n < 0 {
				return errLow
			}
			return nil
		}
		err = raiseUpdate.Handle(ctx, validate, func(_ *replay.Context, n int) (int, error) {
			sum += n
			return sum, nil
		})
	}
	if fails {
		return 0, errQuick
	}
	if err == nil && in.Works {
		_, err = quickWork.Call(ctx, 1)
	}
	if err == nil && in.Awaits {
		err = replay.AwaitUpdates(ctx)
	}
	return sum, err
}

func quickDefinitions() []replay.Definition {
	work := quickWork.Bind(func(_ context.Context, n int) (int, error) { return n, nil })
	return append(definitions(), quick.Bind(quickBody), work, basket.Bind(basketBody))
}

// Of many runs that end at once, each executes the update with which it was started exactly once,
// or the caller gets the error that says why not.
func TestUpdateOrStart_QuickRuns(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Partitions: 3, Definitions: quickDefinitions()})
	ctx, client := testContext(t), node.Client()
	var done sync.WaitGroup
	for i := range 200 {
		done.Go(func() {
			in, n := quickInput{Handles: i%5 != 0, Awaits: i%2 == 0, Works: i%3 == 0}, 1+i
			if i%7 == 0 {
				n = -1
			}
			id := fmt.Sprint("quick-", i)
			run, sum, err := UpdateOrStart(ctx, client, id, quick, in, raiseUpdate, n, RequestID("r"))
			if run == nil {
				t.Errorf("%+v: %v", in, err)
				return
			}
			output, runErr := run.Wait(ctx)
			var none *replay.NotRegisteredError
			var rejected *RejectedError
			want, ok := 0, false
			switch {
			case !in.Handles:
				ok = errors.As(err, &none) && none.Kind == "update"
			case n < 0:
				ok = errors.As(err, &rejected) && errors.Is(err, errLow)
			case in.Awaits || in.Works:
				want, ok = n, err == nil && sum == n
			default:
				ok = errors.Is(err, ErrUpdateAborted)
			}
			if !ok || runErr != nil || output != want {
				t.Errorf("%s: %+v, update %d: %d, %v; the run: %d, %v", id, in, n, sum, err, output, runErr)
			}
		})
	}
	done.Wait()
}

// An update is executed by the attempt that can: the first that begins its handler. It waits while
// a failed run waits for its next attempt.
func TestUpdateOrStart_RetriedRun(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: quickDefinitions()})
	ctx, client := testContext(t), node.Client()
	for _, late := range []bool{false, true} {
		for _, works := range []bool{false, true} {
			id := fmt.Sprintf("retried-%t-%t", late, works)
			in := quickInput{Handles: true, Awaits: true, Works: works, Fails: 2, FailLate: late}
			run, sum, err := UpdateOrStart(ctx, client, id, quick, in, raiseUpdate, 5, RequestID("r"), replay.Retry(quickPolicy))
			if err != nil || sum != 5 {
				t.Errorf("%s: %d, %v", id, sum, err)
				continue
			}
			if output, err := run.Wait(ctx); err != nil || output != 5 {
				t.Errorf("%s: the run: %d, %v", id, output, err)
			}
			again, sum, err := UpdateOrStart(ctx, client, id, quick, in, raiseUpdate, 5, RequestID("r"), replay.Retry(quickPolicy))
			if err != nil || sum != 5 || again.run != run.run {
				t.Errorf("%s, repeated: %d, %v", id, sum, err)
			}
			wantUpdates(t, client, id, 1, 3)
		}
	}
}

// The update is recorded with the start: a caller that has lost the answer finds it, although the
// run has ended.
func TestUpdateOrStart_AnswerLost(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: quickDefinitions()})
	ctx, client := testContext(t), node.Client()
	in := quickInput{Handles: true, Awaits: true}
	update, err := client.encode(replay.PayloadInfo{}, 5)
	if err != nil {
		t.Fatal(err)
	}
	start := &clusterpb.StartRequest{Attach: true, Update: true, BeginWith: &clusterpb.UpdateRequest{Name: raiseUpdate.Name(), Input: update}}
	run, err := startRun(ctx, client, quick, "lost", in, start, []replay.Option{RequestID("r")})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again, sum, err := UpdateOrStart(ctx, client, "lost", quick, in, raiseUpdate, 5, RequestID("r"), ReuseWhenEnded())
		if err != nil || sum != 5 || again.run != run.run {
			t.Errorf("%+v, %d, %v", again, sum, err)
		}
		wantUpdates(t, client, "lost", 1, 1)
		if i, err := client.HistoryOf(ctx, "lost", 1); err != nil || i.Events[len(i.Events)-1].Type != "OrchestrationCompleted" {
			t.Errorf("%v, %v", i, err)
		}
	}
	if _, _, err := UpdateOrStart(ctx, client, "lost", quick, in, raiseUpdate, 1, RequestID("next"), ReuseWhenEnded()); err != nil {
		t.Error(err)
	}
	if _, sum, err := UpdateOrStart(ctx, client, "lost", quick, in, raiseUpdate, 5, RequestID("r"), ReuseWhenEnded()); err != nil || sum != 5 {
		t.Errorf("after a later run: %d, %v", sum, err)
	}
	wantUpdates(t, client, "lost", 2, 2)
}

// The run continues after a restart from the update in the inbox of its start, with and without the
// later updates of the same run.
func TestUpdateOrStart_Restarted(t *testing.T) {
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: quickDefinitions()})
	ctx := testContext(t)
	call := func(request string, n, want int) {
		t.Helper()
		_, sum, err := UpdateOrStart(ctx, node.Client(), "t", basket, basketInput{Sum: 1}, raiseUpdate, n, RequestID(request))
		if err != nil || sum != want {
			t.Errorf("%s: %d, %v; want %d", request, sum, err, want)
		}
	}
	call("begins", 10, 11)
	node = restart(t, node)
	call("begins", 10, 11)
	call("attaches", 100, 111)
	node = restart(t, node)
	call("attaches", 100, 111)
	call("begins", 10, 11)
	if err := Send(ctx, node.Client(), "t", word, "", RequestID("begins")); !errors.Is(err, ErrRequestIDReused) {
		t.Errorf("an event under the request ID of the update: %v", err)
	}
	wantUpdates(t, node.Client(), "t", 2, 1)
}

// A start with an update needs the right to do both.
func TestUpdateOrStart_NeedsBothRights(t *testing.T) {
	start := &clusterpb.StartRequest{BeginWith: new(clusterpb.UpdateRequest)}
	actions := actionsOf(&clusterpb.Request{Call: &clusterpb.Request_Start{Start: start}})
	if !slices.Equal(actions, []Action{ActionStart, ActionUpdate}) {
		t.Errorf("%v", actions)
	}
}

// A call does not attach to an instance of another orchestration: the error names both.
func TestAttach_OtherOrchestration(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: quickDefinitions()})
	ctx, client := testContext(t), node.Client()
	if _, err := StartRun(ctx, client, basket, "t", basketInput{}); err != nil {
		t.Fatal(err)
	}
	before, err := client.History(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	_, attach := StartRun(ctx, client, quick, "t", quickInput{}, Attach())
	_, ensure := StartRun(ctx, client, quick, "t", quickInput{}, Attach(), ReuseWhenEnded())
	_, send := SendOrStart(ctx, client, quick, "t", quickInput{}, word, "")
	_, _, update := UpdateOrStart(ctx, client, "t", quick, quickInput{}, raiseUpdate, 1)
	for call, err := range map[string]error{"attach": attach, "ensure": ensure, "send": send, "update": update} {
		if !errors.Is(err, ErrInstanceExists) || !strings.Contains(err.Error(), basket.Name()) || !strings.Contains(err.Error(), quick.Name()) {
			t.Errorf("%s: %v", call, err)
		}
	}
	after, err := client.History(ctx, "t")
	if err != nil || len(after.Events) != len(before.Events) {
		t.Errorf("%d events, then %d: %v", len(before.Events), len(after.Events), err)
	}
	if run, err := StartRun(ctx, client, basket, "t", basketInput{}, Attach()); err != nil || !run.Attached {
		t.Errorf("the same orchestration: %+v, %v", run, err)
	}
	if !errors.Is(actors.OtherOrchestrationError("a", "b"), replay.ErrInstanceExists) {
		t.Error("another error")
	}
}
