package clustertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/detour"
)

// nodesMax bounds the nodes of a cluster.
const nodesMax = 9

// A Cluster is a cluster of nodes in this process. Nodes are numbered from 0, and
// named n0, n1 and so on. What changes the cluster, and what waits, is to be called
// by the goroutine of the test, because it may end it; Client, Node, Running and
// Addresses by any.
type Cluster struct {
	t       testing.TB
	options options
	network *network
	log     *testLog
	family  family
	dirs    []string

	mu    sync.Mutex
	nodes []*cluster.Node // the last ones started
	runs  []bool
}

// New starts a cluster of n nodes, 1 to 9, and returns when it has a leader. It
// ends with the test, which fails if goroutines of it are left then.
func New(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	if n < 1 || n > nodesMax {
		t.Fatalf("clustertest: %d nodes: 1 to %d are allowed", n, nodesMax)
	}
	c := &Cluster{
		t: t, options: newOptions(opts), log: &testLog{t: t}, family: newFamily(),
		dirs: make([]string, n), nodes: make([]*cluster.Node, n), runs: make([]bool, n),
	}
	for i := range c.dirs {
		if !c.options.inMemory {
			c.dirs[i] = t.TempDir()
		}
	}
	var err error
	c.family.do(func() { c.network, err = newNetwork(n) })
	if err != nil {
		t.Fatalf("clustertest: %v", err)
	}
	t.Cleanup(c.close)
	for i := range n {
		c.start(i)
	}
	c.Leader()
	return c
}

// close ends everything, when the test has ended.
func (c *Cluster) close() {
	c.t.Helper()
	for i := range c.nodes {
		if c.Running(i) {
			c.stop(i)
		}
	}
	c.network.close()
	if left := c.family.left(leavePatience); left != "" {
		c.t.Errorf("clustertest: goroutines are left behind; an activity has to return when its context ends, and to end what it has started:\n%s", left)
	}
	c.log.close()
}

// Client returns the client of a node; that of a killed one answers with
// [cluster.ErrClosed]. A restarted node has another client.
func (c *Cluster) Client(i int) *cluster.Client { return c.Node(i).Client() }

// Node returns a node as it was last started.
func (c *Cluster) Node(i int) *cluster.Node {
	c.t.Helper()
	c.check(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[i]
}

// Running tells whether a node was started and not killed.
func (c *Cluster) Running(i int) bool {
	c.t.Helper()
	c.check(i)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[i]
}

// Addresses returns where remote clients reach the nodes ([cluster.Dial]): the same
// for as long as the cluster is there.
func (c *Cluster) Addresses() []string {
	var addresses []string
	for i := range c.dirs {
		addresses = append(addresses, c.network.address(i))
	}
	return addresses
}

// Kill stops a node as a crash would, as far as that can be in one process: its
// connections are closed first, so that nothing more comes from it, and then the
// node, which hands nothing over and waits for nothing but its activities: their
// context has ended, and they have Config.StopGrace. A killed node can be killed
// again.
//
// It is gentler than a crash in one respect: what the node has given to the
// operating system is not lost, and what it still writes to its own directory
// while it closes is there when it is restarted.
func (c *Cluster) Kill(i int) {
	c.t.Helper()
	if c.Running(i) {
		c.stop(i)
	}
}

// Restart starts a node again, over what it has on disk, and returns when it is
// up, whether there is a leader or not. One that runs is killed first. The node
// must not be in memory only.
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	c.Kill(i)
	if c.options.inMemory {
		c.t.Fatalf("clustertest: node %d is in memory: what it had is lost, and a node without what it had must not come back", i)
	}
	c.start(i)
}

// Partition cuts two nodes off from each other, in both directions. What was
// under way arrives after [Cluster.Heal], as over TCP.
func (c *Cluster) Partition(i, j int) {
	c.t.Helper()
	c.check(i)
	c.check(j)
	if i == j {
		c.t.Fatalf("clustertest: node %d cannot be cut off from itself", i)
	}
	c.network.cut(i, j)
}

// Isolate cuts a node off from all others. Remote clients still reach it.
func (c *Cluster) Isolate(i int) {
	c.t.Helper()
	for j := range c.dirs {
		if j != i {
			c.Partition(i, j)
		}
	}
}

// Heal undoes every Partition and Isolate.
func (c *Cluster) Heal() { c.network.heal() }

// Pause holds everything up that a node sends or receives, over connections that
// are open as over new ones, of other nodes and of remote clients, until
// [Cluster.Resume]. To the others it is like a process that hangs. In it code goes
// on running: its clocks, its activities, calls through [Cluster.Client].
func (c *Cluster) Pause(i int) {
	c.t.Helper()
	c.check(i)
	c.network.pause(i, true)
}

