package clustertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/detour"
	"github.com/tenuto-dev/tenuto/internal/harness"
)

// nodesMax bounds the number of nodes.
const nodesMax = 9

// A Cluster is a cluster of nodes in this process. Nodes are numbered from 0 and have the IDs n0,
// n1 and so on. Methods that change the cluster or wait may fail the test, so only the test's
// goroutine may call them. Client, Node, Running and Addresses may be called by any goroutine.
type Cluster struct {
	t          testing.TB
	options    options
	network    *network
	log        *testLog
	goroutines goroutineSet
	dirs       []string

	mu      sync.Mutex
	nodes   []*cluster.Node // as last started
	running []bool
}

// New starts a cluster of n nodes, 1 to 9, and returns when it has a leader and its nodes use the
// newest protocol. The cluster is closed when the test ends. The test fails if goroutines of the
// cluster remain.
func New(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	if n < 1 || n > nodesMax {
		t.Fatalf("clustertest: %d nodes: 1 to %d are allowed", n, nodesMax)
	}
	c := &Cluster{
		t: t, options: newOptions(opts), log: &testLog{t: t}, goroutines: newGoroutineSet(),
		dirs: make([]string, n), nodes: make([]*cluster.Node, n), running: make([]bool, n),
	}
	for i := range c.dirs {
		if !c.options.inMemory {
			c.dirs[i] = t.TempDir()
		}
	}
	var err error
	c.goroutines.run(func() { c.network, err = newNetwork(n) })
	if err != nil {
		t.Fatalf("clustertest: %v", err)
	}
	t.Cleanup(c.close)
	for i := range n {
		c.start(i)
	}
	c.Leader()
	// On a busy machine a leader serves before all nodes have said what they speak.
	c.Eventually("the newest protocol", func() bool {
		return !slices.ContainsFunc(c.nodes, func(node *cluster.Node) bool { return usesFirstProtocol(node.Health()) })
	})
	return c
}

// usesFirstProtocol reports whether a partition has the protocol with which it was founded.
func usesFirstProtocol(h cluster.Health) bool {
	return h.Protocol <= 1 || slices.ContainsFunc(h.Partitions, func(p cluster.PartitionHealth) bool { return p.Protocol <= 1 })
}

// close ends the cluster when the test has ended.
func (c *Cluster) close() {
	c.t.Helper()
	for i := range c.nodes {
		if c.Running(i) {
			c.stop(i)
		}
	}
	c.network.close()
	if leaked := c.goroutines.leaked(leakTimeout); leaked != "" {
		c.t.Errorf("clustertest: goroutines leaked; an activity must return when its context ends, and end what it has started:\n%s", leaked)
	}
	c.log.close()
}

// Client returns the client of a node. Calls of a killed node's client return [cluster.ErrClosed].
// A restarted node has another client.
func (c *Cluster) Client(i int) *cluster.Client { return c.Node(i).Client() }

// Node returns a node as last started.
func (c *Cluster) Node(i int) *cluster.Node {
	c.t.Helper()
	c.checkNode(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i]
}

// Running reports whether a node was started and not killed.
func (c *Cluster) Running(i int) bool {
	c.t.Helper()
	c.checkNode(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[i]
}

// Addresses returns the addresses of the nodes for remote clients ([cluster.Dial]). They never
// change.
func (c *Cluster) Addresses() []string {
	var addresses []string
	for i := range c.dirs {
		addresses = append(addresses, c.network.address(i))
	}
	return addresses
}

// Kill stops a node as a crash would, as far as that is possible within a process. It closes the
// node's connections first, so that the node sends nothing more, and then the node. The node does
// not transfer leadership. It ends the contexts of its activities and waits only for them, at most
// for Config.StopGrace. Killing a killed node has no effect.
//
// Unlike a crash, Kill does not lose data that the node has given to the operating system. What the
// node writes to its own directory while it closes is also there when it is restarted.
func (c *Cluster) Kill(i int) {
	c.t.Helper()
	if c.Running(i) {
		c.stop(i)
	}
}

// Restart starts a node again with its directory and returns when it is up, with or without a
// leader. It kills a running node first. The node must not be in memory only.
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	c.Kill(i)
	if c.options.inMemory {
		c.t.Fatalf("clustertest: node %d is in memory: its state is lost, and a node without its state must not return", i)
	}
	c.start(i)
}

// Disconnect blocks traffic between two nodes in both directions. Traffic in flight arrives after
// [Cluster.Heal], as over TCP.
func (c *Cluster) Disconnect(i, j int) {
	c.t.Helper()
	c.checkNode(i)
	c.checkNode(j)
	if i == j {
		c.t.Fatalf("clustertest: node %d cannot be disconnected from itself", i)
	}
	c.network.cut(i, j)
}

// Isolate disconnects a node from all others. Remote clients still reach it.
func (c *Cluster) Isolate(i int) {
	c.t.Helper()
	for j := range c.dirs {
		if j != i {
			c.Disconnect(i, j)
		}
	}
}

// Heal undoes every Disconnect and Isolate.
func (c *Cluster) Heal() { c.network.heal() }

