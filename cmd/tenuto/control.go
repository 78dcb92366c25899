package main

import (
	"context"
	"flag"

	"github.com/tenuto-dev/tenuto/cluster"
)

// controlCommand makes a command of a method that controls an instance.
func controlCommand(control func(client *cluster.Client, ctx context.Context, id, reason string) error) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		reason := flags.String("reason", "", "`text` to record as the reason")
		return withClient(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
			return control(client, ctx, args[0], *reason)
		})
	}
}

func retry(flags *flag.FlagSet) action {
	return withClient(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
		return client.Retry(ctx, args[0])
	})
}
