package clustertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// externalNode is the number that stands for remote clients in a direction.
const externalNode = -1

// A network proxies all connections between nodes, and between remote clients and nodes. Blocked
// data waits in the proxy, as it would for a retransmission, and continues after healing. While the
// two ends are disconnected, a new connection reaches only the proxy.
type network struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu              sync.Mutex
	listeners       []net.Listener
	addresses       map[direction]string
	listenAddresses []string // where the nodes listen, "" while not running
	paused          map[int]bool
	cuts            map[direction]bool
	conns           map[*proxyConn]struct{}
	changed         chan struct{} // closed when paused or cuts change
}

// A direction is from one node to another.
type direction struct{ from, to int }

// newNetwork returns a network of nodes that do not run yet.
func newNetwork(nodes int) (*network, error) {
	w := &network{
		addresses:       make(map[direction]string),
		listenAddresses: make([]string, nodes),
		paused:          make(map[int]bool),
		cuts:            make(map[direction]bool),
		conns:           make(map[*proxyConn]struct{}),
		changed:         make(chan struct{}),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for to := range nodes {
		for from := externalNode; from < nodes; from++ {
			if from == to {
				continue
			}
			if err := w.openProxy(direction{from, to}); err != nil {
				w.close()
				return nil, err
			}
		}
	}
	return w, nil
}

// openProxy opens the proxy for a direction.
func (w *network) openProxy(d direction) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.listeners = append(w.listeners, listener)
	w.addresses[d] = listener.Addr().String()
	w.running.Go(func() { w.accept(listener, d) })
	return nil
}

// address returns the address at which remote clients reach a node, which is also the address in
// Config.Peers.
func (w *network) address(node int) string { return w.addresses[direction{externalNode, node}] }

// routeFrom returns the route of a node: the address that it dials instead of another.
func (w *network) routeFrom(from int) func(address string) string {
	routes := make(map[string]string)
	for to := range w.listenAddresses {
		routes[w.address(to)] = w.addresses[direction{from, to}]
	}
	return func(address string) string {
		if proxyAddress := routes[address]; proxyAddress != "" {
			return proxyAddress
		}
		return address
	}
}

// attach sets where a node listens.
func (w *network) attach(node int, target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listenAddresses[node] = target
}

// detach closes all connections of a node, and rejects new ones.
func (w *network) detach(node int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listenAddresses[node] = ""
	for c := range w.conns {
		if c.from == node || c.to == node {
			c.close()
		}
	}
}

// change changes what passes, for open and new connections.
func (w *network) change(apply func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	apply()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *network) cut(a, b int) {
	w.change(func() { w.cuts[direction{a, b}], w.cuts[direction{b, a}] = true, true })
}

func (w *network) heal() { w.change(func() { clear(w.cuts) }) }

func (w *network) pause(node int, paused bool) { w.change(func() { w.paused[node] = paused }) }

// isOpen reports whether data passes in a direction, and returns a channel that is closed when that
// may change.
func (w *network) isOpen(d direction) (bool, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	blocked := w.cuts[d] || w.paused[d.from] || w.paused[d.to]
	return !blocked, w.changed
}

// isConnected reports whether data passes between two nodes in both directions.
func (w *network) isConnected(a, b int) bool {
	forth, _ := w.isOpen(direction{a, b})
	back, _ := w.isOpen(direction{b, a})
	return forth && back
}

// describe returns what blocks a node's connections.
func (w *network) describe(node int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	if w.paused[node] {
		b.WriteString(", paused")
	}
	for other := range w.listenAddresses {
		if w.cuts[direction{node, other}] {
			fmt.Fprintf(&b, ", disconnected from %d", other)
		}
	}
	return b.String()
}

// awaitOpen waits until data passes in a direction. It returns false if ctx ends first.
func (w *network) awaitOpen(ctx context.Context, d direction) bool {
	for {
		open, changed := w.isOpen(d)
		if open {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// close closes all connections and waits for every goroutine.
func (w *network) close() {
	w.cancel()
	for _, listener := range w.listeners {
		_ = listener.Close()
	}
	w.running.Wait()
}

func (w *network) accept(listener net.Listener, d direction) {
	for {
		conn, err := listener.Accept()
		if err == nil {
			w.running.Go(func() { w.proxy(conn, d) })
			continue
		}
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(50 * time.Millisecond): // out of file descriptors
		}
	}
}

// A proxyConn is a connection that a proxy has accepted.
type proxyConn struct {
	direction
	ctx   context.Context
	close context.CancelFunc
}

// proxy connects an accepted connection to its node.
func (w *network) proxy(inbound net.Conn, d direction) {
	c := &proxyConn{direction: d}
	c.ctx, c.close = context.WithCancel(w.ctx)
	defer c.close()
	defer inbound.Close()
	if !w.addConn(c) {
		return
	}
	defer w.removeConn(c)
	if !w.awaitOpen(c.ctx, d) {
		return
	}
	outbound, err := new(net.Dialer).DialContext(c.ctx, "tcp", w.listenAddress(d.to))
	if err != nil {
		return
	}
	var forwarding sync.WaitGroup
	forwarding.Go(func() { defer c.close(); w.forward(c.ctx, inbound, outbound, d) })
	forwarding.Go(func() { defer c.close(); w.forward(c.ctx, outbound, inbound, direction{d.to, d.from}) })
	<-c.ctx.Done()
	_ = inbound.Close()
	_ = outbound.Close()
	forwarding.Wait()
}

// addConn registers a connection if both ends run.
func (w *network) addConn(c *proxyConn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listenAddresses[c.to] == "" || c.from != externalNode && w.listenAddresses[c.from] == "" {
		return false
	}
	w.conns[c] = struct{}{}
	return true
}

func (w *network) removeConn(c *proxyConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

func (w *network) listenAddress(node int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.listenAddresses[node]
}

// forward copies data in one direction until either end is closed.
func (w *network) forward(ctx context.Context, from io.Reader, to io.Writer, d direction) {
	chunk := make([]byte, 32<<10)
	for {
		n, err := from.Read(chunk)
		if n > 0 {
			if !w.awaitOpen(ctx, d) {
				return
			}
			if _, err := to.Write(chunk[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
