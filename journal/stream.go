package journal

import (
	"errors"
	"io"
	"net"
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

	serving chan struct{} // closed when connections are accepted
	closed  chan struct{}

	mu    sync.Mutex
	open  map[net.Conn]struct{}
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
		serving: make(chan struct{}), closed: make(chan struct{}),
		open: map[net.Conn]struct{}{},
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
	tracked, err := s.track(conn)
	if err != nil {
		return nil, err
	}
	return &incoming{stream: tracked}, nil
}

// Addr implements net.Listener.
func (s *streams) Addr() net.Addr { return s.address }

// Dial implements raft.StreamLayer.
func (s *streams) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	conn, err := s.dial(string(address), timeout)
	if err != nil {
		return nil, &dialError{err}
	}
	return conn, nil
}

func (s *streams) dial(address string, timeout time.Duration) (*stream, error) {
	if s.isCut() {
		return nil, net.ErrClosed
	}
	if s.silent() {
		return nil, errSilent
	}
	conn, err := s.network.Dial(address, timeout)
	if err != nil {
		return nil, err
	}
	return s.track(conn)
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
	for conn := range s.open {
		err = errors.Join(err, conn.Close())
	}
	s.open = nil
	return err
}

func (s *streams) isCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *streams) track(conn net.Conn) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	s.open[conn] = struct{}{}
	return &stream{Conn: conn, of: s}, nil
}

// stream is a connection that is forgotten when it is closed.
type stream struct {
	net.Conn
	of *streams
}

// incoming is a connection that somebody else has opened, in the hands of Raft
// unless it turns out that a snapshot is asked for. One goroutine reads.
type incoming struct {
	*stream
	sorted bool
	given  atomic.Bool // to whoever answers, and closes it
}

// Read implements net.Conn.
func (c *incoming) Read(b []byte) (int, error) {
	if c.sorted || len(b) == 0 {
		return c.stream.Read(b)
	}
	n, err := c.stream.Read(b[:1])
	if n == 0 {
		return 0, err
	}
	c.sorted = true
	if b[0] != askMagic[0] {
		return n, err
	}
	c.given.Store(true)
	c.of.asked(c.stream)
	return 0, io.EOF
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

// Write implements net.Conn. Heartbeats, and the empty messages of the Raft
// library's pipeline, keep followers from electing a leader whose disk works,
// hence neither may leave a node whose disk hangs. The connection is of no
// further use: half a message may be missing from it.
func (c *stream) Write(b []byte) (int, error) {
	if c.of.silent() {
		return 0, errors.Join(errSilent, c.Close())
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c.Conn)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
