package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/harness"
	"github.com/tenuto-dev/tenuto/replay"
)

// testTimeout bounds every wait for a condition. It ends a failed test and measures nothing.
const testTimeout = 3 * time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for pause := time.Millisecond; !holds(); pause = min(pause*3/2, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(pause)
	}
}

// awaitIdle waits until one instance is in memory and idle, on a node that keeps one. A call is
// answered before its instance is idle; only then is it certain which of two instances is evicted.
func awaitIdle(t testing.TB, node *Node) {
	t.Helper()
	eventually(t, "one instance is in memory and idle", func() bool {
		s := node.system.Stats(node.partitions[0].actorPartition.Load())
		return s.Live == 1 && s.Idle == 1
	})
}

// testLogger keeps logs out of the output of tests.
func testLogger() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// testPartitionsDefault is the number of partitions of test nodes that do not set it:
// TENUTO_TEST_PARTITIONS, or one.
var testPartitionsDefault = func() int {
	n, _ := strconv.Atoi(os.Getenv("TENUTO_TEST_PARTITIONS"))
	return max(n, 1)
}()

func startNode(t testing.TB, config Config) *Node {
	t.Helper()
	// A node stops when its context ends, so the context must not have a timeout.
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return startNodeIn(ctx, t, config)
}

func startNodeIn(ctx context.Context, t testing.TB, config Config) *Node {
	t.Helper()
	if config.Partitions == 0 {
		config.Partitions = testPartitionsDefault
		if config.ResidentMax > 0 { // partitions would share it
			config.Partitions = 1
		}
	}
	if config.Logger == nil {
		config.Logger = testLogger()
	}
	if config.harness.HeartbeatTimeout == 0 {
		config.harness.HeartbeatTimeout = harness.TestHeartbeatTimeout
	}
	node, err := Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node
}

// loopbackPeers reserves ports for a cluster of n nodes, n1 and so on.
func loopbackPeers(t testing.TB, n int) []Peer {
	t.Helper()
	if n > 1 {
		skipIfShort(t)
	}
	var peers []Peer
	for i := 1; i <= n; i++ {
		peers = append(peers, Peer{NodeID: fmt.Sprintf("n%d", i), Address: loopbackAddress(t)})
	}
	return peers
}

// Test nodes listen on ports below the ephemeral range, so that a stopped node finds its port free
// again. Each process begins at a different port.
const (
	portFirst = 10_000
	portCount = 20_000
)

var portOffset atomic.Int64

func init() { portOffset.Store(int64(os.Getpid()) * 61) }

// loopbackAddress returns an address that no other test of this process gets.
func loopbackAddress(t testing.TB) string {
	t.Helper()
	for range portCount {
		address := fmt.Sprintf("127.0.0.1:%d", portFirst+portOffset.Add(1)%portCount)
		if listener, err := net.Listen("tcp", address); err == nil {
			_ = listener.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

func peerConfig(t testing.TB, peers []Peer, i int, definitions ...replay.Definition) Config {
	return Config{
		NodeID:      peers[i].NodeID,
		Listen:      peers[i].Address,
		Peers:       peers,
		Partitions:  testPartitionsDefault,
		Dir:         t.TempDir(),
		Definitions: definitions,
	}
}

// checkGoroutineLeaks fails the test if, at its end, goroutines of ours run that did not run when
// it was called. Call it before anything is started. Not for parallel tests: TestMain checks what
// they leave.
func checkGoroutineLeaks(t *testing.T) {
	t.Helper()
	before := countGoroutines()
	t.Cleanup(func() {
		if stacks := goroutinesLeft(before); stacks != "" {
			t.Errorf("goroutines left:\n%s", stacks)
		}
	})
}

// goroutinesLeft waits until no more goroutines run than before. It returns the stacks if more
// remain.
func goroutinesLeft(before int) string {
	deadline := time.Now().Add(testTimeout)
	for countGoroutines() > before {
		if time.Now().After(deadline) {
			return goroutineStacks()
		}
		time.Sleep(5 * time.Millisecond)
	}
	return ""
}

// countGoroutines counts goroutines other than those of the testing package and the one of
// os/signal, which never ends (go test -fuzz starts it).
func countGoroutines() int {
	n := 0
	for _, stack := range strings.Split(goroutineStacks(), "\n\n") {
		if strings.Contains(stack, "os/signal.loop(") {
			continue
		}
		if !strings.Contains(stack, "testing.") || strings.Contains(stack, "tenuto/") {
			n++
		}
	}
	return n
}

func goroutineStacks() string {
	buffer := make([]byte, 4<<20)
	return string(buffer[:runtime.Stack(buffer, true)])
}

// The code that most tests run.
var (
	double               = replay.Activity[int, int]("double")
	doubled              = replay.Orchestration[int, int]("doubled")
	fiveActivities       = replay.Orchestration[int, int]("fifth")
	waiter               = replay.Orchestration[string, string]("waiter")
	word                 = replay.Event[string]("word")
	failingOrchestration = replay.Orchestration[string, string]("failing")
)

var errTest = errors.New("as wanted")

func doubleBody(_ context.Context, n int) (int, error) { return 2 * n, nil }

func fiveActivitiesBody(ctx *replay.Context, n int) (int, error) {
	for range 5 {
		next, err := double.Call(ctx, n)
		if err != nil {
			return 0, err
		}
		n = next
	}
	return n, nil
}

func waiterBody(ctx *replay.Context, prefix string) (string, error) {
	got, err := word.Wait(ctx)
	return prefix + got, err
}

func definitions() []replay.Definition { return definitionsWith(doubleBody) }

// definitionsWith binds everything, with a body for double.
func definitionsWith(body func(context.Context, int) (int, error)) []replay.Definition {
	return []replay.Definition{
		double.Bind(body),
		doubled.Bind(func(ctx *replay.Context, n int) (int, error) { return double.Call(ctx, n) }),
		fiveActivities.Bind(fiveActivitiesBody),
		waiter.Bind(waiterBody),
		failingOrchestration.Bind(func(_ *replay.Context, how string) (string, error) {
			if how == "panic" {
				panic("as wanted")
			}
			return "", errTest
		}),
	}
}
