package transport

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

// One port carries all connections between nodes, and between clients and nodes. With TLS, the ALPN
// protocol says what a connection is for; without TLS, a preamble does.
const (
	// PreambleMagic ends with the preamble's version, 1. The purpose, one byte, follows.
	PreambleMagic = "tenuto\x01"
)

// A Mux accepts connections on one port and passes each to the listener for its purpose.
type Mux struct {
	listener     net.Listener
	dialer       *Dialer
	links        *Links
	rejections   *rejectionLog
	raft         *purposeListener
	partitionMux *partitionMux // splits raft by partition; nil if there is only one
	calls        *purposeListener
	running      sync.WaitGroup
	opened       <-chan struct{} // closed when the members are known
	closing      chan struct{}
	closed       sync.Once

	mu          sync.Mutex
	handshaking []net.Conn // oldest first
}

// errNotReady rejects every Raft connection, also from members: the journal that lists the members
// is still being opened. Members retry ten times a second, so it is not logged.
var errNotReady = errors.New("the node is starting and does not know its members yet")

// errPlaintext rejects a connection without TLS to a node that requires it.
var errPlaintext = errors.New("this node requires TLS, and the connection has none: set Config.TLS, DialConfig.TLS, or -cert, -key and -ca of the command")

// The first byte that a node writes says that it has accepted the connection, or why not. The other
// side reads this byte before it sends data.
const (
	Admitted               = 1
	handshakeNotReady      = 2
	handshakeUnknownMember = 3
	// Sent without TLS, because the other side has none.
	handshakePlaintext = 4
)

// handshakeStatus returns the byte for the outcome of a handshake.
func handshakeStatus(rejection error) byte {
	switch {
	case rejection == nil:
		return Admitted
	case errors.Is(rejection, errNotReady):
		return handshakeNotReady
	}
	return handshakeUnknownMember
}

// handshakeError returns the error of a handshake byte, nil if the connection was accepted.
func handshakeError(answer byte) error {
	switch answer {
	case Admitted:
		return nil
	case handshakeNotReady:
		return errNotReady
	case handshakeUnknownMember:
		return errors.New("the node does not know this one as a member")
	case handshakePlaintext:
		return errPlaintext
	}
	return fmt.Errorf("unexpected handshake answer %q", answer)
}

// Listen opens a port. Accepted connections use the dialer's TLS keys. Until opened is closed, Raft
// connections with TLS are rejected with errNotReady.
func Listen(address string, dialer *Dialer, opened <-chan struct{}, logger *slog.Logger) (*Mux, error) {
	tcp := net.ListenConfig{Control: setTCPUserTimeout}
	listener, err := tcp.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &Mux{
		listener:   listener,
		dialer:     dialer,
		links:      dialer.Links,
		rejections: &rejectionLog{logger: logger},
		opened:     opened,
		closing:    make(chan struct{}),
	}
	p.raft = newPurposeListener(p, Raft)
	p.calls = newPurposeListener(p, Calls)
	p.running.Go(p.accept)
	p.running.Go(func() { p.links.SweepUntil(p.closing) })
	return p, nil
}

func (m *Mux) accept() {
	for {
		conn, err := m.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Most likely the process is out of file descriptors: wait until some are closed.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-m.closing:
				return
			}
		}
		if m.addHandshaking(conn) {
			m.running.Go(func() { m.dispatch(conn) })
		}
	}
}

// addHandshaking registers a connection whose purpose is not known yet. If there are HandshakesMax
// already, it closes the oldest: a legitimate peer completes its handshake quickly. If the port is
// closing, it closes the connection and returns false.
func (m *Mux) addHandshaking(conn net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.closing:
		_ = conn.Close()
		return false
	default:
	}
	if len(m.handshaking) == HandshakesMax {
		_ = m.handshaking[0].Close()
		m.handshaking = slices.Delete(m.handshaking, 0, 1)
	}
	m.handshaking = append(m.handshaking, conn)
	return true
}

func (m *Mux) removeHandshaking(conn net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.handshaking, conn); i >= 0 {
		m.handshaking = slices.Delete(m.handshaking, i, i+1)
	}
}

// dispatch does the handshake of a connection and passes it to the listener for its purpose.
func (m *Mux) dispatch(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(HandshakeTimeout))
	l, err := m.handshake(conn)
	m.removeHandshaking(conn)
	if err != nil {
		_ = conn.Close()
		m.rejections.log(conn, err)
		return
	}
	_ = l.SetDeadline(time.Time{})
	m.listenerFor(l.purpose).deliver(l)
}

// handshake determines the purpose and the peer of a connection, and accepts it if the peer is
// authorized.
func (m *Mux) handshake(conn net.Conn) (*Link, error) {
	l := &Link{Conn: conn, raw: conn, accepted: true}
	var err error
	if m.dialer.TLSSource == nil {
		l.handshakeResult, err = readPreamble(conn)
	} else {
		err = m.handshakeTLS(l)
	}
	if err != nil {
		return nil, err
	}
	if err := m.authorize(l.purpose, l.peer); err != nil {
		_, _ = l.Conn.Write([]byte{handshakeStatus(err)})
		return nil, err
	}
	if err := m.links.add(l); err != nil {
		return nil, err
	}
	if _, err := l.Write([]byte{Admitted}); err != nil {
		m.links.remove(l)
		return nil, err
	}
	return l, nil
}

// tlsHandshakeByte is the first byte of a TLS connection.
const tlsHandshakeByte = 0x16

