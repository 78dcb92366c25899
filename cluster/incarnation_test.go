package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/eventpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// These tests start instances again under IDs freed by a purge. Nothing of the purged run may reach
// the next run.

var (
	describedParent       = replay.Orchestration[string, string]("described")
	describingChild       = replay.Orchestration[string, string]("description")
	chainingOrchestration = replay.Orchestration[string, string]("chains")
	chargingOrchestration = replay.Orchestration[string, string]("charged")
	chargeActivity        = replay.Activity[string, string]("charge-once")
)

// describedParentBody returns what a child makes of its input. The input "fails" makes it fail
// after the child has ended.
func describedParentBody(ctx *replay.Context, input string) (string, error) {
	text, err := describingChild.Call(ctx, input)
	if input == "fails" {
		return "", errTest
	}
	return text, err
}

func incarnationDefinitions() []replay.Definition {
	return []replay.Definition{
		describedParent.Bind(describedParentBody),
		describingChild.Bind(func(_ *replay.Context, input string) (string, error) { return "child of " + input, nil }),
		chainingOrchestration.Bind(func(ctx *replay.Context, input string) (string, error) {
			return input, describingChild.Chain(ctx, input)
		}),
		chargeActivity.Bind(func(ctx context.Context, _ string) (string, error) {
			return replay.ActivityInfo(ctx).IdempotencyKey(), nil
		}),
		chargingOrchestration.Bind(func(ctx *replay.Context, input string) (string, error) { return chargeActivity.Call(ctx, input) }),
	}
}

// startNewestProtocol starts a node in memory and returns it when every partition has the newest
// protocol: starts get an incarnation only then.
func startNewestProtocol(t *testing.T, config Config) *Node {
	t.Helper()
	config.InMemory = true
	node := startNode(t, config)
	for _, g := range node.partitions {
		eventually(t, "the newest protocol", func() bool { return g.journal.Protocol() == protocolVersion })
	}
	return node
}

func purgeOneInstance(t *testing.T, client *Client, id string) {
	t.Helper()
	eventually(t, id+" is purged", func() bool { // its parent may have to record its end first
		purged, err := client.Purge(testContext(t), id)
		if err != nil {
			t.Fatal(err)
		}
		return purged == 1
	})
}

