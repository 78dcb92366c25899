package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A basketInput says how a basket begins and when it ends.
type basketInput struct {
	Sum     int
	Updates int  // it ends after so many; 0: after a word
	NoCode  bool // it registers no handler
	Ends    bool // it ends in its first step
}

var basket = replay.Orchestration[basketInput, int]("basket")

func basketBody(ctx *replay.Context, in basketInput) (int, error) {
	if in.Ends {
		return in.Sum, nil
	}
	updates := 0
	if !in.NoCode {
		validate := func(n int) error {
			if n < 0 {
				return errLow
			}
			return nil
		}
		err := raiseUpdate.Handle(ctx, validate, func(_ *replay.Context, n int) (int, error) {
			in.Sum += n
			updates++
			return in.Sum, nil
		})
		if err != nil {
			return 0, err
		}
	}
	if in.Updates == 0 {
		_, err := word.Wait(ctx)
		return in.Sum, err
	}
	err := replay.Await(ctx, func() bool { return updates >= in.Updates })
	return in.Sum, err
}

// countUpdates returns how many updates all runs of an instance have recorded, and their number.
func countUpdates(t *testing.T, client *Client, id string) (updates, executions int) {
	t.Helper()
	all, err := client.Executions(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, execution := range all {
		h, err := client.HistoryOf(testContext(t), id, execution.Number)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range h.Events {
			if event.Type == history.ExternalEvent && event.Name != word.Name() ||
				event.Type == history.OrchestrationStarted && strings.Contains(event.String(), "inbox") {
				updates++
			}
		}
	}
	return updates, len(all)
}

func wantUpdates(t *testing.T, client *Client, id string, updates, executions int) {
	t.Helper()
	if u, x := countUpdates(t, client, id); u != updates || x != executions {
		t.Errorf("%s: %d updates in %d executions, want %d in %d", id, u, x, updates, executions)
	}
}

// A call that is repeated with its request ID has one effect, from any client, under other leaders,
// and after its run has ended, whether it began the run or attached to it.
func TestUpdateOrStart_RepeatedOnce(t *testing.T) {
	nodes := startPeersWith(t, 3, append(definitions(), basket.Bind(basketBody))...)
	ctx, clients := testContext(t), []*Client{nodes[0].Client(), nodes[1].Client(), dialNodes(t, DialConfig{}, nodes...)}
	calls := 0
	call := func(request string, n int, want int, attached bool) {
		t.Helper()
		client := clients[calls%len(clients)]
		calls++
		run, sum, err := UpdateOrStart(ctx, client, "t", basket, basketInput{Sum: 1}, raiseUpdate, n, RequestID(request), ReuseWhenEnded())
		if err != nil || sum != want || run.Attached != attached {
			t.Fatalf("%s: %+v, %d, %v; want %d, attached %t", request, run, sum, err, want, attached)
		}
	}
	repeat := func() {
		t.Helper()
		call("begins", 10, 11, false)
		call("attaches", 100, 111, true)
	}
	repeat()
	repeat()
	if err := leaderOfInstance(t, nodes, "t").partitionOf("t").journal.TransferLeadership(ctx); err != nil {
		t.Logf("transfer: %v", err) // leadership was lost by itself
	}
	repeat()
	wantUpdates(t, clients[2], "t", 2, 1)
	if err := Send(ctx, clients[0], "t", word, ""); err != nil {
		t.Fatal(err)
	}
	if status, err := clients[0].Wait(ctx, "t"); err != nil || status.State != Completed {
		t.Fatalf("%+v, %v", status, err)
	}
	for range clients {
		repeat()
	}
	wantUpdates(t, clients[2], "t", 2, 1)
	call("next", 1000, 1001, false)
	for range clients {
		call("begins", 10, 11, false) // its run is not the latest
		call("next", 1000, 1001, false)
	}
	wantUpdates(t, clients[2], "t", 3, 2)
}

// A repeated call finds its update in an earlier run, whether the latest one runs or has ended.
func TestUpdateOrStart_RepeatedAfterLaterRuns(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), basket.Bind(basketBody))})
	ctx, client := testContext(t), node.Client()
	call := func(request string, n, want int) {
		t.Helper()
		_, sum, err := UpdateOrStart(ctx, client, "t", basket, basketInput{Sum: 1}, raiseUpdate, n, RequestID(request), ReuseWhenEnded())
		if err != nil || sum != want {
			t.Errorf("%s: %d, %v; want %d", request, sum, err, want)
		}
	}
	end := func() {
		t.Helper()
		if err := Send(ctx, client, "t", word, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Wait(ctx, "t"); err != nil {
			t.Fatal(err)
		}
	}
	call("begins", 10, 11)
	call("attaches", 100, 111)
	end()
	call("next", 1000, 1001)
	call("attaches", 100, 111)
	call("begins", 10, 11)
	wantUpdates(t, client, "t", 3, 2)
	end()
	call("attaches", 100, 111)
	call("last", 5, 6)
	call("next", 1000, 1001)
	wantUpdates(t, client, "t", 4, 3)
}

