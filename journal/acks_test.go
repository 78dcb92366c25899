package journal

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/waittest"
)

// pausedNetwork is a Network that holds back what arrives, as the sockets of a stopped process do,
// and loses what is sent.
type pausedNetwork struct {
	Network
	mu             sync.Mutex
	changed        *sync.Cond
	pauseResponses bool // hold back the responses of others
	pauseRequests  bool // hold back the requests of others, and lose requests to them
	pausedReads    int  // reads that are held back
	lostWrites     int  // writes that were lost
}

func newPausedNetwork(network Network) *pausedNetwork {
	n := &pausedNetwork{Network: network}
	n.changed = sync.NewCond(&n.mu)
	return n
}

func (n *pausedNetwork) setPaused(answers, asking bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pauseResponses, n.pauseRequests = answers, asking
	n.changed.Broadcast()
}

func (n *pausedNetwork) counts() (held, lost int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pausedReads, n.lostWrites
}

func (n *pausedNetwork) Accept() (net.Conn, error) {
	conn, err := n.Network.Accept()
	if err != nil {
		return nil, err
	}
	return &pausedConn{Conn: conn, network: n}, nil
}

func (n *pausedNetwork) Dial(address string, timeout time.Duration) (net.Conn, error) {
	conn, err := n.Network.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return &pausedConn{Conn: conn, network: n, dialed: true}, nil
}

type pausedConn struct {
	net.Conn
	network *pausedNetwork
	dialed  bool
	closed  bool
}

func (c *pausedConn) Read(b []byte) (int, error) {
	read, err := c.Conn.Read(b)
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pausedReads++
	for !c.closed && (c.dialed && n.pauseResponses || !c.dialed && n.pauseRequests) {
		n.changed.Wait()
	}
	n.pausedReads--
	return read, err
}

func (c *pausedConn) Write(b []byte) (int, error) {
	c.network.mu.Lock()
	lost := c.dialed && c.network.pauseRequests
	if lost {
		c.network.lostWrites++
	}
	c.network.mu.Unlock()
	if lost {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *pausedConn) Close() error {
	c.network.mu.Lock()
	c.closed = true
	c.network.changed.Broadcast()
	c.network.mu.Unlock()
	return c.Conn.Close()
}

// A leader stops with answers in its sockets. When it continues, another leader has been elected
// and has committed an entry, and the answers are still there.
func TestBarrier_IgnoresResponsesFromBeforeStart(t *testing.T) {
	waittest.InSynctest(t, func(t *testing.T) {
		var network *pausedNetwork
		g := newConfiguredTestCluster(t, nil, func(node int, c *Config) {
			if node == 0 {
				network = newPausedNetwork(c.Network)
				c.Network = network
				// as if its clock stood still: it does not step down by itself
				c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease = time.Hour, time.Hour, time.Hour
			}
		})
		old := g.nodes[0]
		transferLeadershipTo(t, g, 0)
		mustAppend(t, old, newStartAppend(old.Epoch(), "before"))

		network.setPaused(true, false)
		waittest.Eventually(t, "answers of both are held back", func() bool { held, _ := network.counts(); return held >= 2 })
		network.setPaused(true, true)
		other := awaitOtherLeader(t, g, 0)
		mustAppend(t, other, newStartAppend(other.Epoch(), "after"))

		_, before := network.counts()
		result := make(chan error, 1)
		go func() { result <- old.Barrier(t.Context()) }()
		// The requests of the verification, which has therefore begun.
		waittest.Eventually(t, "it asks both", func() bool { _, lost := network.counts(); return lost >= before+2 })
		_, before = network.counts()
		network.setPaused(false, true)
		waittest.Eventually(t, "the answers are received", func() bool { _, lost := network.counts(); return lost > before })
		network.setPaused(false, false)
		if err := <-result; !errors.Is(err, ErrNotLeader) {
			t.Errorf("barrier of a former leader: %v; it shows the new leader's append: %t", err, lastEvent(t, old, "after") > 0)
		}
		g.awaitEqualStates(t)
	})
}

// transferLeadershipTo makes a node the leader.
func transferLeadershipTo(t *testing.T, g *testCluster, to int) {
	t.Helper()
	waittest.Eventually(t, "leadership of "+g.peers[to].Node, func() bool {
		if leader := g.nodes[g.leader(t)]; !g.nodes[to].IsLeader() {
			_ = leader.raft.LeadershipTransferToServer(raft.ServerID(g.peers[to].Node), raft.ServerAddress(g.peers[to].Address)).Error()
		}
		return g.nodes[to].IsLeader()
	})
}

// awaitOtherLeader waits until another node than one leads.
func awaitOtherLeader(t *testing.T, g *testCluster, except int) *Journal {
	t.Helper()
	var other *Journal
	waittest.Eventually(t, "another leader", func() bool {
		for i, j := range g.nodes {
			if i != except && j.IsLeader() {
				other = j
			}
		}
		return other != nil
	})
	return other
}
