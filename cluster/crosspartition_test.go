package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/cluster/internal/crosspartition"
	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// startSingleNode starts a node with several partitions that leads all of them: no leadership is
// lost, however slow the machine is.
func startSingleNode(t *testing.T, definitions ...replay.Definition) *Node {
	t.Helper()
	return startNode(t, Config{Dir: t.TempDir(), Partitions: testPartitions, maintenanceInterval: time.Hour, Definitions: definitions})
}

// The leader of a parent's partition learns of ends that were not reported, because the partition
// of the children changed its leader: it reads its own replica.
func TestCrossPartition_LeaderFindsUnreportedEnds(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startSingleNode(t, parentDefinitions()...)
	ask := node.ask
	node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		for _, c := range request.GetCrossMessages().GetMessages() {
			if c.Event.GetSubOrchestrationCompleted() != nil {
				return wire.NotLeader("ends are not reported")
			}
		}
		return ask(ctx, request)
	}
	ctx := testContext(t)
	parent := idInPartition("parent", 0)
	run, err := StartRun(ctx, node.Client(), parentOrchestration, parent, "works child")
	if err != nil {
		t.Fatal(err)
	}
	for partition := range testPartitions {
		eventually(t, "the child has ended", func() bool {
			status, err := node.Client().Get(ctx, idInPartition("child", partition))
			return err == nil && status.State == Completed
		})
	}
	// As if each of the other partitions had a new leader.
	leader := crosspartition.NewLeader(node.partitions[0].crossPartitions(), node.partitions[0].journal.Epoch())
	leader.ReviewAll()
	leadershipCtx, end := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { leader.Run(leadershipCtx) })
	defer background.Wait()
	defer end()
	if got, err := run.Wait(ctx); err != nil || got != "works42 works42 works42 works42" {
		t.Errorf("the parent got %q, %v", got, err)
	}
}

