// Command saga books a trip of several parts, each with another company. All parts are
// booked or none: if one fails, the earlier ones are canceled.
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
//   - The compensation is registered before the step. An attempt whose answer was lost may
//     have booked all the same. So ctx.UUID creates the booking number first; it is the same
//     on every replay, and canceling an unknown number is not an error.
//   - A step has at most four attempts. "sold out" is replay.NonRetryable: a retry would not
//     change it.
//   - Compensations are retried without limit, which is the default. Nothing else would
//     clean up.
//   - Compensations also run when the instance is canceled from outside: Saga and OnClose
//     call them once at the real end, in a scope that cancellation does not reach. A deferred
//     function would not do: it also runs when the instance is evicted, and then its durable
//     calls do nothing.
//   - The error of the trip is that of the failed step. Callers on any node find it with
//     errors.Is.
//
// # When not to use it
//
//   - If one database holds everything, use its transactions, in one activity.
//   - If intermediate states must stay invisible: a saga shows a flight as booked until it
//     is canceled.
//   - If a step cannot be undone, put it last.
//
// A termination (Client.Terminate) runs no code and thus no compensation.
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