// readPreamble reads the preamble of a connection without TLS, and nothing after it.
func readPreamble(from io.Reader) (handshakeResult, error) {
	preamble := make([]byte, len(PreambleMagic)+1)
	if _, err := io.ReadFull(from, preamble); err != nil {
		return handshakeResult{}, fmt.Errorf("read preamble: %w", err)
	}
	required := Purpose(preamble[len(PreambleMagic)])
	if _, known := alpnNames[required]; !known || string(preamble[:len(PreambleMagic)]) != PreambleMagic {
		if preamble[0] == tlsHandshakeByte {
			return handshakeResult{}, errors.New("the connection uses TLS, which this node does not have: set Config.TLS")
		}
		return handshakeResult{}, fmt.Errorf("unknown preamble %q", preamble)
	}
	return handshakeResult{purpose: required, peer: Principal{Kind: KindLocal}}, nil
}

func (m *Mux) handshakeTLS(l *Link) error {
	conn := tls.Server(l.raw, m.dialer.TLSSource.serverConfig())
	if err := conn.Handshake(); err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil {
			_, _ = l.raw.Write([]byte{handshakePlaintext})
			return errPlaintext
		}
		return fmt.Errorf("handshake: %w", err)
	}
	found, err := m.dialer.TLSSource.handshakeOf(conn.ConnectionState())
	if err != nil {
		return err
	}
	l.Conn, l.handshakeResult = conn, *found
	return nil
}

// authorize returns an error if a peer with a valid certificate must not connect for a purpose.
func (m *Mux) authorize(required Purpose, peer Principal) error {
	switch {
	case m.dialer.TLSSource == nil: // peers are not authenticated
	case required == Raft && peer.Kind != KindNode:
		return fmt.Errorf("%s opened a Raft connection but is not a node", peer)
	case required == Raft && !m.isOpen():
		return errNotReady
	case required == Raft && !m.links.isMember(peer.Name):
		return fmt.Errorf("%s opened a Raft connection but is not a member", peer)
	}
	return nil
}

func (m *Mux) isOpen() bool {
	select {
	case <-m.opened:
		return true
	default:
		return false
	}
}

// Calls returns the listener for calls.
func (m *Mux) Calls() net.Listener { return m.calls }

// Addr returns the address of the port.
func (m *Mux) Addr() net.Addr { return m.listener.Addr() }

// IsMember reports whether a node belongs to the cluster.
func (m *Mux) IsMember(nodeID string) bool { return m.links.isMember(nodeID) }

func (m *Mux) listenerFor(required Purpose) *purposeListener {
	if required == Raft {
		return m.raft
	}
	return m.calls
}

// Close stops listening and waits for every goroutine of the mux. It does not close connections
// that it has passed on.
func (m *Mux) Close() {
	m.closed.Do(func() {
		m.mu.Lock()
		close(m.closing)
		for _, conn := range m.handshaking {
			_ = conn.Close()
		}
		m.mu.Unlock()
		_ = m.listener.Close()
	})
	m.running.Wait()
}

// rejectionLog logs rejected connections, at most rejectionsPerSecond a second.
type rejectionLog struct {
	logger *slog.Logger

	mu      sync.Mutex
	since   time.Time
	logged  int
	omitted int
}

// rejectionsPerSecond bounds how much an attacker can write to the log.
const rejectionsPerSecond = 10

func (r *rejectionLog) log(conn net.Conn, reason error) {
	// Not logged: the peer has closed the connection, this node is closing its port, or this node
	// is starting and the peer may be a member.
	if errors.Is(reason, io.EOF) || errors.Is(reason, net.ErrClosed) || errors.Is(reason, errNotReady) {
		return
	}
	if omitted, due := r.due(); due {
		r.logger.Warn("incoming connection rejected", "remote", conn.RemoteAddr().String(), "error", reason, "omitted", omitted)
	}
}

// due reports whether to log a rejection, and how many were omitted since the last logged one.
func (r *rejectionLog) due() (omitted int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.since) >= time.Second {
		r.since, r.logged = now, 0
	}
	if r.logged == rejectionsPerSecond {
		r.omitted++
		return 0, false
	}
	r.logged++
	omitted, r.omitted = r.omitted, 0
	return omitted, true
}

// RejectionLinesLeft returns how many more rejections may be logged in this second.
func (m *Mux) RejectionLinesLeft() int {
	m.rejections.mu.Lock()
	defer m.rejections.mu.Unlock()
	return rejectionsPerSecond - m.rejections.logged
}

// A purposeListener is the listener for one purpose. It also opens connections for that purpose to
// other nodes.
type purposeListener struct {
	mux       *Mux
	purpose   Purpose
	conns     chan net.Conn
	done      chan struct{}
	closeOnce sync.Once
}

func newPurposeListener(p *Mux, purpose Purpose) *purposeListener {
	return &purposeListener{mux: p, purpose: purpose, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (p *purposeListener) deliver(conn net.Conn) {
	select {
	case p.conns <- conn:
	case <-p.done:
		_ = conn.Close()
	case <-p.mux.closing:
		_ = conn.Close()
	}
}

// Accept waits for the next connection for this purpose.
func (p *purposeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-p.mux.closing:
		return nil, net.ErrClosed
	}
}

// Close closes only this listener.
func (p *purposeListener) Close() error {
	p.closeOnce.Do(func() { close(p.done) })
	return nil
}

// Addr returns the address of the port.
func (p *purposeListener) Addr() net.Addr { return p.mux.listener.Addr() }

// Dial opens a connection for the same purpose to another node.
func (p *purposeListener) Dial(address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return p.mux.dialer.Dial(ctx, address, p.purpose)
}
