package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A testCluster is a cluster whose nodes join and leave.
type testCluster struct {
	t     *testing.T
	mu    sync.Mutex
	nodes map[string]*Node
}

// newTestCluster starts the founding members, n1 and so on.
func newTestCluster(t *testing.T, founders int) *testCluster {
	t.Helper()
	return newTestClusterWith(t, founders, func(*Config) {})
}

func newTestClusterWith(t *testing.T, founders int, change func(*Config)) *testCluster {
	t.Helper()
	f := &testCluster{t: t, nodes: make(map[string]*Node)}
	peers := loopbackPeers(t, founders)
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		change(&config)
		f.start(config)
	}
	return f
}

func (c *testCluster) start(config Config) *Node {
	c.t.Helper()
	node := startNode(c.t, config)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[node.ID()] = node
	return node
}

// joiningConfig returns the configuration of a node that joins, and has the time to.
func (c *testCluster) joiningConfig(id string) Config {
	c.t.Helper()
	config := Config{
		NodeID: id, Listen: loopbackAddress(c.t), Dir: c.t.TempDir(), Definitions: definitions(), Logger: testLogger(), Partitions: testPartitionsDefault,
		CallTimeout: testTimeout,
	}
	for _, node := range c.all() {
		config.Join = append(config.Join, node.config.address())
	}
	return config
}

// close closes a node without notice to the others.
func (c *testCluster) close(node *Node) {
	c.t.Helper()
	if err := node.Close(); err != nil {
		c.t.Error(err)
	}
	c.forget(node)
}

func (c *testCluster) forget(node *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, node.ID())
}

func (c *testCluster) all() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var nodes []*Node
	for _, node := range c.nodes {
		nodes = append(nodes, node)
	}
	return nodes
}

func (c *testCluster) leader() *Node {
	c.t.Helper()
	return leaderOf(c.t, c.all())
}

// remove removes a node through another one.
func (c *testCluster) remove(id string) {
	c.t.Helper()
	ctx := testContext(c.t)
	via := c.all()
	via = slices.DeleteFunc(via, func(n *Node) bool { return n.ID() == id })
	eventually(c.t, "removed: "+id, func() bool {
		err := via[0].RemoveNode(ctx, id)
		if err != nil && !errors.Is(err, ErrMembershipChanging) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

// awaitVoters waits until the cluster has exactly these members, all with a vote.
func (c *testCluster) awaitVoters(ids ...string) {
	c.t.Helper()
	ctx := testContext(c.t)
	eventually(c.t, fmt.Sprintf("votes of %v", ids), func() bool {
		members, err := c.all()[0].Members(ctx)
		if err != nil {
			c.t.Fatal(err)
		}
		var voters []string
		for _, m := range members {
			if m.Voter {
				voters = append(voters, m.NodeID)
			}
		}
		return len(members) == len(ids) && slices.Equal(voters, ids)
	})
}

// startLoad starts runs through all nodes until stop is called, which returns the inputs of the
// acknowledged ones.
func (c *testCluster) startLoad() (stop func() []int) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var next atomic.Int64
	acknowledged := make(chan int, 1<<16)
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1))
				nodes := c.all()
				node := nodes[i%len(nodes)]
				limited, done := context.WithTimeout(ctx, testTimeout)
				if _, err := StartRun(limited, node.Client(), fiveActivities, fmt.Sprintf("load-%d", i), i); err == nil {
					acknowledged <- i
				}
				done()
			}
		})
	}
	return func() (all []int) {
		cancel()
		wg.Wait()
		close(acknowledged)
		for i := range acknowledged {
			all = append(all, i)
		}
		return all
	}
}

