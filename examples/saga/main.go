// Command saga books a trip of several parts, each with a company of its own. It
// ends with all of them booked or with none: when one part cannot be had, those
// before it are cancelled.
//
//	go run ./examples/saga            # in memory
//	go run ./examples/saga -dir data  # goes on where it was when killed
//
// # When to use it
//
// Where several systems must agree and no transaction spans them: bookings,
// payments, provisioning. Each step has a compensation that undoes what the step
// has done in the eyes of the business (a refund, a cancellation), and these run
// in reverse order when the whole does not succeed.
//
// # What to look at
//
//   - The compensation is registered before the step. An attempt whose answer was
//     lost, because of a timeout say, may have booked all the same. So the number
//     of the booking is made first, by ctx.UUID, which is the same on every
//     replay, and cancelling a number that was never booked is no error.
//   - The steps are tried four times at most, and "sold out" not even twice: an
//     error that trying again does not change is replay.NonRetryable.
//   - The compensations are tried without a limit, as is the default. There is
//     nothing behind them that could clean up what they leave.
//   - They run, too, when the instance is cancelled from outside: Saga and OnClose
//     call them once at the real end, in a scope that cancellation does not reach.
//     A deferred function would not do: it also runs when the instance is only
//     dropped from memory, and its durable calls do nothing then.
//   - The error of the trip is that of the step that failed. A caller finds it with
//     errors.Is, on whatever node it is.
//
// # When not to use it
//
// Where one database holds everything: use its transactions, in one activity.
// Where an intermediate state must not be seen from outside: a saga shows the
// flight as booked until it is cancelled again. And where a step cannot be undone
// at all, put it last.
//
// A termination (Client.Terminate) runs no code, hence no compensation either.
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
	dir := flag.String("dir", "", "where the journal lives; in memory without it")
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
