package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// connectedWorkers returns the workers that are no nodes, as the leaders see them.
func connectedWorkers(t *testing.T, client *Client) []*clusterpb.ConnectedWorker {
	t.Helper()
	response, err := client.call(testContext(t), &clusterpb.Request{Call: &clusterpb.Request_ListWorkers{ListWorkers: new(clusterpb.ListWorkersRequest)}})
	if err != nil {
		t.Fatal(err)
	}
	return response.GetListWorkers().GetWorkers()
}

func awaitWorkers(t *testing.T, client *Client, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d workers are connected", n), func() bool { return len(connectedWorkers(t, client)) == n })
}

// awaitOffers waits until workers have offered their slots to the only partition of a node, which
// leads it. They register before that.
func awaitOffers(t *testing.T, node *Node, workers int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d workers have offered their slots", workers), func() bool {
		serving := node.partitions[0].servingPartition()
		return serving != nil && len(actors.WorkerLoads(serving)) == workers
	})
}

// usesOf returns how many slots are in use, by the name of the worker.
func usesOf(t *testing.T, client *Client) map[string]int {
	uses := make(map[string]int)
	for _, w := range connectedWorkers(t, client) {
		uses[w.Worker[:strings.LastIndex(w.Worker, "-")]] = int(w.Used)
	}
	return uses
}

// A worker is a client, has only the activities, and gets what nodes get: interceptors, headers,
// the client in its context.
func TestRemoteWorker_RunsActivities(t *testing.T) {
	checkGoroutineLeaks(t)
	orchestrations := newAttemptRecorder().definitions("nowhere")[1:]
	node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, Partitions: 2, Definitions: orchestrations})
	var intercepted atomic.Int64
	var worker *Client
	w := newAttemptRecorder()
	close(w.release)
	definitions := append(w.definitions("remote")[1:], workerActivity.Bind(func(ctx context.Context, _ string) (string, error) {
		client, ok := ClientFrom(ctx)
		status, err := client.Get(ctx, replay.ActivityInfo(ctx).Instance)
		return fmt.Sprintf("%v %v %v", ok, status.InstanceID, status.State), err
	}))
	worker = dialNodes(t, DialConfig{
		Definitions: definitions, WorkerName: "remote", Tags: []string{"gpu"}, ActivitiesMax: 3,
		ActivityInterceptors: []replay.ActivityInterceptor{func(ctx context.Context, next func(context.Context) error) error {
			intercepted.Add(1)
			return next(ctx)
		}},
	}, node)
	for _, id := range []string{"a", "b", "c"} { // in both partitions
		got, err := Call(testContext(t), worker, workerOrchestration, id, "gpu")
		if err != nil || got != "true "+id+" running" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if intercepted.Load() != 3 {
		t.Errorf("%d attempts were intercepted, want 3", intercepted.Load())
	}
	all := connectedWorkers(t, node.Client())
	if len(all) != 1 || all[0].Slots != 3 || !strings.HasPrefix(all[0].Worker, "remote-") || all[0].Address == "" ||
		all[0].LastContact < all[0].Since || all[0].Tags[0] != "gpu" || all[0].Activities[0] != workerActivity.Name() {
		t.Errorf("the leaders know %v", all)
	}
}

