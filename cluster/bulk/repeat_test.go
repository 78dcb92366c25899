package bulk_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A pageResult is what the activity of a page returns.
type pageResult struct {
	Visited, Done, Refused, Unknown int
	Refusals                        []bulk.Refusal
}

var (
	page  = replay.Activity[map[string]any, pageResult]("tenuto.bulk.page")
	twice = replay.Orchestration[map[string]any, []pageResult]("twice")
)

// actTwice is the body of twice: it acts on a page twice, as a leader does whose report of the first
// attempt was lost. It waits for a word in between.
func actTwice(ctx *replay.Context, in map[string]any) ([]pageResult, error) {
	first, err := page.Call(ctx, in)
	if err != nil {
		return nil, err
	}
	if _, err := word.Wait(ctx); err != nil {
		return nil, err
	}
	second, err := page.Call(ctx, in)
	return []pageResult{first, second}, err
}

// A page that is repeated after all its requests were answered acts on no instance again, and counts
// the same.
func TestActions_RepeatedPageActsOnce(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), clustertest.Definitions(twice.Bind(actTwice)), partitions(2))
	ctx, client := testContext(t), c.Client(2)
	var ids []string
	for i := range 4 {
		ids = append(ids, fmt.Sprint("i", i))
	}
	start := func(handle replay.OrchestrationHandle[string, string]) {
		t.Helper()
		startAll(ctx, t, client, handle, ids...)
		if handle == paying {
			c.Eventually("payments back off", func() bool {
				n, err := client.Count(ctx, cluster.Filter{FailingAttempts: 1})
				return err == nil && n == len(ids)
			})
		}
	}
	calls := 0
	var between func() bool // if not nil, it holds before a page is repeated
	act := func(action string, arguments map[string]string) {
		t.Helper()
		calls++
		in := map[string]any{"JobID": "j", "Action": action, "Arguments": arguments, "Concurrency": 2, "Keep": 10, "IDs": ids}
		run, err := cluster.StartRun(ctx, client, twice, fmt.Sprint("twice-", calls), in)
		must(t, err)
		if between != nil {
			c.Eventually("the instances go on", between)
		}
		must(t, cluster.Send(ctx, client, run.ID, word, "again"))
		results, err := run.Wait(ctx)
		must(t, err)
		for i, result := range results {
			if result.Visited != len(ids) || result.Done != len(ids) {
				t.Errorf("%s, attempt %d: %+v", action, i+1, result)
			}
		}
	}
	// expect requires how often an event is in each history.
	expect := func(of history.EventType, want int) {
		t.Helper()
		for _, id := range ids {
			n := 0
			for _, event := range mustHistory(ctx, t, client, id) {
				if event.Type == of {
					n++
				}
			}
			if n != want {
				t.Errorf("%s: %d events of type %s, want %d", id, n, of, want)
			}
		}
	}
	purge := func() {
		t.Helper()
		for _, id := range ids {
			_, err := client.Wait(ctx, id)
			must(t, err)
		}
		act(bulk.Purge, nil)
	}

	start(waiting)
	act(bulk.Suspend, nil)
	expect(history.OrchestrationSuspended, 1)
	act(bulk.ResumeInstances, nil)
	expect(history.OrchestrationResumed, 1)
	act(bulk.Cancel, nil)
	expect(history.OrchestrationCancelRequested, 1)
	purge()
	start(waiting)
	act(bulk.Terminate, nil)
	purge()
	start(waiting)
	data, err := json.Marshal("hello")
	must(t, err)
	act(bulk.Send, map[string]string{"event": "word", "data": string(data)})
	expect(history.ExternalEvent, 1)
	purge()

	start(paying)
	act(bulk.Hold, nil)
	expect(history.OperationControlled, 1)
	act(bulk.Release, nil)
	expect(history.OperationControlled, 2)
	between = func() bool {
		n, err := client.Count(ctx, cluster.Filter{FailingAttempts: 2})
		return err == nil && n == len(ids)
	}
	act(bulk.RetryNow, nil) // the repetition finds activities that back off again
	expect(history.OperationControlled, 3)
	b.open.Store(true)
	between = func() bool {
		n, err := client.Count(ctx, cluster.Filter{Name: "paying", States: []cluster.State{cluster.Completed}})
		return err == nil && n == len(ids)
	}
	act(bulk.RetryNow, nil) // the repetition finds no open activities
	expect(history.OperationControlled, 4)
	expect(history.ActivityCompleted, 1)
}
