package main

import (
	"context"
	"flag"

	"github.com/tenuto-dev/tenuto/cluster"
)

// signaled makes a command of a signal to an instance.
func signaled(signal func(client *cluster.Client, ctx context.Context, id, reason string) error) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		reason := flags.String("reason", "", "`text` that is recorded with it")
		return called(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
			return signal(client, ctx, args[0], *reason)
		})
	}
}

func retry(flags *flag.FlagSet) action {
	return called(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
		return client.Retry(ctx, args[0])
	})
}
