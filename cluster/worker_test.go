package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors/session"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// Orchestrations whose activities return where they ran.
var (
	workerActivity      = replay.Activity[string, string]("job")
	workerOrchestration = replay.Orchestration[string, string]("job on")
	manyActivities      = replay.Orchestration[int, []string]("many jobs")
)

// An attemptRecorder provides the activities of all nodes of a test, and blocks them until they are
// released.
type attemptRecorder struct {
	mu          sync.Mutex
	countByNode map[string]int // by node
	attempts    []string       // idempotency keys and numbers
	release     chan struct{}
}

func newAttemptRecorder() *attemptRecorder {
	return &attemptRecorder{countByNode: make(map[string]int), release: make(chan struct{})}
}

func (a *attemptRecorder) definitions(node string) []replay.Definition {
	return workerDefinitions(func(ctx context.Context) (string, error) { return a.run(ctx, node) })
}

// run is the body of the activity on a node.
func (a *attemptRecorder) run(ctx context.Context, node string) (string, error) {
	info := replay.ActivityInfo(ctx)
	a.mu.Lock()
	a.countByNode[node]++
	a.attempts = append(a.attempts, fmt.Sprintf("%s %d", info.IdempotencyKey(), info.Number))
	a.mu.Unlock()
	select {
	case <-a.release:
		return node, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// workerDefinitions binds the activity, and the orchestrations that call it.
func workerDefinitions(body func(context.Context) (string, error)) []replay.Definition {
	return []replay.Definition{
		workerActivity.Bind(func(ctx context.Context, _ string) (string, error) { return body(ctx) }),
		workerOrchestration.Bind(func(ctx *replay.Context, tag string) (string, error) {
			return workerActivity.Call(ctx, "", replay.Tag(tag))
		}),
		manyActivities.Bind(func(ctx *replay.Context, n int) ([]string, error) {
			var futures []*replay.Future[string]
			for range n {
				futures = append(futures, workerActivity.Start(ctx, ""))
			}
			return replay.All(ctx, futures...)
		}),
	}
}

func (a *attemptRecorder) countOn(node string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.countByNode[node]
}

func (a *attemptRecorder) total() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.attempts)
}

// startWorkers starts a cluster whose nodes serve their own IDs as tags. It has one partition,
// because several would share the few slots.
func startWorkers(t *testing.T, n, activitiesMax int, w *attemptRecorder) []*Node {
	t.Helper()
	peers := loopbackPeers(t, n)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, w.definitions(peer.NodeID)...)
		config.Partitions, config.ActivitiesMax, config.Tags = 1, activitiesMax, []string{peer.NodeID}
		nodes = append(nodes, startNode(t, config))
	}
	return nodes
}

func nodesExcept(nodes []*Node, one *Node) []*Node {
	var others []*Node
	for _, node := range nodes {
		if node != one {
			others = append(others, node)
		}
	}
	return others
}

func TestWorkers_RunActivitiesWhenLeaderIsFull(t *testing.T) {
	t.Parallel()
	w := newAttemptRecorder()
	nodes := startWorkers(t, 3, 2, w)
	ctx := testContext(t)
	run, err := StartRun(ctx, nodes[0].Client(), manyActivities, "m", 6)
	if err != nil {
		t.Fatal(err)
	}
	// Attempts may begin again when the leader changes.
	eventually(t, "two run on each node", func() bool { return w.countOn("n1") >= 2 && w.countOn("n2") >= 2 && w.countOn("n3") >= 2 })
	close(w.release)
	if where, err := run.Wait(ctx); err != nil || len(where) != 6 {
		t.Errorf("ran on %v, %v", where, err)
	}
}

func TestWorkers_TakeOverFromStoppedNode(t *testing.T) {
	checkGoroutineLeaks(t)
	w := newAttemptRecorder()
	nodes := startWorkers(t, 3, 2, w)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	others := nodesExcept(nodes, leader)
	run, err := StartRun(ctx, leader.Client(), manyActivities, "m", 6)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.total() >= 6 })
	if err := others[0].Close(); err != nil {
		t.Fatal(err)
	}
	close(w.release)
	where, err := run.Wait(ctx)
	if err != nil || len(where) != 6 {
		t.Fatalf("ran on %v, %v", where, err)
	}
	for _, node := range where {
		if node == others[0].ID() {
			t.Errorf("a result of the node that was stopped: %v", where)
		}
	}
	expectSameHistories(t, []*Node{leader, others[1]})
	checkCompletedOnce(t, leader.Client(), "m", 6)
}

