package main

import (
	"context"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/dashboard"
)

// serveDashboard shows the cluster in a browser until the context ends.
func serveDashboard(ctx context.Context, client *cluster.Client, out *log.Logger) (wait func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	// An application asks its own login who the user is. Here everyone on this machine is "you".
	user := func(*http.Request) (string, error) { return "you", nil }
	server := &http.Server{
		Handler:           dashboard.Handler(client, dashboard.Options{Principal: user}),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // ends when the server is closed
	}()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	out.Printf("the dashboard: http://%s/", listener.Addr())
	return func() { <-ended }, nil
}
