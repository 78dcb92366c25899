package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/internal/slots"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

func changeSettings(t testing.TB, client *Client, change func(*Settings)) Settings {
	t.Helper()
	changed, err := client.ChangeSettings(testContext(t), change)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// awaitSettings waits until a node applies settings of a version or later.
func awaitSettings(t testing.TB, node *Node, version uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s applies version %d of the settings", node.ID(), version), func() bool {
		node.settings.mu.Lock()
		defer node.settings.mu.Unlock()
		return node.settings.version >= version
	})
}

func expectSettings(t testing.TB, client *Client, want Settings) {
	t.Helper()
	got, err := client.Settings(testContext(t))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// expectBuffered checks how many events a waiting instance accepts that its code does not take.
func expectBuffered(t testing.TB, client *Client, id string, want int) {
	t.Helper()
	ctx := WithoutBusyRetries(testContext(t))
	if _, err := StartRun(ctx, client, waiter, id, "", Attach()); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if err := Send(ctx, client, id, ignored, "", RequestID(fmt.Sprint(i))); err != nil {
			t.Fatalf("event %d of %d to %s: %v", i+1, want, id, err)
		}
	}
	if err := Send(ctx, client, id, ignored, "", RequestID("excess")); !errors.As(err, new(*BusyError)) {
		t.Errorf("event %d to %s: %v; want a BusyError", want+1, id, err)
	}
}

var ignored = replay.Event[string]("ignored")

func buffered(events int) Settings { return Settings{Limits: Limits{Buffered: events}} }

// The settings with which a cluster was founded outlive restarts under another configuration. The
// log names the fields that differ.
func TestSettings_RestartKeepsRecorded(t *testing.T) {
	dir := t.TempDir()
	start := func(settings Settings) (*Node, *logRecorder) {
		log := new(logRecorder)
		return startNode(t, Config{Dir: dir, Definitions: definitions(), Settings: settings, Logger: log.logger(), Partitions: 2}), log
	}
	founded := Settings{
		ActivityRates: map[string]Rate{"double": {PerSecond: 0.5}}, Limits: Limits{Buffered: 2, HistoryEvents: 77},
		Retention: Retention{Failed: time.Hour}, PayloadMax: 1000, RequireJoinToken: true,
	}
	node, log := start(founded)
	awaitSettings(t, node, 1)
	want := founded.withDefaults()
	if want.Limits.Open != 10_000 || want.ActivityRates["double"].Burst != 1 {
		t.Errorf("defaults are not resolved: %+v", want)
	}
	expectSettings(t, node.Client(), want)
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if log.countLines("Config.Settings differ") != 0 {
		t.Errorf("the founder logs a difference: %s", log.all())
	}

	node, log = start(Settings{Limits: Limits{Buffered: 9, HistoryEvents: 77}, Retention: Retention{Failed: time.Minute}, PayloadMax: 5000})
	expectSettings(t, node.Client(), want)
	for i := range 2 {
		expectBuffered(t, node.Client(), idInGroup("w", i, 2), 2)
	}
	eventually(t, "the difference is logged", func() bool {
		return log.countLines("fields=Limits.Buffered,Retention.Failed,PayloadMax") == 1
	})
	want = changeSettings(t, node.Client(), func(s *Settings) { s.Limits.Buffered, s.Retention.Failed = 3, 0 })
	if want.Limits.Buffered != 3 || want.Retention.Failed != 0 || want.PayloadMax != 1000 {
		t.Errorf("changed to %+v", want)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}

	node, _ = start(founded)
	expectSettings(t, node.Client(), want)
	expectBuffered(t, node.Client(), "again", 3)
}

// idInGroup returns an ID in one of several partitions.
func idInGroup(text string, partition, partitions int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint(text, "-", i); slots.Partition(id, partitions) == partition {
			return id
		}
	}
}

