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

// One port carries all connections between nodes, and between clients and nodes. With TLS, the ALPN
// protocol says what a connection is for; without TLS, a preamble does.
const (
	preambleMagic = "tenuto\x01" // with the preamble's version, 1; the purpose, one byte, follows
)

// A connMux accepts connections on one port and passes each to the listener for its purpose.
type connMux struct {
	listener     net.Listener
	dialer       *dialer
	links        *links
	refusals     *rejectionLog
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
	handshakeAdmitted      = 1
	handshakeNotReady      = 2
	handshakeUnknownMember = 3
	// Sent without TLS, because the other side has none.
	handshakePlaintext = 4
)

// handshakeStatus returns the byte for the outcome of a handshake.
func handshakeStatus(refusal error) byte {
	switch {
	case refusal == nil:
		return handshakeAdmitted
	case errors.Is(refusal, errNotReady):
		return handshakeNotReady
	}
	return handshakeUnknownMember
}

// handshakeError returns the error of a handshake byte, nil if the connection was accepted.
func handshakeError(answer byte) error {
	switch answer {
	case handshakeAdmitted:
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

// listen opens a port. Accepted connections use the dialer's TLS keys. Until opened is closed, Raft
// connections with TLS are rejected with errNotReady.
func listen(address string, dialer *dialer, opened <-chan struct{}, logger *slog.Logger) (*connMux, error) {
	tcp := net.ListenConfig{Control: setTCPUserTimeout}
	listener, err := tcp.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &connMux{
		listener: listener,
		dialer:   dialer,
		links:    dialer.links,
		refusals: &rejectionLog{logger: logger},
		opened:   opened,
		closing:  make(chan struct{}),
	}
	p.raft = newPurposeListener(p, purposeRaft)
	p.calls = newPurposeListener(p, purposeCalls)
	p.running.Go(p.accept)
	p.running.Go(func() { p.links.sweepUntil(p.closing) })
	return p, nil
}

func (p *connMux) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Most likely the process is out of file descriptors: wait until some are closed.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-p.closing:
				return
			}
		}
		if p.addHandshaking(conn) {
			p.running.Go(func() { p.dispatch(conn) })
		}
	}
}

// addHandshaking registers a connection whose purpose is not known yet. If there are handshakesMax
// already, it closes the oldest: a legitimate peer completes its handshake quickly. If the port is
// closing, it closes the connection and returns false.
func (p *connMux) addHandshaking(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closing:
		_ = conn.Close()
		return false
	default:
	}
	if len(p.handshaking) == handshakesMax {
		_ = p.handshaking[0].Close()
		p.handshaking = slices.Delete(p.handshaking, 0, 1)
	}
	p.handshaking = append(p.handshaking, conn)
	return true
}

func (p *connMux) removeHandshaking(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.handshaking, conn); i >= 0 {
		p.handshaking = slices.Delete(p.handshaking, i, i+1)
	}
}

// dispatch does the handshake of a connection and passes it to the listener for its purpose.
func (p *connMux) dispatch(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	l, err := p.handshake(conn)
	p.removeHandshaking(conn)
	if err != nil {
		_ = conn.Close()
		p.refusals.log(conn, err)
		return
	}
	_ = l.SetDeadline(time.Time{})
	p.listenerFor(l.purpose).deliver(l)
}

// handshake determines the purpose and the peer of a connection, and accepts it if the peer is
// authorized.
func (p *connMux) handshake(conn net.Conn) (*link, error) {
	l := &link{Conn: conn, raw: conn, accepted: true}
	var err error
	if p.dialer.tlsSource == nil {
		l.handshakeResult, err = readPreamble(conn)
	} else {
		err = p.handshakeTLS(l)
	}
	if err != nil {
		return nil, err
	}
	if err := p.authorize(l.purpose, l.peer); err != nil {
		_, _ = l.Conn.Write([]byte{handshakeStatus(err)})
		return nil, err
	}
	if err := p.links.add(l); err != nil {
		return nil, err
	}
	if _, err := l.Write([]byte{handshakeAdmitted}); err != nil {
		p.links.remove(l)
		return nil, err
	}
	return l, nil
}

// tlsHandshakeByte is the first byte of a TLS connection.
const tlsHandshakeByte = 0x16

