package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/replay"
)

// Orchestrations whose activities say where they have run.
var (
	job      = replay.Activity[string, string]("job")
	jobOn    = replay.Orchestration[string, string]("job on")
	manyJobs = replay.Orchestration[int, []string]("many jobs")
)

// A workshop is the activities of all nodes of a test: it holds them until they
// are let go.
type workshop struct {
	mu      sync.Mutex
	ran     map[string]int // by node
	runs    []string       // idempotency keys and numbers
	release chan struct{}
}

func newWorkshop() *workshop {
	return &workshop{ran: make(map[string]int), release: make(chan struct{})}
}

func (w *workshop) on(node string) []replay.Definition {
	return []replay.Definition{
		job.Bind(func(ctx context.Context, _ string) (string, error) {
			info := replay.ActivityInfo(ctx)
			w.mu.Lock()
			w.ran[node]++
			w.runs = append(w.runs, fmt.Sprintf("%s %d", info.IdempotencyKey(), info.Number))
			w.mu.Unlock()
			select {
			case <-w.release:
				return node, nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}),
		jobOn.Bind(func(ctx *replay.Context, tag string) (string, error) {
			return job.Call(ctx, "", replay.Tag(tag))
		}),
		manyJobs.Bind(func(ctx *replay.Context, n int) ([]string, error) {
			var futures []*replay.Future[string]
			for range n {
				futures = append(futures, job.Start(ctx, ""))
			}
			return replay.All(ctx, futures...)
		}),
	}
}

func (w *workshop) count(node string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ran[node]
}

func (w *workshop) total() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs)
}

// startWorkers starts a cluster whose nodes serve their own names as tags. It has one
// group: several would share the few places.
func startWorkers(t *testing.T, n, activitiesMax int, w *workshop) []*Node {
	t.Helper()
	peers := loopbackPeers(t, n)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, w.on(peer.NodeID)...)
		config.Groups, config.ActivitiesMax, config.Tags = 1, activitiesMax, []string{peer.NodeID}
		nodes = append(nodes, startNode(t, config))
	}
	return nodes
}

func othersThan(nodes []*Node, one *Node) []*Node {
	var others []*Node
	for _, node := range nodes {
		if node != one {
			others = append(others, node)
		}
	}
	return others
}

func TestActivitiesRunOnEveryNodeWhenTheLeaderIsFull(t *testing.T) {
	noGoroutinesLeft(t)
	w := newWorkshop()
	nodes := startWorkers(t, 3, 2, w)
	ctx := testContext(t)
	run, err := StartRun(ctx, nodes[0].Client(), manyJobs, "m", 6)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "two run on each node", func() bool { return w.count("n1") == 2 && w.count("n2") == 2 && w.count("n3") == 2 })
	close(w.release)
	if where, err := run.Wait(ctx); err != nil || len(where) != 6 {
		t.Errorf("ran on %v, %v", where, err)
	}
}

func TestActivitiesOfANodeThatStopsAreDoneByOthers(t *testing.T) {
	noGoroutinesLeft(t)
	w := newWorkshop()
	nodes := startWorkers(t, 3, 2, w)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	others := othersThan(nodes, leader)
	run, err := StartRun(ctx, leader.Client(), manyJobs, "m", 6)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.total() == 6 })
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
	sameHistories(t, []*Node{leader, others[1]})
	history, err := leader.Client().History(ctx, "m")
	if err != nil {
		t.Fatal(err)
	}
	completed := make(map[uint64]int)
	for _, event := range history.Events {
		if done := event.GetActivityCompleted(); done != nil {
			completed[event.SourceEventId]++
			if done.Attempts != 1 {
				t.Errorf("event %d: %d attempts, and none has failed", event.EventId, done.Attempts)
			}
		}
	}
	if len(completed) != 6 {
		t.Errorf("completions: %v", completed)
	}
}

// What a node that stops has begun for the leader is handed back in so many words.
func TestAWorkerThatStopsSaysGoodbye(t *testing.T) {
	noGoroutinesLeft(t)
	w := newWorkshop()
	peers := loopbackPeers(t, 3)
	logs := new(logbook)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, w.on(peer.NodeID)...)
		config.Groups, config.ActivitiesMax, config.Tags, config.Logger = 1, 2, []string{peer.NodeID, "any"}, slog.New(slog.NewTextHandler(logs, nil))
		nodes = append(nodes, startNode(t, config))
	}
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	worker := othersThan(nodes, leader)[0]
	run, err := StartRun(ctx, leader.Client(), manyJobs, "m", 6)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.total() == 6 })
	if err := worker.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the leader has noticed", func() bool {
		// On a machine that is too slow for a goodbye it is lost instead.
		return logs.lines("worker stops")+logs.lines("worker lost") > 0 || !leader.Leading()
	})
	close(w.release)
	if where, err := run.Wait(ctx); err != nil || len(where) != 6 {
		t.Errorf("ran on %v, %v", where, err)
	}
}

func TestGoodbyeCrossesTheWire(t *testing.T) {
	m, err := fromWorker(wireFromWorker(actors.FromWorker{Goodbye: true}), Principal{Role: RoleLocal})
	if err != nil || !m.Goodbye {
		t.Errorf("became %+v, %v", m, err)
	}
}

// The worker may be the next leader, or work for it: the attempt goes on in either
// case, and is not begun twice.
func TestActivityOnAWorkerOutlivesItsLeader(t *testing.T) {
	noGoroutinesLeft(t)
	w := newWorkshop()
	nodes := startWorkers(t, 3, 2, w)
	ctx := testContext(t)
	leader := leaderOf(t, nodes)
	others := othersThan(nodes, leader)
	worker := others[0]
	run, err := StartRun(ctx, worker.Client(), jobOn, "j", worker.ID())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return w.count(worker.ID()) == 1 })
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
		t.Errorf("runs: %v", w.runs)
	}
}

func TestNodeWithoutTheCodeIsLeftOut(t *testing.T) {
	noGoroutinesLeft(t)
	w := newWorkshop()
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	for i, peer := range peers {
		definitions := w.on(peer.NodeID)
		if i != 2 {
			definitions = definitions[1:] // all but the activity
		}
		nodes = append(nodes, startNode(t, peerConfig(t, peers, i, definitions...)))
	}
	close(w.release)
	ctx := testContext(t)
	for i := range 3 {
		where, err := Call(ctx, nodes[0].Client(), manyJobs, fmt.Sprintf("m%d", i), 5)
		if err != nil || len(where) != 5 || w.count("n3") != 5*(i+1) {
			t.Fatalf("ran on %v, %v", where, err)
		}
	}
}

func TestHeartbeatsAndTokensReachTheLeaderFromAWorker(t *testing.T) {
	noGoroutinesLeft(t)
	tokens := make(chan string, 3)
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	for i, peer := range peers {
		config := peerConfig(t, peers, i, job.Bind(func(ctx context.Context, _ string) (string, error) {
			if err := replay.Heartbeat(ctx, "half way"); err != nil {
				return "", err
			}
			tokens <- replay.ActivityInfo(ctx).Token()
			return "", replay.ErrPending
		}), jobOn.Bind(func(ctx *replay.Context, tag string) (string, error) {
			return job.Call(ctx, "", replay.Tag(tag), replay.HeartbeatTimeout(time.Minute))
		}))
		config.Tags = []string{peer.NodeID}
		nodes = append(nodes, startNode(t, config))
	}
	ctx := testContext(t)
	client := nodes[0].Client()
	var runs []*Run[string]
	for _, peer := range peers {
		run, err := StartRun(ctx, client, jobOn, "on-"+peer.NodeID, peer.NodeID)
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
