package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/report"
	"github.com/tenuto-dev/tenuto/cluster/internal/roles"
	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/replay"
)

func TestNode_RunsWithOnlyADirectory(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{Dir: t.TempDir(), Definitions: definitions()})
	got, err := Call(testContext(t), node.Client(), fiveActivities, "five", 1)
	if err != nil || got != 32 {
		t.Fatalf("got %d, %v; want 32", got, err)
	}
}

func TestRestart_InstanceContinues(t *testing.T) {
	checkGoroutineLeaks(t)
	dir := t.TempDir()
	ctx := testContext(t)
	node := startNode(t, Config{Dir: dir, Definitions: definitions()})
	if _, err := StartRun(ctx, node.Client(), waiter, "w", "got "); err != nil {
		t.Fatal(err)
	}
	if _, err := Call(ctx, node.Client(), doubled, "d", 4); err != nil {
		t.Fatal(err)
	}
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: definitions()})
	if err := Send(ctx, node.Client(), "w", word, "it"); err != nil {
		t.Fatal(err)
	}
	status, err := node.Client().Wait(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	var output string
	if err := status.Output(&output); err != nil || output != "got it" {
		t.Errorf("output %q, %v; want %q", output, err, "got it")
	}
	again, err := Call(ctx, node.Client(), doubled, "d", 99, Attach())
	if err != nil || again != 8 {
		t.Errorf("attached to the ended run: %d, %v; want its result, 8", again, err)
	}
}