// A child in another partition continues as new, reports its end once, and knows its parent.
func TestCrossPartition_ChildContinuesAsNew(t *testing.T) {
	checkGoroutineLeaks(t)
	parent := replay.Orchestration[string, counterState]("parent")
	node := startSingleNode(t, append(definitions(), counter.Bind(counterBody),
		parent.Bind(func(ctx *replay.Context, child string) (counterState, error) {
			return counter.Call(ctx, counterState{Round: 1}, replay.ChildID(child))
		}))...)
	ctx := testContext(t)
	id, child := idInPartition("p", 1), idInPartition("child", 3)
	if _, err := StartRun(ctx, node.Client(), parent, id, child); err != nil {
		t.Fatal(err)
	}
	for n := range 8 { // two in each of the rounds 1 to 4
		if n%3 == 2 {
			node = restart(t, node)
		}
		eventually(t, "the child takes it", func() bool {
			err := Send(ctx, node.Client(), child, add, n, RequestID(fmt.Sprint(n)))
			if err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	run, err := StartRun(ctx, node.Client(), parent, id, child, Attach())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := run.Wait(ctx); err != nil || got != (counterState{Round: 5, Total: 28}) {
		t.Errorf("the parent got %+v, %v; want the final result", got, err)
	}
	node = restart(t, node) // the new leaders recover reports of ends
	if n := countEvents(t, node.Client(), id, 0, hasEventType(history.SubOrchestrationCompleted)); n != 1 {
		t.Errorf("the result came %d times", n)
	}
	for execution := range uint64(4) {
		started, err := node.Client().HistoryOf(ctx, child, execution+1)
		if err != nil || eventpb.Message(started.Events[0]).GetOrchestrationStarted().GetParent().GetInstance() != id {
			t.Errorf("execution %d does not know its parent: %v, %v", execution+1, started, err)
		}
	}
}

// A parent that continues as new cancels its children in other partitions, and its next execution
// does not hear of them.
func TestCrossPartition_ContinueAsNewCancelsChildren(t *testing.T) {
	checkGoroutineLeaks(t)
	parent := replay.Orchestration[int, string]("parent")
	node := startSingleNode(t, append(parentDefinitions(),
		parent.Bind(func(ctx *replay.Context, round int) (string, error) {
			childOrchestration.Start(ctx, "waits", replay.ChildID(idInPartition(fmt.Sprint("child-", round), 2)))
			value, err := word.Wait(ctx)
			if err != nil || round == 3 {
				return value, err
			}
			return "", parent.ContinueAsNew(ctx, round+1)
		}))...)
	ctx, id := testContext(t), idInPartition("p", 0)
	run, err := StartRun(ctx, node.Client(), parent, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	for round := 1; round <= 3; round++ {
		child := idInPartition(fmt.Sprint("child-", round), 2)
		eventually(t, "the child runs", func() bool {
			status, err := node.Client().Get(ctx, child)
			return err == nil && status.State == Running
		})
		if err := Send(ctx, node.Client(), id, word, fmt.Sprint("word-", round), RequestID(fmt.Sprint(round))); err != nil {
			t.Fatal(err)
		}
		if status, err := node.Client().Wait(ctx, child); err != nil || status.State != Canceled {
			t.Errorf("the child of round %d: %+v, %v", round, status, err)
		}
	}
	if got, err := run.Wait(ctx); err != nil || got != "word-3" {
		t.Errorf("the parent: %q, %v", got, err)
	}
	if n := countEvents(t, node.Client(), id, 3, func(event history.Event) bool {
		return event.SourceEventID != 0 && event.Type != history.CancelRequested
	}); n != 0 {
		t.Errorf("the last execution received %d ends", n)
	}
}

// A request ID is scoped to an instance: the same ID is valid in each partition, and a retry is
// found after a restart too.
func TestRequestID_SameInSeveralPartitions(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startSingleNode(t, append(definitions(), counter.Bind(counterBody))...)
	ctx := testContext(t)
	for range 2 {
		for partition := range testPartitions {
			id := idInPartition("i", partition)
			run, err := StartRun(ctx, node.Client(), counter, id, counterState{Round: 1}, RequestID("start"))
			if err != nil || run.ID != id {
				t.Fatalf("start of %s: %v", id, err)
			}
			if err := Send(ctx, node.Client(), id, add, 1, RequestID("one")); err != nil {
				t.Errorf("send to %s: %v", id, err)
			}
		}
		node = restart(t, node)
	}
	for partition := range testPartitions {
		id := idInPartition("i", partition)
		history, err := node.Client().History(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if history.Execution != 1 {
			t.Errorf("%s: execution %d", id, history.Execution)
		}
		if n := countEvents(t, node.Client(), id, 0, hasEventType("ExternalEvent")); n != 1 {
			t.Errorf("%s: %d events; want one", id, n)
		}
	}
}

// The activity slots of a node are shared by all its partitions.
func TestActivitySlots_SharedByPartitionsOfNode(t *testing.T) {
	checkGoroutineLeaks(t)
	const positions, limit = 3, 2
	var mu sync.Mutex
	now, most := make(map[string]int), make(map[string]int)
	release := make(chan struct{})
	body := func(name string) func(context.Context, string) (string, error) {
		return func(context.Context, string) (string, error) {
			for _, at := range []string{name, "all"} {
				mu.Lock()
				now[at]++
				most[at] = max(most[at], now[at])
				mu.Unlock()
			}
			<-release
			mu.Lock()
			defer mu.Unlock()
			now[name]--
			now["all"]--
			return "", nil
		}
	}
	free, few := replay.Activity[string, string]("free"), replay.Activity[string, string]("few")
	busy := replay.Orchestration[string, string]("busy")
	node := startNode(t, Config{
		InMemory: true, Partitions: testPartitions, ActivitiesMax: positions, ActivityLimits: map[string]int{"few": limit},
		Definitions: []replay.Definition{free.Bind(body("free")), few.Bind(body("few")),
			busy.Bind(func(ctx *replay.Context, _ string) (string, error) {
				var futures []*replay.Future[string]
				for range 5 {
					futures = append(futures, free.Start(ctx, ""), few.Start(ctx, ""))
				}
				_, err := replay.All(ctx, futures...)
				return "", err
			})},
	})
	ctx := testContext(t)
	const tasks = 10 * testPartitions
	var runs []*Run[string]
	for partition := range testPartitions {
		run, err := StartRun(ctx, node.Client(), busy, idInPartition("busy", partition), "")
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	eventually(t, "all are scheduled, and the slots are taken", func() bool {
		var led []*actors.Partition
		for _, g := range node.ledPartitions() {
			led = append(led, g.actorPartition.Load())
		}
		mu.Lock()
		defer mu.Unlock()
		return node.system.Stats(led...).ActivitiesOpen == tasks && now["all"] >= positions
	})
	close(release)
	for _, run := range runs {
		if _, err := run.Wait(ctx); err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if most["all"] > positions || most["few"] > limit {
		t.Errorf("at once: %v; want %d at most, %d of them few", most, positions, limit)
	}
}
