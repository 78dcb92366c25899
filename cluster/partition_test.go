package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// testPartitions is the number of partitions in these tests.
const testPartitions = 4

// startPartitions starts three nodes with several partitions, whose leaders are balanced quickly.
func startPartitions(t *testing.T, definitions ...replay.Definition) *testCluster {
	t.Helper()
	return startPartitionsWith(t, testPartitions, 20*time.Millisecond, definitions...)
}

// startPartitionsWith is startPartitions with the number of partitions and the balancer's interval.
func startPartitionsWith(t *testing.T, partitions int, maintenanceInterval time.Duration, definitions ...replay.Definition) *testCluster {
	t.Helper()
	f := &testCluster{t: t, nodes: make(map[string]*Node)}
	peers := loopbackPeers(t, 3)
	for i := range peers {
		config := peerConfig(t, peers, i, definitions...)
		config.Partitions, config.maintenanceInterval = partitions, maintenanceInterval
		f.start(config)
	}
	return f
}

// awaitBalanced waits until no node leads two partitions more than another.
func (c *testCluster) awaitBalanced() {
	c.t.Helper()
	eventually(c.t, "the leaders are spread", func() bool {
		partitions := len(c.anyNode().partitions)
		least, most, all := partitions, 0, 0
		for _, node := range c.all() {
			led := len(node.ledPartitions())
			least, most, all = min(least, led), max(most, led), all+led
		}
		return all == partitions && most-least <= 1
	})
}

// kill closes a node without transferring leadership.
func (c *testCluster) kill(id string) {
	c.t.Helper()
	c.mu.Lock()
	node := c.nodes[id]
	delete(c.nodes, id)
	c.mu.Unlock()
	if err := node.Close(); err != nil {
		c.t.Error(err)
	}
}

// idInPartition returns an ID with that prefix that belongs to a partition.
func idInPartition(text string, partition int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprintf("%s-%d", text, i); slots.Partition(id, testPartitions) == partition {
			return id
		}
	}
}

// historyEventTypes returns the event types of an instance's history.
func historyEventTypes(t *testing.T, node *Node, id string) (types []string) {
	t.Helper()
	history, err := node.Client().History(testContext(t), id)
	if err != nil {
		t.Fatalf("history of %s: %v", id, err)
	}
	for _, event := range history.Events {
		types = append(types, string(event.Type))
	}
	return types
}

var (
	parentOrchestration = replay.Orchestration[string, string]("family")
	childOrchestration  = replay.Orchestration[string, string]("member")
)

// parentDefinitions binds a parent with a child in every partition. Its input says how it treats
// them.
func parentDefinitions() []replay.Definition {
	return append(definitions(),
		childOrchestration.Bind(func(ctx *replay.Context, how string) (string, error) {
			switch how {
			case "fails":
				return "", errTest
			case "waits":
				return word.Wait(ctx)
			}
			n, err := double.Call(ctx, 21)
			return fmt.Sprint(how, n), err
		}),
		parentOrchestration.Bind(func(ctx *replay.Context, how string) (string, error) {
			how, prefix, _ := strings.Cut(how, " ")
			return parentBody(ctx, how, prefix)
		}))
}

func parentBody(ctx *replay.Context, how, prefix string) (string, error) {
	var futures []*replay.Future[string]
	for partition := range testPartitions {
		id := idInPartition(prefix, partition)
		switch how {
		case "chains":
			if err := childOrchestration.Chain(ctx, "chained", replay.ChildID(id)); err != nil {
				return "", err
			}
		case "abandons":
			futures = append(futures, childOrchestration.Start(ctx, "waits", replay.ChildID(id), replay.OnParentClose(replay.AbandonChild)))
		case "terminates":
			futures = append(futures, childOrchestration.Start(ctx, "waits", replay.ChildID(id), replay.OnParentClose(replay.TerminateChild)))
		case "leaves":
			futures = append(futures, childOrchestration.Start(ctx, "waits", replay.ChildID(id)))
		default:
			futures = append(futures, childOrchestration.Start(ctx, how, replay.ChildID(id)))
		}
	}
	switch how {
	case "chains":
		return "", nil
	case "abandons", "terminates", "leaves":
		_, err := word.Wait(ctx)
		return "", err
	}
	var results []string
	for _, outcome := range futures {
		result, err := outcome.Await(ctx)
		if err != nil {
			result = err.Error()
		}
		results = append(results, result)
	}
	return strings.Join(results, " "), nil
}

func (c *testCluster) anyNode() *Node { return c.all()[0] }