// A stopping node explicitly returns the attempts that it runs for the leader.
func TestWorker_DrainsWhenStopping(t *testing.T) {
	checkGoroutineLeaks(t)
	w := newAttemptRecorder()
	peers := loopbackPeers(t, 3)
	logs := new(logRecorder)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, w.definitions(peer.NodeID)...)
		config.Partitions, config.ActivitiesMax, config.Tags, config.Logger = 1, 2, []string{peer.NodeID, "any"}, logs.logger()
		nodes = append(nodes, startNode(t, config))
	}
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	worker := nodesExcept(nodes, leader)[0]
	run, err := StartRun(ctx, leader.Client(), manyActivities, "m", 6)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.total() >= 6 })
	if err := worker.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leader has noticed", func() bool {
		// On a slow machine the worker may be lost before it drains.
		return logs.countLines("worker drained")+logs.countLines("worker lost") > 0 || !leader.IsLeader()
	})
	close(w.release)
	if where, err := run.Wait(ctx); err != nil || len(where) != 6 {
		t.Errorf("ran on %v, %v", where, err)
	}
}

// The worker may become the leader or work for it: either way the attempt continues, and is not
// started twice.
func TestWorker_AttemptSurvivesLeaderLoss(t *testing.T) {
	t.Parallel()
	w := newAttemptRecorder()
	nodes := startWorkers(t, 3, 2, w)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	others := nodesExcept(nodes, leader)
	worker := others[0]
	run, err := StartRun(ctx, worker.Client(), workerOrchestration, "j", worker.ID())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return w.countOn(worker.ID()) == 1 })
	if err := leader.Close(); err != nil {
		t.Fatal(err)
	}
	next := leaderOf(t, others)
	eventually(t, "the next leader knows that it runs", func() bool {
		operations, err := next.Client().Pending(ctx, "j")
		return err == nil && len(operations) == 1 && operations[0].State == ActivityRunning
	})
	close(w.release)
	if where, err := run.Wait(ctx); err != nil || where != worker.ID() {
		t.Errorf("ran on %v, %v", where, err)
	}
	if w.total() != 1 {
		t.Errorf("runs: %v", w.attempts)
	}
}

func TestWorkers_SkipNodeWithoutCode(t *testing.T) {
	checkGoroutineLeaks(t)
	w := newAttemptRecorder()
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	for i, peer := range peers {
		definitions := w.definitions(peer.NodeID)
		if i != 2 {
			definitions = definitions[1:] // all but the activity
		}
		nodes = append(nodes, startNode(t, peerConfig(t, peers, i, definitions...)))
	}
	close(w.release)
	ctx := testContext(t)
	for i := range 3 {
		where, err := Call(ctx, nodes[0].Client(), manyActivities, fmt.Sprintf("m%d", i), 5)
		if err != nil || len(where) != 5 || w.countOn("n3") < 5*(i+1) { // attempts may begin again
			t.Fatalf("ran on %v, %v", where, err)
		}
	}
}

func TestWorker_HeartbeatsAndTokensReachLeader(t *testing.T) {
	checkGoroutineLeaks(t)
	tokens := make(chan string, 3)
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, workerActivity.Bind(func(ctx context.Context, _ string) (string, error) {
			if err := replay.Heartbeat(ctx, "half way"); err != nil {
				return "", err
			}
			tokens <- replay.ActivityInfo(ctx).Token()
			return "", replay.ErrResultPending
		}), workerOrchestration.Bind(func(ctx *replay.Context, tag string) (string, error) {
			return workerActivity.Call(ctx, "", replay.Tag(tag), replay.HeartbeatTimeout(time.Minute))
		}))
		config.Tags = []string{peer.NodeID}
		nodes = append(nodes, startNode(t, config))
	}
	ctx := testContext(t)
	client := nodes[0].Client()
	var runs []*Run[string]
	for _, peer := range peers {
		run, err := StartRun(ctx, client, workerOrchestration, "on-"+peer.NodeID, peer.NodeID)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	for range peers {
		if err := CompleteActivity(ctx, client, <-tokens, "by hand"); err != nil {
			t.Error(err)
		}
	}
	for _, run := range runs {
		if text, err := run.Wait(ctx); err != nil || text != "by hand" {
			t.Errorf("%s: %q, %v", run.ID, text, err)
		}
	}
}

