package main

import (
	"cmp"
	"context"
	"flag"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
)

// A connection holds the flags for calling a cluster.
type connection struct {
	addresses, clusterID          string
	certificate, key, authorities string
	timeout                       time.Duration
}

const addressVariable = "TENUTO_ADDR"

// connectionFlags declares the flags of every command that calls a cluster.
func connectionFlags(flags *flag.FlagSet) *connection {
	c := new(connection)
	flags.StringVar(&c.addresses, "addr", "", "`host:port` of a node, or several separated by commas (default $"+addressVariable+")")
	flags.StringVar(&c.clusterID, "cluster", "", "`name` of the cluster (default tenuto)")
	flags.StringVar(&c.certificate, "cert", "", "`file` with the certificate of this client; without TLS a node is reached on loopback only")
	flags.StringVar(&c.key, "key", "", "`file` with its private key")
	flags.StringVar(&c.authorities, "ca", "", "`file` with the authorities of the cluster")
	flags.DurationVar(&c.timeout, "timeout", 30*time.Second, "how long to retry while no leader answers")
	return c
}

// withClient makes an action of a function that needs a client.
func withClient(flags *flag.FlagSet, do func(ctx context.Context, client *cluster.Client, s streams, args []string) error) action {
	c := connectionFlags(flags)
	return func(ctx context.Context, s streams, args []string) error {
		config, err := c.config(s)
		if err != nil {
			return err
		}
		client, err := cluster.Dial(ctx, config)
		if err != nil {
			return err
		}
		defer client.Close()
		return do(ctx, client, s, args)
	}
}

func (c *connection) config(s streams) (cluster.DialConfig, error) {
	config := cluster.DialConfig{
		ClusterID:   c.clusterID,
		CallTimeout: c.timeout,
		Logger:      slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	addresses := cmp.Or(c.addresses, os.Getenv(addressVariable))
	switch {
	case addresses == "":
		return config, &usageError{"name a node of the cluster: -addr host:port, or " + addressVariable}
	case c.timeout <= 0:
		return config, &usageError{"-timeout must be more than 0"}
	}
	for address := range strings.SplitSeq(addresses, ",") {
		config.Addresses = append(config.Addresses, strings.TrimSpace(address))
	}
	switch {
	case c.certificate == "" && c.key == "" && c.authorities == "":
	case c.certificate == "" || c.key == "" || c.authorities == "":
		return config, &usageError{"-cert, -key and -ca belong together"}
	default:
		config.TLS = cluster.KeyFiles(c.certificate, c.key, c.authorities)
	}
	return config, nil
}

// staleFlag declares the -stale flag of commands that read.
func staleFlag(flags *flag.FlagSet) func() []replay.Option {
	stale := flags.Bool("stale", false, "read from any node, without the leader; may be out of date")
	return func() []replay.Option {
		if *stale {
			return []replay.Option{cluster.Stale()}
		}
		return nil
	}
}
