package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// The second version of song is bound by some nodes only; concert starts one as a child.
var (
	versionedOrchestration = replay.Orchestration[string, string]("song")
	pinnedVersionParent    = replay.Orchestration[string, string]("concert")
)

// codeWithVersions returns the code of a node that has song in these versions.
func codeWithVersions(versions ...string) []replay.Definition {
	all := append(definitions(), pinnedVersionParent.Bind(func(ctx *replay.Context, id string) (string, error) {
		return versionedOrchestration.Call(ctx, "la", replay.Version("2"), replay.ChildID(id))
	}))
	for _, version := range versions {
		all = append(all, versionedOrchestration.Bind(func(ctx *replay.Context, text string) (string, error) {
			if text == "la" {
				return text + " by version " + ctx.Version(), nil
			}
			got, err := word.Wait(ctx)
			return got + " by version " + ctx.Version(), err
		}, replay.Version(version)))
	}
	return all
}

// startWithCode starts nodes n1, n2 and so on with different code.
func startWithCode(t *testing.T, partitions int, maintenanceInterval time.Duration, code ...[]replay.Definition) *testCluster {
	t.Helper()
	f := &testCluster{t: t, nodes: make(map[string]*Node)}
	peers := loopbackPeers(t, len(code))
	for i := range peers {
		config := peerConfig(t, peers, i, code[i]...)
		config.Partitions, config.maintenanceInterval = partitions, maintenanceInterval
		config.harness.HeartbeatTimeout = time.Second // only the balancer may move leaders, on few processors either
		f.start(config)
	}
	return f
}

// awaitWorkers waits until a node leads all partitions and has the others as workers of each.
func (c *testCluster) awaitWorkers(leader string) {
	c.t.Helper()
	for i, g := range c.nodes[leader].partitions {
		c.makeLeader(i, leader)
		eventually(c.t, "the others are registered as workers of the leader", func() bool {
			for id := range c.nodes {
				if id != leader && g.worker(id) == nil {
					return false
				}
			}
			return true
		})
	}
}

// awaitWaitingForCode waits until the leader of a partition has instances that wait for code.
func awaitWaitingForCode(t *testing.T, g *partition, want int) {
	t.Helper()
	eventually(t, "instances wait for code", func() bool {
		p := g.actorPartition.Load()
		return p != nil && p.WaitingForCode()[session.Code{Name: "song", Version: "2"}] == want
	})
}

// Two followers have the second version: n2 lacks other code of the leader, n3 has all of it. A
// child of that version is started under n1. Another instance was started under n3, and gets its
// event under n1.
func TestBalancer_MovesLeaderToNodeWithCode(t *testing.T) {
	f := startWithCode(t, 1, time.Hour, codeWithVersions("1"), codeWithVersions("2"), codeWithVersions("1", "2"))
	ctx := testContext(t)
	f.makeLeader(0, "n3")
	if _, err := StartRun(ctx, f.nodes["n3"].Client(), versionedOrchestration, "begun", "waits"); err != nil {
		t.Fatal(err)
	}
	f.awaitWorkers("n1")
	first := f.nodes["n1"].partitions[0]
	epoch := first.journal.Epoch()
	if _, err := StartRun(ctx, first.node.Client(), pinnedVersionParent, "parent", "child"); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- Send(ctx, first.node.Client(), "begun", word, "done") }()
	awaitWaitingForCode(t, first, 2)
	for _, id := range []string{"child", "begun"} {
		eventually(t, id+" is recorded as waiting for code", func() bool {
			status, err := first.node.Client().Get(ctx, id)
			return err == nil && status.State == WaitingForCode
		})
	}
	if n, err := first.node.Client().Count(ctx, Filter{States: []State{WaitingForCode}}); n != 2 || err != nil {
		t.Errorf("%d are listed, %v", n, err)
	}
	if !newLeaderBalancer(first.node).moveToWaitingCode(ctx) {
		t.Error("nothing was handed over")
	}
	expectOutput(t, first.node.Client(), "parent", "la by version 2")
	expectOutput(t, first.node.Client(), "begun", "done by version 2")
	if err := <-sent; err != nil {
		t.Error(err)
	}
	// An election under load may follow, by which any node leads in a later epoch.
	if now := f.nodes["n3"].partitions[0]; !now.isLeader() && now.journal.Epoch() <= epoch+1 {
		t.Errorf("%s leads, in epoch %d after %d; want n3 in the next", now.leader(), now.journal.Epoch(), epoch)
	}
}