// Attempts are spread by the share of the slots in use: over the leader and two workers with the
// same certificate and name.
func TestRemoteWorker_SpreadByFreeSlots(t *testing.T) {
	checkGoroutineLeaks(t)
	w := newAttemptRecorder()
	node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, Partitions: 1, ActivitiesMax: 8, Settings: Settings{ActivityPlacement: "spread"}, Definitions: w.definitions("leader")})
	dialNodes(t, DialConfig{Definitions: w.definitions("big"), ActivitiesMax: 32}, node)
	dialNodes(t, DialConfig{Definitions: w.definitions("small"), ActivitiesMax: 8}, node)
	awaitOffers(t, node, 2)
	run, err := StartRun(testContext(t), node.Client(), manyActivities, "m", 24)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.total() == 24 })
	if leader, big, small := w.countOn("leader"), w.countOn("big"), w.countOn("small"); leader != 4 || big != 16 || small != 4 {
		t.Errorf("the leader runs %d, the big worker %d, the small one %d; want 4, 16, 4: half of the slots of each", leader, big, small)
	}
	close(w.release)
	if _, err := run.Wait(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestRemoteWorker_Placement(t *testing.T) {
	for _, c := range []struct {
		placement    string
		exempt       bool
		leader, runs int
	}{
		{"leader first", false, 4, 5}, {"workers first", false, 1, 5}, {"workers first", true, 0, 4}, {"spread", true, 0, 4}, {"", false, 3, 5},
	} {
		t.Run(fmt.Sprintf("%s, exempt %v", c.placement, c.exempt), func(t *testing.T) {
			checkGoroutineLeaks(t)
			w := newAttemptRecorder()
			node := startNode(t, Config{
				InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, Partitions: 1, ActivitiesMax: 4, LeaderExempt: c.exempt,
				Settings: Settings{ActivityPlacement: c.placement}, Definitions: w.definitions("leader"),
			})
			worker := dialNodes(t, DialConfig{Definitions: w.definitions("worker"), ActivitiesMax: 4, DrainTimeout: -1}, node)
			awaitOffers(t, node, 1)
			run, err := StartRun(testContext(t), node.Client(), manyActivities, "m", 5)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "they run", func() bool { return w.total() >= c.runs })
			if on := w.countOn("leader"); on != c.leader {
				t.Errorf("the leader runs %d, want %d", on, c.leader)
			}
			if c.exempt { // what waits begins on the leader when no worker is left
				if err := worker.Close(); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the leader runs them", func() bool { return w.countOn("leader") > 0 })
			}
			close(w.release)
			if _, err := run.Wait(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A worker keeps running an attempt while the leader changes. The next leader gets its result, and
// one completion is recorded for each activity.
func TestRemoteWorker_ResultsReachNextLeader(t *testing.T) {
	t.Parallel()
	nowhere, w := newAttemptRecorder(), newAttemptRecorder()
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	for i := range peers {
		config := peerConfig(t, peers, i, nowhere.definitions("node")[1:]...)
		config.Partitions = 1
		nodes = append(nodes, startNode(t, config))
	}
	client := dialNodes(t, DialConfig{Definitions: w.definitions("worker")}, nodes...)
	run, err := StartRun(testContext(t), client, manyActivities, "m", 8)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.total() >= 8 })
	leader := leaderOf(t, nodes)
	if err := leader.Close(); err != nil {
		t.Fatal(err)
	}
	close(w.release) // perhaps while there is no leader
	if _, err := run.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	checkCompletedOnce(t, nodesExcept(nodes, leader)[0].Client(), "m", 8)
}

// Attempts that DrainTimeout cancels begin at once on another worker, under the same numbers.
func TestRemoteWorker_DrainTimeoutPasses(t *testing.T) {
	checkGoroutineLeaks(t)
	w := newAttemptRecorder()
	node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, Partitions: 1, Definitions: w.definitions("leader")[1:]})
	first := dialNodes(t, DialConfig{Definitions: w.definitions("first"), WorkerName: "first", DrainTimeout: time.Millisecond}, node)
	run, err := StartRun(testContext(t), node.Client(), manyActivities, "m", 4)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.countOn("first") == 4 && usesOf(t, node.Client())["first"] == 4 })
	dialNodes(t, DialConfig{Definitions: w.definitions("second"), WorkerName: "second"}, node)
	awaitWorkers(t, node.Client(), 2)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Get(testContext(t), "m"); !errors.Is(err, ErrClosed) {
		t.Errorf("a call after Close: %v", err)
	}
	eventually(t, "all run on the other", func() bool { return w.countOn("second") == 4 })
	close(w.release)
	where, err := run.Wait(testContext(t))
	if err != nil || strings.Join(where, " ") != "second second second second" {
		t.Errorf("ran on %v, %v", where, err)
	}
}