// The first attempt on each node, whether it leads or not, sends to another instance.
func TestClientFrom_CallsFromActivitiesOnEveryNode(t *testing.T) {
	checkGoroutineLeaks(t)
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, workerActivity.Bind(func(ctx context.Context, to string) (string, error) {
			client, ok := ClientFrom(ctx)
			if !ok {
				return "", errTest
			}
			return peer.NodeID, Send(ctx, client, to, canaryEvent, peer.NodeID, RequestID(replay.ActivityInfo(ctx).IdempotencyKey()))
		}), workerOrchestration.Bind(func(ctx *replay.Context, tag string) (string, error) {
			return workerActivity.Call(ctx, "to-"+tag, replay.Tag(tag))
		}), canaryOrchestration.Bind(func(ctx *replay.Context, _ string) (string, error) { return canaryEvent.Wait(ctx) }))
		config.Tags = []string{peer.NodeID}
		nodes = append(nodes, startNode(t, config))
	}
	ctx := testContext(t)
	client := nodes[0].Client()
	for _, peer := range peers {
		received, err := StartRun(ctx, client, canaryOrchestration, "to-"+peer.NodeID, "")
		if err != nil {
			t.Fatal(err)
		}
		if node, err := Call(ctx, client, workerOrchestration, "on-"+peer.NodeID, peer.NodeID); err != nil || node != peer.NodeID {
			t.Errorf("ran on %s, %v", node, err)
		}
		if from, err := received.Wait(ctx); err != nil || from != peer.NodeID {
			t.Errorf("received from %s, %v", from, err)
		}
	}
	if _, ok := ClientFrom(ctx); ok {
		t.Error("a client outside of an activity")
	}
}

// An activity that waits for a call of its node when the node stops has not failed: another node
// begins it again, also if it may have only one attempt.
func TestClientFrom_StopOfNodeUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	peers := loopbackPeers(t, 3)
	begun := make(chan string, 10)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, workerActivity.Bind(func(ctx context.Context, id string) (string, error) {
			client, _ := ClientFrom(ctx)
			begun <- peer.NodeID
			status, err := client.Wait(context.WithoutCancel(ctx), id)
			if err != nil {
				return "", err
			}
			return string(status.State), nil
		}), workerOrchestration.Bind(func(ctx *replay.Context, id string) (string, error) {
			return workerActivity.Call(ctx, id, replay.Retry(replay.RetryPolicy{MaxAttempts: 1}))
		}), canaryOrchestration.Bind(func(ctx *replay.Context, _ string) (string, error) { return canaryEvent.Wait(ctx) }))
		config.Partitions = 2
		nodes = append(nodes, startNode(t, config))
	}
	ctx := testContext(t)
	node := func(id string) *Node {
		return nodes[slices.IndexFunc(nodes, func(n *Node) bool { return n.ID() == id })]
	}
	if _, err := StartRun(ctx, nodes[0].Client(), canaryOrchestration, "awaited", ""); err != nil {
		t.Fatal(err)
	}
	run, err := StartRun(ctx, nodes[0].Client(), workerOrchestration, "waits", "awaited")
	if err != nil {
		t.Fatal(err)
	}
	first := <-begun
	others := nodesExcept(nodes, node(first))
	if err := node(first).Close(); err != nil {
		t.Fatal(err)
	}
	client := others[0].Client()
	if second := <-begun; second == first {
		t.Errorf("begun again on %s", second)
	}
	if err := Send(ctx, client, "awaited", canaryEvent, "now"); err != nil {
		t.Fatal(err)
	}
	if status, err := client.Wait(ctx, run.ID); err != nil || status.State != Completed {
		t.Errorf("%+v, %v", status, err)
	}
}

func TestCheckFromWorker_RejectsIncompleteAttemptIDs(t *testing.T) {
	ref := &journalpb.OperationRef{Instance: "i", Execution: 1, EventId: 2}
	whole := &clusterpb.AttemptID{Ref: ref, Number: 1}
	for name, id := range map[string]*clusterpb.AttemptID{
		"none": nil, "empty": {}, "no operation": {Number: 1}, "no number": {Ref: ref}, "": whole,
	} {
		for kind, m := range map[string]*clusterpb.FromWorker{
			"running":        session.Running(id, "a", 0),
			"heartbeat":      session.Heartbeat(id, nil),
			"result":         {Message: &clusterpb.FromWorker_Result{Result: &clusterpb.AttemptResult{Attempt: id}}},
			"stop assigning": session.StopAssigning(whole, id),
		} {
			if err := checkFromWorker(m, Principal{PrincipalNode, "n1"}); (err == nil) != (id == whole) {
				t.Errorf("%s with the attempt ID %q: %v", kind, name, err)
			}
		}
	}
}
