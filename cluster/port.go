package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

// One port carries everything between nodes, and between clients and nodes. With
// TLS the protocol's name in the handshake says what a connection is for;
// without, a preamble does.
const (
	preambleMagic = "tenuto\x01" // 1: the version of the preamble; the purpose follows
)

// A port is a listener that hands each connection to the part of the node that
// it is for.
type port struct {
	listener net.Listener
	dialer   *dialer
	links    *links
	refusals *refusals
	raft     *door
	board    *switchboard // of the groups behind raft; nil if there is one
	calls    *door
	running  sync.WaitGroup
	opened   <-chan struct{} // closed when it is known who is a member
	closing  chan struct{}
	closed   sync.Once

	mu       sync.Mutex
	unsorted []net.Conn // oldest first
}

// errUnopened refuses members, too: the journal that knows them is still being read. They
// come again, ten times a second, so it is not logged.
var errUnopened = errors.New("the node has begun to start and does not know yet who is a member")

// errPlaintext refuses who speaks without TLS to a node that requires it.
var errPlaintext = errors.New("TLS is required here, and the connection was opened without: set Config.TLS, DialConfig.TLS, or -cert, -key and -ca of the command")

// What a node writes first: that it has let a connection in, or why not. So the other side
// knows before it sends anything.
const (
	admitted        = 1
	refusedUnopened = 2
	refusedStranger = 3
	// Without TLS, because the other side speaks without.
	refusedPlaintext = 4
)

// answerOf returns what a node answers a connection with.
func answerOf(refusal error) byte {
	switch {
	case refusal == nil:
		return admitted
	case errors.Is(refusal, errUnopened):
		return refusedUnopened
	}
	return refusedStranger
}

// refusalIn returns why an answer lets a connection not in, nil if it does.
func refusalIn(answer byte) error {
	switch answer {
	case admitted:
		return nil
	case refusedUnopened:
		return errUnopened
	case refusedStranger:
		return errors.New("the node does not take this one for a member that may connect for this")
	case refusedPlaintext:
		return errPlaintext
	}
	return fmt.Errorf("answered by %q", answer)
}

// listen opens a port. What the dialer has for keys holds for both directions. Until opened
// is closed nobody is taken for a member.
func listen(address string, dialer *dialer, opened <-chan struct{}, logger *slog.Logger) (*port, error) {
	tcp := net.ListenConfig{Control: boundUnacked}
	listener, err := tcp.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &port{
		listener: listener,
		dialer:   dialer,
		links:    dialer.links,
		refusals: &refusals{logger: logger},
		opened:   opened,
		closing:  make(chan struct{}),
	}
	p.raft = newDoor(p, forRaft)
	p.calls = newDoor(p, forCalls)
	p.running.Go(p.accept)
	p.running.Go(func() { p.links.sweepUntil(p.closing) })
	return p, nil
}

func (p *port) accept() {
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
		if p.queue(conn) {
			p.running.Go(func() { p.sort(conn) })
		}
	}
}

// queue takes a connection in that is not sorted yet. When there are too many,
// the one that has taken longest makes room: whoever means well is quick.
func (p *port) queue(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closing:
		_ = conn.Close()
		return false
	default:
	}
	if len(p.unsorted) == unsortedMax {
		_ = p.unsorted[0].Close()
		p.unsorted = slices.Delete(p.unsorted, 0, 1)
	}
	p.unsorted = append(p.unsorted, conn)
	return true
}

func (p *port) unqueue(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.unsorted, conn); i >= 0 {
		p.unsorted = slices.Delete(p.unsorted, i, i+1)
	}
}

// sort finds out what a connection is for and passes it on.
func (p *port) sort(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	l, err := p.receive(conn)
	p.unqueue(conn)
	if err != nil {
		_ = conn.Close()
		p.refusals.log(conn, err)
		return
	}
	_ = l.SetDeadline(time.Time{})
	p.doorFor(l.purpose).pass(l)
}

// receive returns a connection that has been let in.
func (p *port) receive(conn net.Conn) (*link, error) {
	l := &link{Conn: conn, raw: conn, accepted: true}
	var err error
	if p.dialer.ring == nil {
		l.meeting, err = readPreamble(conn)
	} else {
		err = p.secure(l)
	}
	if err != nil {
		return nil, err
	}
	if err := p.admit(l.purpose, l.peer); err != nil {
		_, _ = l.Conn.Write([]byte{answerOf(err)})
		return nil, err
	}
	if err := p.links.add(l); err != nil {
		return nil, err
	}
	if _, err := l.Write([]byte{admitted}); err != nil {
		p.links.forget(l)
		return nil, err
	}
	return l, nil
}

