package transport

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tenuto-dev/tenuto/journal/internal/peer"
)

// Streams is the Network as Raft sees it. It accepts no connection before Raft has started. It
// tracks every connection, because a failed node must disconnect at once. Also, the Raft library's
// transport does not close accepted connections when it is closed.
type Streams struct {
	network Network
	address streamAddress
	// isMuted reports whether the node must send nothing at present.
	isMuted func() bool
	// OnRequest gets the connections on which another node requests a snapshot or the time.
	OnRequest func(net.Conn)
	// Handshake, if set, identifies this node on a connection for Raft and verifies the identity of
	// the other end. RequiresHandshake reports whether Handshake is called even if no identity is
	// recorded for the other end.
	Handshake         func(conn net.Conn, to string, timeout time.Duration) error
	RequiresHandshake func() bool
	// Resolve, if set, returns the address at which to dial the node with an identity, given its
	// recorded address. ReportFailure is told when the node did not answer there.
	Resolve       func(identity, recorded string) string
	ReportFailure func(identity, address string)
	startedAt     time.Time

	serving chan struct{} // closed when connections are accepted
	closed  chan struct{}

	mu           sync.Mutex
	open         map[*stream]struct{}
	disconnected bool
}

// Network is a listener, and dials the listeners of others.
type Network interface {
	net.Listener
	Dial(address string, timeout time.Duration) (net.Conn, error)
}

// streamAddress is the address at which others reach this node. It may differ from the one that it
// listens on.
type streamAddress string

func (streamAddress) Network() string  { return "tcp" }
func (a streamAddress) String() string { return string(a) }

// NewStreams returns the streams of a network, which may be nil for a single node. Others reach
// this node at address.
func NewStreams(network Network, address string, isMuted func() bool) *Streams {
	return &Streams{
		network: network, address: streamAddress(address), isMuted: isMuted,
		OnRequest: func(conn net.Conn) { _ = conn.Close() },
		startedAt: time.Now(),
		serving:   make(chan struct{}), closed: make(chan struct{}),
		open: map[*stream]struct{}{},
	}
}

// Serve accepts connections from now on. It is called once, when Raft has started.
func (s *Streams) Serve() { close(s.serving) }

// Accept implements net.Listener. After Disconnect it blocks until Close, because Raft would retry
// in a loop.
func (s *Streams) Accept() (net.Conn, error) {
	select {
	case <-s.serving:
	case <-s.closed:
		return nil, net.ErrClosed
	}
	conn, err := s.network.Accept()
	if err != nil && s.isDisconnected() {
		<-s.closed
		return nil, net.ErrClosed
	}
	if err != nil {
		return nil, err
	}
	tracked, err := s.track(conn, "")
	if err != nil {
		return nil, err
	}
	return &incomingConn{stream: tracked}, nil
}

// Addr implements net.Listener.
func (s *Streams) Addr() net.Addr { return s.address }

// Dial implements raft.StreamLayer.
func (s *Streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	plain, identity := peer.SplitAddress(address)
	if s.Resolve != nil && identity != "" {
		plain = s.Resolve(identity, plain)
	}
	conn, err := s.dialMember(plain, identity, timeout)
	if err != nil {
		if s.ReportFailure != nil && identity != "" && !errors.Is(err, errMuted) {
			s.ReportFailure(identity, plain)
		}
		return nil, &dialError{err}
	}
	return conn, nil
}

// dialMember opens a connection to the node with an identity, "" if none is recorded.
func (s *Streams) dialMember(address, identity string, timeout time.Duration) (net.Conn, error) {
	conn, err := s.DialPlain(address, timeout)
	if err != nil {
		return nil, err
	}
	if s.Handshake != nil && (identity != "" || s.RequiresHandshake()) {
		if err := s.Handshake(conn, identity, timeout); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// DialPlain opens a connection without a handshake.
func (s *Streams) DialPlain(address string, timeout time.Duration) (net.Conn, error) {
	if s.isDisconnected() {
		return nil, net.ErrClosed
	}
	if s.isMuted() {
		return nil, errMuted
	}
	if s.network == nil {
		return nil, errors.New("no network")
	}
	conn, err := s.network.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	tracked, err := s.track(conn, address)
	if err != nil {
		return nil, err
	}
	return tracked, nil
}

// Close implements net.Listener.
func (s *Streams) Close() error {
	err := s.Disconnect()
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return err
}

// Disconnect closes the listener and every connection permanently.
func (s *Streams) Disconnect() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disconnected {
		return nil
	}
	s.disconnected = true
	if s.network == nil {
		return nil // a single node
	}
	err := s.network.Close()
	for c := range s.open {
		err = errors.Join(err, c.Conn.Close())
	}
	s.open = nil
	return err
}

func (s *Streams) isDisconnected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disconnected
}