// The only node with the awaited code lacks other code of the leader.
func TestBalancer_KeepsLeaderWithoutFullerCode(t *testing.T) {
	f := startWithCode(t, 1, time.Hour, codeWithVersions("1"), codeWithVersions("2"), codeWithVersions("1"))
	ctx := testContext(t)
	f.awaitWorkers("n1")
	first := f.nodes["n1"].partitions[0]
	if _, err := StartRun(ctx, first.node.Client(), pinnedVersionParent, "parent", "child"); err != nil {
		t.Fatal(err)
	}
	awaitWaitingForCode(t, first, 1)
	if newLeaderBalancer(first.node).moveToWaitingCode(ctx) || !first.isLeader() {
		t.Error("the partition was handed over")
	}
	if err := first.node.Client().Terminate(ctx, "child", "never mind"); err != nil {
		t.Fatal(err)
	}
	awaitWaitingForCode(t, first, 0)
}

// Of several partitions, only the one with a waiting instance moves to the node with more code.
// That node does not hand the partitions that it leads, even all of them, to nodes with less.
func TestBalancer_SkipsNodesThatLackCode(t *testing.T) {
	f := startWithCode(t, testPartitions, time.Hour, codeWithVersions("1"), codeWithVersions("1"), codeWithVersions("1", "2"))
	ctx := testContext(t)
	f.awaitWorkers("n1")
	const waits = 2
	less, more := f.nodes["n1"], f.nodes["n3"]
	if _, err := StartRun(ctx, less.Client(), pinnedVersionParent, "parent", idInPartition("child", waits)); err != nil {
		t.Fatal(err)
	}
	awaitWaitingForCode(t, less.partitions[waits], 1)
	if !newLeaderBalancer(less).moveToWaitingCode(ctx) {
		t.Error("nothing was handed over")
	}
	expectOutput(t, less.Client(), "parent", "la by version 2")
	for i := range testPartitions {
		want := map[bool]string{true: "n3", false: "n1"}[i == waits]
		eventually(t, fmt.Sprintf("partition %d is led by %s", i, want), func() bool { return f.anyNode().partitions[i].leader() == want })
	}

	f.awaitWorkers("n3")
	const rounds = 15 // five times as many as a move requires
	b := newLeaderBalancer(more)
	for range rounds {
		b.rebalance(ctx)
	}
	if len(more.ledPartitions()) != testPartitions {
		t.Errorf("n3 leads %d of %d partitions", len(more.ledPartitions()), testPartitions)
	}

	f.awaitWorkers("n1")
	b = newLeaderBalancer(less)
	for range rounds {
		b.rebalance(ctx)
	}
	if len(less.ledPartitions()) == testPartitions {
		t.Error("n1 handed nothing to nodes that have its code")
	}
}

