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
func (ne *network) openProxy(d direction) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ne.listeners = append(ne.listeners, listener)
	ne.addresses[d] = listener.Addr().String()
	ne.running.Go(func() { ne.accept(listener, d) })
	return nil
}

// address returns the address at which remote clients reach a node, which is also the address in
// Config.Peers.
func (ne *network) address(node int) string { return ne.addresses[direction{externalNode, node}] }

// routeFrom returns the route of a node: the address that it dials instead of another.
func (ne *network) routeFrom(from int) func(address string) string {
	routes := make(map[string]string)
	for to := range ne.listenAddresses {
		routes[ne.address(to)] = ne.addresses[direction{from, to}]
	}
	return func(address string) string {
		if proxyAddress := routes[address]; proxyAddress != "" {
			return proxyAddress
		}
		return address
	}
}

// attach sets where a node listens.
func (ne *network) attach(node int, target string) {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	ne.listenAddresses[node] = target
}

// detach closes all connections of a node, and rejects new ones.
func (ne *network) detach(node int) {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	ne.listenAddresses[node] = ""
	for c := range ne.conns {
		if c.from == node || c.to == node {
			c.close()
		}
	}
}

// change changes what passes, for open and new connections.
func (ne *network) change(apply func()) {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	apply()
	close(ne.changed)
	ne.changed = make(chan struct{})
}

func (ne *network) cut(a, b int) {
	ne.change(func() { ne.cuts[direction{a, b}], ne.cuts[direction{b, a}] = true, true })
}

func (ne *network) heal() { ne.change(func() { clear(ne.cuts) }) }

func (ne *network) pause(node int, paused bool) { ne.change(func() { ne.paused[node] = paused }) }

// isOpen reports whether data passes in a direction, and returns a channel that is closed when that
// may change.
func (ne *network) isOpen(d direction) (bool, <-chan struct{}) {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	blocked := ne.cuts[d] || ne.paused[d.from] || ne.paused[d.to]
	return !blocked, ne.changed
}

// isConnected reports whether data passes between two nodes in both directions.
func (ne *network) isConnected(a, b int) bool {
	forth, _ := ne.isOpen(direction{a, b})
	back, _ := ne.isOpen(direction{b, a})
	return forth && back
}

// describe returns what blocks a node's connections.
func (ne *network) describe(node int) string {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	var b strings.Builder
	if ne.paused[node] {
		b.WriteString(", paused")
	}
	for other := range ne.listenAddresses {
		if ne.cuts[direction{node, other}] {
			fmt.Fprintf(&b, ", disconnected from %d", other)
		}
	}
	return b.String()
}

// awaitOpen waits until data passes in a direction. It returns false if ctx ends first.
func (ne *network) awaitOpen(ctx context.Context, d direction) bool {
	for {
		open, changed := ne.isOpen(d)
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
func (ne *network) close() {
	ne.cancel()
	for _, listener := range ne.listeners {
		_ = listener.Close()
	}
	ne.running.Wait()
}

func (ne *network) accept(listener net.Listener, d direction) {
	for {
		conn, err := listener.Accept()
		if err == nil {
			ne.running.Go(func() { ne.proxy(conn, d) })
			continue
		}
		select {
		case <-ne.ctx.Done():
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
func (ne *network) proxy(inbound net.Conn, d direction) {
	c := &proxyConn{direction: d}
	c.ctx, c.close = context.WithCancel(ne.ctx)
	defer c.close()
	defer inbound.Close()
	if !ne.addConn(c) {
		return
	}
	defer ne.removeConn(c)
	if !ne.awaitOpen(c.ctx, d) {
		return
	}
	outbound, err := new(net.Dialer).DialContext(c.ctx, "tcp", ne.listenAddress(d.to))
	if err != nil {
		return
	}
	var forwarding sync.WaitGroup
	forwarding.Go(func() { defer c.close(); ne.forward(c.ctx, inbound, outbound, d) })
	forwarding.Go(func() { defer c.close(); ne.forward(c.ctx, outbound, inbound, direction{d.to, d.from}) })
	<-c.ctx.Done()
	_ = inbound.Close()
	_ = outbound.Close()
	forwarding.Wait()
}

// addConn registers a connection if both ends run.
func (ne *network) addConn(c *proxyConn) bool {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	if ne.listenAddresses[c.to] == "" || c.from != externalNode && ne.listenAddresses[c.from] == "" {
		return false
	}
	ne.conns[c] = struct{}{}
	return true
}

func (ne *network) removeConn(c *proxyConn) {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	delete(ne.conns, c)
}

func (ne *network) listenAddress(node int) string {
	ne.mu.Lock()
	defer ne.mu.Unlock()
	return ne.listenAddresses[node]
}

// forward copies data in one direction until either end is closed.
func (ne *network) forward(ctx context.Context, from io.Reader, to io.Writer, d direction) {
	chunk := make([]byte, 32<<10)
	for {
		n, err := from.Read(chunk)
		if n > 0 {
			if !ne.awaitOpen(ctx, d) {
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
