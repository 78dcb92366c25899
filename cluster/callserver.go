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
	requestBytesMax  = 8 << 20  // a payload is at most 4 MiB
	responseBytesMax = 80 << 20 // a history of 64 MiB and something around it
	// Calls at once over one connection.
	streamsMax = 16384
	// After this, a tenth more or less, the other side is asked to replace a
	// connection, and may end its calls in the time of grace. That is before
	// linkAgeMax.
	callsAgeMax   = 8 * time.Minute
	callsAgeGrace = time.Minute
	// A connection without calls is closed after this.
	callsIdleMax = 5 * time.Minute
	dialTimeout  = 2 * time.Second
	// A node that is not called for so long, and to which there is no connection, is not
	// dialed any more, until it is called again.
	forgetAfter    = time.Minute
	forgetEvery    = 10 * time.Second
	keepAliveEvery = 10 * time.Second
	keepAliveWait  = 2 * time.Second
)

// A callServer takes the calls of other nodes and of remote clients.
type callServer struct {
	server  *grpc.Server
	running sync.WaitGroup
}

// caller is what the service needs of a node.
type caller interface {
	serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
	employ(stream grpc.ServerStream) error
	startAll(stream grpc.ServerStream) error
}

var callService = grpc.ServiceDesc{
	ServiceName: "tenuto.cluster.v1.Node",
	HandlerType: (*caller)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(node any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := new(clusterpb.Request)
			if err := decode(request); err != nil {
				return nil, err
			}
			return node.(caller).serve(ctx, request), nil
		},
	}},
	Streams: []grpc.StreamDesc{workStream, startsStream},
}

func serveCalls(to caller, door *door) *callServer {
	s := &callServer{server: grpc.NewServer(
		grpc.Creds(linkCredentials{}),
		grpc.MaxRecvMsgSize(requestBytesMax),
		grpc.MaxSendMsgSize(responseBytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.StreamInterceptor(membersOnly(door.port.links.isMember)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: callsAgeMax, MaxConnectionAgeGrace: callsAgeGrace, MaxConnectionIdle: callsIdleMax,
			Time: keepAliveEvery, Timeout: keepAliveWait,
		}),
		grpc.WaitForHandlers(true), // when it is stopped
		grpc.StatsHandler(answerStats{}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepAliveEvery / 2, PermitWithoutStream: true}),
	)}
	s.server.RegisterService(&callService, to)
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		_ = s.server.Serve(door)
	}()
	return s
}

// close ends every call and waits for them.
func (s *callServer) close() {
	s.server.Stop()
	s.running.Wait()
}

// membersOnly refuses streams that others than members open: what clients may do is
// calls.
func membersOnly(isMember func(nodeID string) bool) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		caller := callerOf(stream.Context())
		if caller.Role == RoleLocal || caller.Role == RoleNode && isMember(caller.Name) {
			return handler(service, stream)
		}
		return status.Error(codes.PermissionDenied, ErrNotAuthorized.Error())
	}
}

// linkCredentials tell gRPC who is at the other end: the handshake was made
// before, by the port or the dialer.
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

// A calledNode is a node that is called, by its address.
type calledNode struct {
	*grpc.ClientConn
	called time.Time // last; guarded by the pool's lock
	// Why it could not be reached the last time.
	failure atomic.Pointer[unreachedError]
}

// An unreachedError says why there was no connection. Nothing was sent.
type unreachedError struct{ err error }

func (e *unreachedError) Error() string { return e.err.Error() }
func (e *unreachedError) Unwrap() error { return e.err }

func newCallPool(dialer *dialer) *callPool {
	return &callPool{dialer: dialer, nodes: make(map[string]*calledNode)}
}

