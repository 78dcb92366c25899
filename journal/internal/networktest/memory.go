package networktest

import (
	"errors"
	"net"
	"sync"
	"time"
)

// Network is a listener, and dials the listeners of others.
type Network interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// Memory connects the nodes of one test by pipes.
type Memory struct {
	mu        sync.Mutex
	listeners map[string]*memoryListener
}

// NewMemory returns a network without listeners.
func NewMemory() *Memory {
	return &Memory{listeners: map[string]*memoryListener{}}
}

var errConnRejected = errors.New("connection refused")

// Listen opens the listener of an address, in place of a previous one.
func (m *Memory) Listen(address string) Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &memoryListener{network: m, address: address, dials: make(chan net.Conn), closed: make(chan struct{})}
	m.listeners[address] = d
	return d
}

// memoryListener is a Network.
type memoryListener struct {
	network *Memory
	address string
	dials   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

// Accept implements net.Listener.
func (m *memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-m.dials:
		return conn, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (m *memoryListener) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

// Addr implements net.Listener.
func (m *memoryListener) Addr() net.Addr { return memoryAddress(m.address) }

// Dial implements Network.
func (m *memoryListener) Dial(address string, timeout time.Duration) (net.Conn, error) {
	m.network.mu.Lock()
	other := m.network.listeners[address]
	m.network.mu.Unlock()
	if other == nil {
		return nil, errConnRejected
	}
	local, remote := net.Pipe()
	select {
	case other.dials <- remote:
		return local, nil
	case <-other.closed:
		return nil, errConnRejected
	case <-time.After(timeout):
		return nil, errConnRejected
	}
}

// memoryAddress is an address in a Memory.
type memoryAddress string

func (memoryAddress) Network() string  { return "tcp" }
func (a memoryAddress) String() string { return string(a) }
