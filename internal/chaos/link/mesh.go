package link

import (
	"context"
	"maps"
	"net"
	"sync"
	"time"
)

// A Mesh is a proxy in front of each node. Its methods may be called
// concurrently.
type Mesh struct {
	ctx    context.Context
	cancel context.CancelFunc
	ends   sync.WaitGroup

	mu         sync.Mutex
	listeners  map[string]net.Listener
	targets    map[string]string // where the nodes really listen
	processes  map[string]int
	conditions map[direction]Condition
	changed    chan struct{} // closed when conditions change
}

// A direction is that of bytes, whoever opened the connection.
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

// Add puts a proxy in front of a node that listens at target, and returns the
// address at which the others reach it.
func (m *Mesh) Add(node, target string) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	m.mu.Lock()
	m.listeners[node], m.targets[node] = listener, target
	m.mu.Unlock()
	m.ends.Go(func() { m.accept(node, listener) })
	return listener.Addr().String(), nil
}

// SetProcess tells which process a node is now, 0 for none. Connections of
// others are closed when they are made, and so are those to a node that does not
// run.
func (m *Mesh) SetProcess(node string, pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes[node] = pid
}

// Set changes what the direction from one node to another is like, for
// connections that exist as for new ones.
func (m *Mesh) Set(from, to string, c Condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conditions[direction{from, to}] = c
	close(m.changed)
	m.changed = make(chan struct{})
}

// Heal makes all directions like new.
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
	m.ends.Wait()
}

func (m *Mesh) accept(to string, listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err == nil {
			m.ends.Go(func() { m.carry(conn, to) })
			continue
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(50 * time.Millisecond): // out of file descriptors
		}
	}
}

// carry brings a connection to the node that it is for.
func (m *Mesh) carry(near net.Conn, to string) {
	defer near.Close()
	from, ok := m.dialer(near, to)
	if !ok || !m.passable(m.ctx, direction{from, to}) {
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
	both.Go(func() { defer cancel(); m.pass(ctx, near, far, direction{from, to}) })
	both.Go(func() { defer cancel(); m.pass(ctx, far, near, direction{to, from}) })
	both.Wait()
}

// passable waits until a direction is not cut; false when ctx ends first.
func (m *Mesh) passable(ctx context.Context, d direction) bool {
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

// dialer tells which node has opened a connection to another one; false if none
// has, or if the other one does not run.
func (m *Mesh) dialer(conn net.Conn, to string) (string, bool) {
	m.mu.Lock()
	processes := maps.Clone(m.processes)
	m.mu.Unlock()
	if pid, told := processes[to]; told && pid == 0 {
		return "", false
	}
	return ownerOf(conn.RemoteAddr(), conn.LocalAddr(), processes)
}
