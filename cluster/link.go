package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/detour"
)

// Bounds of connections.
const (
	// The timeout of the handshake, TLS included.
	handshakeTimeout = 5 * time.Second
	// The timeout of a TCP connect, which takes one round trip on a working network. It bounds how
	// long callers of an unreachable node queue up.
	connectTimeout = time.Second
	// How long sent data may stay unacknowledged before the connection is replaced. When a cut
	// network works again, the old connection would wait for the next TCP retransmission, and those
	// become rarer. With one packet in three lost, few connections reach this limit.
	unackedTimeMax = 3 * time.Second
	// Concurrent handshakes. A further one closes the oldest.
	handshakesMax = 128
	// Open accepted connections: from nodes for Raft (times the number of partitions), from nodes
	// for calls, and from all others.
	nodeLinksMax   = 256
	clientLinksMax = 1024
	// The part of clientLinksMax that one client may use, by the name in its certificate.
	linksPerClientMax = 256
	// The maximum age of a connection with a certificate. A connection whose authority is no longer
	// trusted ends by then.
	linkAgeMax = 10 * time.Minute
	// How often connections are checked for their age and for nodes that are no longer members.
	linkSweepInterval = time.Second
)

// A link is an open connection after the handshake: its peer and purpose are known.
type link struct {
	net.Conn
	handshakeResult
	raw      net.Conn // below TLS
	opened   time.Time
	accepted bool // false: dialed
	owner    *links
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.owner.remove(l)
	return l.Conn.Close()
}

// Sender implements journal.Sender.
func (l *link) Sender() string {
	if l.peer.Kind != PrincipalNode {
		return "" // without TLS
	}
	return l.peer.Name
}

func (l *link) class() linkClass {
	return linkClass{l.purpose, l.purpose == purposeRaft || l.peer.Kind == PrincipalNode}
}

type linkClass struct {
	purpose purpose
	isNode  bool
}

func (c linkClass) max() int {
	if c.isNode {
		return nodeLinksMax
	}
	return clientLinksMax
}

// links holds the open connections of a node or a client.
type links struct {
	ageMax     time.Duration
	isMember   func(nodeID string) bool
	partitions int // number of partitions, which multiplies the bound for Raft

	mu               sync.Mutex
	open             map[*link]struct{}
	acceptedByClass  map[linkClass]int
	acceptedByClient map[string]int // accepted ones, by name of the client
}

func newLinks(isMember func(nodeID string) bool) *links {
	return &links{
		ageMax: linkAgeMax, isMember: isMember, partitions: 1,
		open: make(map[*link]struct{}), acceptedByClass: make(map[linkClass]int), acceptedByClient: make(map[string]int),
	}
}

// add registers a connection. It returns an error if too many of its class are open.
func (s *links) add(l *link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if class := l.class(); l.accepted {
		most := class.max()
		if class.purpose == purposeRaft {
			most *= s.partitions
		}
		if s.acceptedByClass[class] >= most {
			return fmt.Errorf("%d connections of this kind are open, which is the limit", most)
		}
		if l.peer.Kind == PrincipalClient {
			if s.acceptedByClient[l.peer.Name] >= linksPerClientMax {
				return fmt.Errorf("%s has %d connections open, which is the limit per client", l.peer, linksPerClientMax)
			}
			s.acceptedByClient[l.peer.Name]++
		}
		s.acceptedByClass[class]++
	}
	l.owner, l.opened = s, time.Now()
	s.open[l] = struct{}{}
	return nil
}

func (s *links) remove(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.open[l]; !known {
		return
	}
	delete(s.open, l)
	if !l.accepted {
		return
	}
	s.acceptedByClass[l.class()]--
	if l.peer.Kind == PrincipalClient {
		if s.acceptedByClient[l.peer.Name]--; s.acceptedByClient[l.peer.Name] == 0 {
			delete(s.acceptedByClient, l.peer.Name)
		}
	}
}

// sweep closes connections that may not stay open. Their users get an error and open new ones, if
// that is allowed.
func (s *links) sweep(now time.Time) {
	for _, l := range s.all() {
		switch {
		case l.peer.Kind == PrincipalLocal: // has no certificate that could expire
		case now.Sub(l.opened) > s.ageMax, now.After(l.expires), s.isNonMember(l):
			_ = l.raw.Close()
		}
	}
}

// isNonMember reports whether the peer of a connection is a node that is not a member. It is
// false for connections dialed for calls: their peer may be a member that is not known yet.
func (s *links) isNonMember(l *link) bool {
	return l.peer.Kind == PrincipalNode && (l.purpose == purposeRaft || l.accepted) && !s.isMember(l.peer.Name)
}

func (s *links) all() []*link {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*link, 0, len(s.open))
	for l := range s.open {
		all = append(all, l)
	}
	return all
}

// sweepUntil calls sweep periodically until done is closed.
func (s *links) sweepUntil(done <-chan struct{}) {
	ticker := time.NewTicker(linkSweepInterval)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			s.sweep(now)
		case <-done:
			return
		}
	}
}

type dialer struct {
	tlsSource *tlsSource // nil: no TLS, loopback only
	links     *links
	// nodeAt returns the ID of the node at an address, "" if it is unknown.
	nodeAt func(address string) string
	route  detour.Route    // for tests
	ctx    context.Context // its end cancels attempts to connect; nil: never
}

// dial returns a connection after the peer has accepted the handshake. ctx and handshakeTimeout
// bound it.
func (d *dialer) dial(ctx context.Context, address string, required purpose) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if d.ctx != nil {
		defer context.AfterFunc(d.ctx, cancel)()
	}
	tcp := net.Dialer{Timeout: connectTimeout, Control: setTCPUserTimeout}
	raw, err := tcp.DialContext(ctx, "tcp", d.route.To(address))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	l, err := d.handshake(ctx, raw, address, required)
	if !stop() { // err only says that the deadline was set
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return l, d.links.add(l)
}

// handshake sends the purpose of a new connection and waits until the peer accepts it.
func (d *dialer) handshake(ctx context.Context, raw net.Conn, address string, required purpose) (*link, error) {
	l := &link{Conn: raw, raw: raw, handshakeResult: handshakeResult{purpose: required, peer: Principal{Kind: PrincipalLocal}}}
	if d.tlsSource == nil {
		if !isLoopback(raw.RemoteAddr()) {
			return nil, errors.New(loopbackRule)
		}
		if _, err := raw.Write(append([]byte(preambleMagic), byte(required))); err != nil {
			return nil, err
		}
	} else if err := d.handshakeTLS(ctx, l, d.nodeAt(address)); err != nil {
		return nil, err
	}
	var answer [1]byte
	if _, err := io.ReadFull(l, answer[:]); err != nil {
		return nil, fmt.Errorf("refused: %w", err)
	}
	if err := handshakeError(answer[0]); err != nil {
		return nil, fmt.Errorf("refused: %w", err)
	}
	return l, nil
}

func (d *dialer) handshakeTLS(ctx context.Context, l *link, nodeID string) error {
	config, err := d.tlsSource.clientConfig(l.purpose, nodeID)
	if err != nil {
		return err
	}
	conn := tls.Client(l.raw, config)
	if err := conn.HandshakeContext(ctx); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the node closed the connection during the TLS handshake: it is stopping, or does not use TLS: %w", err)
	} else if err != nil {
		return err
	}
	found, err := d.tlsSource.handshakeOf(conn.ConnectionState())
	if err != nil {
		return err
	}
	l.Conn, l.handshakeResult = conn, *found
	return nil
}

func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