// A change takes effect on a running leader: limits, the payload bound and retention.
func TestSettings_ChangeAppliesWithoutRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := startWithRetention(t, Retention{}, "")
		ctx, client := t.Context(), node.Client()
		if _, err := Call(ctx, client, doubled, "d", 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Minute)
		expectRetained(t, node, "without a period", map[string]bool{"d": true})
		changeSettings(t, client, func(s *Settings) {
			s.Retention.Completed, s.Limits.Buffered, s.PayloadMax = time.Hour, 1, 100
		})
		expectBuffered(t, client, "w", 1)
		long := strings.Repeat("x", 200)
		if err := Send(ctx, client, "w", word, long); !errors.As(err, new(*replay.PayloadTooLargeError)) {
			t.Errorf("a value of 202 bytes: %v", err)
		}
		changeSettings(t, client, func(s *Settings) { s.PayloadMax = 300 })
		if err := Send(ctx, client, "w", word, long); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Minute)
		expectRetained(t, node, "before an hour", map[string]bool{"d": true})
		changeSettings(t, client, func(s *Settings) { s.Retention.Completed = 30 * time.Minute })
		time.Sleep(time.Minute)
		expectRetained(t, node, "after half an hour", map[string]bool{"d": false})
	})
}

// A failover changes no limit, whatever the next leader is configured with, in any partition; nor
// does a change get lost that only the leader has applied when it is acknowledged.
func TestSettings_FailoverKeepsLimits(t *testing.T) {
	t.Parallel()
	peers := loopbackPeers(t, 3)
	f := &testCluster{t: t, nodes: make(map[string]*Node)}
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		config.Partitions, config.Settings = testPartitions, buffered(2+i)
		f.start(config)
	}
	for _, node := range f.all() {
		awaitSettings(t, node, 1)
	}
	founded, err := f.anyNode().Client().Settings(testContext(t))
	if limit := founded.Limits.Buffered; err != nil || limit < 2 || limit > 4 {
		t.Fatalf("founded with %+v, %v", founded, err)
	}
	check := func(when string, want int) {
		t.Helper()
		for partition := range testPartitions {
			expectBuffered(t, f.anyNode().Client(), idInPartition(when, partition), want)
		}
	}
	check("founded", founded.Limits.Buffered)
	for _, node := range f.all() {
		for partition := range testPartitions {
			f.makeLeader(partition, node.ID())
		}
		check("led-by-"+node.ID(), founded.Limits.Buffered)
	}
	changeSettings(t, f.anyNode().Client(), func(s *Settings) { s.Limits.Buffered = 6 })
	leader := f.leader().ID()
	f.kill(leader)
	eventually(t, "another node leads", func() bool {
		return f.anyNode().partitions[0].isLeader() || f.anyNode().partitions[0].leader() != leader
	})
	got, err := f.anyNode().Client().Settings(testContext(t))
	if err != nil || got.Limits.Buffered != 6 {
		t.Errorf("after the leader is lost: %+v, %v", got, err)
	}
	for _, node := range f.all() {
		awaitSettings(t, node, 2)
	}
	check("after-loss", 6)
}

// A node that joins later applies what the cluster has, also if it gets it in a snapshot, and also
// before it leads any partition.
func TestSettings_JoiningNodeAppliesRecorded(t *testing.T) {
	t.Parallel()
	peers := loopbackPeers(t, 1)
	f := &testCluster{t: t, nodes: make(map[string]*Node)}
	config := peerConfig(t, peers, 0, definitions()...)
	config.Partitions, config.Settings = testPartitions, buffered(2)
	ctx, cancel := context.WithCancel(harness.NewContext(context.Background(), harness.Overrides{SnapshotThreshold: 10, SnapshotInterval: 20 * time.Millisecond, TrailingLogs: 1}))
	t.Cleanup(cancel)
	first := startNodeIn(ctx, t, config)
	f.nodes["n1"] = first
	awaitSettings(t, first, 1)
	changeSettings(t, first.Client(), func(s *Settings) { s.Limits.Buffered = 3 })
	for _, g := range first.partitions {
		before, n := g.journal.Stats().Snapshots, 0
		eventually(t, "the log begins after the settings", func() bool {
			if n++; errOf(Call(testContext(t), first.Client(), doubled, idInPartition(fmt.Sprint("filler-", n), g.number), 1)) != nil {
				t.Fatal("a call failed")
			}
			return g.journal.Stats().Snapshots >= before+2
		})
	}
	joining := f.joiningConfig("n2")
	joining.Partitions, joining.Settings = testPartitions, Settings{Limits: Limits{Buffered: 9}, RequireJoinToken: true}
	log := new(logRecorder)
	joining.Logger = log.logger()
	f.start(joining)
	f.awaitVoters("n1", "n2")
	if log.countLines("state replaced by snapshot") < testPartitions {
		t.Errorf("the node got no snapshots: %s", log.all())
	}
	for partition := range testPartitions {
		f.makeLeader(partition, "n2")
		expectBuffered(t, first.Client(), idInPartition("joined", partition), 3)
	}
	third := f.joiningConfig("n3") // without a token, which only the configuration of n2 requires
	third.Partitions = testPartitions
	f.start(third)
}

