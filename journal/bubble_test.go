package journal

import (
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// inBubble runs a test in virtual time, in which a slow machine is no slow
// network, no slow disk and no leader that is not heard of: time passes only when
// everybody waits.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// memoryNetwork connects the nodes of one test by pipes.
type memoryNetwork struct {
	mu    sync.Mutex
	doors map[string]*memoryDoor
}

func newMemoryNetwork() *memoryNetwork { return &memoryNetwork{doors: map[string]*memoryDoor{}} }

var errNobodyThere = errors.New("connection refused")

// listen opens the door at an address, in the place of the one that was there.
func (n *memoryNetwork) listen(address string) Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := &memoryDoor{of: n, address: address, calling: make(chan net.Conn), closed: make(chan struct{})}
	n.doors[address] = d
	return d
}

// memoryDoor is a Network.
type memoryDoor struct {
	of      *memoryNetwork
	address string
	calling chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

// Accept implements net.Listener.
func (d *memoryDoor) Accept() (net.Conn, error) {
	select {
	case conn := <-d.calling:
		return conn, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (d *memoryDoor) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// Addr implements net.Listener.
func (d *memoryDoor) Addr() net.Addr { return streamAddress(d.address) }

// Dial implements Network.
func (d *memoryDoor) Dial(address string, timeout time.Duration) (net.Conn, error) {
	d.of.mu.Lock()
	other := d.of.doors[address]
	d.of.mu.Unlock()
	if other == nil {
		return nil, errNobodyThere
	}
	mine, theirs := net.Pipe()
	select {
	case other.calling <- theirs:
		return mine, nil
	case <-other.closed:
		return nil, errNobodyThere
	case <-time.After(timeout):
		return nil, errNobodyThere
	}
}
