package journal

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// heldNetwork is a Network that holds back what arrives, as the sockets of a
// process do that is stopped, and loses what is sent.
type heldNetwork struct {
	Network
	mu      sync.Mutex
	changed *sync.Cond
	answers bool // hold what others answer
	asking  bool // hold what others ask, and lose what is asked of them
	held    int  // reads that are being held
	lost    int  // writes that were lost
}

func newHeldNetwork(network Network) *heldNetwork {
	n := &heldNetwork{Network: network}
	n.changed = sync.NewCond(&n.mu)
	return n
}

func (n *heldNetwork) set(answers, asking bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.answers, n.asking = answers, asking
	n.changed.Broadcast()
}

func (n *heldNetwork) counts() (held, lost int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.held, n.lost
}

func (n *heldNetwork) Accept() (net.Conn, error) {
	conn, err := n.Network.Accept()
	if err != nil {
		return nil, err
	}
	return &heldConn{Conn: conn, network: n}, nil
}

func (n *heldNetwork) Dial(address string, timeout time.Duration) (net.Conn, error) {
	conn, err := n.Network.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return &heldConn{Conn: conn, network: n, dialed: true}, nil
}

type heldConn struct {
	net.Conn
	network *heldNetwork
	dialed  bool
	closed  bool
}

func (c *heldConn) Read(b []byte) (int, error) {
	read, err := c.Conn.Read(b)
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held++
	for !c.closed && (c.dialed && n.answers || !c.dialed && n.asking) {
		n.changed.Wait()
	}
	n.held--
	return read, err
}

func (c *heldConn) Write(b []byte) (int, error) {
	c.network.mu.Lock()
	lost := c.dialed && c.network.asking
	if lost {
		c.network.lost++
	}
	c.network.mu.Unlock()
	if lost {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *heldConn) Close() error {
	c.network.mu.Lock()
	c.closed = true
	c.network.changed.Broadcast()
	c.network.mu.Unlock()
	return c.Conn.Close()
}

// A leader was stopped with answers in its sockets. When it goes on, another has
// been elected and has committed something, and the answers are still there.
func TestBarrierDoesNotRestOnAnswersFromBeforeItBegan(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var network *heldNetwork
		g := newTweakedGroup(t, nil, func(node int, c *Config) {
			if node == 0 {
				network = newHeldNetwork(c.Network)
				c.Network = network
				// As if its clock stood still: it does not step down by itself.
				c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLease = time.Hour, time.Hour, time.Hour
			}
		})
		old := g.nodes[0]
		transferTo(t, g, 0)
		mustAppend(t, old, begin(old.Epoch(), "before"))

		network.set(true, false)
		eventually(t, "answers of both are held", func() bool { held, _ := network.counts(); return held >= 2 })
		network.set(true, true)
		other := awaitOther(t, g, 0)
		mustAppend(t, other, begin(other.Epoch(), "after"))

		_, before := network.counts()
		result := make(chan error, 1)
		go func() { result <- old.Barrier(t.Context()) }()
		// The questions of the verification, which thus has begun.
		eventually(t, "it asks both", func() bool { _, lost := network.counts(); return lost >= before+2 })
		_, before = network.counts()
		network.set(false, true)
		eventually(t, "the answers are taken", func() bool { _, lost := network.counts(); return lost > before })
		network.set(false, false)
		if err := <-result; !errors.Is(err, ErrNotLeader) {
			t.Errorf("barrier of a leader of the past: %v; it shows the append of the present: %t", err, lastEvent(t, old, "after") > 0)
		}
		g.agree(t)
	})
}

// transferTo makes a node the leader.
func transferTo(t *testing.T, g *group, to int) {
	t.Helper()
	eventually(t, "leadership of "+g.peers[to].Node, func() bool {
		if leader := g.nodes[g.leader(t)]; !g.nodes[to].IsLeader() {
			_ = leader.raft.LeadershipTransferToServer(raft.ServerID(g.peers[to].Node), raft.ServerAddress(g.peers[to].Address)).Error()
		}
		return g.nodes[to].IsLeader()
	})
}

// awaitOther waits until another node than one leads.
func awaitOther(t *testing.T, g *group, not int) *Journal {
	t.Helper()
	var other *Journal
	eventually(t, "another leader", func() bool {
		for i, j := range g.nodes {
			if i != not && j.IsLeader() {
				other = j
			}
		}
		return other != nil
	})
	return other
}

func TestAMajorityOfTheVotersHasToAcknowledge(t *testing.T) {
	voter := func(id raft.ServerID) raft.Server { return raft.Server{ID: id} }
	learner := raft.Server{ID: "learner", Suffrage: raft.Nonvoter}
	const term = 7
	for name, test := range map[string]struct {
		servers []raft.Server
		acked   []raft.ServerID
		want    bool
	}{
		"alone":                        {[]raft.Server{voter("a")}, nil, true},
		"alone with a learner":         {[]raft.Server{voter("a"), learner}, nil, true},
		"one of three":                 {[]raft.Server{voter("a"), voter("b"), voter("c")}, nil, false},
		"two of three":                 {[]raft.Server{voter("a"), voter("b"), voter("c")}, []raft.ServerID{"c"}, true},
		"one of two":                   {[]raft.Server{voter("a"), voter("b")}, nil, false},
		"one of three and a learner":   {[]raft.Server{voter("a"), voter("b"), voter("c"), learner}, []raft.ServerID{"learner"}, false},
		"a leader that has no vote":    {[]raft.Server{voter("b"), voter("c")}, []raft.ServerID{"b"}, false},
		"all others, without its vote": {[]raft.Server{voter("b"), voter("c")}, []raft.ServerID{"b", "c"}, true},
	} {
		a := newAcks()
		since := a.begin()
		for _, id := range test.acked {
			a.note(id, ack{begun: a.begin(), term: term})
		}
		if got := a.confirmed(test.servers, "a", term, since); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
		if len(test.acked) > 0 && a.confirmed(test.servers, "a", term+1, since) {
			t.Errorf("%s: acknowledged in another term", name)
		}
		if len(test.acked) > 0 && a.confirmed(test.servers, "a", term, a.begin()) {
			t.Errorf("%s: acknowledged before it began", name)
		}
	}
}