// Changes made at the same time are all recorded.
func TestSettings_ConcurrentChangesAllCount(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions(), Settings: buffered(100)})
	const changes = 20
	errs := make(chan error)
	for range changes {
		go func() {
			_, err := node.Client().ChangeSettings(testContext(t), func(s *Settings) { s.Limits.Buffered++ })
			errs <- err
		}()
	}
	for range changes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	expectSettings(t, node.Client(), buffered(100+changes).withDefaults())
}

// A change whose answer is lost is repeated without being made twice. If another was recorded
// meanwhile, its outcome is unknown.
func TestSettings_RepeatedChange(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions(), Settings: buffered(1)})
	awaitSettings(t, node, 1)
	ask := node.ask
	lose := func(then func()) {
		lost := false
		node.ask = func(ctx context.Context, request *clusterpb.Request) *clusterpb.Response {
			response := ask(ctx, request)
			if request.GetChangeSettings() == nil || lost {
				return response
			}
			lost, node.ask = true, ask
			then()
			return &clusterpb.Response{Failure: &clusterpb.Failure{Code: "unknown_outcome"}}
		}
	}
	lose(func() {})
	double := func(s *Settings) { s.Limits.Buffered *= 2 }
	if changed := changeSettings(t, node.Client(), double); changed.Limits.Buffered != 2 {
		t.Errorf("changed to %+v", changed.Limits)
	}
	lose(func() { changeSettings(t, node.Client(), func(s *Settings) { s.Limits.Open = 5 }) })
	var unavailable *UnavailableError
	if _, err := node.Client().ChangeSettings(testContext(t), double); !errors.As(err, &unavailable) || unavailable.NotExecuted {
		t.Errorf("%v; want an unknown outcome", err)
	}
	want := buffered(4)
	want.Limits.Open = 5
	expectSettings(t, node.Client(), want.withDefaults())
}

func TestSettings_RejectsInvalid(t *testing.T) {
	node := startNode(t, Config{InMemory: true, Definitions: definitions()})
	rates := func(name string, rate Rate) func(*Settings) {
		return func(s *Settings) { s.ActivityRates[name] = rate }
	}
	for field, change := range map[string]func(*Settings){
		"Settings.PayloadMax":                   func(s *Settings) { s.PayloadMax = payloadMaxMax + 1 },
		"Settings.Limits.HistoryBytes":          func(s *Settings) { s.Limits.HistoryBytes = -1 },
		"Settings.Retention.Canceled":           func(s *Settings) { s.Retention.Canceled = -1 },
		"Settings.ActivityRates":                rates("double", Rate{PerSecond: 2e6}),
		"Settings.ActivityRates: activity name": rates(strings.Repeat("x", nameMax+1), Rate{PerSecond: 1}),
		"change":                                nil,
	} {
		_, err := node.Client().ChangeSettings(testContext(t), change)
		var wrong *replay.InvalidError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, rate := range []Rate{{PerSecond: 1e-6, Burst: 1000}, {PerSecond: 1, Burst: rateBurstMax + 1}} { // buckets of 32 years, or huge
		if _, err := node.Client().ChangeSettings(testContext(t), rates("double", rate)); !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%+v: %v", rate, err)
		}
	}
	invalid, err := (&Settings{PayloadMax: payloadMaxMax + 1}).encode(new(journalpb.Settings))
	if err != nil {
		t.Fatal(err)
	}
	unresolved, err := Settings{PayloadMax: 1}.encode(new(journalpb.Settings))
	if err != nil {
		t.Fatal(err)
	}
	for _, encoded := range [][]byte{invalid, unresolved, nil, {0xff}, make([]byte, settingsBytesMax+1)} {
		request := &clusterpb.Request{Call: &clusterpb.Request_ChangeSettings{ChangeSettings: &clusterpb.ChangeSettingsRequest{Settings: encoded, Version: 2}}}
		if err := (&nodeService{node}).check(withLocalPrincipal(testContext(t)), request); !errors.As(err, new(*replay.InvalidError)) {
			t.Errorf("%.9x of a raw client: %v", encoded, err)
		}
	}
	expectSettings(t, node.Client(), Settings{}.withDefaults())
}