// expectState waits for the end of an instance and checks its state.
func (c *testCluster) expectState(id string, want State) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%s is %s", id, want), func() bool {
		status, err := c.anyNode().Client().Get(testContext(c.t), id)
		return err == nil && status.State == want
	})
}

func TestCrossPartition_Children(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, parentDefinitions()...)
	ctx := testContext(t)
	// Parents in every partition, each with a child in every partition.
	for partition := range testPartitions {
		for how, want := range map[string]string{"works": "works42", "fails": errTest.Error()} {
			id := idInPartition("parent-"+how, partition)
			prefix := fmt.Sprintf("%s-%d", how, partition)
			got, err := Call(ctx, f.anyNode().Client(), parentOrchestration, id, how+" "+prefix)
			if err != nil || strings.Count(got, want) != testPartitions {
				t.Errorf("%s: %q, %v", id, got, err)
			}
			for child := range testPartitions {
				status, err := f.anyNode().Client().Get(ctx, idInPartition(prefix, child))
				if err != nil || status.ParentID != id {
					t.Errorf("child of %s in partition %d: %+v, %v", id, child, status, err)
				}
			}
		}
	}
	expectSameHistories(t, f.all())
}

func TestCrossPartition_ParentCloseEndsChildren(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, parentDefinitions()...)
	ctx := testContext(t)
	client := f.anyNode().Client()
	for how, want := range map[string]State{"leaves": Canceled, "terminates": Terminated, "abandons": Running} {
		for _, end := range []string{"returns", "canceled", "terminated"} {
			id, prefix := "parent-"+how+"-"+end, how+"-"+end
			if _, err := StartRun(ctx, client, parentOrchestration, id, how+" "+prefix); err != nil {
				t.Fatal(err)
			}
			for partition := range testPartitions {
				f.expectState(idInPartition(prefix, partition), Running)
			}
			var err error
			switch end {
			case "returns":
				err = Send(ctx, client, id, word, "")
			case "canceled":
				err = client.Cancel(ctx, id, "no more")
			case "terminated":
				err = client.Terminate(ctx, id, "no more")
			}
			if err != nil {
				t.Fatal(err)
			}
			for partition := range testPartitions {
				f.expectState(idInPartition(prefix, partition), want)
			}
		}
	}
}

// Chained starts, including those of abandoned children, happen once: the next leader does not
// start again what has ended and was purged since.
func TestCrossPartition_StartsHappenOnce(t *testing.T) {
	checkGoroutineLeaks(t)
	f := startPartitions(t, parentDefinitions()...)
	ctx := testContext(t)
	client := f.anyNode().Client()
	if _, err := Call(ctx, client, parentOrchestration, "chainer", "chains link"); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for partition := range testPartitions {
		id := idInPartition("link", partition)
		f.expectState(id, Completed)
		ids = append(ids, id)
	}
	eventually(t, "all are acknowledged and purged", func() bool {
		if _, err := client.Purge(ctx, ids...); err != nil {
			return false
		}
		n, err := client.Count(ctx, Filter{IDPrefix: "link-"})
		return n == 0 && err == nil
	})
	f.moveAllLeaders()
	if _, err := Call(ctx, client, doubled, "after", 1); err != nil {
		t.Fatal(err)
	}
	for _, node := range f.all() {
		for _, g := range node.partitions {
			for _, id := range ids { // a replica may be behind
				eventually(t, id+" does not wait to be started again", func() bool { return !g.journal.HasChainedStart(id) })
			}
		}
	}
	if n, err := client.Count(ctx, Filter{IDPrefix: "link-"}); n != 0 || err != nil {
		t.Errorf("%d are there again, %v", n, err)
	}
}

// moveAllLeaders transfers every partition to another leader.
func (c *testCluster) moveAllLeaders() {
	c.t.Helper()
	for partition := range testPartitions {
		epoch := c.anyNode().partitions[partition].journal.Epoch()
		eventually(c.t, "leadership is transferred", func() bool {
			for _, node := range c.all() {
				if g := node.partitions[partition]; g.isLeader() && g.journal.Epoch() == epoch {
					_ = g.journal.TransferLeadership(testContext(c.t)) // or it has already lost leadership
				}
			}
			return c.anyNode().partitions[partition].journal.Epoch() > epoch
		})
	}
}

func partitionOfID(id string) int { return slots.Partition(id, testPartitions) }

// makeLeader makes a node lead a partition.
func (c *testCluster) makeLeader(partition int, id string) {
	c.t.Helper()
	eventually(c.t, "the node leads", func() bool {
		for _, node := range c.all() {
			if node.ID() != id && node.partitions[partition].isLeader() {
				_ = node.partitions[partition].journal.TransferLeadershipTo(testContext(c.t), id) // or it has already lost leadership
			}
		}
		return c.nodes[id].partitions[partition].isLeader()
	})
}