// tlsHandshake is the first byte of a connection with TLS.
const tlsHandshake = 0x16

// readPreamble reads what a connection without TLS begins with. Nothing behind
// it is read.
func readPreamble(from io.Reader) (meeting, error) {
	preamble := make([]byte, len(preambleMagic)+1)
	if _, err := io.ReadFull(from, preamble); err != nil {
		return meeting{}, fmt.Errorf("read preamble: %w", err)
	}
	wanted := purpose(preamble[len(preambleMagic)])
	if _, known := protocols[wanted]; !known || string(preamble[:len(preambleMagic)]) != preambleMagic {
		if preamble[0] == tlsHandshake {
			return meeting{}, errors.New("the connection was opened with TLS, which this node does not speak: set Config.TLS")
		}
		return meeting{}, fmt.Errorf("unknown preamble %q", preamble)
	}
	return meeting{purpose: wanted, peer: Principal{Role: RoleLocal}}, nil
}

func (p *port) secure(l *link) error {
	conn := tls.Server(l.raw, p.dialer.ring.accepting())
	if err := conn.Handshake(); err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil {
			_, _ = l.raw.Write([]byte{refusedPlaintext})
			return errPlaintext
		}
		return fmt.Errorf("handshake: %w", err)
	}
	met, err := p.dialer.ring.meet(conn.ConnectionState())
	if err != nil {
		return err
	}
	l.Conn, l.meeting = conn, *met
	return nil
}

// admit decides whether somebody with a good certificate may connect for a
// purpose.
func (p *port) admit(wanted purpose, peer Principal) error {
	switch {
	case p.dialer.ring == nil: // nobody proves who it is
	case wanted == forRaft && peer.Role != RoleNode:
		return fmt.Errorf("%s wants to speak Raft", peer)
	case wanted == forRaft && !p.isOpen():
		return errUnopened
	case wanted == forRaft && !p.links.isMember(peer.Name):
		return fmt.Errorf("%s is no member and wants to speak Raft", peer)
	}
	return nil
}

func (p *port) isOpen() bool {
	select {
	case <-p.opened:
		return true
	default:
		return false
	}
}

func (p *port) doorFor(wanted purpose) *door {
	if wanted == forRaft {
		return p.raft
	}
	return p.calls
}

// close stops listening and waits for every goroutine of the port. Connections
// that were handed over belong to those who have them.
func (p *port) close() {
	p.closed.Do(func() {
		p.mu.Lock()
		close(p.closing)
		for _, conn := range p.unsorted {
			_ = conn.Close()
		}
		p.mu.Unlock()
		_ = p.listener.Close()
	})
	p.running.Wait()
}

// refusals say in the log who was not let in, a few times a second at most.
type refusals struct {
	logger *slog.Logger

	mu      sync.Mutex
	since   time.Time
	logged  int
	omitted int
}

// refusalsPerSecond bounds what an attacker can write into the log.
const refusalsPerSecond = 10

func (r *refusals) log(conn net.Conn, reason error) {
	// The peer hung up before the handshake, this node closes its port, or the peer may be a
	// member.
	if errors.Is(reason, io.EOF) || errors.Is(reason, net.ErrClosed) || errors.Is(reason, errUnopened) {
		return
	}
	if omitted, due := r.due(); due {
		r.logger.Warn("connection refused", "remote", conn.RemoteAddr().String(), "error", reason, "omitted", omitted)
	}
}

// due reports whether a refusal is to be logged, and how many were not since the last one.
func (r *refusals) due() (omitted int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.since) >= time.Second {
		r.since, r.logged = now, 0
	}
	if r.logged == refusalsPerSecond {
		r.omitted++
		return 0, false
	}
	r.logged++
	omitted, r.omitted = r.omitted, 0
	return omitted, true
}

// A door is the listener of one part of the node, and its way to the same door
// of others.
type door struct {
	port    *port
	purpose purpose
	conns   chan net.Conn
	shut    chan struct{}
	closed  sync.Once
}

func newDoor(p *port, purpose purpose) *door {
	return &door{port: p, purpose: purpose, conns: make(chan net.Conn), shut: make(chan struct{})}
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
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.port.dialer.dial(ctx, address, d.purpose)
}