// readPreamble reads the preamble of a connection without TLS, and nothing after it.
func readPreamble(from io.Reader) (handshakeResult, error) {
	preamble := make([]byte, len(preambleMagic)+1)
	if _, err := io.ReadFull(from, preamble); err != nil {
		return handshakeResult{}, fmt.Errorf("read preamble: %w", err)
	}
	required := purpose(preamble[len(preambleMagic)])
	if _, known := alpnNames[required]; !known || string(preamble[:len(preambleMagic)]) != preambleMagic {
		if preamble[0] == tlsHandshakeByte {
			return handshakeResult{}, errors.New("the connection uses TLS, which this node does not have: set Config.TLS")
		}
		return handshakeResult{}, fmt.Errorf("unknown preamble %q", preamble)
	}
	return handshakeResult{purpose: required, peer: Principal{Kind: PrincipalLocal}}, nil
}

func (p *connMux) handshakeTLS(l *link) error {
	conn := tls.Server(l.raw, p.dialer.tlsSource.serverConfig())
	if err := conn.Handshake(); err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil {
			_, _ = l.raw.Write([]byte{handshakePlaintext})
			return errPlaintext
		}
		return fmt.Errorf("handshake: %w", err)
	}
	found, err := p.dialer.tlsSource.handshakeOf(conn.ConnectionState())
	if err != nil {
		return err
	}
	l.Conn, l.handshakeResult = conn, *found
	return nil
}

// authorize returns an error if a peer with a valid certificate must not connect for a purpose.
func (p *connMux) authorize(required purpose, peer Principal) error {
	switch {
	case p.dialer.tlsSource == nil: // peers are not authenticated
	case required == purposeRaft && peer.Kind != PrincipalNode:
		return fmt.Errorf("%s opened a Raft connection but is not a node", peer)
	case required == purposeRaft && !p.isOpen():
		return errNotReady
	case required == purposeRaft && !p.links.isMember(peer.Name):
		return fmt.Errorf("%s opened a Raft connection but is not a member", peer)
	}
	return nil
}

func (p *connMux) isOpen() bool {
	select {
	case <-p.opened:
		return true
	default:
		return false
	}
}

func (p *connMux) listenerFor(required purpose) *purposeListener {
	if required == purposeRaft {
		return p.raft
	}
	return p.calls
}

// close stops listening and waits for every goroutine of the mux. It does not close connections
// that it has passed on.
func (p *connMux) close() {
	p.closed.Do(func() {
		p.mu.Lock()
		close(p.closing)
		for _, conn := range p.handshaking {
			_ = conn.Close()
		}
		p.mu.Unlock()
		_ = p.listener.Close()
	})
	p.running.Wait()
}

// rejectionLog logs refused connections, at most refusalsPerSecond a second.
type rejectionLog struct {
	logger *slog.Logger

	mu      sync.Mutex
	since   time.Time
	logged  int
	omitted int
}

// refusalsPerSecond bounds how much an attacker can write to the log.
const refusalsPerSecond = 10

func (r *rejectionLog) log(conn net.Conn, reason error) {
	// Not logged: the peer has closed the connection, this node is closing its port, or this node
	// is starting and the peer may be a member.
	if errors.Is(reason, io.EOF) || errors.Is(reason, net.ErrClosed) || errors.Is(reason, errNotReady) {
		return
	}
	if omitted, due := r.due(); due {
		r.logger.Warn("connection refused", "remote", conn.RemoteAddr().String(), "error", reason, "omitted", omitted)
	}
}

// due reports whether to log a refusal, and how many were omitted since the last logged one.
func (r *rejectionLog) due() (omitted int, due bool) {
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

// A purposeListener is the listener for one purpose. It also opens connections for that purpose to
// other nodes.
type purposeListener struct {
	mux       *connMux
	purpose   purpose
	conns     chan net.Conn
	done      chan struct{}
	closeOnce sync.Once
}

func newPurposeListener(p *connMux, purpose purpose) *purposeListener {
	return &purposeListener{mux: p, purpose: purpose, conns: make(chan net.Conn), done: make(chan struct{})}
}

func (d *purposeListener) deliver(conn net.Conn) {
	select {
	case d.conns <- conn:
	case <-d.done:
		_ = conn.Close()
	case <-d.mux.closing:
		_ = conn.Close()
	}
}

// Accept waits for the next connection for this purpose.
func (d *purposeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-d.conns:
		return conn, nil
	case <-d.done:
		return nil, net.ErrClosed
	case <-d.mux.closing:
		return nil, net.ErrClosed
	}
}

// Close closes only this listener.
func (d *purposeListener) Close() error {
	d.closeOnce.Do(func() { close(d.done) })
	return nil
}

// Addr returns the address of the port.
func (d *purposeListener) Addr() net.Addr { return d.mux.listener.Addr() }

// Dial opens a connection for the same purpose to another node.
func (d *purposeListener) Dial(address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.mux.dialer.dial(ctx, address, d.purpose)
}
