package link

import (
	"context"
	"maps"
	"net"
	"sync"
	"time"
)

// A Mesh is a proxy in front of each node. Its methods may be called concurrently.
type Mesh struct {
	ctx        context.Context
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	mu         sync.Mutex
	listeners  map[string]net.Listener
	targets    map[string]string // the nodes' own addresses
	processes  map[string]int
	conditions map[direction]Condition
	changed    chan struct{} // closed when conditions change
}

// A direction is the direction of data, whichever node opened the connection.
type direction struct{ from, to string }

// NewMesh returns a mesh without nodes.
func NewMesh() *Mesh {
	m := &Mesh{
		listeners:  make(map[string]net.Listener),
		targets:    make(map[string]string),
		processes:  make(map[string]int),
		conditions: make(map[direction]Condition),
		changed:    make(chan struct{}),
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Add puts a proxy in front of a node that listens at target, and returns the proxy's address.
func (m *Mesh) Add(node, target string) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	m.listeners[node], m.targets[node] = listener, target
	m.mu.Unlock()
	m.goroutines.Go(func() { m.accept(node, listener) })
	return listener.Addr().String(), nil
}

// SetProcess sets the process of a node, 0 for none. Connections from unknown processes, and to a
// node without a process, are closed at once.
func (m *Mesh) SetProcess(node string, pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes[node] = pid
}

// Set sets the condition of the direction from one node to another, for existing and new
// connections.
func (m *Mesh) Set(from, to string, c Condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conditions[direction{from, to}] = c
	close(m.changed)
	m.changed = make(chan struct{})
}

// Heal resets the conditions of all directions.
func (m *Mesh) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.conditions)
	close(m.changed)
	m.changed = make(chan struct{})
}

// Close closes all connections and waits for every goroutine.
func (m *Mesh) Close() {
	m.cancel()
	m.mu.Lock()
	for _, listener := range m.listeners {
		_ = listener.Close()
	}
	m.mu.Unlock()
	m.goroutines.Wait()
}

func (m *Mesh) accept(to string, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err == nil {
			m.goroutines.Go(func() { m.proxy(conn, to) })
			continue
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(50 * time.Millisecond): // out of file descriptors
		}
	}
}

// proxy forwards a connection to its node.
func (m *Mesh) proxy(near net.Conn, to string) {
	defer near.Close()
	from, ok := m.sourceNode(near, to)
	if !ok || !m.awaitUncut(m.ctx, direction{from, to}) {
		return
	}
	m.mu.Lock()
	target := m.targets[to]
	m.mu.Unlock()
	far, err := new(net.Dialer).DialContext(m.ctx, "tcp", target)
	if err != nil {
		return
	}
	defer far.Close()
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		_ = near.Close()
		_ = far.Close()
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { defer cancel(); m.forward(ctx, near, far, direction{from, to}) })
	both.Go(func() { defer cancel(); m.forward(ctx, far, near, direction{to, from}) })
	both.Wait()
}

// awaitUncut waits until a direction is not cut. It returns false if ctx ends first.
func (m *Mesh) awaitUncut(ctx context.Context, d direction) bool {
	for {
		m.mu.Lock()
		cut, changed := m.conditions[d].Cut, m.changed
		m.mu.Unlock()
		if !cut {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (m *Mesh) condition(d direction) Condition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conditions[d]
}

// sourceNode returns the node that opened a connection to another. It returns false if no node did,
// or if the other node is not running.
func (m *Mesh) sourceNode(conn net.Conn, to string) (string, bool) {
	m.mu.Lock()
	processes := maps.Clone(m.processes)
	m.mu.Unlock()
	if pid, known := processes[to]; known && pid == 0 {
		return "", false
	}
	return ownerOf(conn.RemoteAddr(), conn.LocalAddr(), processes)
}
