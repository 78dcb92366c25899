package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// Service is the name of the gRPC service of every node.
const Service = "tenuto.cluster.v1.Node"

// Bounds of messages, in bytes, and keepalive of connections, on both sides.
const (
	RequestBytesMax  = 8 << 20  // a payload has at most 4 MiB
	ResponseBytesMax = 80 << 20 // a history of 64 MiB, encoded

	KeepAliveInterval = 10 * time.Second
	KeepAliveWait     = 2 * time.Second
)

const (
	callMethod  = "/" + Service + "/Call"
	dialTimeout = 2 * time.Second
	// The pool stops dialing a node that was not called for this time and is not connected. The
	// next call dials it again.
	unusedConnectionMax = time.Minute
	closeUnusedInterval = 10 * time.Second
)

var dialBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 250 * time.Millisecond}

// A Pool keeps one connection to each node that is called.
type Pool struct {
	dialer      *Dialer
	closedError error

	mu     sync.Mutex
	nodes  map[string]*Node
	closed bool
}

// A Node is a node that is called, with the connection to it.
type Node struct {
	*grpc.ClientConn
	closedError   error
	lastCalled    time.Time // guarded by the pool's mutex
	lastDialError atomic.Pointer[UnreachableError]
}

// An UnreachableError says why there was no connection. Nothing was sent.
type UnreachableError struct{ err error }

// Error implements error.
func (e *UnreachableError) Error() string { return e.err.Error() }
func (e *UnreachableError) Unwrap() error { return e.err }

// NewPool returns an empty pool. closedError is the reason why there is no connection after Close.
func NewPool(dialer *Dialer, closedError error) *Pool {
	return &Pool{dialer: dialer, closedError: closedError, nodes: make(map[string]*Node)}
}

// Node returns the node at an address, connected or not.
func (p *Pool) Node(address string) (*Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.closedError
	}
	if node := p.nodes[address]; node != nil {
		node.lastCalled = time.Now()
		return node, nil
	}
	node := &Node{closedError: p.closedError, lastCalled: time.Now()}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := p.dialer.Dial(ctx, address, Calls)
		if err != nil {
			node.lastDialError.Store(&UnreachableError{err})
		}
		return conn, err
	}
	var err error
	node.ClientConn, err = grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(linkCredentials{}),
		grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(ResponseBytesMax), grpc.MaxCallSendMsgSize(RequestBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: KeepAliveInterval, Timeout: KeepAliveWait}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: dialBackoff, MinConnectTimeout: dialTimeout}),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, err
	}
	p.nodes[address] = node
	return node, nil
}

// Call sends a request to the node at an address. After an [*UnreachableError] it was not sent;
// after any other error it may have arrived.
func (p *Pool) Call(ctx context.Context, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
	node, err := p.connectedNode(ctx, address)
	if err != nil {
		return nil, err
	}
	response := new(clusterpb.Response)
	if err := node.Invoke(ctx, callMethod, request, response); err != nil {
		return nil, err
	}
	return response, nil
}

// OpenStream sends a request that has several responses, on a stream.
func (p *Pool) OpenStream(ctx context.Context, address string, to *grpc.StreamDesc, request *clusterpb.Request) (grpc.ClientStream, error) {
	node, err := p.connectedNode(ctx, address)
	if err != nil {
		return nil, err
	}
	stream, err := node.NewStream(ctx, to, "/"+Service+"/"+to.StreamName)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // RecvMsg returns the reason for EOF
		return nil, err
	}
	return stream, stream.CloseSend()
}

// connectedNode returns the node at an address after it is connected. The error is an
// [*UnreachableError].
func (p *Pool) connectedNode(ctx context.Context, address string) (*Node, error) {
	node, err := p.Node(address)
	if err != nil {
		return nil, &UnreachableError{err}
	}
	return node, node.AwaitConnection(ctx)
}

// Preconnect opens a connection before a call needs it. It does not shorten the backoff after a
// failed connect, because gRPC's method for that has a data race.
func (p *Pool) Preconnect(address string) {
	if node, err := p.Node(address); err == nil {
		node.Connect()
	}
}

// AwaitConnection waits for a connection; the error is an [*UnreachableError].
func (n *Node) AwaitConnection(ctx context.Context) error {
	for {
		state := n.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return &UnreachableError{n.closedError}
		case connectivity.TransientFailure:
			if failure := n.lastDialError.Load(); failure != nil {
				return failure
			}
			return &UnreachableError{errors.New("connection closed")}
		case connectivity.Idle:
			n.Connect()
		}
		if !n.WaitForStateChange(ctx, state) {
			return &UnreachableError{ctx.Err()}
		}
	}
}

// closeUnused closes the gRPC clients of nodes that are neither called nor connected. gRPC would
// dial them forever. Calls that wait for such a connection get an error.
func (p *Pool) closeUnused(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, node := range p.nodes {
		if now.Sub(node.lastCalled) > unusedConnectionMax && node.GetState() != connectivity.Ready {
			_ = node.Close()
			delete(p.nodes, address)
		}
	}
}

// CloseUnusedUntil calls closeUnused periodically until done is closed.
func (p *Pool) CloseUnusedUntil(done <-chan struct{}) {
	ticker := time.NewTicker(closeUnusedInterval)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			p.closeUnused(now)
		case <-done:
			return
		}
	}
}

// Close closes all connections. After that the pool opens none.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, node := range p.nodes {
		_ = node.Close()
	}
}
