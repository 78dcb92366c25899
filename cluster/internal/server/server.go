package server

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/tenuto-dev/tenuto/cluster/internal/transport"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

const (
	// Concurrent calls over one connection.
	streamsMax = 16384
	// After this time, plus or minus a tenth, the server asks the client to reconnect; calls may
	// finish within callsAgeGrace. The sum is less than transport.AgeMax.
	callsAgeMax   = 8 * time.Minute
	callsAgeGrace = time.Minute
	// A connection without calls is closed after this time.
	callsIdleMax = 5 * time.Minute
)

// A Server receives the calls of other nodes and of remote clients.
type Server struct {
	server  *grpc.Server
	running sync.WaitGroup
}

// A Node answers the calls.
type Node interface {
	Serve(ctx context.Context, request *clusterpb.Request) *clusterpb.Response
	ServeWorker(stream grpc.ServerStream) error
	ServeStartBatch(stream grpc.ServerStream) error
}

var service = grpc.ServiceDesc{
	ServiceName: transport.Service,
	HandlerType: (*Node)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(node any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := new(clusterpb.Request)
			if err := decode(request); err != nil {
				return nil, err
			}
			return node.(Node).Serve(ctx, request), nil
		},
	}},
	Streams: []grpc.StreamDesc{WorkStream, StartBatchStream},
}

// Config configures a Server.
type Config struct {
	IsMember  func(nodeID string) bool
	Rejection error // of a stream that only members may open
	Stats     stats.Handler
}

// Serve begins to receive calls.
func Serve(to Node, listener net.Listener, c Config) *Server {
	s := &Server{server: grpc.NewServer(
		grpc.Creds(transport.Credentials()),
		grpc.MaxRecvMsgSize(transport.RequestBytesMax),
		grpc.MaxSendMsgSize(transport.ResponseBytesMax),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.ConnectionTimeout(transport.HandshakeTimeout),
		grpc.StreamInterceptor(RequireMember(c.IsMember, c.Rejection)),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: callsAgeMax, MaxConnectionAgeGrace: callsAgeGrace, MaxConnectionIdle: callsIdleMax,
			Time: transport.KeepAliveInterval, Timeout: transport.KeepAliveWait,
		}),
		grpc.WaitForHandlers(true), // in Stop
		grpc.StatsHandler(c.Stats),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: transport.KeepAliveInterval / 2, PermitWithoutStream: true}),
	)}
	s.server.RegisterService(&service, to)
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		_ = s.server.Serve(listener)
	}()
	return s
}

// Close ends the calls and returns after their handlers have returned.
func (s *Server) Close() {
	s.server.Stop()
	s.running.Wait()
}

// RequireMember rejects streams of non-members. Clients may open only the stream of a worker, for
// which the [Node] checks their rights.
func RequireMember(isMember func(nodeID string) bool, rejection error) grpc.StreamServerInterceptor {
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		caller := transport.PeerOf(stream.Context())
		if caller.Kind == transport.KindClient && info.FullMethod == WorkMethod {
			return handler(service, stream)
		}
		if caller.Kind == transport.KindLocal || caller.Kind == transport.KindNode && isMember(caller.Name) {
			return handler(service, stream)
		}
		return status.Error(codes.PermissionDenied, rejection.Error())
	}
}

// WorkMethod is the method of WorkStream.
const WorkMethod = "/" + transport.Service + "/Work"

// WorkStream is the stream over which a leader assigns attempts to a worker.
var WorkStream = grpc.StreamDesc{
	StreamName:    "Work",
	ServerStreams: true,
	ClientStreams: true,
	Handler:       func(node any, stream grpc.ServerStream) error { return node.(Node).ServeWorker(stream) },
}

// StartBatchStream is the stream of answers to a batch of starts.
var StartBatchStream = grpc.StreamDesc{
	StreamName:    "Starts",
	ServerStreams: true,
	Handler:       func(node any, stream grpc.ServerStream) error { return node.(Node).ServeStartBatch(stream) },
}
