package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/sample"
)

const devAddress = "127.0.0.1:7400"

// readyText is printed when the node is ready.
const readyText = `ready at %[1]s, data in %[2]s; Ctrl-C stops it. In another terminal:

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
		if err := awaitProtocol(ctx, node); err != nil {
			fmt.Fprintln(s.err, err)
		} else {
			fmt.Fprintf(s.err, readyText, *listen, path)
		}
		select {
		case <-ctx.Done():
			err = nil
		case <-node.Failed():
			err = node.Err()
		}
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, node.Stop(stopping))
	}
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
