// Command saga books a trip of several parts, each from a different company. All parts are booked
// or none: if one fails, the earlier ones are canceled.
//
//	go run ./examples/saga            # in memory
//	go run ./examples/saga -dir data  # continues after a kill
//
// # When to use it
//
// When several systems must agree and no transaction spans them: bookings, payments,
// provisioning. Each step has a compensation that undoes its business effect, such as a
// refund. On failure the compensations run in reverse order.
//
// # What to look at
//
//   - The compensation is registered before the step. A booking may exist even if the attempt's
//     answer was lost. So ctx.UUID creates the booking number first. It is the same on every
//     replay, and canceling an unknown number is not an error.
//   - A step has at most four attempts. "sold out" is replay.NonRetryable: a retry would not
//     change it.
//   - Compensations are retried without limit, which is the default. Nothing else cleans up.
//   - Compensations also run when the instance is canceled from outside: Saga and OnClose call them
//     once, when the instance ends, in a scope that cancellation does not affect. A deferred
//     function is not enough: it also runs when the instance is evicted, and then its durable calls
//     do nothing.
//   - The trip fails with the error of the failed step. Callers on any node identify it with
//     errors.Is.
//
// # When not to use it
//
//   - If one database holds everything, use its transactions, in one activity.
//   - If intermediate states must stay invisible: a saga shows a flight as booked until it
//     is canceled.
//   - If a step cannot be undone, put it last.
//
// A termination (Client.Terminate) runs no code, so it runs no compensation.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"

	"github.com/tenuto-dev/tenuto/cluster"
)

func main() {
	dir := flag.String("dir", "", "`directory` of the journal (default: in memory)")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(context.Background(), *dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, out io.Writer) error {
	node, err := cluster.Start(ctx, cluster.Config{
		Dir:         dir,
		InMemory:    dir == "",
		Definitions: definitions(&companies{out: out, soldOut: "car in Rome"}),
	})
	if err != nil {
		return err
	}
	defer node.Close()
	for _, trip := range []Trip{
		{ID: "paris", Parts: []string{"flight to Paris", "hotel in Paris", "car in Paris"}},
		{ID: "rome", Parts: []string{"flight to Rome", "hotel in Rome", "car in Rome"}},
	} {
		booked, err := cluster.Call(ctx, node.Client(), BookTrip, trip.ID, trip, cluster.Attach())
		if err != nil {
			fmt.Fprintln(out, "not booked:", err)
			continue
		}
		fmt.Fprintf(out, "%s is booked: %d parts\n", trip.ID, len(booked))
	}
	return nil
}