// expectCompleted checks that every acknowledged run completes with the right result.
func (c *testCluster) expectCompleted(acknowledged []int) {
	c.t.Helper()
	ctx := testContext(c.t)
	client := c.leader().Client()
	for _, i := range acknowledged {
		status, err := client.Wait(ctx, fmt.Sprintf("load-%d", i))
		if err != nil || status.State != Completed {
			c.t.Fatalf("run %d of %d: %+v, %v", i, len(acknowledged), status, err)
		}
	}
	if len(acknowledged) == 0 {
		c.t.Error("nothing was acknowledged at all")
	}
}

func expectRemoved(t *testing.T, node *Node) {
	t.Helper()
	select {
	case <-node.Failed():
	case <-time.After(testTimeout):
		t.Fatalf("%s has not learned that it was removed", node.ID())
	}
	if err := node.Err(); !errors.Is(err, ErrRemoved) {
		t.Errorf("%s: %v; want that it was removed", node.ID(), err)
	}
	if _, err := StartRun(testContext(t), node.Client(), doubled, "late", 1); !errors.Is(err, ErrRemoved) {
		t.Errorf("a call of %s: %v", node.ID(), err)
	}
	if node.IsLeader() {
		t.Errorf("%s leads", node.ID())
	}
}

func TestMembership_GrowsAndShrinksUnderLoad(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	f.leader()
	stop := f.startLoad()
	f.start(f.joiningConfig("n4"))
	f.awaitVoters("n1", "n2", "n3", "n4")
	f.start(f.joiningConfig("n5"))
	f.awaitVoters("n1", "n2", "n3", "n4", "n5")
	for range 2 {
		leader := f.leader()
		f.forget(leader)
		f.remove(leader.ID())
		expectRemoved(t, leader)
		if err := leader.Close(); err != nil {
			t.Error(err)
		}
	}
	acknowledged := stop()
	f.expectCompleted(acknowledged)
	expectSameHistories(t, f.all())
}

func TestMembership_AddsNodeDespiteLeaderLoss(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	leader := f.leader()
	stop := f.startLoad()
	config := f.joiningConfig("n4")
	joined := make(chan error, 1)
	go func() {
		node, err := Start(testContext(t), config)
		if err == nil {
			f.mu.Lock()
			f.nodes["n4"] = node
			f.mu.Unlock()
			t.Cleanup(func() { _ = node.Close() })
		}
		joined <- err
	}()
	f.close(leader)
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	eventually(t, "n4 has a vote", func() bool {
		members, err := f.leader().Members(testContext(t))
		return err == nil && slices.ContainsFunc(members, func(m Member) bool { return m.NodeID == "n4" && m.Voter })
	})
	f.expectCompleted(stop())
}

func TestMembership_ReplacesLostNode(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	lost := f.leader()
	stop := f.startLoad()
	f.close(lost)
	if err := os.RemoveAll(lost.config.Dir); err != nil {
		t.Fatal(err)
	}
	again := f.joiningConfig(lost.ID())
	if _, err := Start(testContext(t), again); !errors.Is(err, ErrOtherDirectory) {
		t.Fatalf("back under its name with an empty disk: %v", err)
	}
	f.remove(lost.ID())
	again.Dir = t.TempDir()
	if _, err := Start(testContext(t), again); !errors.Is(err, ErrRemoved) {
		t.Fatalf("back under its name after it was removed: %v", err)
	}
	replacement := f.joiningConfig("n9")
	replacement.Listen = lost.config.Listen
	f.start(replacement)
	eventually(t, "three votes", func() bool {
		members, err := f.leader().Members(testContext(t))
		return err == nil && len(members) == 3 && !slices.ContainsFunc(members, func(m Member) bool { return !m.Voter })
	})
	f.expectCompleted(stop())
	expectSameHistories(t, f.all())
}

