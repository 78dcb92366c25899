package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// startAlone starts a node with several groups that leads all of them: no leader is
// lost, however slow the machine.
func startAlone(t *testing.T, definitions ...replay.Definition) *Node {
	t.Helper()
	return startNode(t, Config{Dir: t.TempDir(), Groups: groupsOfTests, tendEvery: time.Hour, Definitions: definitions})
}

// The leader of a parent's group learns of ends that nobody reports, when the group of
// the children has another leader: it looks into its own replica.
func TestALeaderLooksForWhatTheLostOneDidNotSay(t *testing.T) {
	noGoroutinesLeft(t)
	node := startAlone(t, familyDefinitions()...)
	ask := node.ask
	node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
		for _, c := range request.GetCross().GetCrossings() {
			if c.Event.GetSubOrchestrationCompleted() != nil {
				return notLeader("ends are not said")
			}
		}
		return ask(ctx, request)
	}
	ctx := testContext(t)
	parent := idIn("parent", 0)
	run, err := StartRun(ctx, node.Client(), family, parent, "works child")
	if err != nil {
		t.Fatal(err)
	}
	for group := range groupsOfTests {
		eventually(t, "the child has ended", func() bool {
			status, err := node.Client().Get(ctx, idIn("child", group))
			return err == nil && status.State == Completed
		})
	}
	// As if each of the other groups had another leader than before.
	reign := newReign(node.groups[0], node.groups[0].journal.Epoch())
	clear(reign.seen)
	reigning, end := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() { reign.keep(reigning) })
	defer keeping.Wait()
	defer end()
	if got, err := run.Wait(ctx); err != nil || got != "works42 works42 works42 works42" {
		t.Errorf("the parent got %q, %v", got, err)
	}
}

// A child in another group continues as new, is heard once, and knows its parent.
func TestAChildInAnotherGroupContinuesAsNew(t *testing.T) {
	noGoroutinesLeft(t)
	parent := replay.Orchestration[string, count]("parent")
	node := startAlone(t, append(definitions(), counter.Bind(counterBody),
		parent.Bind(func(ctx *replay.Context, child string) (count, error) {
			return counter.Call(ctx, count{Round: 1}, replay.ChildID(child))
		}))...)
	ctx := testContext(t)
	id, child := idIn("p", 1), idIn("child", 3)
	if _, err := StartRun(ctx, node.Client(), parent, id, child); err != nil {
		t.Fatal(err)
	}
	for n := range 8 { // two in each of the rounds 1 to 4
		if n%3 == 2 {
			node = restart(t, node)
		}
		eventually(t, "the child takes it", func() bool {
			err := Send(ctx, node.Client(), child, add, n, EventID(fmt.Sprint(n)))
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
	if got, err := run.Wait(ctx); err != nil || got != (count{Round: 5, Total: 28}) {
		t.Errorf("the parent got %+v, %v; want the final result", got, err)
	}
	node = restart(t, node) // whose leaders look at what is left to tell
	if n := countEvents(t, node.Client(), id, 0, ofArm(journalpb.ArmSubOrchestrationCompleted)); n != 1 {
		t.Errorf("the result came %d times", n)
	}
	for execution := range uint64(4) {
		started, err := node.Client().HistoryOf(ctx, child, execution+1)
		if err != nil || started.Events[0].GetOrchestrationStarted().GetParent().GetInstance() != id {
			t.Errorf("execution %d does not know its parent: %v, %v", execution+1, started, err)
		}
	}
}

// A parent that continues as new gives its children in other groups up, and its next
// execution hears nothing of them.
func TestAParentThatContinuesAsNewGivesUpItsChildrenInOtherGroups(t *testing.T) {
	noGoroutinesLeft(t)
	parent := replay.Orchestration[int, string]("parent")
	node := startAlone(t, append(familyDefinitions(),
		parent.Bind(func(ctx *replay.Context, round int) (string, error) {
			member.Start(ctx, "waits", replay.ChildID(idIn(fmt.Sprint("child-", round), 2)))
			said, err := word.Wait(ctx)
			if err != nil || round == 3 {
				return said, err
			}
			return "", parent.ContinueAsNew(ctx, round+1)
		}))...)
	ctx, id := testContext(t), idIn("p", 0)
	run, err := StartRun(ctx, node.Client(), parent, id, 1)
	if err != nil {
		t.Fatal(err)
	}
	for round := 1; round <= 3; round++ {
		child := idIn(fmt.Sprint("child-", round), 2)
		eventually(t, "the child runs", func() bool {
			status, err := node.Client().Get(ctx, child)
			return err == nil && status.State == Running
		})
		if err := Send(ctx, node.Client(), id, word, fmt.Sprint("word-", round), EventID(fmt.Sprint(round))); err != nil {
			t.Fatal(err)
		}
		if status, err := node.Client().Wait(ctx, child); err != nil || status.State != Cancelled {
			t.Errorf("the child of round %d: %+v, %v", round, status, err)
		}
	}
	if got, err := run.Wait(ctx); err != nil || got != "word-3" {
		t.Errorf("the parent: %q, %v", got, err)
	}
	if n := countEvents(t, node.Client(), id, 3, func(event *journalpb.Event) bool {
		return event.SourceEventId != 0 && event.Arm() != journalpb.ArmCancelRequested
	}); n != 0 {
		t.Errorf("the last execution heard %d ends", n)
	}
}

// A request ID is one of its instance: the same one is good in each group, and a
// repetition is found also after a restart.
func TestRequestIDsOfSeveralGroups(t *testing.T) {
	noGoroutinesLeft(t)
	node := startAlone(t, append(definitions(), counter.Bind(counterBody))...)
	ctx := testContext(t)
	for range 2 {
		for group := range groupsOfTests {
			id := idIn("i", group)
			run, err := StartRun(ctx, node.Client(), counter, id, count{Round: 1}, RequestID("start"))
			if err != nil || run.ID != id {
				t.Fatalf("start of %s: %v", id, err)
			}
			if err := Send(ctx, node.Client(), id, add, 1, EventID("one")); err != nil {
				t.Errorf("send to %s: %v", id, err)
			}
		}
		node = restart(t, node)
	}
	for group := range groupsOfTests {
		id := idIn("i", group)
		history, err := node.Client().History(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if history.Execution != 1 {
			t.Errorf("%s: execution %d", id, history.Execution)
		}
		if n := countEvents(t, node.Client(), id, 0, ofArm(journalpb.ArmExternalEvent)); n != 1 {
			t.Errorf("%s: %d events; want one", id, n)
		}
	}
}

// The places of a node are those of all its groups together.
func TestPlacesForActivitiesAreThoseOfTheNode(t *testing.T) {
	noGoroutinesLeft(t)
	const places, limit = 3, 2
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
		InMemory: true, Groups: groupsOfTests, ActivitiesMax: places, ActivityLimits: map[string]int{"few": limit},
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
	const jobs = 10 * groupsOfTests
	var runs []*Run[string]
	for group := range groupsOfTests {
		run, err := StartRun(ctx, node.Client(), busy, idIn("busy", group), "")
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	eventually(t, "all are there, and the places are taken", func() bool {
		var led []*actors.Partition
		for _, g := range node.led() {
			led = append(led, g.partition.Load())
		}
		mu.Lock()
		defer mu.Unlock()
		return node.system.Stats(led...).ActivitiesOpen == jobs && now["all"] >= places
	})
	close(release)
	for _, run := range runs {
		if _, err := run.Wait(ctx); err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if most["all"] > places || most["few"] > limit {
		t.Errorf("at once: %v; want %d at most, %d of them few", most, places, limit)
	}
}