// A build keeps the fields that only a later build knows.
func TestSettings_KeepUnknownFields(t *testing.T) {
	later := new(journalpb.Settings)
	later.ProtoReflect().SetUnknown([]byte{0xa0, 0x06, 0x07}) // field 100
	encoded, err := settingsOf(later).withDefaults().encode(later)
	if err != nil || !strings.Contains(string(encoded), "\xa0\x06\x07") {
		t.Errorf("encoded as %x, %v", encoded, err)
	}
}

// While a member speaks the earlier protocol, nothing is recorded and each leader's configuration
// applies. Once all speak the newest, the leader's is recorded, once.
func TestUpgrade_SettingsRecordedWhenAllSpeakProtocol(t *testing.T) {
	t.Parallel()
	older := uint32(protocolVersion - 1)
	peers := loopbackPeers(t, 3)
	f := &testCluster{t: t, nodes: make(map[string]*Node)}
	for i := range peers {
		config := peerConfig(t, peers, i, definitions()...)
		config.Settings, config.protocol = buffered(2+i), older
		config.harness.HeartbeatTimeout = time.Second // no other node may begin to lead, on few processors either
		f.start(config)
	}
	upgrade := func(id string) {
		t.Helper()
		config := f.nodes[id].config
		f.close(f.nodes[id])
		config.journalLogger, config.protocol = nil, protocolVersion
		f.start(config)
	}
	upgrade("n2")
	upgrade("n3")
	f.makeLeader(0, "n3")
	expectBuffered(t, f.anyNode().Client(), idInGroup("mixed", 0, testPartitionsDefault), 4)
	expectSettings(t, f.nodes["n3"].Client(), buffered(4).withDefaults())
	if _, err := f.nodes["n2"].Client().ChangeSettings(testContext(t), func(s *Settings) { s.PayloadMax = 5 }); !errors.Is(err, ErrProtocol) {
		t.Errorf("changed while a member cannot read it: %v", err)
	}
	for _, node := range f.all() {
		if _, version := node.partitions[0].journal.Settings(); version != 0 {
			t.Errorf("%s has version %d", node.ID(), version)
		}
	}
	upgrade("n1")
	finalizeProtocol(t, f.anyNode().Client())
	for _, node := range f.all() {
		awaitSettings(t, node, 1)
	}
	recorded, err := f.nodes["n1"].Client().Settings(testContext(t))
	if limit := recorded.Limits.Buffered; err != nil || limit < 2 || limit > 4 {
		t.Fatalf("%+v, %v", recorded, err)
	}
	for _, id := range []string{"n1", "n2", "n3"} {
		f.makeLeader(0, id)
		expectSettings(t, f.nodes[id].Client(), recorded)
		expectBuffered(t, f.nodes[id].Client(), idInGroup("led-by-"+id, 0, testPartitionsDefault), recorded.Limits.Buffered)
	}
}

