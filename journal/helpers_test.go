package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/journal/internal/networktest"
	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// noStallLimit is longer than any write takes on a slow but working machine. It is the StallLimit
// of all tests except those about stalls.
const noStallLimit = time.Hour

// noLeaks fails the test if a goroutine of the journal or of Raft outlives it.
func noLeaks(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		deadline := time.Now().Add(waittest.Timeout)
		for len(journalStacks()) > 0 && !t.Failed() {
			if time.Now().After(deadline) {
				t.Fatalf("%d goroutines do not end: %s", len(journalStacks()), journalStacks()[0])
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
}

// journalStacks returns the stacks of all goroutines of the journal and of Raft except the
// caller's.
func journalStacks() []string {
	buffer := make([]byte, 1<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var left []string
	for _, stack := range strings.Split(string(buffer), "\n\n")[1:] {
		if strings.Contains(stack, "testing.tRunner") || strings.Contains(stack, "testing.(*B)") {
			continue
		}
		if strings.Contains(stack, "(*Store).runGuarded") || strings.Contains(stack, "(*Raw).call") {
			continue // abandoned by a failed store; see pebblestore.Store.Close and raftlog.Raw.Close
		}
		if strings.Contains(stack, "tenuto/journal") || strings.Contains(stack, "hashicorp/") {
			left = append(left, stack)
		}
	}
	return left
}

// openJournal opens a journal that is closed at the end of the test.
func openJournal(t testing.TB, c Config) *Journal {
	t.Helper()
	noLeaks(t)
	j, err := Open(t.Context(), testConfig(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeJournal(t, j) })
	return j
}

func testConfig(c Config) Config {
	if c.Node == "" {
		c.Node = "n1"
	}
	if c.StallLimit == 0 {
		c.StallLimit = noStallLimit
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if os.Getenv("TENUTO_TEST_LOG") != "" {
		c.Logger = slog.Default()
	}
	return c
}

// closeJournal closes a journal, however long its disk takes.
func closeJournal(t testing.TB, j *Journal) {
	t.Helper()
	var stalled *StalledError
	err := j.Close()
	for deadline := time.Now().Add(waittest.Timeout); errors.As(err, &stalled) && time.Now().Before(deadline); {
		err = j.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

// awaitLeadership waits until a journal leads, and returns its epoch.
func awaitLeadership(t testing.TB, j *Journal) uint64 {
	t.Helper()
	waittest.Eventually(t, "leadership", j.IsLeader)
	return j.Epoch()
}

// proposeAppend appends and returns the outcome.
func proposeAppend(t testing.TB, j *Journal, a *journalpb.Append) error {
	t.Helper()
	result := make(chan error, 2)
	j.Append(a, func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-time.After(waittest.Timeout):
		t.Fatalf("no answer to an append of %s", a.Instance)
		return nil
	}
}

func mustAppend(t testing.TB, j *Journal, a *journalpb.Append) {
	t.Helper()
	if err := proposeAppend(t, j, a); err != nil {
		t.Fatal(err)
	}
}

// tryBegin begins an instance, and reports whether it exists. It may exist although this append is
// rejected, if an earlier try with an unknown outcome was committed.
func tryBegin(t testing.TB, j *Journal, a *journalpb.Append) bool {
	t.Helper()
	var conflict *state.ConflictError
	err := proposeAppend(t, j, a)
	return err == nil || errors.As(err, &conflict)
}

// newStartAppend is the append that begins an instance: OrchestrationStarted and an activity.
func newStartAppend(epoch uint64, instance string) *journalpb.Append {
	return newAppend(epoch, instance, 1,
		&journalpb.Event{Body: &journalpb.Event_OrchestrationStarted{OrchestrationStarted: &journalpb.OrchestrationStarted{Name: "test"}}},
		activityScheduled(),
	)
}

// newStepAppend is the append that completes the activity at first-1 and schedules the next one.
func newStepAppend(epoch uint64, instance string, first uint64) *journalpb.Append {
	return newAppend(epoch, instance, first,
		&journalpb.Event{SourceEventId: first - 1, Body: &journalpb.Event_ActivityCompleted{ActivityCompleted: &journalpb.ActivityCompleted{
			Result: &journalpb.Payload{Data: []byte(`"done"`)},
		}}},
		activityScheduled(),
	)
}

// newLargeStartAppend is an append that begins an instance with 20 KiB.
func newLargeStartAppend(epoch uint64, id string) *journalpb.Append {
	a := newStartAppend(epoch, id)
	a.Segments[0].Events = append(a.Segments[0].Events, newAppend(epoch, "", 3, &journalpb.Event{
		Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: &journalpb.Payload{Data: []byte(strings.Repeat("x", 20<<10))}}},
	}).Segments[0].Events...)
	return a
}

func activityScheduled() *journalpb.Event {
	return &journalpb.Event{Body: &journalpb.Event_ActivityScheduled{ActivityScheduled: &journalpb.ActivityScheduled{
		Name: "activity", Input: &journalpb.Payload{Data: []byte(`{"order":17}`)},
	}}}
}

func newAppend(epoch uint64, instance string, first uint64, events ...*journalpb.Event) *journalpb.Append {
	s := &journalpb.Segment{Execution: 1, FirstEventId: first}
	for i, e := range events {
		e.EventId = first + uint64(i)
		encoded, err := proto.Marshal(e)
		if err != nil {
			panic(err)
		}
		s.Events = append(s.Events, encoded)
	}
	return &journalpb.Append{Instance: instance, Epoch: epoch, Segments: []*journalpb.Segment{s}}
}

// lastEvent returns how many events an instance has, and checks that they have no gaps.
func lastEvent(t testing.TB, j *Journal, instance string) uint64 {
	t.Helper()
	last := uint64(0)
	for e, err := range j.Events(instance, 0, 1) {
		if err != nil {
			return 0
		}
		if last++; e.EventId != last {
			t.Fatalf("%s: event %d instead of %d", instance, e.EventId, last)
		}
	}
	return last
}

// tcpNetwork is a Network on loopback.
type tcpNetwork struct {
	net.Listener
}

func (tcpNetwork) Dial(address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

// testCluster is three nodes in one process.
type testCluster struct {
	listen    func(address string) networktest.Network
	peers     []Peer
	dirs      []string
	nodes     []*Journal // nil where closed
	configure func(node int, c *Config)
}

// newTestCluster starts three nodes on disk.
func newTestCluster(t testing.TB, lead func(node int) func(context.Context, uint64)) *testCluster {
	t.Helper()
	return newConfiguredTestCluster(t, lead, func(int, *Config) {})
}

// newConfiguredTestCluster starts three nodes, each with a modified Config.
func newConfiguredTestCluster(t testing.TB, lead func(node int) func(context.Context, uint64), tweak func(node int, c *Config)) *testCluster {
	t.Helper()
	noLeaks(t)
	g := &testCluster{listen: networktest.NewMemory().Listen, nodes: make([]*Journal, 3), configure: tweak}
	g.startAll(t, lead)
	return g
}

// newTCPTestCluster starts three nodes over loopback TCP, for measurements.
func newTCPTestCluster(b *testing.B, tweak func(node int, c *Config)) *testCluster {
	b.Helper()
	noLeaks(b)
	g := &testCluster{nodes: make([]*Journal, 3), configure: tweak}
	listeners := map[string]networktest.Network{}
	for i := range g.nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		listeners[l.Addr().String()] = tcpNetwork{l}
		g.peers = append(g.peers, Peer{Node: fmt.Sprintf("n%d", i+1), Address: l.Addr().String()})
	}
	g.listen = func(address string) networktest.Network { return listeners[address] }
	g.startAll(b, nil)
	return g
}

func (tc *testCluster) startAll(t testing.TB, lead func(node int) func(context.Context, uint64)) {
	t.Helper()
	skipIfShort(t)
	root := t.TempDir()
	for i := range tc.nodes {
		name := fmt.Sprintf("n%d", i+1)
		if len(tc.peers) == i {
			tc.peers = append(tc.peers, Peer{Node: name, Address: "at-" + name})
		}
		tc.dirs = append(tc.dirs, filepath.Join(root, name))
	}
	for i := range tc.nodes {
		tc.start(t, i, nil, lead)
	}
	t.Cleanup(func() {
		for i := range tc.nodes {
			tc.stop(t, i)
		}
	})
}

func (tc *testCluster) start(t testing.TB, i int, network Network, lead func(node int) func(context.Context, uint64)) {
	t.Helper()
	if err := tc.tryStart(t, i, network, lead); err != nil {
		t.Fatal(err)
	}
}

// tryStart starts a node, or returns why it did not start.
func (tc *testCluster) tryStart(t testing.TB, i int, network Network, lead func(node int) func(context.Context, uint64)) error {
	t.Helper()
	if network == nil {
		network = tc.listen(tc.peers[i].Address)
	}
	c := Config{
		Node: tc.peers[i].Node, Address: tc.peers[i].Address, Peers: tc.peers, Dir: tc.dirs[i], Network: network,
		HeartbeatTimeout: 500 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond, LeaderLease: 500 * time.Millisecond,
	}
	if lead != nil {
		c.Lead = lead(i)
	}
	tc.configure(i, &c)
	j, err := Open(t.Context(), testConfig(c))
	if err != nil {
		return err
	}
	tc.nodes[i] = j
	return nil
}

func (tc *testCluster) stop(t testing.TB, i int) {
	t.Helper()
	if tc.nodes[i] != nil {
		closeJournal(t, tc.nodes[i])
		tc.nodes[i] = nil
	}
}

// leader waits for a leader and returns its index.
func (tc *testCluster) leader(t testing.TB) int {
	t.Helper()
	leader := -1
	waittest.Eventually(t, "a leader", func() bool {
		for i, j := range tc.nodes {
			if j != nil && j.IsLeader() {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// awaitEqualStates waits until all running nodes have the same state.
func (tc *testCluster) awaitEqualStates(t testing.TB) {
	t.Helper()
	waittest.Eventually(t, "equal states", func() bool {
		var first *[32]byte
		for _, j := range tc.nodes {
			if j == nil {
				continue
			}
			digest := j.Digest()
			if first == nil {
				first = &digest
			}
			if digest != *first {
				return false
			}
		}
		return true
	})
}

// newFlakyCluster starts three nodes on a flaky network.
func newFlakyCluster(t *testing.T) (*testCluster, *networktest.Flaky) {
	t.Helper()
	noLeaks(t)
	network := networktest.NewFlaky()
	g := &testCluster{listen: network.Listen, nodes: make([]*Journal, 3), configure: func(int, *Config) {}}
	g.startAll(t, nil)
	return g, network
}