func (s *Streams) track(conn net.Conn, to string) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disconnected {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c := &stream{Conn: conn, streams: s, to: to}
	c.recordActivity(1, nil)
	s.open[c] = struct{}{}
	return c, nil
}

// closeIdle closes the connections to an address that have had no traffic for IOTimeout. It is
// called when one of them times out. Otherwise Raft would try its pooled connections one after the
// other, each for that long.
func (s *Streams) closeIdle(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c.to == address && c.idle() >= IOTimeout {
			_ = c.Conn.Close() // its user discards it on the error
		}
	}
}

// stream is a tracked connection, until it is closed.
type stream struct {
	net.Conn
	streams       *Streams
	to            string       // dialed address; "" if accepted
	lastActivity  atomic.Int64 // time of the last traffic, relative to streams.startedAt
	writeDeadline time.Time    // set by the writer
}

// recordActivity records traffic, and closes idle connections to the same address after a timeout.
func (s *stream) recordActivity(n int, err error) {
	if n > 0 {
		s.lastActivity.Store(int64(time.Since(s.streams.startedAt)))
	}
	if s.to != "" && errors.Is(err, os.ErrDeadlineExceeded) {
		s.streams.closeIdle(s.to)
	}
}

// idle returns the time since the last traffic.
func (s *stream) idle() time.Duration {
	return time.Since(s.streams.startedAt) - time.Duration(s.lastActivity.Load())
}

// incomingConn is an accepted connection. It belongs to Raft unless its first byte is that of a
// request. One goroutine reads.
type incomingConn struct {
	*stream
	unread    []byte // what classify has read
	handedOff atomic.Bool
}

// classify reads the first byte, and reports whether the connection is for Raft. Otherwise it hands
// the connection to OnRequest, which answers and closes it.
func (c *incomingConn) classify() (start byte, forRaft bool) {
	var first [1]byte
	if _, err := io.ReadFull(c.stream, first[:]); err != nil {
		return 0, false
	}
	switch first[0] {
	case requestFirstByte:
		c.handedOff.Store(true)
		c.streams.OnRequest(c.stream)
		return first[0], false
	case handshakeFirstByte:
	default:
		c.unread = first[:]
	}
	return first[0], true
}

// Read implements net.Conn.
func (c *incomingConn) Read(b []byte) (int, error) {
	if len(c.unread) == 0 || len(b) == 0 {
		return c.stream.Read(b)
	}
	n := copy(b, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// Close implements net.Conn.
func (c *incomingConn) Close() error {
	if c.handedOff.Load() {
		return nil
	}
	return c.stream.Close()
}

// requestFirstByte begins a request for a snapshot or for the time. No message of the Raft library
// begins with it.
const requestFirstByte = 't'

// errMuted is the error of a dial or a write while isMuted returns true.
var errMuted = errors.New("this node sends nothing while its disk is stalled or its log is reopened")

// Read implements net.Conn.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.recordActivity(n, err)
	return n, err
}

// Write implements net.Conn. A leader with a stalled disk must send neither heartbeats nor the
// empty messages of the Raft library's pipeline. Both keep followers from electing a leader with a
// working disk. The connection is closed then, since half a message may be missing.
//
// Raft allows hours for a large snapshot. So each Write on a dialed connection must end within
// IOTimeout. One goroutine writes.
func (s *stream) Write(b []byte) (int, error) {
	if s.streams.isMuted() {
		return 0, errors.Join(errMuted, s.Close())
	}
	if s.to != "" {
		by := time.Now().Add(IOTimeout)
		if !s.writeDeadline.IsZero() && s.writeDeadline.Before(by) {
			by = s.writeDeadline
		}
		_ = s.Conn.SetWriteDeadline(by)
	}
	n, err := s.Conn.Write(b)
	s.recordActivity(n, err)
	return n, err
}

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	s.writeDeadline = t
	return s.Conn.SetDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.writeDeadline = t
	return s.Conn.SetWriteDeadline(t)
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.streams.mu.Lock()
	delete(s.streams.open, s)
	s.streams.mu.Unlock()
	return s.Conn.Close()
}