// A directory of the build before recorded settings gets those of its first leader of this build.
func TestUpgrade_OldDirectoryGetsSettings(t *testing.T) {
	t.Parallel()
	config := Config{Dir: t.TempDir(), Definitions: definitions(), Settings: buffered(2), protocol: protocolVersion - 1}
	node := startNode(t, config)
	if _, err := Call(testContext(t), node.Client(), doubled, "d", 1); err != nil {
		t.Fatal(err)
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	config.protocol, config.Settings = protocolVersion, buffered(3)
	node = startNode(t, config)
	finalizeProtocol(t, node.Client())
	awaitSettings(t, node, 1)
	expectSettings(t, node.Client(), buffered(3).withDefaults())
}

// An execution whose code was told that a value is too large replays under another bound as it ran.
func TestSettings_PayloadMaxIsFixedForExecution(t *testing.T) {
	picky := replay.Orchestration[int, string]("picky")
	body := func(ctx *replay.Context, _ int) (string, error) {
		text := strings.Repeat("x", 200)
		if _, err := replay.SideEffect(ctx, "text", func() (string, error) { return text, nil }); err != nil {
			return word.Wait(ctx)
		}
		return "accepted", nil
	}
	config := Config{Dir: t.TempDir(), Definitions: append(definitions(), picky.Bind(body)), Settings: Settings{PayloadMax: 100}}
	node := startNode(t, config)
	for _, g := range node.partitions {
		eventually(t, "the newest protocol", func() bool { return g.journal.Protocol() == protocolVersion })
	}
	if _, err := StartRun(testContext(t), node.Client(), picky, "p", 0); err != nil {
		t.Fatal(err)
	}
	changeSettings(t, node.Client(), func(s *Settings) { s.PayloadMax = 1000 })
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	node = startNode(t, config)
	if err := Send(testContext(t), node.Client(), "p", word, "rejected"); err != nil {
		t.Fatal(err)
	}
	expectOutput(t, node.Client(), "p", "rejected")
	if got, err := Call(testContext(t), node.Client(), picky, "q", 0); err != nil || got != "accepted" {
		t.Errorf("a new run: %q, %v", got, err)
	}
}

// A remote client learns the bound of values from the nodes.
func TestSettings_RemoteClientLearnsPayloadMax(t *testing.T) {
	t.Parallel()
	f := newTestClusterWith(t, 1, func(config *Config) { config.Settings.PayloadMax = 100 })
	f.leader()
	client := dialNodes(t, DialConfig{}, f.all()...)
	text := strings.Repeat("x", 200)
	start := func(id string) error { return errOf(StartRun(testContext(t), client, waiter, id, text)) }
	if err := start("a"); !errors.As(err, new(*replay.PayloadTooLargeError)) {
		t.Errorf("202 bytes: %v", err)
	}
	changeSettings(t, client, func(s *Settings) { s.PayloadMax = 2 << 20 })
	text = strings.Repeat("x", 3<<19)
	eventually(t, "the client knows the new bound", func() bool { return start("b") == nil })
}

// Rights to see and to change settings are separate from all others.
func TestSettings_NeedAuthorization(t *testing.T) {
	authority := newAuthority(t)
	nodes, _ := startWithTLS(t, authority, func(_ int, config *Config) {
		config.Authorize = func(_ context.Context, caller Principal, action Action, instanceID string) error {
			if instanceID != "" {
				return errors.New("a setting belongs to no instance")
			}
			allowed := map[string][]Action{"viewer": {ActionSeeSettings}, "operator": {ActionSeeSettings, ActionChangeSettings}}
			for _, one := range append(allowed[caller.Name], ActionSeeMembers) {
				if one == action {
					return nil
				}
			}
			return errors.New("not allowed")
		}
	})
	leaderOf(t, nodes)
	for name, want := range map[string]struct{ see, change error }{
		"app": {ErrNotAuthorized, ErrNotAuthorized}, "viewer": {nil, ErrNotAuthorized}, "operator": {nil, nil},
	} {
		client := dialNodes(t, DialConfig{TLS: authority.keys(authority.Client(name))}, nodes...)
		if _, err := client.Settings(testContext(t)); !errors.Is(err, want.see) {
			t.Errorf("%s sees: %v", name, err)
		}
		if _, err := client.ChangeSettings(testContext(t), func(s *Settings) { s.PayloadMax = 5000 }); !errors.Is(err, want.change) {
			t.Errorf("%s changes: %v", name, err)
		}
	}
}