// Resume ends a Pause.
func (c *Cluster) Resume(i int) {
	c.t.Helper()
	c.check(i)
	c.network.pause(i, false)
}

// Leader waits until there is a leader and returns which node it is: one that
// leads, that can reach a majority of the nodes, and that a majority takes for the
// leader. Right after the leader was killed, cut off or paused, it so is another
// one. Without a majority the test fails.
func (c *Cluster) Leader() int {
	c.t.Helper()
	leader := -1
	c.Eventually("a leader that a majority follows", func() bool {
		for i := range c.dirs {
			if c.leads(i) {
				leader = i
			}
		}
		return leader >= 0
	})
	return leader
}

func (c *Cluster) leads(i int) bool {
	if !c.Running(i) || !c.Node(i).Leading() {
		return false
	}
	followers := 0
	for j := range c.dirs {
		if j == i || c.Running(j) && c.network.connects(i, j) && c.Node(j).Leader() == nodeID(i) {
			followers++
		}
	}
	return followers > len(c.dirs)/2
}

// Eventually waits until a condition holds, and fails the test when it does not
// for as long as [Patience] allows. The condition is asked a few hundred times a
// second, and is not to wait itself.
func (c *Cluster) Eventually(what string, holds func() bool) {
	c.t.Helper()
	limit := time.NewTimer(c.options.patience)
	defer limit.Stop()
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-limit.C:
			c.t.Fatalf("clustertest: not within %v: %s\n%s", c.options.patience, what, c)
		}
	}
}

// askEvery is how often a condition is asked.
const askEvery = 3 * time.Millisecond

// String tells what the nodes are doing, one a line.
func (c *Cluster) String() string {
	var b strings.Builder
	for i := range c.dirs {
		fmt.Fprintf(&b, "node %d: ", i)
		node := c.Node(i)
		switch {
		case !c.Running(i):
			b.WriteString("killed")
		case node.Err() != nil:
			fmt.Fprintf(&b, "has stepped aside: %v", node.Err())
		case node.Leading():
			b.WriteString("leads")
		case node.Leader() == "":
			b.WriteString("knows of no leader")
		default:
			fmt.Fprintf(&b, "follows %s", node.Leader())
		}
		b.WriteString(c.network.describe(i) + "\n")
	}
	return b.String()
}

func nodeID(i int) string { return fmt.Sprintf("n%d", i) }

func (c *Cluster) check(i int) {
	c.t.Helper()
	if i < 0 || i >= len(c.dirs) {
		c.t.Fatalf("clustertest: node %d: there are %d, counted from 0", i, len(c.dirs))
	}
}

// wsaEADDRINUSE is what Windows says instead of EADDRINUSE; other systems have no such error.
const wsaEADDRINUSE = syscall.Errno(10048)

// start starts a node where nobody else listens.
func (c *Cluster) start(i int) {
	c.t.Helper()
	node, err := c.startOnce(i)
	for errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, wsaEADDRINUSE) { // somebody was quicker
		node, err = c.startOnce(i)
	}
	if err != nil {
		c.network.unplug(i)
		c.t.Fatalf("clustertest: start node %d: %v", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[i], c.runs[i] = node, true
}

func (c *Cluster) startOnce(i int) (node *cluster.Node, err error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := c.config(i)
	config.Listen = address
	ctx := detour.With(context.Background(), c.network.routeFrom(i))
	c.network.plug(i, address)
	c.family.do(func() { node, err = cluster.Start(ctx, config) })
	return node, err
}

// config returns the configuration of a node, without where it listens.
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

// Nodes listen on ports below those that the system gives to outgoing connections, so that one
// that is stopped for a while finds its port free again. Each process begins somewhere else.
const (
	portFirst = 10_000
	portCount = 20_000
)

var portsGiven atomic.Int64

func init() { portsGiven.Store(int64(os.Getpid()) * 61) }

// freeAddress returns an address where nobody listens at the moment, each time another one.
func freeAddress() (address string, err error) {
	for range portCount {
		var listener net.Listener
		address = fmt.Sprintf("127.0.0.1:%d", portFirst+portsGiven.Add(1)%portCount)
		if listener, err = net.Listen("tcp", address); err == nil {
			return address, listener.Close()
		}
	}
	return "", err
}

// stop cuts the connections of a node and then closes it.
func (c *Cluster) stop(i int) {
	c.t.Helper()
	c.network.unplug(i)
	if err := c.Node(i).Close(); err != nil {
		c.t.Errorf("clustertest: close node %d: %v", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[i] = false
}