func TestList_CoversAllPartitions(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, definitions()...)
	ctx := testContext(t)
	const many = 57
	var ids []string
	for i := range many {
		id := fmt.Sprintf("i-%02d", i)
		ids = append(ids, id)
		if _, err := Call(ctx, f.anyNode().Client(), doubled, id, i); err != nil {
			t.Fatal(err)
		}
	}
	remote, err := Dial(ctx, DialConfig{Addresses: []string{f.anyNode().config.Listen}, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	for name, client := range map[string]*Client{"node": f.anyNode().Client(), "remote": remote} {
		for _, limit := range []int{1, 7, 57, 100} {
			var listed []string
			for after := ""; ; {
				page, err := client.List(ctx, Filter{IDPrefix: "i-"}, after, limit)
				if err != nil {
					t.Fatal(err)
				}
				for _, status := range page.Instances {
					listed = append(listed, status.InstanceID)
				}
				if after = page.Next; after == "" {
					break
				}
			}
			if !slices.Equal(listed, ids) {
				t.Errorf("%s, by %d: %v", name, limit, listed)
			}
		}
		if n, err := client.Count(ctx, Filter{IDPrefix: "i-"}); n != many || err != nil {
			t.Errorf("%s: %d counted, %v", name, n, err)
		}
		if got, err := Call(ctx, client, doubled, "by-"+name, 4); got != 8 || err != nil {
			t.Errorf("%s: %d, %v", name, got, err)
		}
		members, err := client.Members(ctx)
		if err != nil || len(members) != 3 || !members[0].Voter {
			t.Fatalf("%s: members %+v, %v", name, members, err)
		}
		if led := len(members[0].LeadsPartitions) + len(members[1].LeadsPartitions) + len(members[2].LeadsPartitions); led > testPartitions {
			t.Errorf("%s: %d partitions have a leader", name, led)
		}
	}
	if n, err := remote.Purge(ctx, ids...); n != many || err != nil {
		t.Errorf("%d purged, %v", n, err)
	}
}

func TestBalancer_SpreadsLeadersOfCluster(t *testing.T) {
	const partitions = 6 // two for each node
	f := startPartitionsWith(t, partitions, 20*time.Millisecond, definitions()...)
	f.awaitBalanced()
	// A node that leaves and returns gets its share of leaders again.
	gone := f.anyNode()
	config := gone.config
	f.kill(gone.ID())
	eventually(t, "the others lead all partitions", func() bool {
		led := 0
		for _, node := range f.all() {
			led += len(node.ledPartitions())
		}
		return led == partitions
	})
	f.start(config)
	f.awaitBalanced()
	for _, node := range f.all() {
		eventually(t, "the node is ready", func() bool { return node.Health().Ready() == nil })
		if health := node.Health(); len(health.Partitions) != partitions {
			t.Errorf("health: %+v", health)
		}
	}
}

// Nodes are killed repeatedly while parents and children run. Every result is right, and all nodes
// end with the same histories.
func TestCrossPartition_ChildrenSurviveNodeLoss(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, parentDefinitions()...)
	ctx := testContext(t)
	f.awaitBalanced()
	survivor := f.nodes["n3"]
	const many = 24
	var running sync.WaitGroup
	for i := range many {
		running.Go(func() {
			id, prefix := fmt.Sprintf("parent-%d", i), fmt.Sprintf("works-%d", i)
			got, err := Call(ctx, survivor.Client(), parentOrchestration, id, "works "+prefix, RequestID(id))
			if want := strings.TrimSpace(strings.Repeat("works42 ", testPartitions)); got != want || err != nil {
				t.Errorf("%s: %q, %v", id, got, err)
			}
		})
	}
	for _, id := range []string{"n1", "n2"} {
		f.mu.Lock()
		config := f.nodes[id].config
		f.mu.Unlock()
		f.kill(id)
		f.start(config)
		eventually(t, "the node has caught up", func() bool { return f.nodes[id].Health().Ready() == nil })
	}
	running.Wait()
	expectSameHistories(t, f.all())
	for i := range many {
		for partition := range testPartitions {
			want := []string{"OrchestrationStarted", "ActivityScheduled", "ActivityCompleted", "OrchestrationCompleted"}
			if got := historyEventTypes(t, survivor, idInPartition(fmt.Sprintf("works-%d", i), partition)); !slices.Equal(got, want) {
				t.Errorf("family %d, child %d: %v", i, partition, got)
			}
		}
		ends := slices.DeleteFunc(historyEventTypes(t, survivor, fmt.Sprintf("parent-%d", i)), func(kind string) bool {
			return kind != "SubOrchestrationCompleted"
		})
		if len(ends) != testPartitions {
			t.Errorf("family %d: %d results of %d children", i, len(ends), testPartitions)
		}
	}
}

