package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// One port carries everything between nodes. A connection begins with a
// preamble that says what it is for.
const (
	preambleMagic   = "tenuto\x01" // 1: the version of the preamble
	preambleRaft    = 'r'
	preambleCalls   = 'c'
	preambleTimeout = 5 * time.Second
	// Connections whose preamble has not come yet.
	unsortedMax = 128
)

// A port is a listener that hands each connection to the part of the node that
// it is for.
type port struct {
	listener net.Listener
	raft     *door
	calls    *door
	unsorted chan struct{}
	running  sync.WaitGroup
	closing  chan struct{}
	closed   sync.Once
}

func listen(address string) (*port, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &port{
		listener: listener,
		unsorted: make(chan struct{}, unsortedMax),
		closing:  make(chan struct{}),
	}
	p.raft = newDoor(p, preambleRaft)
	p.calls = newDoor(p, preambleCalls)
	p.running.Add(1)
	go p.accept()
	return p, nil
}

func (p *port) accept() {
	defer p.running.Done()
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, most likely: give others time to close some.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-p.closing:
				return
			}
		}
		select {
		case p.unsorted <- struct{}{}:
			p.running.Add(1)
			go p.sort(conn)
		default:
			_ = conn.Close()
		}
	}
}

// sort reads the preamble and passes the connection on.
func (p *port) sort(conn net.Conn) {
	defer p.running.Done()
	defer func() { <-p.unsorted }()
	stop := make(chan struct{})
	defer close(stop)
	p.running.Add(1)
	go func() {
		defer p.running.Done()
		select {
		case <-p.closing:
			_ = conn.Close()
		case <-stop:
		}
	}()
	if door := p.doorFor(conn); door != nil {
		door.pass(conn)
		return
	}
	_ = conn.Close()
}

func (p *port) doorFor(conn net.Conn) *door {
	_ = conn.SetDeadline(time.Now().Add(preambleTimeout))
	preamble := make([]byte, len(preambleMagic)+1)
	if _, err := io.ReadFull(conn, preamble); err != nil {
		return nil
	}
	_ = conn.SetDeadline(time.Time{})
	if string(preamble[:len(preambleMagic)]) != preambleMagic {
		return nil
	}
	switch preamble[len(preambleMagic)] {
	case preambleRaft:
		return p.raft
	case preambleCalls:
		return p.calls
	}
	return nil
}

// close stops listening and waits for every goroutine of the port. Connections
// that were handed over belong to those who have them.
func (p *port) close() {
	p.closed.Do(func() {
		close(p.closing)
		_ = p.listener.Close()
	})
	p.running.Wait()
}

// A door is the listener of one part of the node, and its way to the same door
// of others.
type door struct {
	port   *port
	kind   byte
	conns  chan net.Conn
	shut   chan struct{}
	closed sync.Once
}

func newDoor(p *port, kind byte) *door {
	return &door{port: p, kind: kind, conns: make(chan net.Conn), shut: make(chan struct{})}
}

func (d *door) pass(conn net.Conn) {
	select {
	case d.conns <- conn:
	case <-d.shut:
		_ = conn.Close()
	case <-d.port.closing:
		_ = conn.Close()
	}
}

// Accept waits for the next connection of this kind.
func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.shut:
		return nil, net.ErrClosed
	case <-d.port.closing:
		return nil, net.ErrClosed
	}
}

// Close shuts this door alone.
func (d *door) Close() error {
	d.closed.Do(func() { close(d.shut) })
	return nil
}

// Addr returns the address of the port.
func (d *door) Addr() net.Addr { return d.port.listener.Addr() }

// Dial opens a connection to the same door of another node.
func (d *door) Dial(address string, timeout time.Duration) (net.Conn, error) {
	return dial(address, d.kind, timeout)
}

func dial(address string, kind byte, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return nil, err
	}
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := conn.Write(append([]byte(preambleMagic), kind)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn, nil
}