func (p *callPool) to(address string) (*calledNode, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if node := p.nodes[address]; node != nil {
		node.called = time.Now()
		return node, nil
	}
	node := &calledNode{called: time.Now()}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := p.dialer.dial(ctx, address, forCalls)
		if err != nil {
			node.failure.Store(&unreachedError{err})
		}
		return conn, err
	}
	var err error
	node.ClientConn, err = grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(linkCredentials{}),
		grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(responseBytesMax), grpc.MaxCallSendMsgSize(requestBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAliveEvery, Timeout: keepAliveWait}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: dialBackoff, MinConnectTimeout: dialTimeout}),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, err
	}
	p.nodes[address] = node
	return node, nil
}

// call has the node at that address answer a request. After an [*unreachedError]
// it was not sent; after any other it may have arrived or not.
func (p *callPool) call(ctx context.Context, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
	node, err := p.reach(ctx, address)
	if err != nil {
		return nil, err
	}
	response := new(clusterpb.Response)
	if err := node.Invoke(ctx, callMethod, request, response); err != nil {
		return nil, err
	}
	return response, nil
}

// callFor is call for a request that has several responses, on a stream.
func (p *callPool) callFor(ctx context.Context, address string, to *grpc.StreamDesc, request *clusterpb.Request) (grpc.ClientStream, error) {
	node, err := p.reach(ctx, address)
	if err != nil {
		return nil, err
	}
	stream, err := node.NewStream(ctx, to, "/"+callService.ServiceName+"/"+to.StreamName)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // of which RecvMsg tells the reason
		return nil, err
	}
	return stream, stream.CloseSend()
}

// reach returns the node at that address when there is a connection; the error is an
// [*unreachedError].
func (p *callPool) reach(ctx context.Context, address string) (*calledNode, error) {
	node, err := p.to(address)
	if err != nil {
		return nil, &unreachedError{err}
	}
	return node, node.connect(ctx)
}

// ask is call with the error as a failure.
func (p *callPool) ask(ctx context.Context, address string, request *clusterpb.Request) *clusterpb.Response {
	response, err := p.call(ctx, address, request)
	if err != nil {
		return unanswered(err)
	}
	return response
}

// unanswered is an error of a call as an answer to it.
func unanswered(err error) *clusterpb.Response {
	var unreached *unreachedError
	switch {
	case errors.As(err, &unreached):
		return notLeader(err.Error())
	case status.Code(err) == codes.Unimplemented || status.Code(err) == codes.ResourceExhausted:
		return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeInternal, Message: err.Error(), NotExecuted: true}}
	}
	return &clusterpb.Response{Failure: &clusterpb.Failure{Code: codeUnknown, Message: err.Error()}}
}

// hurry has a connection made before it is needed. (One that could not be made waits
// for its pause: gRPC's way to end that races with itself.)
func (p *callPool) hurry(address string) {
	if node, err := p.to(address); err == nil {
		node.Connect()
	}
}

// connect waits for a connection; the error is an [*unreachedError].
func (n *calledNode) connect(ctx context.Context) error {
	for {
		state := n.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Shutdown:
			return &unreachedError{ErrClosed}
		case connectivity.TransientFailure:
			if failure := n.failure.Load(); failure != nil {
				return failure
			}
			return &unreachedError{errors.New("the connection was closed")}
		case connectivity.Idle:
			n.Connect()
		}
		if !n.WaitForStateChange(ctx, state) {
			return &unreachedError{ctx.Err()}
		}
	}
}

// forget closes what leads to nodes that are not called any more and cannot be reached:
// gRPC would dial them for ever. Nothing is on its way to them, except who waits for a
// connection and finds that there is none.
func (p *callPool) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, node := range p.nodes {
		if now.Sub(node.called) > forgetAfter && node.GetState() != connectivity.Ready {
			_ = node.Close()
			delete(p.nodes, address)
		}
	}
}

// forgetUntil forgets nodes until done is closed.
func (p *callPool) forgetUntil(done <-chan struct{}) {
	ticker := time.NewTicker(forgetEvery)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			p.forget(now)
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
