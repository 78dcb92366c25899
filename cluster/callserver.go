package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

const (
	callMethod       = "/tenuto.cluster.v1.Node/Call"
	requestBytesMax  = 8 << 20  // a payload has at most 4 MiB
	responseBytesMax = 80 << 20 // a history of 64 MiB, encoded
	// Concurrent calls over one connection.
	streamsMax = 16384
	// After this time, plus or minus a tenth, the server asks the client to reconnect; calls may
	// finish within callsAgeGrace. The sum is less than linkAgeMax.
	callsAgeMax   = 8 * time.Minute
	callsAgeGrace = time.Minute
	// A connection without calls is closed after this time.
	callsIdleMax = 5 * time.Minute
	dialTimeout  = 2 * time.Second
	// The pool stops dialing a node that was not called for this time and is not connected. The
	// next call dials it again.
	unusedConnectionMax = time.Minute
	closeUnusedInterval = 10 * time.Second
	keepAliveInterval   = 10 * time.Second
	keepAliveWait       = 2 * time.Second
)

// A callServer receives the calls of other nodes and of remote clients.
type callServer struct {
	server  *grpc.Server
	running sync.WaitGroup
}

// nodeServer is what the gRPC service needs of a node.
type nodeServer interface {
	serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
	serveWorker(stream grpc.ServerStream) error
	serveStartBatch(stream grpc.ServerStream) error
}

var nodeServiceDesc = grpc.ServiceDesc{
	ServiceName: "tenuto.cluster.v1.Node",
	HandlerType: (*nodeServer)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(node any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := new(clusterpb.Request)
			if err := decode(request); err != nil {
				return nil, err
			}
			return node.(nodeServer).serve(ctx, request), nil
		},
	}},
	Streams: []grpc.StreamDesc{workStream, startBatchStream},
}

func serveCalls(to nodeServer, listener *purposeListener) *callServer {
	s := &callServer{server: grpc.NewServer(
		grpc.Creds(linkCredentials{}),
		grpc.MaxRecvMsgSize(requestBytesMax),
		grpc.MaxSendMsgSize(responseBytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.StreamInterceptor(requireMember(listener.mux.links.isMember)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: callsAgeMax, MaxConnectionAgeGrace: callsAgeGrace, MaxConnectionIdle: callsIdleMax,
			Time: keepAliveInterval, Timeout: keepAliveWait,
		}),
		grpc.WaitForHandlers(true), // in Stop
		grpc.StatsHandler(answerStatsHandler{}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepAliveInterval / 2, PermitWithoutStream: true}),
	)}
	s.server.RegisterService(&nodeServiceDesc, to)
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		_ = s.server.Serve(listener)
	}()
	return s
}

func (s *callServer) close() {
	s.server.Stop()
	s.running.Wait()
}

// requireMember refuses streams of non-members; clients may only make unary calls.
func requireMember(isMember func(nodeID string) bool) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		caller := callerOf(stream.Context())
		if caller.Kind == PrincipalLocal || caller.Kind == PrincipalNode && isMember(caller.Name) {
			return handler(service, stream)
		}
		return status.Error(codes.PermissionDenied, ErrNotAuthorized.Error())
	}
}

// linkCredentials tells gRPC the peer of a link, whose handshake is already done.
type linkCredentials struct{}

// linkInfo implements credentials.AuthInfo.
type linkInfo struct {
	credentials.CommonAuthInfo
	peer Principal
}

func (linkInfo) AuthType() string { return "tenuto" }

func newLinkInfo(conn net.Conn) linkInfo {
	info := linkInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	if l, ok := conn.(*link); ok {
		info.peer = l.peer
	}
	return info
}

func (linkCredentials) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, newLinkInfo(conn), nil
}

func (linkCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, newLinkInfo(conn), nil
}

func (linkCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tenuto"}
}

func (c linkCredentials) Clone() credentials.TransportCredentials { return c }

func (linkCredentials) OverrideServerName(string) error { return nil }

// A callPool keeps one connection to each node that is called.
type callPool struct {
	dialer *dialer

	mu     sync.Mutex
	nodes  map[string]*calledNode
	closed bool
}