// Pause blocks all traffic between a node and other nodes or remote clients, over open and new
// connections, until [Cluster.Resume]. To the others the node looks like a process that hangs. Its
// code keeps running: clocks, activities, and calls through [Cluster.Client].
func (c *Cluster) Pause(i int) {
	c.t.Helper()
	c.checkNode(i)
	c.network.pause(i, true)
}

// Resume ends a Pause.
func (c *Cluster) Resume(i int) {
	c.t.Helper()
	c.checkNode(i)
	c.network.pause(i, false)
}

// Leader waits for a leader and returns its number. The leader is connected to a majority of the
// nodes, and these follow it. So right after a leader was killed, disconnected or paused, Leader
// returns another one. Without a majority the test fails.
func (c *Cluster) Leader() int {
	c.t.Helper()
	leader := -1
	c.Eventually("a leader that a majority follows", func() bool {
		for i := range c.dirs {
			if c.isLeader(i) {
				leader = i
			}
		}
		return leader >= 0
	})
	return leader
}

func (c *Cluster) isLeader(i int) bool {
	if !c.Running(i) || !c.Node(i).IsLeader() {
		return false
	}
	followers := 0
	for j := range c.dirs {
		if j == i || c.Running(j) && c.network.isConnected(i, j) && c.Node(j).Leader() == nodeID(i) {
			followers++
		}
	}
	return followers > len(c.dirs)/2
}

// Eventually waits until a condition holds, and fails the test after [Timeout]. It checks the
// condition a few hundred times a second; the condition must not wait itself.
func (c *Cluster) Eventually(what string, condition func() bool) {
	c.t.Helper()
	limit := time.NewTimer(c.options.timeout)
	defer limit.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-limit.C:
			c.t.Fatalf("clustertest: timeout after %v waiting for: %s\n%s", c.options.timeout, what, c)
		}
	}
}

// pollInterval is how often a condition is checked.
const pollInterval = 3 * time.Millisecond

// String returns the state of the nodes, one per line.
func (c *Cluster) String() string {
	var b strings.Builder
	for i := range c.dirs {
		fmt.Fprintf(&b, "node %d: ", i)
		node := c.Node(i)
		switch {
		case !c.Running(i):
			b.WriteString("killed")
		case node.Err() != nil:
			fmt.Fprintf(&b, "failed: %v", node.Err())
		case node.IsLeader():
			b.WriteString("leads")
		case node.Leader() == "":
			b.WriteString("knows no leader")
		default:
			fmt.Fprintf(&b, "follows %s", node.Leader())
		}
		b.WriteString(c.network.describe(i) + "\n")
	}
	return b.String()
}

func nodeID(i int) string { return fmt.Sprintf("n%d", i) }

func (c *Cluster) checkNode(i int) {
	c.t.Helper()
	if i < 0 || i >= len(c.dirs) {
		c.t.Fatalf("clustertest: no node %d: there are %d, counted from 0", i, len(c.dirs))
	}
}

// wsaEADDRINUSE is the error number of Windows for an address in use; other systems do not return
// it.
const wsaEADDRINUSE = syscall.Errno(10048)

// start starts a node at a free address.
func (c *Cluster) start(i int) {
	c.t.Helper()
	node, err := c.startOnce(i)
	for errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, wsaEADDRINUSE) { // another process took the port
		node, err = c.startOnce(i)
	}
	if err != nil {
		c.network.detach(i)
		c.t.Fatalf("clustertest: start node %d: %v", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[i], c.running[i] = node, true
}

func (c *Cluster) startOnce(i int) (node *cluster.Node, err error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := c.config(i)
	config.Listen = address
	ctx := detour.With(context.Background(), c.network.routeFrom(i))
	ctx = harness.NewContext(ctx, harness.Overrides{HeartbeatTimeout: harness.TestHeartbeatTimeout})
	c.network.attach(i, address)
	c.goroutines.run(func() { node, err = cluster.Start(ctx, config) })
	return node, err
}

// config returns the configuration of a node, without Listen.
func (c *Cluster) config(i int) cluster.Config {
	config := cluster.Config{Definitions: c.options.definitions}
	for _, configure := range c.options.configure {
		configure(i, &config)
	}
	config.NodeID, config.Dir, config.InMemory = nodeID(i), c.dirs[i], c.options.inMemory
	config.Peers = nil
	for j := range c.dirs {
		config.Peers = append(config.Peers, cluster.Peer{NodeID: nodeID(j), Address: c.network.address(j)})
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	return config
}

// Nodes listen on ports below the system's ephemeral range, so that a stopped node finds its port
// free again. Each process begins at another offset.
const (
	portFirst = 10_000
	portCount = 20_000
)

var portOffset atomic.Int64

func init() { portOffset.Store(int64(os.Getpid()) * 61) }

// freeAddress returns a free address, another one at each call.
func freeAddress() (address string, err error) {
	for range portCount {
		var listener net.Listener
		address = fmt.Sprintf("127.0.0.1:%d", portFirst+portOffset.Add(1)%portCount)
		if listener, err = net.Listen("tcp", address); err == nil {
			return address, listener.Close()
		}
	}
	return "", err
}

// stop closes the connections of a node and then the node.
func (c *Cluster) stop(i int) {
	c.t.Helper()
	c.network.detach(i)
	if err := c.Node(i).Close(); err != nil {
		c.t.Errorf("clustertest: close node %d: %v", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[i] = false
}
