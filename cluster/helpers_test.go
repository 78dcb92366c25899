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

	"github.com/tenuto-dev/tenuto/replay"
)

// patience bounds every wait for a condition: it is there to end a test that
// has failed, not to measure anything.
const patience = 3 * time.Minute

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// rests waits until one instance is in memory and has nothing to do, of a node
// that keeps one. A call is answered before its instance rests, and which of two
// leaves memory is certain only then.
func rests(t testing.TB, node *Node) {
	t.Helper()
	eventually(t, "one instance is in memory and idle", func() bool {
		s := node.system.Stats(node.groups[0].partition.Load())
		return s.Live == 1 && s.Idle == 1
	})
}

// quiet keeps logs out of the output of tests.
func quiet() *slog.Logger {
	if testing.Verbose() {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.DiscardHandler)
}

// testGroups is how many groups the nodes of tests have that do not say it
// themselves: TENUTO_TEST_GROUPS, or one.
var testGroups = func() int {
	n, _ := strconv.Atoi(os.Getenv("TENUTO_TEST_GROUPS"))
	return max(n, 1)
}()

func startNode(t testing.TB, config Config) *Node {
	t.Helper()
	// A node stops when its context ends: no limit of time may do that.
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return startNodeIn(ctx, t, config)
}

func startNodeIn(ctx context.Context, t testing.TB, config Config) *Node {
	t.Helper()
	if config.Groups == 0 {
		config.Groups = testGroups
		if config.ResidentMax > 0 { // the groups would share it
			config.Groups = 1
		}
	}
	if config.Logger == nil {
		config.Logger = quiet()
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
	var peers []Peer
	for i := 1; i <= n; i++ {
		peers = append(peers, Peer{NodeID: fmt.Sprintf("n%d", i), Address: loopbackAddress(t)})
	}
	return peers
}

// Nodes of tests listen on ports below those that the system gives to outgoing connections: one
// that is stopped for a while finds its port free again. Each process begins somewhere else.
const (
	portFirst = 10_000
	portCount = 20_000
)

var portsGiven atomic.Int64

func init() { portsGiven.Store(int64(os.Getpid()) * 61) }

// loopbackAddress returns an address that no other test of this process gets.
func loopbackAddress(t testing.TB) string {
	t.Helper()
	for range portCount {
		address := fmt.Sprintf("127.0.0.1:%d", portFirst+portsGiven.Add(1)%portCount)
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
		Groups:      testGroups,
		Dir:         t.TempDir(),
		Definitions: definitions,
	}
}

// noGoroutinesLeft fails the test if, in the end, goroutines of ours run that
// did not run when it was called. Call it before anything is started.
func noGoroutinesLeft(t *testing.T) {
	t.Helper()
	before := ours()
	t.Cleanup(func() {
		deadline := time.Now().Add(10 * time.Second)
		for ours() > before {
			if time.Now().After(deadline) {
				t.Errorf("goroutines left:\n%s", stacks())
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// ours counts goroutines other than those of the testing package.
func ours() int {
	n := 0
	for _, stack := range strings.Split(stacks(), "\n\n") {
		if !strings.Contains(stack, "testing.") || strings.Contains(stack, "tenuto/") {
			n++
		}
	}
	return n
}

func stacks() string {
	buffer := make([]byte, 4<<20)
	return string(buffer[:runtime.Stack(buffer, true)])
}

// The code that most tests run.
var (
	double  = replay.Activity[int, int]("double")
	doubled = replay.Orchestration[int, int]("doubled")
	fifth   = replay.Orchestration[int, int]("fifth")
	waiter  = replay.Orchestration[string, string]("waiter")
	word    = replay.Event[string]("word")
	failing = replay.Orchestration[string, string]("failing")
)

var errWanted = errors.New("as wanted")

func doubleBody(_ context.Context, n int) (int, error) { return 2 * n, nil }

func fifthBody(ctx *replay.Context, n int) (int, error) {
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
		fifth.Bind(fifthBody),
		waiter.Bind(waiterBody),
		failing.Bind(func(_ *replay.Context, how string) (string, error) {
			if how == "panic" {
				panic("as wanted")
			}
			return "", errWanted
		}),
	}
}