func TestNode_StopsWhenStartContextEnds(t *testing.T) {
	checkGoroutineLeaks(t)
	ctx, cancel := context.WithCancel(context.Background())
	node, err := Start(ctx, Config{InMemory: true, Definitions: definitions(), Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-node.closed
	if _, err := node.Client().Get(testContext(t), "x"); !errors.Is(err, ErrClosed) {
		t.Errorf("Get after the end: %v; want ErrClosed", err)
	}
}

func TestNode_CloseAndStopAreIdempotent(t *testing.T) {
	node := startNode(t, Config{InMemory: true})
	for range 2 {
		if err := errors.Join(node.Stop(testContext(t)), node.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNode_CloseEndsWaitingCalls(t *testing.T) {
	checkGoroutineLeaks(t)
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	run, err := StartRun(testContext(t), node.Client(), waiter, "w", "")
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := run.Wait(testContext(t))
		result <- err
	}()
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("Wait: %v; want ErrClosed", err)
	}
}

func TestNode_RejectsDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	startNode(t, Config{Dir: dir})
	_, err := Start(testContext(t), Config{Dir: dir, Logger: testLogger()})
	var locked *journal.LockedError
	if !errors.As(err, &locked) {
		t.Errorf("second start: %v; want a LockedError", err)
	}
}

func TestNode_RejectsDirectoryOfOtherNode(t *testing.T) {
	dir := t.TempDir()
	if err := startNode(t, Config{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Start(testContext(t), Config{Dir: dir, NodeID: "another", Logger: testLogger()})
	var identity *journal.IdentityError
	if !errors.As(err, &identity) {
		t.Errorf("start under another name: %v; want an IdentityError", err)
	}
}

func TestConfig_ErrorsNameField(t *testing.T) {
	two := []Peer{{"a", "127.0.0.1:1"}, {"b", "127.0.0.1:2"}}
	for field, config := range map[string]Config{
		"Dir":                  {},
		"InMemory":             {InMemory: true, Dir: "x"},
		"NodeID":               {InMemory: true, Peers: two, Listen: "127.0.0.1:1"},
		"Listen":               {InMemory: true, NodeID: "a", Peers: two},
		"Peers":                {InMemory: true, NodeID: "c", Peers: two, Listen: "127.0.0.1:1"},
		"Settings.Limits.Open": {InMemory: true, Settings: Settings{Limits: Limits{Open: -1}}},
		"Definitions":          {InMemory: true, Definitions: []replay.Definition{double.Bind(doubleBody), double.Bind(doubleBody)}},
	} {
		_, err := Start(testContext(t), config)
		var wrong *replay.InvalidError
		if !errors.As(err, &wrong) || wrong.Field != "Config."+field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestConfig_PlaintextOnlyOnLoopback(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:7000", "example.com:7000"} {
		_, err := Start(testContext(t), Config{InMemory: true, Listen: address})
		var wrong *replay.InvalidError
		if !errors.As(err, &wrong) || wrong.Field != "Config.Listen" || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// The two activities of swapped, in the order in which the code calls them.
func swappedBody(first, second replay.ActivityHandle[int, int]) func(*replay.Context, int) (int, error) {
	return func(ctx *replay.Context, n int) (int, error) {
		n, err := first.Call(ctx, n)
		if err != nil {
			return 0, err
		}
		n, err = second.Call(ctx, n)
		if err != nil {
			return 0, err
		}
		if _, err := word.Wait(ctx); err != nil {
			return 0, err
		}
		return n, nil
	}
}

func TestStall_SwappedActivitiesUntilCodeFits(t *testing.T) {
	checkGoroutineLeaks(t)
	add := replay.Activity[int, int]("add")
	swapped := replay.Orchestration[int, int]("swapped")
	code := func(first, second replay.ActivityHandle[int, int]) []replay.Definition {
		return append(definitions(),
			add.Bind(func(_ context.Context, n int) (int, error) { return n + 1, nil }),
			swapped.Bind(swappedBody(first, second)))
	}
	ctx := testContext(t)
	dir := t.TempDir()

	node := startNode(t, Config{Dir: dir, Definitions: code(add, double)})
	if _, err := StartRun(ctx, node.Client(), swapped, "s", 1); err != nil {
		t.Fatal(err)
	}
	subscribed := func(node *Node) func() bool {
		return func() bool {
			history, err := node.Client().History(ctx, "s")
			return err == nil && history.Events[len(history.Events)-1].Type == "ExternalSubscribed"
		}
	}
	eventually(t, "both activities are done", subscribed(node))
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: code(double, add)})
	expectStall(t, node, "s")
	if got, err := Call(ctx, node.Client(), fiveActivities, "other", 1); err != nil || got != 32 {
		t.Errorf("another instance: %d, %v; want 32", got, err)
	}
	if err := node.Stop(ctx); err != nil {
		t.Fatal(err)
	}

	node = startNode(t, Config{Dir: dir, Definitions: code(add, double)})
	if err := Send(ctx, node.Client(), "s", word, "go"); err != nil {
		t.Fatal(err)
	}
	got, err := Call(ctx, node.Client(), swapped, "s", 0, Attach())
	if err != nil || got != 4 {
		t.Errorf("after the code was put back: %d, %v; want 4", got, err)
	}
}

func expectStall(t *testing.T, node *Node, id string) {
	t.Helper()
	sending, cancel := context.WithCancel(testContext(t))
	sent := make(chan error, 1)
	go func() { sent <- Send(sending, node.Client(), id, word, "go") }()
	var status *Status
	eventually(t, "the instance is stalled", func() bool {
		var err error
		status, err = node.Client().Get(testContext(t), id)
		return err == nil && status.State == Stalled
	})
	m := status.Mismatch
	if m.Kind != replay.ScheduledDifferently || m.EventID != 2 {
		t.Errorf("mismatch %v", m)
	}
	if !strings.Contains(m.Expected, `name="add"`) || !strings.Contains(m.Found, `name="double"`) || !strings.Contains(m.Source, "cluster/node_test.go:") {
		t.Errorf("expected %s, found %s, source %s", m.Expected, m.Found, m.Source)
	}
	cancel()
	var unavailable *UnavailableError
	if err := <-sent; !errors.As(err, &unavailable) || unavailable.NotExecuted {
		t.Errorf("an event to a stalled instance waits until its context ends, then is unknown: %v", err)
	}
}

// warningsMax is how many warnings a node may log in TestNode_HealthyOperationsLogNoError, besides
// those of a busy machine. It logs none on an idle one.
const warningsMax = 8

// busyMachineWarnings are those of nodes that get their processors or their disk too late. They
// lose a leader, a worker or a member for a while.
var busyMachineWarnings = []string{
	"disk write finished after stall", "slow disk",
	"no leader known", "elected but cannot start leadership", "leadership transfer failed",
	"cannot announce this node to the leader", "member does not answer", "worker lost",
}

// Healthy operations log no error: three nodes found a cluster one after the other, are restarted
// under load, each down long enough for the others to notice, and get new certificates. A fourth
// joins, gets the leadership, and is removed.
func TestNode_HealthyOperationsLogNoError(t *testing.T) {
	for _, secured := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %t", secured), func(t *testing.T) {
			authority, logs := newAuthority(t), make(map[string]*logRecorder)
			prepare := func(config *Config) {
				logs[config.NodeID] = new(logRecorder)
				config.Logger = logs[config.NodeID].logger()
				if secured {
					config.TLS = authority.keys(authority.Node(config.NodeID))
				}
			}
			f := newTestClusterWith(t, 3, prepare)
			f.leader()
			stop := f.startLoad()
			for _, id := range []string{"n1", "n2", "n3"} {
				f.restart(id)
			}
			for id, node := range f.nodes {
				if secured {
					node.config.TLS.(*replaceableKeys).replace(&Keys{Certificate: authority.Node(id), Roots: authority.Roots()})
					node.dialer.Links.Sweep(time.Now().Add(transport.AgeMax + time.Second)) // as if connections were old
				}
			}
			config := f.joiningConfig("n4")
			prepare(&config)
			joined := f.start(config)
			f.awaitVoters("n1", "n2", "n3", "n4")
			for _, partition := range f.leader().partitions {
				eventually(t, "n4 leads", func() bool {
					for _, node := range f.nodes {
						if g := node.partitions[partition.number]; g.isLeader() && node != joined {
							_ = g.journal.TransferLeadershipTo(testContext(t), "n4")
						}
					}
					return joined.partitions[partition.number].isLeader()
				})
			}
			f.forget(joined)
			f.remove("n4")
			expectRemoved(t, joined)
			f.expectCompleted(stop())
			for _, node := range append(f.all(), joined) {
				if err := node.Stop(testContext(t)); err != nil {
					t.Error(err)
				}
			}
			for id, log := range logs {
				checkHealthyLog(t, id, string(log.all()))
			}
		})
	}
}

// checkHealthyLog checks that a node has logged no errors and few warnings.
func checkHealthyLog(t *testing.T, id, log string) {
	t.Helper()
	warnings := 0
	for line := range strings.Lines(log) {
		has := func(text string) bool { return strings.Contains(line, text) }
		switch {
		case has("disk write stalled"): // the disk of the machine that runs the test
		case has("level=ERROR"):
			t.Errorf("%s: %s", id, line)
		case has("level=WARN") && !slices.ContainsFunc(busyMachineWarnings, has):
			warnings++
			t.Logf("%s: %s", id, line)
		}
	}
	if warnings > warningsMax {
		t.Errorf("%s: %d warnings; want %d at most", id, warnings, warningsMax)
	}
}

// checkNoProblemsLogged checks that a node has logged no errors and no warnings, but those of a
// busy machine.
func checkNoProblemsLogged(t *testing.T, id, log string) {
	t.Helper()
	ignored := append(slices.Clone(busyMachineWarnings), "disk write stalled")
	for line := range strings.Lines(log) {
		isIgnored := slices.ContainsFunc(ignored, func(text string) bool { return strings.Contains(line, text) })
		if !isIgnored && (strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN")) {
			t.Errorf("%s: %s", id, line)
		}
	}
}

// restart stops a node gracefully, starts it again when the others report it unreachable, and waits
// until it is ready.
func (c *testCluster) restart(id string) {
	c.t.Helper()
	node := c.nodes[id]
	c.forget(node)
	if err := node.Stop(testContext(c.t)); err != nil {
		c.t.Error(err)
	}
	eventually(c.t, id+" is unreachable", func() bool {
		members, err := c.anyNode().Members(testContext(c.t))
		return err == nil && slices.ContainsFunc(members, func(m Member) bool { return m.NodeID == id && m.Liveness == MemberUnreachable })
	})
	config := node.config
	config.journalLogger = nil
	node = c.start(config)
	eventually(c.t, id+" is ready", func() bool { return node.Health().Ready() == nil })
}

// A start and a stop are one line each at INFO.
func TestNode_LogsStartAndStop(t *testing.T) {
	log := new(logRecorder)
	dir, address := t.TempDir(), loopbackAddress(t)
	node := startNode(t, Config{Dir: dir, Definitions: definitions(), Logger: log.logger(), Listen: address})
	eventually(t, "ready", func() bool { return node.Health().Ready() == nil })
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	started := fmt.Sprintf(`level=INFO msg="node started" node=%s version=%s revision=%q protocol=%d address=%s role=voter cluster=tenuto lineage="" identity=%s `+
		`partitions=%d tls=false dir=%s`, node.ID(), moduleVersion(), report.Revision(), protocolVersion, address, node.identity(), len(node.partitions), dir)
	for _, line := range []string{started, `level=INFO msg="node stopped" node=` + node.ID() + " uptime="} {
		if log.countLines(line) != 1 {
			t.Errorf("%s: logged %d times:\n%s", line, log.countLines(line), log.all())
		}
	}
	if log.countLines("level=INFO msg=\"node ") != 2 {
		t.Errorf("more lines about start and stop:\n%s", log.all())
	}
}

// The line of a start says which role the node has, in the words of the list of members, if the
// node's replica shows it.
func TestNode_LogsRole(t *testing.T) {
	t.Parallel()
	skipIfShort(t)
	logs := make(map[string]*logRecorder)
	prepare := func(config *Config) {
		logs[config.NodeID] = new(logRecorder)
		config.Logger, config.Settings = logs[config.NodeID].logger(), Settings{Voters: 3}
	}
	expect := func(id string, allowed ...string) {
		t.Helper()
		log, shown := logs[id], 0
		started := "msg=\"node started\" node=" + id + " "
		eventually(t, id+" logs that it has started", func() bool { return log.countLines(started) > 0 })
		for _, role := range allowed {
			shown += log.countLines(" role=" + role + " cluster=tenuto ")
		}
		if log.countLines(started) != 1 || shown != 1 {
			t.Errorf("%s: not started once as %v:\n%s", id, allowed, log.all())
		}
	}
	f := newTestClusterWith(t, 3, prepare)
	expect("n1", "founder")
	f.awaitVoters("n1", "n2", "n3")
	joining := f.joiningConfig("n4")
	prepare(&joining)
	f.start(joining)
	expect("n4", "unknown", "standby") // the replica is new
	for id, role := range map[string]string{"n1": "voter", "n4": "standby"} {
		eventually(t, fmt.Sprintf("the replica of %s shows that it is a %s", id, role), func() bool {
			recorded, _ := f.nodes[id].roles.Latest()
			decided := roles.Find(recorded, id)
			return decided != nil && decided.Voter == (role == "voter")
		})
		again := f.nodes[id].config
		f.close(f.nodes[id])
		again.journalLogger = nil
		prepare(&again)
		f.start(again)
		expect(id, role)
	}
}
