package transport

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// testTimeout bounds every wait for a condition. It ends a failed test and measures nothing.
const testTimeout = 3 * time.Minute

var errTestClosed = errors.New("closed")

// serveEmptyResponses answers every call.
func serveEmptyResponses(mux *Mux) *grpc.Server {
	server := grpc.NewServer(grpc.Creds(Credentials()), grpc.WaitForHandlers(true))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: Service,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Call",
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				return new(clusterpb.Response), decode(new(clusterpb.Request))
			},
		}},
	}, nil)
	go func() { _ = server.Serve(mux.Calls()) }()
	return server
}

// closedAddress returns an address at which nothing listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// checkGoroutineLeaks fails the test if, at its end, more goroutines of ours run than when it was
// called.
func checkGoroutineLeaks(t *testing.T) {
	t.Helper()
	before := len(goroutineStacks())
	t.Cleanup(func() {
		for deadline := time.Now().Add(testTimeout); len(goroutineStacks()) > before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("goroutines left:\n%s", strings.Join(goroutineStacks(), "\n\n"))
				return
			}
		}
	})
}

// goroutineStacks returns the stacks of all goroutines but those of the testing package.
func goroutineStacks() (stacks []string) {
	buffer := make([]byte, 4<<20)
	for _, stack := range strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if !strings.Contains(stack, "testing.") || strings.Contains(stack, "tenuto/") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

func TestCallPool_ForgetsGoneNodes(t *testing.T) {
	checkGoroutineLeaks(t)
	dialer := &Dialer{Links: NewLinks(nil, 1)}
	mux, err := Listen("127.0.0.1:0", dialer, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mux.Close)
	t.Cleanup(serveEmptyResponses(mux).Stop)
	there, gone := mux.Addr().String(), closedAddress(t)
	pool := NewPool(dialer, errTestClosed)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if _, err := pool.Call(ctx, there, &clusterpb.Request{Call: &clusterpb.Request_Send{Send: new(clusterpb.SendRequest)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Call(ctx, gone, new(clusterpb.Request)); !errors.As(err, new(*UnreachableError)) {
		t.Fatalf("%v; want an UnreachableError", err)
	}
	dialed := pool.nodes[gone]
	pool.closeUnused(time.Now())
	if pool.nodes[gone] == nil {
		t.Error("a node was forgotten that was called just now")
	}
	pool.closeUnused(time.Now().Add(2 * unusedConnectionMax))
	if pool.nodes[gone] != nil || dialed.GetState() != connectivity.Shutdown {
		t.Errorf("a node that is gone: %v is %v; want it shut down and forgotten", pool.nodes[gone], dialed.GetState())
	}
	if pool.nodes[there] == nil {
		t.Error("a node was forgotten to which there is a connection")
	}
	if _, err := pool.Call(ctx, gone, new(clusterpb.Request)); !errors.As(err, new(*UnreachableError)) {
		t.Errorf("called again: %v; want an UnreachableError", err)
	}
}