// instancesOf returns the instances of an orchestration.
func instancesOf(t *testing.T, client *Client, name string) []*Status {
	t.Helper()
	page, err := client.List(testContext(t), Filter{Name: name}, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	return page.Instances
}

// incarnationOf returns the incarnation of an instance's latest run.
func incarnationOf(t *testing.T, client *Client, id string) uint64 {
	t.Helper()
	history, err := client.History(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return eventpb.Message(history.Events[0]).GetOrchestrationStarted().GetIncarnation()
}

// derivedID returns the ID of the child or chained instance that an event of an instance has
// scheduled without a name.
func derivedID(t *testing.T, client *Client, id string, execution, eventID uint64) string {
	t.Helper()
	if incarnation := incarnationOf(t, client, id); incarnation != 0 {
		return fmt.Sprintf("%s::%s.%d.%d", id, journalpb.IncarnationText(incarnation), execution, eventID)
	}
	return fmt.Sprintf("%s::%d.%d", id, execution, eventID)
}

func expectCall(t *testing.T, client *Client, of replay.OrchestrationHandle[string, string], id, input, want string) {
	t.Helper()
	got, err := Call(testContext(t), client, of, id, input)
	if err != nil || got != want {
		t.Fatalf("%s(%s) under %s: %q, %v; want %q", of.Name(), input, id, got, err, want)
	}
}

func TestIncarnation_NewChildrenAfterPurge(t *testing.T) {
	client := startNewestProtocol(t, Config{Definitions: incarnationDefinitions()}).Client()
	expectCall(t, client, describedParent, "f", "old", "child of old")
	purgeOneInstance(t, client, "f")
	expectCall(t, client, describedParent, "f", "new", "child of new")
}

// Retention removes the failed parent and keeps the child, which has completed.
func TestIncarnation_NewChildrenAfterRetention(t *testing.T) {
	node := startNewestProtocol(t, Config{Definitions: incarnationDefinitions(), Settings: Settings{Retention: Retention{Failed: time.Millisecond}}})
	client := node.Client()
	if _, err := Call(testContext(t), client, describedParent, "f", "fails"); err == nil {
		t.Fatal("the first run did not fail")
	}
	eventually(t, "the parent is purged", func() bool {
		_, err := client.Get(testContext(t), "f")
		return errors.Is(err, ErrNotFound)
	})
	expectCall(t, client, describedParent, "f", "new", "child of new")
	if children := instancesOf(t, client, describingChild.Name()); len(children) != 2 {
		t.Errorf("%d children are kept, want one of each run", len(children))
	}
}

func TestIncarnation_ChainedStartAfterPurge(t *testing.T) {
	client := startNewestProtocol(t, Config{Definitions: incarnationDefinitions()}).Client()
	expectCall(t, client, chainingOrchestration, "f", "old", "old")
	purgeOneInstance(t, client, "f")
	expectCall(t, client, chainingOrchestration, "f", "new", "new")
	results := make(map[string]bool)
	eventually(t, "both chained instances have completed", func() bool {
		for _, instance := range instancesOf(t, client, describingChild.Name()) {
			status, err := client.Get(testContext(t), instance.InstanceID)
			var text string
			if err == nil && status.State == Completed && status.Output(&text) == nil {
				results[text] = true
			}
		}
		return results["child of old"] && results["child of new"]
	})
}

func TestIncarnation_NewIdempotencyKeysAfterPurge(t *testing.T) {
	client := startNewestProtocol(t, Config{Definitions: incarnationDefinitions()}).Client()
	keys := make(map[string]bool)
	for range 3 {
		key, err := Call(testContext(t), client, chargingOrchestration, "f", "order")
		if err != nil {
			t.Fatal(err)
		}
		if keys[key] {
			t.Fatalf("key %s was used by the run before", key)
		}
		keys[key] = true
		purgeOneInstance(t, client, "f")
	}
}

func TestIncarnation_OldTokenIsRejected(t *testing.T) {
	d := new(tokenCollector)
	client := startNewestProtocol(t, Config{Definitions: d.definitions()}).Client()
	begin := func(run int) string {
		t.Helper()
		if _, err := StartRun(testContext(t), client, asyncOrchestration, "a", "question"); err != nil {
			t.Fatal(err)
		}
		awaitOnlyOperation(t, client, "a", ActivityPending)
		return d.all()[run]
	}
	old := begin(0)
	if err := client.Terminate(testContext(t), "a", "as wanted"); err != nil {
		t.Fatal(err)
	}
	purgeOneInstance(t, client, "a")
	current := begin(1)
	if err := CompleteActivity(testContext(t), client, old, "old answer"); !errors.Is(err, ErrActivityClosed) {
		t.Errorf("the old token: %v, want %v", err, ErrActivityClosed)
	}
	if err := CompleteActivity(testContext(t), client, current, "new answer"); err != nil {
		t.Fatal(err)
	}
	if status, err := client.Wait(testContext(t), "a"); err != nil || status.State != Completed {
		t.Fatalf("%+v, %v", status, err)
	} else {
		var got string
		if err := status.Output(&got); err != nil || got != "new answer" {
			t.Errorf("the run after the purge returned %q, %v", got, err)
		}
	}
}

// A handle of a purged run does not wait for the next run.
func TestIncarnation_OldHandleReturnsNoNewResult(t *testing.T) {
	client := startNewestProtocol(t, Config{Definitions: incarnationDefinitions()}).Client()
	run, err := StartRun(testContext(t), client, describedParent, "f", "old")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	purgeOneInstance(t, client, "f")
	expectCall(t, client, describedParent, "f", "new", "child of new")
	if got, err := run.Wait(testContext(t)); !errors.Is(err, ErrNotFound) {
		t.Errorf("the handle of the purged run: %q, %v; want %v", got, err, ErrNotFound)
	}
}

// Concurrent starts get distinct incarnations, and successive starts under an ID get increasing
// ones, whichever node leads.
func TestIncarnation_UniqueAndIncreasing(t *testing.T) {
	nodes := startPeersWith(t, 3, incarnationDefinitions()...)
	for _, node := range nodes {
		for _, g := range node.partitions {
			eventually(t, "the newest protocol", func() bool { return g.journal.Protocol() == protocolVersion })
		}
	}
	client := nodes[0].Client()
	var mu sync.Mutex
	seen := make(map[string]bool)
	var starting sync.WaitGroup
	for i := range 50 {
		starting.Go(func() {
			id := fmt.Sprintf("many-%d", i)
			if _, err := Call(testContext(t), client, chainingOrchestration, id, ""); err != nil {
				t.Error(err)
				return
			}
			key := fmt.Sprintf("%d/%d", nodes[0].partitionOf(id).number, incarnationOf(t, client, id))
			mu.Lock()
			defer mu.Unlock()
			if seen[key] {
				t.Errorf("partition/incarnation %s twice", key)
			}
			seen[key] = true
		})
	}
	starting.Wait()
	last := uint64(0)
	for range 6 {
		expectCall(t, client, chainingOrchestration, "again", "x", "x")
		if now := incarnationOf(t, client, "again"); now <= last {
			t.Fatalf("incarnation %d after %d", now, last)
		} else {
			last = now
		}
		purgeOneInstance(t, client, "again")
		moveLeader(t, nodes, "again")
	}
}

// moveLeader transfers leadership of the partition of an instance to another node.
func moveLeader(t *testing.T, nodes []*Node, id string) {
	t.Helper()
	number := nodes[0].partitionOf(id).number
	leader := func() *Node {
		for _, node := range nodes {
			if node.partitions[number].isLeader() {
				return node
			}
		}
		return nil
	}
	var before *Node
	eventually(t, "a node leads", func() bool { before = leader(); return before != nil })
	eventually(t, "another node leads", func() bool {
		now := leader()
		if now == before {
			_ = before.partitions[number].journal.TransferLeadership(testContext(t)) // or it lost leadership by itself
		}
		return now != nil && now != before
	})
}

// Instances that began before incarnations existed have 0, and keep it.
func TestIncarnation_OldProtocolKeepsNames(t *testing.T) {
	config := Config{Definitions: append(incarnationDefinitions(), waiter.Bind(waiterBody)), InMemory: true}
	config.protocol = incarnationsProtocol - 1
	node := startNode(t, config)
	key, err := Call(testContext(t), node.Client(), chargingOrchestration, "f", "order")
	if err != nil || key != "f/1/2" {
		t.Fatalf("%q, %v", key, err)
	}
	history, err := node.Client().History(testContext(t), "f")
	if err != nil {
		t.Fatal(err)
	}
	if started := eventpb.Message(history.Events[0]).GetOrchestrationStarted(); started.Incarnation != 0 {
		t.Errorf("started as %v, which a node of the build before must not see", started)
	}
	expectCall(t, node.Client(), describedParent, "g", "old", "child of old")
	if _, err := node.Client().Get(testContext(t), "g::1.2"); err != nil {
		t.Errorf("the child: %v", err)
	}
}
