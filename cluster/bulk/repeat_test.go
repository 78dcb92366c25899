package bulk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/bulk"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
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

// actTwice is the body of twice: it acts on a page twice, as a leader does whose report of the
// first attempt was lost. It waits for a word in between.
func actTwice(ctx *replay.Context, in map[string]any) ([]pageResult, error) {
	first, err := actOnAll(ctx, in)
	if err != nil {
		return nil, err
	}
	if _, err := word.Wait(ctx); err != nil {
		return nil, err
	}
	second, err := actOnAll(ctx, in)
	return []pageResult{first, second}, err
}

// actOnAll acts on a page, and on the rest of one that ended after its time.
func actOnAll(ctx *replay.Context, in map[string]any) (all pageResult, err error) {
	rest := maps.Clone(in)
	targets := in["Targets"].([]any)
	for len(targets) > 0 {
		rest["Targets"] = targets
		result, err := page.Call(ctx, rest)
		if err != nil {
			return all, err
		}
		all.Visited, all.Done = all.Visited+result.Visited, all.Done+result.Done
		all.Refused, all.Unknown, all.Refusals = all.Refused+result.Refused, all.Unknown+result.Unknown, append(all.Refusals, result.Refusals...)
		targets = targets[result.Visited:]
	}
	return all, nil
}

// A page that is repeated after all its requests were answered acts on no instance again, and
// counts the same.
func TestActions_RepeatedPageActsOnce(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), clustertest.Definitions(twice.Bind(actTwice)), partitions(2))
	ctx, client := testContext(t), c.Client(2)
	var ids []string
	for i := range 4 {
		ids = append(ids, fmt.Sprint("i", i))
	}
	targets := func() (all []map[string]any) {
		listed, err := client.List(ctx, cluster.Filter{IDPrefix: "i"}, "", 0)
		must(t, err)
		for _, status := range listed.Instances {
			all = append(all, map[string]any{
				"ID": status.InstanceID, "Incarnation": incarnationOf(ctx, t, client, status.InstanceID), "Execution": status.Execution, "Event": status.LastEventID,
			})
		}
		return all
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
		in := map[string]any{"JobID": "j", "Action": action, "Arguments": arguments, "Concurrency": 2, "Keep": 10, "Targets": targets()}
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
	between = nil
	act(bulk.Terminate, nil)
	purge()
	// The IDs are used again before the page is repeated.
	for _, action := range []string{bulk.Terminate, bulk.Cancel, bulk.Send, bulk.Purge} {
		var arguments map[string]string
		if action == bulk.Send {
			arguments = map[string]string{"event": "word"}
		}
		start(waiting)
		if action == bulk.Purge {
			for _, id := range ids {
				must(t, client.Terminate(ctx, id, "to be purged"))
			}
		}
		again := false
		between = func() bool {
			for _, id := range ids {
				status, err := client.Get(ctx, id)
				if acted := errors.Is(err, cluster.ErrNotFound) || err == nil && action != bulk.Purge && status.Ended(); !again && !acted {
					return false
				}
			}
			if !again {
				again = true
				for _, id := range ids {
					_, err := cluster.StartRun(ctx, client, waiting, id, id, cluster.ReuseWhenEnded())
					must(t, err)
				}
			}
			return true
		}
		act(action, arguments)
		for _, id := range ids {
			if state := stateOf(ctx, t, client, id); state != cluster.Running {
				t.Errorf("%s of the run before has acted on that of %s: it is %s", action, id, state)
			}
			must(t, client.Terminate(ctx, id, "enough"))
		}
		between = nil
		purge()
	}
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

// incarnationOf returns the incarnation of the latest run of an instance.
func incarnationOf(ctx context.Context, t *testing.T, client *cluster.Client, id string) uint64 {
	t.Helper()
	internals, err := client.Internal(access.Key{})
	must(t, err)
	response, err := internals.Call(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_Get{Get: new(clusterpb.GetRequest)}})
	must(t, err)
	return response.GetGet().GetStatus().GetIncarnation()
}

// A page that comes too late, after another run has begun under the ID, refuses it.
func TestActions_RefuseLaterRun(t *testing.T) {
	t.Parallel()
	var b bank
	c := newCluster(t, b.definitions(), clustertest.InMemory(), clustertest.Definitions(twice.Bind(func(ctx *replay.Context, in map[string]any) ([]pageResult, error) {
		result, err := page.Call(ctx, in)
		return []pageResult{result}, err
	})))
	ctx, client := testContext(t), c.Client(0)
	startAll(ctx, t, client, waiting, "i")
	target := map[string]any{"ID": "i", "Incarnation": incarnationOf(ctx, t, client, "i"), "Execution": 1}
	must(t, client.Terminate(ctx, "i", "enough"))
	_, err := cluster.StartRun(ctx, client, waiting, "i", "", cluster.ReuseWhenEnded())
	must(t, err)
	for _, action := range []string{bulk.Cancel, bulk.Terminate, bulk.Suspend, bulk.ResumeInstances, bulk.Send, bulk.Hold, bulk.Purge} {
		in := map[string]any{"JobID": "j", "Action": action, "Arguments": map[string]string{"event": "word"}, "Concurrency": 1, "Keep": 1, "Targets": []any{target}}
		results, err := cluster.Call(ctx, client, twice, "page-"+action, in)
		if err != nil || results[0].Refused != 1 || len(results[0].Refusals) != 1 {
			t.Errorf("%s: %+v, %v", action, results, err)
		}
	}
	if state := stateOf(ctx, t, client, "i"); state != cluster.Running || len(mustHistory(ctx, t, client, "i")) > 2 {
		t.Errorf("it is %s: %v", state, mustHistory(ctx, t, client, "i"))
	}
}