type calledNode struct {
	*grpc.ClientConn
	lastCalled    time.Time // guarded by the pool's mutex
	lastDialError atomic.Pointer[unreachableError]
}

// An unreachableError says why there was no connection. Nothing was sent.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

func newCallPool(dialer *dialer) *callPool {
	return &callPool{dialer: dialer, nodes: make(map[string]*calledNode)}
}

func (p *callPool) nodeFor(address string) (*calledNode, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if node := p.nodes[address]; node != nil {
		node.lastCalled = time.Now()
		return node, nil
	}
	node := &calledNode{lastCalled: time.Now()}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := p.dialer.dial(ctx, address, purposeCalls)
		if err != nil {
			node.lastDialError.Store(&unreachableError{err})
		}
		return conn, err
	}
	var err error
	node.ClientConn, err = grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(linkCredentials{}),
		grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(responseBytesMax), grpc.MaxCallSendMsgSize(requestBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAliveInterval, Timeout: keepAliveWait}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: dialBackoff, MinConnectTimeout: dialTimeout}),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, err
	}
	p.nodes[address] = node
	return node, nil
}

// call sends a request to the node at an address. After an [*unreachableError] it was not sent;
// after any other error it may have arrived.
func (p *callPool) call(ctx context.Context, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
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

// openStream sends a request that has several responses, on a stream.
func (p *callPool) openStream(ctx context.Context, address string, to *grpc.StreamDesc, request *clusterpb.Request) (grpc.ClientStream, error) {
	node, err := p.connectedNode(ctx, address)
	if err != nil {
		return nil, err
	}
	stream, err := node.NewStream(ctx, to, "/"+nodeServiceDesc.ServiceName+"/"+to.StreamName)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // RecvMsg returns the reason for EOF
		return nil, err
	}
	return stream, stream.CloseSend()
}

// connectedNode returns the node at an address after it is connected. The error is an
// [*unreachableError].
func (p *callPool) connectedNode(ctx context.Context, address string) (*calledNode, error) {
	node, err := p.nodeFor(address)
	if err != nil {
		return nil, &unreachableError{err}
	}
	return node, node.connect(ctx)
}

func (p *callPool) ask(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
	response, err := p.call(ctx, address, request)
	if err != nil {
		return errorResponse(err)
	}
	return response
}

func errorResponse(err error) *clusterpb.Response {
	var unreached *unreachableError
	switch {
	case errors.As(err, &unreached):
		return notLeaderResponse(err.Error())
	case status.Code(err) == codes.Unimplemented || status.Code(err) == codes.ResourceExhausted:
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeInternal, Message: err.Error(), NotExecuted: true}}
	}
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: err.Error()}}
}

// preconnect opens a connection before a call needs it. It does not shorten the backoff after a
// failed connect, because gRPC's method for that has a data race.
func (p *callPool) preconnect(address string) {
	if node, err := p.nodeFor(address); err == nil {
		node.Connect()
	}
}

// connect waits for a connection; the error is an [*unreachableError].
func (n *calledNode) connect(ctx context.Context) error {
	for {
		state := n.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return &unreachableError{ErrClosed}
		case connectivity.TransientFailure:
			if failure := n.lastDialError.Load(); failure != nil {
				return failure
			}
			return &unreachableError{errors.New("connection closed")}
		case connectivity.Idle:
			n.Connect()
		}
		if !n.WaitForStateChange(ctx, state) {
			return &unreachableError{ctx.Err()}
		}
	}
}

// closeUnused closes the gRPC clients of nodes that are neither called nor connected. gRPC would dial
// them forever. Calls that wait for such a connection get an error.
func (p *callPool) closeUnused(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, node := range p.nodes {
		if now.Sub(node.lastCalled) > unusedConnectionMax && node.GetState() != connectivity.Ready {
			_ = node.Close()
			delete(p.nodes, address)
		}
	}
}

func (p *callPool) closeUnusedUntil(done <-chan struct{}) {
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

func (p *callPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, node := range p.nodes {
		_ = node.Close()
	}
}