// The balancer loop of the nodes does it without help.
func TestBalancer_ResumesInstancesWaitingForCode(t *testing.T) {
	f := startWithCode(t, testPartitions, 20*time.Millisecond, codeWithVersions("1"), codeWithVersions("1"), codeWithVersions("1", "2"))
	ctx := testContext(t)
	for i := range testPartitions {
		got, err := Call(ctx, f.nodes["n1"].Client(), pinnedVersionParent, idInPartition("parent", i), idInPartition("child", i))
		if err != nil || got != "la by version 2" {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// A node reports its code, unless that is too long; a node of the previous build does not.
func TestWorkerRegistration_CarriesCode(t *testing.T) {
	song := versionedOrchestration.Bind(waiterBody, replay.Version("2"))
	register := func(config Config) *clusterpb.RegisterWorker {
		return (&workerLoop{partition: &partition{node: &Node{config: config}}}).registration()
	}
	local := Principal{Kind: PrincipalLocal}
	small := Config{NodeID: "a", Definitions: []replay.Definition{song}}
	registration := register(small)
	if err := checkRegistration(registration, local); err != nil || !small.isCoveredBy(registration) {
		t.Errorf("%v, %v", registration, err)
	}
	if !slices.ContainsFunc(registration.Orchestrations, func(c *clusterpb.OrchestrationCode) bool { return c.Name == "tenuto.schedule" }) ||
		!slices.Contains(registration.Activities, "tenuto.schedule.stop") {
		t.Errorf("the code of schedules is not registered: %v", registration)
	}
	earlier := &clusterpb.RegisterWorker{Orchestrations: small.orchestrationCode(), Activities: small.activityNames(), Code: clusterpb.CodeList_CODE_LIST_COMPLETE}
	if !small.isCoveredBy(earlier) {
		t.Error("a node of an earlier build, without schedules, does not cover the code of the application")
	}
	before := &clusterpb.RegisterWorker{Node: "a"}
	if err := checkRegistration(before, local); err != nil || small.isCoveredBy(before) {
		t.Errorf("the registration of the previous build: %v", err)
	}

	large := Config{NodeID: "a"}
	for i := range 2000 {
		large.Definitions = append(large.Definitions, versionedOrchestration.Bind(waiterBody, replay.Version(fmt.Sprintf("%0128d", i))))
	}
	registration = register(large)
	if registration.Code != clusterpb.CodeList_CODE_LIST_TRUNCATED || len(registration.Orchestrations) > 0 {
		t.Errorf("%v with %d", registration.Code, len(registration.Orchestrations))
	}
	registration.Orchestrations, registration.Code = large.orchestrationCode(), clusterpb.CodeList_CODE_LIST_COMPLETE
	var rejected *replay.InvalidError
	if err := checkRegistration(registration, local); !errors.As(err, &rejected) || rejected.Field != "orchestrations" {
		t.Errorf("too many rejected with %v", err)
	}
	if large.isCoveredBy(&clusterpb.RegisterWorker{Orchestrations: large.orchestrationCode()}) {
		t.Error("a node with an incomplete code report counts as having all code")
	}
}

// newestVersionParent starts the newest version of song, as a child and as a chained instance.
var newestVersionParent = replay.Orchestration[string, string]("festival")

func withNewestVersionParent(code []replay.Definition) []replay.Definition {
	return append(code, newestVersionParent.Bind(func(ctx *replay.Context, id string) (string, error) {
		if strings.HasPrefix(id, "chained") {
			return "", versionedOrchestration.Chain(ctx, "la", replay.ChildID(id))
		}
		return versionedOrchestration.Call(ctx, "la", replay.ChildID(id))
	}))
}

// The leader has no code of the orchestration, so it does not know the newest version.
func TestStart_UsesNewestVersionOfNodeWithCode(t *testing.T) {
	f := startWithCode(t, testPartitions, 20*time.Millisecond, withNewestVersionParent(codeWithVersions()), withNewestVersionParent(codeWithVersions()), withNewestVersionParent(codeWithVersions("1", "2")))
	for _, g := range f.nodes["n1"].partitions {
		eventually(t, "the newest protocol", func() bool { return g.journal.Protocol() == protocolVersion })
	}
	ctx := testContext(t)
	client := f.nodes["n1"].Client()
	for i := range testPartitions {
		for _, id := range []string{idInPartition("child", i), idInPartition("chained", i)} {
			if _, err := Call(ctx, client, newestVersionParent, idInPartition("parent-of-"+id, i), id); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			eventually(t, id+" is started", func() bool { return errOf(client.Get(ctx, id)) == nil })
			expectOutput(t, client, id, "la by version 2")
		}
	}
}
