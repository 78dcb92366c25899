package journal

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// streams is the Network as Raft sees it. It lets nobody in before Raft has
// started. It knows every connection, because the Raft library's transport
// leaves those that it has accepted open when it is closed, and because a fenced
// node must fall silent at once.
type streams struct {
	network Network
	address streamAddress
	// silent says that nothing may leave the node for now.
	silent func() bool
	// asked is given the connections on which another node asks for a snapshot.
	asked func(net.Conn)
	// greet, if there is one, says who this node is on a connection for Raft, and makes sure
	// that the other has an identity. greets reports whether it is called although none is
	// recorded for the other.
	greet  func(conn net.Conn, to string, timeout time.Duration) error
	greets func() bool
	begun  time.Time

	serving chan struct{} // closed when connections are accepted
	closed  chan struct{}

	mu    sync.Mutex
	open  map[*stream]struct{}
	ended bool
}

// streamAddress is the address at which others reach this node, which need not
// be the one it listens at.
type streamAddress string

func (streamAddress) Network() string  { return "tcp" }
func (a streamAddress) String() string { return string(a) }

func newStreams(network Network, address string, silent func() bool) *streams {
	return &streams{
		network: network, address: streamAddress(address), silent: silent,
		asked:   func(conn net.Conn) { _ = conn.Close() },
		begun:   time.Now(),
		serving: make(chan struct{}), closed: make(chan struct{}),
		open: map[*stream]struct{}{},
	}
}

// serve lets connections in. It is called once, when Raft has started.
func (s *streams) serve() { close(s.serving) }

// Accept implements net.Listener. Once the streams are cut it waits for Close,
// because Raft would ask again and again.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case <-s.serving:
	case <-s.closed:
		return nil, net.ErrClosed
	}
	conn, err := s.network.Accept()
	if err != nil && s.isCut() {
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
	return &incoming{stream: tracked}, nil
}

// Addr implements net.Listener.
func (s *streams) Addr() net.Addr { return s.address }

// Dial implements raft.StreamLayer.
func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	plain, identity := splitAddress(address)
	conn, err := s.dialPlain(plain, timeout)
	if err != nil {
		return nil, &dialError{err}
	}
	if s.greet != nil && (identity != "" || s.greets()) {
		if err := s.greet(conn, identity, timeout); err != nil {
			_ = conn.Close()
			return nil, &dialError{err}
		}
	}
	return conn, nil
}

// dialPlain opens a connection on which nothing was said yet.
func (s *streams) dialPlain(address string, timeout time.Duration) (*stream, error) {
	if s.isCut() {
		return nil, net.ErrClosed
	}
	if s.silent() {
		return nil, errSilent
	}
	if s.network == nil {
		return nil, errors.New("the journal has no network")
	}
	conn, err := s.network.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return s.track(conn, address)
}

// Close implements net.Listener.
func (s *streams) Close() error {
	err := s.cut()
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return err
}

// cut closes the listener and every connection, for good.
func (s *streams) cut() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil
	}
	s.ended = true
	if s.network == nil {
		return nil // a group of one
	}
	err := s.network.Close()
	for c := range s.open {
		err = errors.Join(err, c.Conn.Close())
	}
	s.open = nil
	return err
}

func (s *streams) isCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *streams) track(conn net.Conn, to string) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c := &stream{Conn: conn, of: s, to: to}
	c.note(1, nil)
	s.open[c] = struct{}{}
	return c, nil
}

// giveUp closes the connections to an address through which nothing has come or gone
// for ioTimeout, as through one of them on which an answer is due. Or else Raft would
// try those that it keeps one after the other, each for as long.
func (s *streams) giveUp(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if c.to == address && c.idle() >= ioTimeout {
			_ = c.Conn.Close() // whoever has it forgets it
		}
	}
}

// stream is a connection that is forgotten when it is closed.
type stream struct {
	net.Conn
	of      *streams
	to      string       // where this node has dialed; "" if another one has
	moved   atomic.Int64 // when something came or went, since the streams were begun
	writeBy time.Time    // as whoever writes has it
}

// note remembers that bytes came or went, and sees to the others if they should have.
func (c *stream) note(n int, err error) {
	if n > 0 {
		c.moved.Store(int64(time.Since(c.of.begun)))
	}
	if c.to != "" && errors.Is(err, os.ErrDeadlineExceeded) {
		c.of.giveUp(c.to)
	}
}

// idle returns for how long nothing has come or gone.
func (c *stream) idle() time.Duration {
	return time.Since(c.of.begun) - time.Duration(c.moved.Load())
}

// incoming is a connection that somebody else has opened, in the hands of Raft
// unless it turns out that something is asked. One goroutine reads.
type incoming struct {
	*stream
	first []byte // what was read to find out what the connection is for
	given atomic.Bool
}

// sort reads the first byte, and reports whether the connection is for Raft: a
// question is answered, and the connection closed, by somebody else.
func (c *incoming) sort() (opening byte, forRaft bool) {
	var first [1]byte
	if _, err := io.ReadFull(c.stream, first[:]); err != nil {
		return 0, false
	}
	switch first[0] {
	case askMagic[0]:
		c.given.Store(true)
		c.of.asked(c.stream)
		return first[0], false
	case helloOpening:
	default:
		c.first = first[:]
	}
	return first[0], true
}

// Read implements net.Conn.
func (c *incoming) Read(b []byte) (int, error) {
	if len(c.first) == 0 || len(b) == 0 {
		return c.stream.Read(b)
	}
	n := copy(b, c.first)
	c.first = c.first[n:]
	return n, nil
}

// Close implements net.Conn.
func (c *incoming) Close() error {
	if c.given.Load() {
		return nil
	}
	return c.stream.Close()
}

// errSilent is what Raft gets instead of a connection, or of a write, while the
// node's own disk hangs.
var errSilent = errors.New("silent while the disk hangs")

// Read implements net.Conn.
func (c *stream) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.note(n, err)
	return n, err
}

// Write implements net.Conn. Heartbeats, and the empty messages of the Raft
// library's pipeline, keep followers from electing a leader whose disk works,
// hence neither may leave a node whose disk hangs. The connection is of no
// further use: half a message may be missing from it.
//
// What Raft allows a large snapshot is hours. So of what this node sends, each part has
// to be taken within ioTimeout. One goroutine writes.
func (c *stream) Write(b []byte) (int, error) {
	if c.of.silent() {
		return 0, errors.Join(errSilent, c.Close())
	}
	if c.to != "" {
		by := time.Now().Add(ioTimeout)
		if !c.writeBy.IsZero() && c.writeBy.Before(by) {
			by = c.writeBy
		}
		_ = c.Conn.SetWriteDeadline(by)
	}
	n, err := c.Conn.Write(b)
	c.note(n, err)
	return n, err
}

// SetDeadline implements net.Conn.
func (c *stream) SetDeadline(t time.Time) error {
	c.writeBy = t
	return c.Conn.SetDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *stream) SetWriteDeadline(t time.Time) error {
	c.writeBy = t
	return c.Conn.SetWriteDeadline(t)
}

// Close implements net.Conn.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
