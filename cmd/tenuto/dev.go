package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/dashboard"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/sample"
)

const devAddress = "127.0.0.1:7400"

// readyText is printed when the node is ready.
const readyText = `ready at %[1]s, data in %[2]s; Ctrl-C stops it.
The dashboard: %[3]s
In another terminal:

  export TENUTO_ADDR=%[1]s

  tenuto start greet hello-1 '"Ada"' -wait           a greeting
  tenuto history hello-1                             its events

  tenuto start order order-1 '{"item":"book","amount":1200}'
  tenuto query order-1 progress                      charged; it waits for an event
  tenuto update order-1 change-amount 900
  tenuto send order-1 approved true                  with false it fails and refunds
  tenuto wait order-1

  tenuto start flaky bank-1 1000                     an activity fails and is retried
  tenuto pending bank-1                              since when it is open, its last error, its next attempt
  tenuto retry bank-1 -reason 'try now'              the next attempt begins
  tenuto complete bank-1 '"by hand"' -reason 'called them'

  tenuto list; tenuto count -by state,name; tenuto audit
`

func dev(flags *flag.FlagSet) action {
	dir := flags.String("dir", "", "`directory` of the journal, kept (default: a temporary one, removed at the end)")
	listen := flags.String("listen", devAddress, "loopback `host:port` to listen on")
	uiAddress := flags.String("ui", "127.0.0.1:0", "loopback `host:port` of the dashboard; port 0 is a free one")
	return func(ctx context.Context, s streams, _ []string) (err error) {
		path := *dir
		if path == "" {
			if path, err = os.MkdirTemp("", "tenuto-dev-"); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(path)) }()
		}
		node, err := cluster.Start(ctx, cluster.Config{
			Dir: path, Listen: *listen, Definitions: sample.Definitions(),
			Logger: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("%w (if the address or directory is in use, choose others with -listen and -dir)", err)
		}
		err = runDev(ctx, s, node, *listen, *uiAddress, path)
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, node.Stop(stopping))
	}
}

// runDev serves the dashboard of a node until the context ends or the node fails.
func runDev(ctx context.Context, s streams, node *cluster.Node, listen, uiAddress, path string) error {
	shown, err := openDashboard(node.Client(), uiAddress, dashboard.Options{Principal: localUser("")})
	if err != nil {
		return err
	}
	defer shown.close()
	if err := awaitProtocol(ctx, node); err != nil {
		fmt.Fprintln(s.err, err)
	} else {
		fmt.Fprintf(s.err, readyText, listen, path, shown.url)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-node.Failed():
		return node.Err()
	case err := <-shown.failed:
		return err
	}
}

func ui(flags *flag.FlagSet) action {
	listen := flags.String("listen", "127.0.0.1:7480", "loopback `host:port` to serve on")
	readOnly := flags.Bool("read-only", false, "change nothing")
	return withSession(flags, func(ctx context.Context, s *session, _ []string) error {
		name := flags.Lookup("as").Value.String()
		shown, err := openDashboard(s.Client, *listen, dashboard.Options{Principal: localUser(name), ReadOnly: *readOnly})
		if err != nil {
			return err
		}
		defer shown.close()
		fmt.Fprintf(s.err, "The dashboard: %s\nCtrl-C stops it.\n", shown.url)
		select {
		case <-ctx.Done():
			return nil
		case err := <-shown.failed:
			return err
		}
	})
}

// localUser returns the name of the user of this command for each request.
func localUser(name string) func(*http.Request) (string, error) {
	if name == "" {
		name = "tenuto"
		if account, err := user.Current(); err == nil && account.Username != "" {
			name = account.Username
		}
	}
	return func(*http.Request) (string, error) { return name, nil }
}

// shownDashboard is a dashboard that is served on loopback.
type shownDashboard struct {
	server *http.Server
	url    string
	failed chan error // why serving has ended; closed then
	cancel context.CancelFunc
}

// openDashboard serves the dashboard of a cluster on loopback. The path begins with random text:
// other users of the machine, who can connect too, do not know it, and no cookie or password is
// needed.
func openDashboard(client *cluster.Client, address string, options dashboard.Options) (*shownDashboard, error) {
	if host, _, err := net.SplitHostPort(address); err != nil || !isLoopback(host) {
		return nil, &usageError{fmt.Sprintf("%q is not a loopback address: on others, a program must authenticate users and mount the handler of package cluster/dashboard", address)}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	prefix := "/" + strings.ToLower(rand.Text())
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, dashboard.Handler(client, options)))
	ctx, cancel := context.WithCancel(context.Background())
	d := &shownDashboard{url: fmt.Sprintf("http://%s%s/", listener.Addr(), prefix), failed: make(chan error, 1), cancel: cancel}
	d.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		defer close(d.failed)
		d.failed <- d.server.Serve(listener)
	}()
	return d, nil
}

// close ends the requests and waits for them.
func (d *shownDashboard) close() {
	d.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if d.server.Shutdown(ctx) != nil {
		_ = d.server.Close() // there is nothing left to tell
	}
	for range d.failed {
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// awaitProtocol waits until the cluster no longer rejects commands of operators with ErrProtocol.
func awaitProtocol(ctx context.Context, node *cluster.Node) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		// It changes nothing, because no such activity is paused.
		err := operate.ResumeActivity(ctx, node.Client(), "tenuto dev", "")
		if !errors.Is(err, cluster.ErrProtocol) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