// A worker that is closed runs what has begun to its end, and gives back at once what waits for a
// slot.
func TestRemoteWorker_DrainsOnClose(t *testing.T) {
	checkGoroutineLeaks(t)
	first, second := newAttemptRecorder(), newAttemptRecorder()
	node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, Partitions: 1, Definitions: first.definitions("leader")[1:]})
	worker := dialNodes(t, DialConfig{
		Definitions: first.definitions("first"), ActivitiesMax: 8, ActivityLimits: map[string]int{workerActivity.Name(): 2}, DrainTimeout: time.Hour,
	}, node)
	run, err := StartRun(testContext(t), node.Client(), manyActivities, "m", 4)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "two run", func() bool { return first.countOn("first") == 2 })
	dialNodes(t, DialConfig{Definitions: second.definitions("second"), ActivityLimits: map[string]int{workerActivity.Name(): 1}}, node)
	eventually(t, "the third runs", func() bool { return second.countOn("second") == 1 })
	closed := make(chan error, 1)
	go func() { closed <- worker.Close() }()
	eventually(t, "one worker drains", func() bool {
		return slices.ContainsFunc(connectedWorkers(t, node.Client()), func(w *clusterpb.ConnectedWorker) bool { return w.Draining })
	})
	close(second.release) // the fourth begins there while the others still run
	eventually(t, "the fourth runs", func() bool { return second.countOn("second") == 2 })
	select {
	case err := <-closed:
		t.Fatalf("Close has returned %v while two attempts run", err)
	default:
	}
	close(first.release)
	where, err := run.Wait(testContext(t))
	if err != nil || strings.Join(where, " ") != "first first second second" {
		t.Errorf("ran on %v, %v", where, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if again := node.system.ActivityCounts().Reassigned; again != 0 {
		t.Errorf("%d attempts began again, want none", again)
	}
}

// After kill -9 of a worker's process its attempts begin on another, under the same numbers, and
// each activity is completed once.
func TestRemoteWorker_ProcessIsKilled(t *testing.T) {
	checkGoroutineLeaks(t)
	peers := loopbackPeers(t, 3)
	var nodes []*Node
	var addresses []string
	for i, peer := range peers {
		config := peerConfig(t, peers, i, newAttemptRecorder().definitions("node")[1:]...)
		config.Partitions = 1
		nodes, addresses = append(nodes, startNode(t, config)), append(addresses, peer.Address)
	}
	first := startNodeProcess(t, nodeProcessConfig{NodeID: "first", WorkerOf: addresses})
	second := startNodeProcess(t, nodeProcessConfig{NodeID: "second", WorkerOf: addresses})
	client := nodes[0].Client()
	awaitWorkers(t, client, 2)
	run, err := StartRun(testContext(t), client, manyActivities, "m", 8)
	if err != nil {
		t.Fatal(err)
	}
	begun := make(map[string]string) // by event_id: where its attempt began last
	for range 4 {
		begun[first.awaitLine("begin")] = "first"
		begun[second.awaitLine("begin")] = "second"
	}
	first.kill()
	second.send("release")
	for range 4 {
		id := second.awaitLine("begin")
		if begun[id] != "first" {
			t.Errorf("activity %s, which ran on %q, begins again", id, begun[id])
		}
		begun[id] = "second"
	}
	where, err := run.Wait(testContext(t))
	if err != nil || strings.Join(slices.Compact(where), " ") != "second" || len(begun) != 8 {
		t.Errorf("%d activities ran on %v, %v", len(begun), where, err)
	}
	checkCompletedOnce(t, client, "m", 8)
	awaitWorkers(t, client, 1)
}

// checkCompletedOnce checks that an instance has n activities, each with one completion of its
// first attempt.
func checkCompletedOnce(t *testing.T, client *Client, id string, n int) {
	t.Helper()
	history, err := client.History(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	completed := make(map[uint64]int)
	for _, event := range history.Events {
		if event.Type == "ActivityCompleted" {
			completed[event.SourceEventID]++
			if event.Attempts() != 1 || completed[event.SourceEventID] > 1 {
				t.Errorf("event %d: %d attempts, completion %d", event.EventID, event.Attempts(), completed[event.SourceEventID])
			}
		}
	}
	if len(completed) != n {
		t.Errorf("%d activities are completed, want %d", len(completed), n)
	}
}

// Activities with a tag run on workers that serve it. Limits hold for each worker.
func TestRemoteWorker_TagsAndLimits(t *testing.T) {
	checkGoroutineLeaks(t)
	w := newAttemptRecorder()
	node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, Partitions: 1, LeaderExempt: true, Definitions: w.definitions("leader")})
	dialNodes(t, DialConfig{Definitions: w.definitions("plain"), ActivityLimits: map[string]int{workerActivity.Name(): 2}}, node)
	dialNodes(t, DialConfig{Definitions: w.definitions("tagged"), Tags: []string{"gpu"}, ActivityLimits: map[string]int{workerActivity.Name(): 3}}, node)
	awaitWorkers(t, node.Client(), 2)
	var runs []*Run[string]
	for i := range 5 {
		run, err := StartRun(testContext(t), node.Client(), workerOrchestration, fmt.Sprint("tagged-", i), "gpu")
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	eventually(t, "three run", func() bool { return w.countOn("tagged") == 3 })
	if plain, leader := w.countOn("plain"), w.countOn("leader"); plain+leader > 0 {
		t.Errorf("%d run without the tag", plain+leader)
	}
	close(w.release)
	for _, run := range runs {
		if where, err := run.Wait(testContext(t)); err != nil || where != "tagged" {
			t.Errorf("ran on %q, %v", where, err)
		}
	}
}

func TestRemoteWorker_Hundred(t *testing.T) {
	skipIfShort(t)
	checkGoroutineLeaks(t)
	const workers = 120 // all in this process
	w := newAttemptRecorder()
	node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, Partitions: 1, Definitions: w.definitions("leader")[1:]})
	var dialing sync.WaitGroup
	slots := make(chan struct{}, 10) // few processors need long for all handshakes at once
	for i := range workers {
		dialing.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			client, err := Dial(testContext(t), DialConfig{
				Addresses: []string{node.config.Listen}, Definitions: w.definitions(fmt.Sprint("w", i)), ActivitiesMax: 2, Logger: testLogger(),
			})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = client.Close() })
		})
	}
	dialing.Wait()
	awaitOffers(t, node, workers)
	run, err := StartRun(testContext(t), node.Client(), manyActivities, "m", workers)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return w.total() == workers })
	for i := range workers {
		if n := w.countOn(fmt.Sprint("w", i)); n != 1 {
			t.Errorf("worker %d runs %d, want 1: each has half of its slots in use", i, n)
		}
	}
	close(w.release)
	if _, err := run.Wait(testContext(t)); err != nil {
		t.Error(err)
	}
}

