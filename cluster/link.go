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
	// How long a connection may take to say what it is for, TLS included.
	handshakeTimeout = 5 * time.Second
	// How long TCP may take to connect, which on a network that works is one exchange.
	// While a node cannot be reached, who wants to reach it does not pile up for longer.
	connectTimeout = time.Second
	// How long what was sent may stay unacknowledged by the other machine. Then the
	// connection is over and a new one is opened: after a cut this one would wait for
	// TCP's next repetition, and those get rarer all the time. When one packet in three
	// is lost, few connections have as much bad luck.
	unackedMax = 3 * time.Second
	// How many connections may be at that; of more the oldest is closed.
	unsortedMax = 128
	// How many are open, of those that others have opened: of nodes for Raft, for
	// each group, of nodes for calls, and of all others.
	nodeLinksMax   = 256
	clientLinksMax = 1024
	// Of these, how many one client may have, by the name in its certificate.
	clientLinksShare = 256
	// How old a connection with a certificate gets. One that is not believed any
	// more, because its authority was taken out, is of no use after that.
	linkAgeMax = 10 * time.Minute
	// How often is looked for connections that are too old, or of nodes that are
	// no members any more.
	sweepEvery = time.Second
)

// A link is an open connection whose other side and purpose are known.
type link struct {
	net.Conn
	meeting
	raw      net.Conn // below TLS
	opened   time.Time
	accepted bool // or else it was dialed
	of       *links
}

// Close implements net.Conn.
func (l *link) Close() error {
	l.of.forget(l)
	return l.Conn.Close()
}

// Sender implements journal.Sender.
func (l *link) Sender() string {
	if l.peer.Role != RoleNode {
		return "" // without TLS
	}
	return l.peer.Name
}

// class is what a bound holds for.
func (l *link) class() linkClass {
	return linkClass{l.purpose, l.purpose == forRaft || l.peer.Role == RoleNode}
}

type linkClass struct {
	purpose purpose
	nodes   bool
}

func (c linkClass) max() int {
	if c.nodes {
		return nodeLinksMax
	}
	return clientLinksMax
}

// links are the open connections of a node or a client.
type links struct {
	ageMax   time.Duration
	isMember func(nodeID string) bool
	groups   int // that Raft's connections are for

	mu       sync.Mutex
	open     map[*link]struct{}
	accepted map[linkClass]int
	clients  map[string]int // of accepted, by the name of the client
}

func newLinks(isMember func(nodeID string) bool) *links {
	return &links{
		ageMax: linkAgeMax, isMember: isMember, groups: 1,
		open: make(map[*link]struct{}), accepted: make(map[linkClass]int), clients: make(map[string]int),
	}
}

// add takes a connection in, unless there are too many of its class.
func (s *links) add(l *link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if class := l.class(); l.accepted {
		most := class.max()
		if class.purpose == forRaft {
			most *= s.groups
		}
		if s.accepted[class] >= most {
			return fmt.Errorf("%d connections of this kind are open", most)
		}
		if l.peer.Role == RoleClient {
			if s.clients[l.peer.Name] >= clientLinksShare {
				return fmt.Errorf("%s has %d connections open, the most that one client may have", l.peer, clientLinksShare)
			}
			s.clients[l.peer.Name]++
		}
		s.accepted[class]++
	}
	l.of, l.opened = s, time.Now()
	s.open[l] = struct{}{}
	return nil
}

func (s *links) forget(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.open[l]; !known {
		return
	}
	delete(s.open, l)
	if !l.accepted {
		return
	}
	s.accepted[l.class()]--
	if l.peer.Role == RoleClient {
		if s.clients[l.peer.Name]--; s.clients[l.peer.Name] == 0 {
			delete(s.clients, l.peer.Name)
		}
	}
}

// sweep closes what must not be open any more. Whoever uses it meets an error
// and opens a new one, if that is allowed.
func (s *links) sweep(now time.Time) {
	for _, l := range s.all() {
		switch {
		case l.peer.Role == RoleLocal: // proves nothing, and so cannot cease to
		case now.Sub(l.opened) > s.ageMax, now.After(l.expires), s.isStrange(l):
			_ = l.raw.Close()
		}
	}
}

// isStrange tells whether a connection is of a node that is no member, or not any
// more. One that was dialed for calls may be to a member that is not known yet.
func (s *links) isStrange(l *link) bool {
	return l.peer.Role == RoleNode && (l.purpose == forRaft || l.accepted) && !s.isMember(l.peer.Name)
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

// sweepUntil sweeps until done is closed.
func (s *links) sweepUntil(done <-chan struct{}) {
	ticker := time.NewTicker(sweepEvery)
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

// A dialer opens connections to nodes.
type dialer struct {
	ring  *keyring // nil: without TLS, on loopback
	links *links
	// nodeAt returns the ID of the node at an address, "" if that is not known.
	nodeAt func(address string) string
	route  detour.Route    // of tests
	life   context.Context // when it ends, so do attempts to connect; nil: never
}

// dial returns a connection that the other side has let in. ctx bounds it, and so
// does handshakeTimeout.
func (d *dialer) dial(ctx context.Context, address string, wanted purpose) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if d.life != nil {
		defer context.AfterFunc(d.life, cancel)()
	}
	tcp := net.Dialer{Timeout: connectTimeout, Control: boundUnacked}
	raw, err := tcp.DialContext(ctx, "tcp", d.route.To(address))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	l, err := d.introduce(ctx, raw, address, wanted)
	if !stop() { // what the connection says then is only that it was ended
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return l, d.links.add(l)
}

// introduce says what a new connection is for and waits until it is let in.
func (d *dialer) introduce(ctx context.Context, raw net.Conn, address string, wanted purpose) (*link, error) {
	l := &link{Conn: raw, raw: raw, meeting: meeting{purpose: wanted, peer: Principal{Role: RoleLocal}}}
	if d.ring == nil {
		if !isLoopback(raw.RemoteAddr()) {
			return nil, errors.New(loopbackRule)
		}
		if _, err := raw.Write(append([]byte(preambleMagic), byte(wanted))); err != nil {
			return nil, err
		}
	} else if err := d.secure(ctx, l, d.nodeAt(address)); err != nil {
		return nil, err
	}
	var answer [1]byte
	if _, err := io.ReadFull(l, answer[:]); err != nil {
		return nil, fmt.Errorf("refused: %w", err)
	}
	if err := refusalIn(answer[0]); err != nil {
		return nil, fmt.Errorf("refused: %w", err)
	}
	return l, nil
}

func (d *dialer) secure(ctx context.Context, l *link, nodeID string) error {
	config, err := d.ring.opening(l.purpose, nodeID)
	if err != nil {
		return err
	}
	conn := tls.Client(l.raw, config)
	if err := conn.HandshakeContext(ctx); errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the node has ended the TLS handshake: it stops, or speaks without TLS: %w", err)
	} else if err != nil {
		return err
	}
	met, err := d.ring.meet(conn.ConnectionState())
	if err != nil {
		return err
	}
	l.Conn, l.meeting = conn, *met
	return nil
}

func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
