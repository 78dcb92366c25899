package transport

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Bounds of connections.
const (
	// HandshakeTimeout bounds a handshake, TLS included.
	HandshakeTimeout = 5 * time.Second
	// The timeout of a TCP connect, which takes one round trip on a working network. It bounds how
	// long callers of an unreachable node queue up.
	connectTimeout = time.Second
	// UnackedTimeMax is how long sent data may stay unacknowledged before the connection is
	// replaced. When a cut network works again, the old connection would wait for the next TCP
	// retransmission, and those become rarer. With one packet in three lost, few connections reach
	// this limit.
	UnackedTimeMax = 3 * time.Second
	// HandshakesMax bounds concurrent handshakes. A further one closes the oldest.
	HandshakesMax = 128
	// Open accepted connections: from nodes for Raft (times the number of partitions), from nodes
	// for calls, and from all others.
	nodeLinksMax   = 256
	clientLinksMax = 1024
	// The part of clientLinksMax that one client may use, by the name in its certificate.
	linksPerClientMax = 256
	// AgeMax is the maximum age of a connection with a certificate. A connection whose authority is
	// no longer trusted ends by then.
	AgeMax = 10 * time.Minute
	// How often connections are checked for their age and for nodes that are no longer members.
	linkSweepInterval = time.Second
)

// A Link is an open connection after the handshake: its peer and purpose are known.
type Link struct {
	net.Conn
	handshakeResult
	raw      net.Conn // below TLS
	opened   time.Time
	accepted bool // false: dialed
	owner    *Links
}

// Close implements net.Conn.
func (l *Link) Close() error {
	l.owner.remove(l)
	return l.Conn.Close()
}

// Sender implements journal.Sender.
func (l *Link) Sender() string {
	if l.peer.Kind != KindNode {
		return "" // without TLS
	}
	return l.peer.Name
}

// Raw returns the connection below TLS.
func (l *Link) Raw() net.Conn { return l.raw }

// IsAccepted reports whether the connection was accepted, not dialed.
func (l *Link) IsAccepted() bool { return l.accepted }

func (l *Link) class() linkClass {
	return linkClass{l.purpose, l.purpose == Raft || l.peer.Kind == KindNode}
}

type linkClass struct {
	purpose Purpose
	isNode  bool
}

func (c linkClass) String() string {
	switch {
	case c.purpose == Raft:
		return "Raft"
	case c.isNode:
		return "node"
	}
	return "client"
}

func (c linkClass) max() int {
	if c.isNode {
		return nodeLinksMax
	}
	return clientLinksMax
}

// Links holds the open connections of a node or a client.
type Links struct {
	ageMax     time.Duration
	isMember   func(nodeID string) bool
	partitions int // number of partitions, which multiplies the bound for Raft

	mu               sync.Mutex
	open             map[*Link]struct{}
	acceptedByClass  map[linkClass]int
	acceptedByClient map[string]int // accepted ones, by name of the client
}

// NewLinks returns an empty set. isMember reports whether a node belongs to the cluster; partitions
// multiplies the bound for Raft.
func NewLinks(isMember func(nodeID string) bool, partitions int) *Links {
	return &Links{
		ageMax: AgeMax, isMember: isMember, partitions: partitions,
		open: make(map[*Link]struct{}), acceptedByClass: make(map[linkClass]int), acceptedByClient: make(map[string]int),
	}
}

// add registers a connection. It returns an error if too many of its class are open.
func (s *Links) add(l *Link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if class := l.class(); l.accepted {
		most := class.max()
		if class.purpose == Raft {
			most *= s.partitions
		}
		if s.acceptedByClass[class] >= most {
			return fmt.Errorf("%d %s connections are open, which is the limit", most, class)
		}
		if l.peer.Kind == KindClient {
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

func (s *Links) remove(l *Link) {
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
	if l.peer.Kind == KindClient {
		if s.acceptedByClient[l.peer.Name]--; s.acceptedByClient[l.peer.Name] == 0 {
			delete(s.acceptedByClient, l.peer.Name)
		}
	}
}

// Sweep closes connections that may not stay open. Their users get an error and open new ones, if
// that is allowed.
func (s *Links) Sweep(now time.Time) {
	for _, l := range s.All() {
		switch {
		case l.peer.Kind == KindLocal: // has no certificate that could expire
		case now.Sub(l.opened) > s.ageMax, now.After(l.expires), s.isNonMember(l):
			_ = l.raw.Close()
		}
	}
}

// isNonMember reports whether the peer of a connection is a node that is not a member. It is
// false for connections dialed for calls: their peer may be a member that is not known yet.
func (s *Links) isNonMember(l *Link) bool {
	return l.peer.Kind == KindNode && (l.purpose == Raft || l.accepted) && !s.isMember(l.peer.Name)
}

// All returns the open connections.
func (s *Links) All() []*Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Link, 0, len(s.open))
	for l := range s.open {
		all = append(all, l)
	}
	return all
}

// SweepUntil calls Sweep periodically until done is closed.
func (s *Links) SweepUntil(done <-chan struct{}) {
	ticker := time.NewTicker(linkSweepInterval)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			s.Sweep(now)
		case <-done:
			return
		}
	}
}
