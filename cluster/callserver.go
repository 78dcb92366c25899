package cluster

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

const (
	// protocolVersion is that of clusterpb. Nodes whose versions differ by more
	// than one do not talk to each other.
	protocolVersion = 1

	callMethod      = "/tenuto.cluster.v1.Node/Call"
	messageBytesMax = 80 << 20 // a history of 64 MiB and something around it
	dialTimeout     = 2 * time.Second
	keepAliveEvery  = 10 * time.Second
	keepAliveWait   = 2 * time.Second
)

// A callServer takes the calls that other nodes forward.
type callServer struct {
	server  *grpc.Server
	running sync.WaitGroup
}

// caller is what the service needs of a node.
type caller interface {
	serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
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
}

func serveCalls(to caller, door *door) *callServer {
	s := &callServer{server: grpc.NewServer(
		grpc.MaxRecvMsgSize(messageBytesMax),
		grpc.MaxSendMsgSize(messageBytesMax),
		grpc.WaitForHandlers(true), // when it is stopped
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

// A callPool keeps one connection to each node that was forwarded to.
type callPool struct {
	mu     sync.Mutex
	conns  map[string]*grpc.ClientConn
	closed bool
}

func newCallPool() *callPool { return &callPool{conns: make(map[string]*grpc.ClientConn)} }

func (p *callPool) to(address string) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if conn := p.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialCalls),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAliveEvery, Timeout: keepAliveWait}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: dialBackoff, MinConnectTimeout: dialTimeout}),
		grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, err
	}
	p.conns[address] = conn
	return conn, nil
}

// call forwards a request to the node at that address.
func (p *callPool) call(ctx context.Context, address string, request *clusterpb.Request) (*clusterpb.Response, error) {
	conn, err := p.to(address)
	if err != nil {
		return nil, err
	}
	response := new(clusterpb.Response)
	if err := conn.Invoke(ctx, callMethod, request, response); err != nil {
		return nil, err
	}
	return response, nil
}

func (p *callPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, conn := range p.conns {
		_ = conn.Close()
	}
}
