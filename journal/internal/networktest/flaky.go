package networktest

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Flaky is a Memory on which nodes can be isolated, or paused as SIGSTOP pauses a
// process: data sent to a paused node is accepted, as by its kernel, but not read.
type Flaky struct {
	*Memory
	mu          sync.Mutex
	isolated    map[string]bool          // neither reach nor are reached by others
	paused      map[string]chan struct{} // until the channel is closed
	stallLimits map[string]int           // received bytes at which a connection of the node stalls
	open        map[*FlakyConn]struct{}
	reads       int // of all connections
}

// NewFlaky returns a network without listeners and faults.
func NewFlaky() *Flaky {
	return &Flaky{
		Memory:   NewMemory(),
		isolated: map[string]bool{}, paused: map[string]chan struct{}{}, stallLimits: map[string]int{},
		open: map[*FlakyConn]struct{}{},
	}
}

// Isolate closes all connections of a node and prevents new ones until Reconnect.
func (f *Flaky) Isolate(address string) {
	f.mu.Lock()
	f.isolated[address] = true
	f.mu.Unlock()
	for _, c := range f.connsOf(address) {
		_ = c.Close()
	}
}

// Reconnect undoes Isolate.
func (f *Flaky) Reconnect(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.isolated, address)
}

// Pause stops a node until the returned function is called.
func (f *Flaky) Pause(address string) (resume func()) {
	resumed := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused[address] = resumed
	for c := range f.open {
		if c.owner == address {
			c.resume = resumed
		}
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.paused, address)
		close(resumed)
	}
}

// Stall stops all data on a node's present connections forever.
func (f *Flaky) Stall(address string) []*FlakyConn {
	stuck := f.connsOf(address)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range stuck {
		c.resume = make(chan struct{})
	}
	return stuck
}

// StallAfter stops all data on the first of a node's connections that has received that many bytes.
func (f *Flaky) StallAfter(address string, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stallLimits[address] = bytes
}

// CountReads returns how often a connection is read while d passes.
func (f *Flaky) CountReads(d time.Duration) int {
	count := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.reads
	}
	before := count()
	time.Sleep(d)
	return count() - before
}

// connsOf returns a node's ends of its connections.
func (f *Flaky) connsOf(address string) (ends []*FlakyConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.open {
		if c.owner == address {
			ends = append(ends, c)
		}
	}
	return ends
}

func (f *Flaky) add(conn net.Conn, owner string) *FlakyConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &FlakyConn{Conn: conn, network: f, owner: owner, resume: f.paused[owner], closed: make(chan struct{})}
	f.open[c] = struct{}{}
	return c
}

// Listen opens the listener of an address.
func (f *Flaky) Listen(address string) Network {
	return &flakyListener{f.Memory.Listen(address).(*memoryListener), f}
}

// flakyListener is a Network.
type flakyListener struct {
	*memoryListener
	flaky *Flaky
}

// Accept implements net.Listener.
func (f *flakyListener) Accept() (net.Conn, error) {
	conn, err := f.memoryListener.Accept()
	if err != nil {
		return nil, err
	}
	return f.flaky.add(conn, f.address), nil
}

// Dial implements Network.
func (f *flakyListener) Dial(address string, timeout time.Duration) (net.Conn, error) {
	f.flaky.mu.Lock()
	isolated, stopped := f.flaky.isolated[f.address] || f.flaky.isolated[address], f.flaky.paused[f.address]
	f.flaky.mu.Unlock()
	if stopped != nil {
		select {
		case <-stopped:
		case <-f.closed:
		}
	}
	if isolated {
		time.Sleep(min(timeout, time.Second))
		return nil, errConnRejected
	}
	conn, err := f.memoryListener.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return f.flaky.add(conn, f.address), nil
}

// FlakyConn is one end of a connection.
type FlakyConn struct {
	net.Conn
	network      *Flaky
	owner        string
	resume       chan struct{} // reads wait until it is closed; nil: they do not wait
	bytes        int           // received
	readDeadline time.Time     // deadline of a read that begins now; zero: none
	once         sync.Once
	closed       chan struct{}
}

// Read implements net.Conn.
func (c *FlakyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.network.mu.Lock()
	c.bytes += n
	c.network.reads++
	if limit := c.network.stallLimits[c.owner]; limit > 0 && c.bytes >= limit {
		delete(c.network.stallLimits, c.owner)
		c.resume = make(chan struct{})
	}
	resumed := c.resume
	var late <-chan time.Time
	if !c.readDeadline.IsZero() {
		late = time.After(time.Until(c.readDeadline))
	}
	c.network.mu.Unlock()
	if resumed != nil {
		select {
		case <-resumed:
		case <-late:
			return 0, os.ErrDeadlineExceeded
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

// SetReadDeadline implements net.Conn.
func (c *FlakyConn) SetReadDeadline(t time.Time) error {
	c.network.mu.Lock()
	c.readDeadline = t
	c.network.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// Close implements net.Conn.
func (c *FlakyConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.network.mu.Lock()
	delete(c.network.open, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

// IsClosedByPeer reports whether the other end is closed.
func (c *FlakyConn) IsClosedByPeer() bool {
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	_, err := c.Conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}