func TestMembership_RejectsDirectoryOfRemovedNode(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	leader := f.leader()
	var old *Node
	for _, node := range f.all() {
		if node != leader {
			old = node
		}
	}
	f.close(old)
	f.remove(old.ID())
	back := startNode(t, old.config)
	expectRemoved(t, back)
	if err := back.Close(); err != nil {
		t.Error(err)
	}
	join := f.joiningConfig(old.ID())
	join.Dir, join.Listen = old.config.Dir, old.config.Listen
	if back, err := Start(testContext(t), join); err == nil {
		t.Cleanup(func() { _ = back.Close() })
		expectRemoved(t, back)
	} else if !errors.Is(err, ErrRemoved) { // it has learned of its removal meanwhile
		t.Errorf("it wants to join: %v", err)
	}
	if got, err := Call(testContext(t), leader.Client(), doubled, "d", 21); err != nil || got != 42 {
		t.Errorf("the others: %d, %v", got, err)
	}
}

func TestMembership_FindsMovedMember(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	leader := f.leader()
	var moving *Node
	for _, node := range f.all() {
		if node != leader {
			moving = node
		}
	}
	f.close(moving)
	config := moving.config
	config.Listen, config.Advertise, config.journalLogger = loopbackAddress(t), "", nil
	config.Advertise = config.Listen
	moved := f.start(config)
	eventually(t, "its new address is known", func() bool {
		members, err := leader.Members(testContext(t))
		return err == nil && slices.ContainsFunc(members, func(m Member) bool {
			return m.NodeID == moved.ID() && m.Address == config.Listen && m.BehindKnown && m.Behind == 0
		})
	})
	if _, err := Call(testContext(t), moved.Client(), doubled, "d", 1); err != nil {
		t.Error(err)
	}
	expectSameHistories(t, f.all())
}

func TestMembers_ShowWhoAnswersLeader(t *testing.T) {
	t.Parallel()
	f := newTestCluster(t, 3)
	leader := f.leader()
	client := dialNodes(t, DialConfig{}, f.all()...)
	is := func(node *Node, of Liveness) func() bool {
		return func() bool {
			members, err := client.Members(testContext(t))
			i := slices.IndexFunc(members, func(m Member) bool { return m.NodeID == node.ID() })
			if err != nil || i < 0 {
				return false
			}
			leadsAll := members[i].Leader && (testPartitionsDefault == 1 || len(members[i].LeadsPartitions) == testPartitionsDefault)
			return members[i].Liveness == of && (members[i].LastContact == 0) == (leadsAll || of == MemberUnknown)
		}
	}
	for _, node := range f.all() {
		eventually(t, node.ID()+" is alive", is(node, MemberAlive))
	}
	left := 3
	for _, node := range f.all() {
		if node == leader {
			continue
		}
		f.close(node)
		if left--; left == 2 {
			eventually(t, node.ID()+" is silent", is(node, MemberUnreachable))
		}
	}
	for name, asked := range map[string]func(context.Context) ([]Member, error){"remote": client.Members, "in process": leader.Members} {
		eventually(t, "there is no leader, "+name, func() bool {
			members, err := asked(testContext(t))
			return err == nil && len(members) == 3 && !slices.ContainsFunc(members, func(m Member) bool { return m.Leader || m.Liveness != MemberUnknown })
		})
	}
}

func TestMembership_RejectsInvalidMembers(t *testing.T) {
	ctx := testContext(t)
	f := newTestCluster(t, 1)
	node := f.leader()
	if err := node.RemoveNode(ctx, "n1"); !errors.Is(err, ErrLastVoter) {
		t.Errorf("the only node removed: %v", err)
	}
	if err := node.RemoveNode(ctx, "n2"); !errors.Is(err, ErrNotMember) {
		t.Errorf("removed an unknown node: %v", err)
	}
	var input *replay.InvalidError
	if err := node.RemoveNode(ctx, ""); !errors.As(err, &input) {
		t.Errorf("no name: %v", err)
	}
	taken := f.joiningConfig("n2")
	taken.Advertise = node.config.Listen
	if _, err := Start(ctx, taken); !errors.Is(err, ErrAddressTaken) {
		t.Errorf("joining under the address of another: %v", err)
	}
}

