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

// outside is where remote clients are.
const outside = -1

// A network stands between the nodes, and between remote clients and nodes: what
// one sends to another passes through a proxy of theirs. What is cut waits, as it
// would for being sent again, and goes on when it is healed; a connection that is
// opened through a cut comes no further than to the proxy.
type network struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu        sync.Mutex
	listeners []net.Listener
	addresses map[direction]string
	targets   []string // where the nodes listen, "" while they do not run
	paused    map[int]bool
	cuts      map[direction]bool
	carried   map[*carriage]struct{}
	changed   chan struct{} // closed when paused or cuts change
}

// A direction is from one node to another.
type direction struct{ from, to int }

// newNetwork returns a network of nodes that do not run yet.
func newNetwork(nodes int) (*network, error) {
	w := &network{
		addresses: make(map[direction]string),
		targets:   make([]string, nodes),
		paused:    make(map[int]bool),
		cuts:      make(map[direction]bool),
		carried:   make(map[*carriage]struct{}),
		changed:   make(chan struct{}),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	for to := range nodes {
		for from := outside; from < nodes; from++ {
			if from == to {
				continue
			}
			if err := w.lay(direction{from, to}); err != nil {
				w.close()
				return nil, err
			}
		}
	}
	return w, nil
}

// lay opens the proxy of a direction.
func (w *network) lay(d direction) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.listeners = append(w.listeners, listener)
	w.addresses[d] = listener.Addr().String()
	w.running.Go(func() { w.accept(listener, d) })
	return nil
}

// address returns where a node is reached from outside, which is how the nodes
// know each other.
func (w *network) address(node int) string { return w.addresses[direction{outside, node}] }

// routeFrom returns where a node makes a connection to an address.
func (w *network) routeFrom(from int) func(address string) string {
	routes := make(map[string]string)
	for to := range w.targets {
		routes[w.address(to)] = w.addresses[direction{from, to}]
	}
	return func(address string) string {
		if through := routes[address]; through != "" {
			return through
		}
		return address
	}
}

// plug tells where a node listens that is to run.
func (w *network) plug(node int, target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.targets[node] = target
}

// unplug closes all connections of a node, and those that are opened from now on.
func (w *network) unplug(node int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.targets[node] = ""
	for c := range w.carried {
		if c.from == node || c.to == node {
			c.close()
		}
	}
}

// change changes what passes, for connections that are open as for new ones.
func (w *network) change(how func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	how()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *network) cut(a, b int) {
	w.change(func() { w.cuts[direction{a, b}], w.cuts[direction{b, a}] = true, true })
}

func (w *network) heal() { w.change(func() { clear(w.cuts) }) }

func (w *network) pause(node int, paused bool) { w.change(func() { w.paused[node] = paused }) }

// passes tells whether anything passes in a direction, and what is closed when
// that changes.
func (w *network) passes(d direction) (bool, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.cuts[d] || w.paused[d.from] || w.paused[d.to]
	return !held, w.changed
}

// connects tells whether something passes between two nodes in both directions.
func (w *network) connects(a, b int) bool {
	forth, _ := w.passes(direction{a, b})
	back, _ := w.passes(direction{b, a})
	return forth && back
}

// describe says what is unusual about the connections of a node.
func (w *network) describe(node int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	if w.paused[node] {
		b.WriteString(", paused")
	}
	for other := range w.targets {
		if w.cuts[direction{node, other}] {
			fmt.Fprintf(&b, ", cut off from %d", other)
		}
	}
	return b.String()
}

// await waits until something passes in a direction; false when ctx ends first.
func (w *network) await(ctx context.Context, d direction) bool {
	for {
		passes, changed := w.passes(d)
		if passes {
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
			w.running.Go(func() { w.carry(conn, d) })
			continue
		}
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(50 * time.Millisecond): // out of file descriptors
		}
	}
}

// A carriage is a connection that was accepted by a proxy.
type carriage struct {
	direction
	ctx   context.Context
	close context.CancelFunc
}

// carry brings a connection to the node that it is for.
func (w *network) carry(near net.Conn, d direction) {
	c := &carriage{direction: d}
	c.ctx, c.close = context.WithCancel(w.ctx)
	defer c.close()
	defer near.Close()
	if !w.enter(c) {
		return
	}
	defer w.leave(c)
	if !w.await(c.ctx, d) {
		return
	}
	far, err := new(net.Dialer).DialContext(c.ctx, "tcp", w.target(d.to))
	if err != nil {
		return
	}
	var passing sync.WaitGroup
	passing.Go(func() { defer c.close(); w.pass(c.ctx, near, far, d) })
	passing.Go(func() { defer c.close(); w.pass(c.ctx, far, near, direction{d.to, d.from}) })
	<-c.ctx.Done()
	_ = near.Close()
	_ = far.Close()
	passing.Wait()
}

// enter takes a connection in if both ends run.
func (w *network) enter(c *carriage) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.targets[c.to] == "" || c.from != outside && w.targets[c.from] == "" {
		return false
	}
	w.carried[c] = struct{}{}
	return true
}

func (w *network) leave(c *carriage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.carried, c)
}

func (w *network) target(node int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.targets[node]
}

// pass copies in one direction until either end is closed.
func (w *network) pass(ctx context.Context, from io.Reader, to io.Writer, d direction) {
	chunk := make([]byte, 32<<10)
	for {
		n, err := from.Read(chunk)
		if n > 0 {
			if !w.await(ctx, d) {
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