// A client's certificate permits to run activities only if Authorize does, and never to register as
// a node.
func TestRemoteWorker_NeedsRight(t *testing.T) {
	checkGoroutineLeaks(t)
	trusted, w := newAuthority(t), newAttemptRecorder()
	var refused atomic.Int64
	nodes, _ := startWithTLS(t, trusted, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, caller Principal, action Action, _ string) error {
			if action == actionRunActivities && caller.Name != "worker" {
				refused.Add(1)
				return errors.New("not a worker")
			}
			return nil
		}
	})
	config := DialConfig{TLS: trusted.keys(trusted.Client("app")), Definitions: w.definitions("app"), Logger: testLogger()}
	for _, node := range nodes {
		config.Addresses = append(config.Addresses, node.config.Listen)
	}
	if _, err := Dial(testContext(t), config); !errors.Is(err, ErrNotAuthorized) || refused.Load() == 0 {
		t.Errorf("a client without the right: %v", err)
	}
	config.TLS = trusted.keys(trusted.Client("worker"))
	for range 2 { // with one certificate
		client, err := Dial(testContext(t), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
	}
	awaitWorkers(t, nodes[0].Client(), 2)
	for _, one := range connectedWorkers(t, nodes[0].Client()) {
		if one.Client != "client worker" {
			t.Errorf("the leaders know %v", one)
		}
	}
	caller := Principal{PrincipalClient, "worker"}
	for name, registration := range map[string]*clusterpb.RegisterWorker{
		"a node's name":       {Worker: "x", Node: nodes[0].ID()},
		"no name":             {},
		"an activity of ours": {Worker: "x", Activities: []string{"tenuto.bulk"}},
	} {
		message := &clusterpb.FromWorker{Message: &clusterpb.FromWorker_Register{Register: registration}}
		if err := checkFromClient(message, caller, nodes[0].partitions[0].workers.Add("", workersMax)); err == nil {
			t.Errorf("a registration with %s is accepted", name)
		}
	}
	if err := checkRegistration(&clusterpb.RegisterWorker{Node: "n1", Worker: "x"}, Principal{PrincipalNode, "n1"}); err == nil {
		t.Error("a node registers as another worker")
	}
}