func TestPartitions_CountIsFixed(t *testing.T) {
	dir := t.TempDir()
	config := Config{Dir: dir, Partitions: testPartitions, Definitions: definitions(), Logger: testLogger()}
	node := startNode(t, config)
	ctx := testContext(t)
	for i := range 20 {
		if _, err := Call(ctx, node.Client(), doubled, fmt.Sprint("i-", i), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "group-003", "identity")); err != nil {
		t.Error(err)
	}
	for _, partitions := range []int{1, 8} {
		config.Partitions = partitions
		var other *journal.PartitionCountError
		if _, err := Start(ctx, config); !errors.As(err, &other) || !errors.Is(err, ErrPartitionCount) || other.Have != testPartitions || other.Want != partitions {
			t.Errorf("with %d partitions: %v", partitions, err)
		}
	}
	config.Partitions = testPartitions
	node = startNode(t, config)
	if n, err := node.Client().Count(ctx, Filter{}); n != 20 || err != nil {
		t.Errorf("%d instances after a restart, %v", n, err)
	}
	for _, partitions := range []int{-1, partitionsMax + 1} {
		var wrong *replay.InvalidError
		if _, err := Start(ctx, Config{InMemory: true, Partitions: partitions}); !errors.As(err, &wrong) || wrong.Field != "Config.Partitions" {
			t.Errorf("%d partitions: %v", partitions, err)
		}
	}
}

// A stopping node transfers every partition that it leads.
func TestStop_TransfersAllLeaderships(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, definitions()...)
	f.awaitBalanced()
	stops := f.nodes["n2"]
	delete(f.nodes, "n2")
	epochs := make([]uint64, testPartitions)
	for _, g := range stops.ledPartitions() {
		epochs[g.number] = g.journal.Epoch()
	}
	if err := stops.Stop(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := stops.Health().Ready(); !errors.Is(err, replay.ErrNodeStopping) {
		t.Errorf("ready: %v", err)
	}
	for partition := range testPartitions {
		if got, err := Call(testContext(t), f.anyNode().Client(), doubled, idInPartition("after", partition), 2); got != 4 || err != nil {
			t.Errorf("partition %d: %d, %v", partition, got, err)
		}
	}
}

// Everything continues after all nodes were down.
func TestPartitions_RecoverFromDisk(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, parentDefinitions()...)
	ctx := testContext(t)
	if _, err := StartRun(ctx, f.anyNode().Client(), parentOrchestration, "parent", "waits child"); err != nil {
		t.Fatal(err)
	}
	for partition := range testPartitions {
		f.expectState(idInPartition("child", partition), Running)
	}
	var configs []Config
	for _, node := range f.all() {
		configs = append(configs, node.config)
		f.kill(node.ID())
	}
	for _, config := range configs {
		f.start(config)
	}
	for partition := range testPartitions {
		if err := Send(ctx, f.anyNode().Client(), idInPartition("child", partition), word, "back"); err != nil {
			t.Fatal(err)
		}
	}
	f.expectState("parent", Completed)
	expectSameHistories(t, f.all())
}

