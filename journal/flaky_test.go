package journal

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// flakyNetwork is a memoryNetwork on which nodes can be cut off, or stopped as SIGSTOP
// stops a process: what is sent to them is taken, by their kernel so to speak, and
// nothing comes of it.
type flakyNetwork struct {
	*memoryNetwork
	mu      sync.Mutex
	apart   map[string]bool          // who reaches nobody, and is reached by nobody
	stopped map[string]chan struct{} // until it is closed
	limits  map[string]int           // the next connection with so many bytes is stuck behind them
	open    map[*flakyConn]struct{}
	reads   int // of all connections
}

func newFlakyNetwork() *flakyNetwork {
	return &flakyNetwork{
		memoryNetwork: newMemoryNetwork(),
		apart:         map[string]bool{}, stopped: map[string]chan struct{}{}, limits: map[string]int{},
		open: map[*flakyConn]struct{}{},
	}
}

// newFlakyGroup starts three nodes on a flaky network.
func newFlakyGroup(t *testing.T) (*group, *flakyNetwork) {
	t.Helper()
	noLeaks(t)
	network := newFlakyNetwork()
	g := &group{listen: network.listen, nodes: make([]*Journal, 3), tweak: func(int, *Config) {}}
	g.startAll(t, nil)
	return g, network
}

// cut ends every connection of a node, and lets it make none, until join.
func (n *flakyNetwork) cut(address string) {
	n.mu.Lock()
	n.apart[address] = true
	n.mu.Unlock()
	for _, c := range n.of(address) {
		_ = c.Close()
	}
}

func (n *flakyNetwork) join(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.apart, address)
}

// stop stops a node until the function that it returns is called.
func (n *flakyNetwork) stop(address string) (goOn func()) {
	gate := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped[address] = gate
	for c := range n.open {
		if c.owner == address {
			c.gate = gate
		}
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.stopped, address)
		close(gate)
	}
}

// stick has nothing come through the connections that a node has, ever again.
func (n *flakyNetwork) stick(address string) []*flakyConn {
	stuck := n.of(address)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range stuck {
		c.gate = make(chan struct{})
	}
	return stuck
}

// stickOnceBehind has nothing more come through the next connection of a node through
// which so many bytes have come.
func (n *flakyNetwork) stickOnceBehind(address string, bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limits[address] = bytes
}

// readsIn returns how often something is read from a connection while d passes.
func (n *flakyNetwork) readsIn(d time.Duration) int {
	count := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.reads
	}
	before := count()
	time.Sleep(d)
	return count() - before
}

// of returns the ends of connections that a node has.
func (n *flakyNetwork) of(address string) (ends []*flakyConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.open {
		if c.owner == address {
			ends = append(ends, c)
		}
	}
	return ends
}

func (n *flakyNetwork) add(conn net.Conn, owner string) *flakyConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &flakyConn{Conn: conn, on: n, owner: owner, gate: n.stopped[owner], closed: make(chan struct{})}
	n.open[c] = struct{}{}
	return c
}

// listen opens the door at an address.
func (n *flakyNetwork) listen(address string) Network {
	return &flakyDoor{n.memoryNetwork.listen(address).(*memoryDoor), n}
}

// flakyDoor is a Network.
type flakyDoor struct {
	*memoryDoor
	on *flakyNetwork
}

// Accept implements net.Listener.
func (d *flakyDoor) Accept() (net.Conn, error) {
	conn, err := d.memoryDoor.Accept()
	if err != nil {
		return nil, err
	}
	return d.on.add(conn, d.address), nil
}

// Dial implements Network.
func (d *flakyDoor) Dial(address string, timeout time.Duration) (net.Conn, error) {
	d.on.mu.Lock()
	apart, stopped := d.on.apart[d.address] || d.on.apart[address], d.on.stopped[d.address]
	d.on.mu.Unlock()
	if stopped != nil {
		select {
		case <-stopped:
		case <-d.closed:
		}
	}
	if apart {
		time.Sleep(min(timeout, time.Second))
		return nil, errNobodyThere
	}
	conn, err := d.memoryDoor.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return d.on.add(conn, d.address), nil
}

// flakyConn is one end of a connection.
type flakyConn struct {
	net.Conn
	on     *flakyNetwork
	owner  string
	gate   chan struct{} // what comes in waits until it is closed; nil: does not wait
	bytes  int           // that have come in
	late   time.Time     // when a read that begins now has taken too long; zero: never
	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn.
func (c *flakyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.on.mu.Lock()
	c.bytes += n
	c.on.reads++
	if limit := c.on.limits[c.owner]; limit > 0 && c.bytes >= limit {
		delete(c.on.limits, c.owner)
		c.gate = make(chan struct{})
	}
	gate := c.gate
	var late <-chan time.Time
	if !c.late.IsZero() {
		late = time.After(time.Until(c.late))
	}
	c.on.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-late:
			return 0, os.ErrDeadlineExceeded
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

// SetReadDeadline implements net.Conn.
func (c *flakyConn) SetReadDeadline(t time.Time) error {
	c.on.mu.Lock()
	c.late = t
	c.on.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// Close implements net.Conn.
func (c *flakyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.on.mu.Lock()
	delete(c.on.open, c)
	c.on.mu.Unlock()
	return c.Conn.Close()
}

// isLeft tells whether the other end is closed.
func (c *flakyConn) isLeft() bool {
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	_, err := c.Conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}