func TestDial_RejectsWorkerFields(t *testing.T) {
	w := newAttemptRecorder()
	all := w.definitions("w")
	for field, config := range map[string]DialConfig{
		"DialConfig.Definitions: no activity":  {Definitions: all[1:]},
		"DialConfig.Definitions: reserved":     {Definitions: []replay.Definition{replay.Activity[int, int]("tenuto.x").Bind(func(context.Context, int) (int, error) { return 0, nil })}},
		"DialConfig.Definitions: twice":        {Definitions: append(all, all[0])},
		"DialConfig.Definitions: none":         {Tags: []string{"a"}},
		"DialConfig.ActivitiesMax":             {Definitions: all, ActivitiesMax: -1},
		"DialConfig.ActivityLimits":            {Definitions: all, ActivityLimits: map[string]int{"job": 0}},
		"DialConfig.Tags":                      {Definitions: all, Tags: []string{""}},
		"DialConfig.StopGrace":                 {Definitions: all, StopGrace: -1},
		"DialConfig.WorkerName":                {Definitions: all, WorkerName: strings.Repeat("x", workerNameMax+1)},
		"DialConfig.ActivityInterceptors":      {Definitions: all, ActivityInterceptors: []replay.ActivityInterceptor{nil}},
		"DialConfig.Definitions: interceptors": {ActivityInterceptors: []replay.ActivityInterceptor{}},
	} {
		node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address})
		config.Addresses, config.Logger = []string{node.config.Listen}, testLogger()
		_, err := Dial(testContext(t), config)
		want, _, _ := strings.Cut(field, ":")
		if invalid := new(replay.InvalidError); !errors.As(err, &invalid) || invalid.Field != want && !strings.HasPrefix(invalid.Field, want) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A build of the previous protocol would take the worker for a node: Dial fails.
func TestRemoteWorker_EarlierCluster(t *testing.T) {
	checkGoroutineLeaks(t)
	w := newAttemptRecorder()
	node := startNode(t, Config{InMemory: true, Listen: loopbackPeers(t, 1)[0].Address, protocol: protocolVersion - 1})
	_, err := Dial(testContext(t), DialConfig{Addresses: []string{node.config.Listen}, Definitions: w.definitions("w"), Logger: testLogger()})
	if !errors.Is(err, ErrProtocol) {
		t.Errorf("an earlier cluster: %v", err)
	}
}

func TestRemoteWorker_BoundOfWorkers(t *testing.T) {
	var pa partition
	for range workersMax {
		if pa.workers.Add("", workersMax) == nil {
			t.Fatal("refused too early")
		}
	}
	if pa.workers.Add("", workersMax) != nil {
		t.Error("one too many is accepted")
	}
}