// A caller that has died after the start repeats its call.
func TestUpdateOrStart_AfterStartAlone(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), basket.Bind(basketBody))})
	ctx, client := testContext(t), node.Client()
	for _, ended := range []bool{false, true} {
		id, in := fmt.Sprint("t-", ended), basketInput{Sum: 1, Ends: ended}
		start := &clusterpb.StartRequest{Attach: true, Update: true}
		if _, err := startRun(ctx, client, basket, id, in, start, []replay.Option{RequestID("r")}); err != nil {
			t.Fatal(err)
		}
		run, sum, err := UpdateOrStart(ctx, client, id, basket, in, raiseUpdate, 5, RequestID("r"), ReuseWhenEnded())
		switch {
		case run == nil || run.Attached:
			t.Errorf("%s: %+v, %v", id, run, err)
		case ended && !errors.Is(err, ErrEnded), !ended && (err != nil || sum != 6):
			t.Errorf("%s: %d, %v", id, sum, err)
		}
		if _, executions := countUpdates(t, client, id); executions != 1 {
			t.Errorf("%s: %d executions", id, executions)
		}
	}
}

// The started run stays if its update is rejected, or has no handler.
func TestUpdateOrStart_RejectedUpdateLeavesRun(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), basket.Bind(basketBody))})
	ctx, client := testContext(t), node.Client()
	var rejected *RejectedError
	run, _, err := UpdateOrStart(ctx, client, "rejects", basket, basketInput{}, raiseUpdate, -1)
	if !errors.As(err, &rejected) || !errors.Is(err, errLow) || run == nil || run.Attached {
		t.Errorf("rejected: %+v, %v", run, err)
	}
	var none *replay.NotRegisteredError
	run, _, err = UpdateOrStart(ctx, client, "none", basket, basketInput{NoCode: true}, raiseUpdate, 1)
	if !errors.As(err, &none) || none.Kind != "update" || none.Name != raiseUpdate.Name() || run == nil {
		t.Errorf("without a handler: %+v, %v", run, err)
	}
	for _, id := range []string{"rejects", "none"} {
		if status, err := client.Get(ctx, id); err != nil || status.State != Running {
			t.Errorf("%s: %+v, %v", id, status, err)
		}
	}
	if _, _, err := UpdateOrStart(ctx, client, "rejects", basket, basketInput{Sum: 1}, raiseUpdate, 1, RequestID("a")); err != nil {
		t.Errorf("attached with another input: %v", err)
	}
	if _, _, err := UpdateOrStart(ctx, client, "new", basket, basketInput{Sum: 1}, raiseUpdate, 1, RequestID("a")); err != nil {
		t.Fatal(err)
	}
	if run, _, err := UpdateOrStart(ctx, client, "new", basket, basketInput{Sum: 2}, raiseUpdate, 1, RequestID("a")); !errors.Is(err, ErrRequestIDReused) || run != nil {
		t.Errorf("the same request with another input: %+v, %v", run, err)
	}
	if run, _, err := UpdateOrStart(ctx, client, "new", basket, basketInput{}, replay.Update[int, int](""), 1); !isInvalidError(err) || run != nil {
		t.Errorf("an update without a name: %+v, %v", run, err)
	}
	if run, _, err := UpdateOrStart(ctx, client, "ended", basket, basketInput{Ends: true}, raiseUpdate, 1); !errors.As(err, &none) || run == nil {
		t.Errorf("a run that ends at once: %+v, %v", run, err)
	}
}

// Callers that find a run which ends before their update begin the next one.
func TestUpdateOrStart_RunEndsBeforeUpdate(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: append(definitions(), basket.Bind(basketBody))})
	ctx, client := testContext(t), node.Client()
	const callers, each = 8, 12
	var done sync.WaitGroup
	var ended atomic.Int32
	aborted := make(chan string, callers*each)
	for caller := range callers {
		done.Go(func() {
			for i := range each {
				request := fmt.Sprint(caller, ".", i)
				run, _, err := UpdateOrStart(ctx, client, "t", basket, basketInput{Updates: 2}, raiseUpdate, 1, ReuseWhenEnded(), RequestID(request))
				switch {
				case errors.Is(err, ErrUpdateAborted):
					aborted <- request
				case errors.Is(err, ErrEnded) && !run.Attached:
					// The others have ended the run that it began.
					ended.Add(1)
				case err != nil:
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	updates, executions := countUpdates(t, client, "t")
	if updates != callers*each-int(ended.Load()) || executions < 2 {
		t.Errorf("%d updates in %d executions, %d aborted, %d too late", updates, executions, len(aborted), ended.Load())
	}
}