// A single node grows into a cluster, whether or not its first node has named itself in Peers or
// had a Listen address when it was founded. Later Peers are ignored.
func TestMembership_GrowsFromOneNode(t *testing.T) {
	alone := Config{NodeID: "alone", Dir: t.TempDir(), Definitions: definitions()}
	ctx, first := testContext(t), startNode(t, alone)
	if _, err := Call(ctx, first.Client(), doubled, "before", 1); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	alone.Listen = loopbackAddress(t)
	first = startNode(t, alone)
	join := Config{NodeID: "guest", Listen: loopbackAddress(t), Dir: t.TempDir(), Join: []string{alone.Listen}, Definitions: definitions(), CallTimeout: testTimeout}
	joiner := startNode(t, join)
	for _, g := range joiner.partitions {
		eventually(t, "it has a vote", func() bool { return g.journal.Status().Voter })
	}
	expectSameHistories(t, []*Node{first, joiner})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	alone.Peers = []Peer{{NodeID: "alone", Address: alone.Listen}}
	first = startNode(t, alone)
	if got, err := Call(ctx, first.Client(), doubled, "after", 1); err != nil || got != 2 {
		t.Errorf("after a start with Peers: %d, %v", got, err)
	}
	expectSameHistories(t, []*Node{first, joiner})
}

// A node configured for another cluster is rejected before anything is recorded. One that does not
// send its cluster, as before protocol 3, is not rejected for that.
func TestMembership_RejectsNodeOfOtherCluster(t *testing.T) {
	ctx, f := testContext(t), newTestCluster(t, 1)
	leader := f.leader()
	onDisk, inMemory := f.joiningConfig("n2"), f.joiningConfig("n2")
	inMemory.Dir, inMemory.InMemory = "", true
	for _, config := range []Config{onDisk, inMemory} {
		config.ClusterID = "other"
		node, err := Start(ctx, config)
		if err == nil {
			_ = node.Close()
		}
		if !errors.Is(err, ErrOtherCluster) || !strings.Contains(err.Error(), `"other"`) || !strings.Contains(err.Error(), `"tenuto"`) {
			t.Errorf("InMemory %v: %v; want ErrOtherCluster with the names of both", config.InMemory, err)
		}
	}
	if journal.HasOwner(onDisk.Dir) {
		t.Error("the directory of the rejected node was stamped")
	}
	f.awaitVoters("n1")
	withoutCluster := &clusterpb.JoinRequest{Node: "n2", Address: onDisk.Listen, Partitions: uint32(testPartitionsDefault), CheckPartitionsOnly: true}
	request := &clusterpb.Request{Protocol: leader.config.protocol, Call: &clusterpb.Request_Join{Join: withoutCluster}}
	if failure := leader.dispatcher.serve(ctx, request).GetFailure(); failure != nil {
		t.Errorf("a node that does not say its cluster: %v", failure)
	}
}

// A node without a leader logs that at once, and then ever less often.
func TestAnnounceFailures_LoggedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logRecorder)
		failures := announceFailures{logger: log.logger()}
		lines := func() int { return log.countLines("cannot announce this node") }
		failFor := func(d time.Duration) {
			for start := time.Now(); time.Since(start) < d; time.Sleep(announceInterval) {
				failures.add(announceFailed, errTest)
			}
		}
		failFor(announceInterval)
		if n := lines(); n != 1 {
			t.Errorf("%d lines after the first failure; want 1", n)
		}
		failFor(time.Hour) // lines after 1 s, 3 s, 7 s, 15 s, 31 s and 63 s, then every minute
		if n := lines(); n < 60 || n > 67 {
			t.Errorf("%d lines in an hour; want about one a minute", n)
		}
		before := lines()
		failures.end()
		failures.add(announceFailed, errTest)
		if n := lines(); n != before+1 {
			t.Errorf("%d lines, then %d; want that the next time without a leader is logged at once", before, n)
		}
	})
}