// A joining node becomes a member of every partition, and a removed node of none, even if the call
// reached only the first partition.
func TestMembership_SameInAllPartitions(t *testing.T) {
	t.Parallel()
	f := startPartitions(t, definitions()...)
	ctx := testContext(t)
	joining := f.joiningConfig("n4")
	joining.Partitions = testPartitions + 1
	if _, err := Start(ctx, joining); !errors.Is(err, ErrPartitionCount) {
		t.Errorf("joined with another number of partitions: %v", err)
	}
	joining.Partitions = testPartitions // in the same Dir, which was not stamped
	f.start(joining)
	voters := func() (voters int) {
		members, err := f.nodes["n1"].Members(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			if m.Voter {
				voters++
			}
		}
		return voters
	}
	eventually(t, "it votes in every partition", func() bool { return voters() == 4 })
	f.awaitBalanced()
	// Only the first partition is called.
	eventually(t, "the first partition has removed it", func() bool {
		_, err := f.nodes["n1"].router.call(ctx, &clusterpb.Request{Partition: 1, Call: &clusterpb.Request_RemoveMember{
			RemoveMember: &clusterpb.RemoveMemberRequest{Node: "n4"},
		}})
		if err != nil && !errors.Is(err, ErrMembershipChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "no partition has it", func() bool {
		for _, g := range f.nodes["n1"].partitions {
			if g.journal.IsMember("n4") {
				return false
			}
		}
		return true
	})
	f.remove("n4") // again
	removed := f.nodes["n4"]
	eventually(t, "it knows", func() bool { return errors.Is(removed.Err(), ErrRemoved) })
	if err := f.nodes["n1"].RemoveNode(ctx, "n9"); !errors.Is(err, ErrNotMember) {
		t.Errorf("a stranger is removed: %v", err)
	}
}

// One of four nodes is down. A second one is removed, and still votes in each partition until that
// has removed it: without it, two of four are no majority.
func TestMembership_RemovedNodeVotesUntilRemovedFromAll(t *testing.T) {
	t.Parallel()
	f := startPartitionsWith(t, testPartitions, time.Hour, definitions()...)
	ctx := testContext(t)
	joining := f.joiningConfig("n4")
	joining.Partitions = testPartitions
	joined := f.start(joining)
	for _, g := range joined.partitions {
		eventually(t, "it has a vote", func() bool {
			self := g.self()
			return self != nil && self.Voter
		})
	}
	f.kill("n3")
	survivor, removed := f.nodes["n2"], f.nodes["n1"]
	eventually(t, "it is removed", func() bool {
		err := survivor.RemoveNode(ctx, "n1")
		if err != nil && !errors.Is(err, ErrMembershipChanging) {
			t.Fatal(err)
		}
		return err == nil
	})
	for partition := range testPartitions {
		if got, err := Call(ctx, survivor.Client(), doubled, idInPartition("after", partition), 2); got != 4 || err != nil {
			t.Errorf("partition %d: %d, %v", partition, got, err)
		}
	}
	select {
	case <-removed.Failed():
	case <-ctx.Done():
		t.Fatal("it does not know")
	}
	for _, g := range removed.partitions {
		if !errors.Is(g.journal.Err(), ErrRemoved) {
			t.Errorf("partition %d: %v", g.number, g.journal.Err())
		}
	}
}

func TestPartitions_LostDirectoryIsNotRecreated(t *testing.T) {
	config := Config{Dir: t.TempDir(), Partitions: testPartitions, Logger: testLogger()}
	if err := startNode(t, config).Close(); err != nil {
		t.Fatal(err)
	}
	lost := filepath.Join(config.Dir, "group-002")
	if err := os.RemoveAll(lost); err != nil {
		t.Fatal(err)
	}
	var damaged *journal.DamagedError
	if _, err := Start(testContext(t), config); !errors.As(err, &damaged) || damaged.Path != lost {
		t.Errorf("started: %v", err)
	}
}

// The leader of a child's partition is lost when the child's end is committed and before it is
// reported: the parent's leader finds the end in its own replica.
func TestCrossPartition_FindsChildEndAfterLeaderLoss(t *testing.T) {
	t.Parallel()
	f := startPartitionsWith(t, testPartitions, time.Hour, parentDefinitions()...) // so that no leader moves
	ctx := testContext(t)
	f.makeLeader(partitionOfID("parent"), "n2")
	f.makeLeader((partitionOfID("parent")+1)%testPartitions, "n1")
	eventually(t, "every partition has a leader", func() bool {
		led := 0
		for _, node := range f.all() {
			led += len(node.ledPartitions())
		}
		return led == testPartitions
	})
	var unreachable atomic.Pointer[Node]
	for _, node := range f.nodes {
		ask := node.ask
		node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
			if unreachable.Load() == node && request.GetCrossMessages() != nil {
				return wire.NotLeader("it says nothing")
			}
			return ask(ctx, request)
		}
	}
	const parent, prefix = "parent", "child"
	if _, err := StartRun(ctx, f.anyNode().Client(), parentOrchestration, parent, "waits "+prefix); err != nil {
		t.Fatal(err)
	}
	lost, client := f.nodes["n1"], f.nodes["n2"].Client()
	for partition := range testPartitions {
		f.expectState(idInPartition(prefix, partition), Running)
	}
	unreachable.Store(lost)
	for partition := range testPartitions {
		id := idInPartition(prefix, partition)
		if err := Send(ctx, client, id, word, "x"); err != nil {
			t.Fatal(err)
		}
		f.expectState(id, Completed)
	}
	f.kill(lost.ID())
	if got, err := f.anyNode().Client().Wait(ctx, parent); err != nil || got.State != Completed {
		t.Errorf("parent: %+v, %v", got, err)
	}
	expectSameHistories(t, f.all())
}
