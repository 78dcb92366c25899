// Command subscription charges a customer every month until the customer unsubscribes, for
// years if necessary. Here a month lasts a second.
//
//	go run ./examples/subscription            # in memory
//	go run ./examples/subscription -dir data  # continues after a kill
//
// # When to use it
//
// For endless processes: subscriptions, leases, reminders, monitoring. Instead of a nightly
// job that searches for due work, each customer has an instance that sleeps until its work
// is due.
//
// # What to look at
//
//   - Continue-as-new. A growing history makes every replay longer. Each month this execution ends
//     and the next begins with an empty history, in one append. Its input contains what later
//     months need. The instance keeps its ID, and callers are not affected.
//   - Nothing is lost between two executions: unconsumed events are carried over in order.
//   - The month ends at a date that is computed from the input. Charges that are retried for
//     two days do not shift the next month.
//   - Old subscriptions use new code from the next month on: continue-as-new takes the newest
//     version (replay.Version).
//   - If a charge keeps failing, the subscription ends after three days. The timeout of the call
//     ensures this without a loop.
//
// # When not to use it
//
//   - If the work ends within some thousand events, do not continue as new.
//     ctx.ShouldContinueAsNew reports when a history is long, for loops without months.
//   - If something must happen every night regardless of the day before, use one instance
//     that starts a chained one (OrchestrationHandle.Chain) each night.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay/history"
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
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: definitions(out)})
	if err != nil {
		return err
	}
	defer node.Close()
	client := node.Client()
	run, err := cluster.StartRun(ctx, client, Subscription, "alice",
		Terms{Customer: "alice", Price: 5, Month: time.Second}, cluster.Attach(), cluster.ReuseWhenEnded())
	if err != nil {
		return err
	}
	if err := simulateCustomer(ctx, client); err != nil {
		return err
	}
	end, err := run.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "ended: %s, after %d months, %d paid\n", end.Why, end.Months, end.Paid)
	return nil
}

// simulateCustomer raises the price after the first bill and unsubscribes after the third. The
// events have IDs, so that sending them again after a crash of this program has no effect.
func simulateCustomer(ctx context.Context, client *cluster.Client) error {
	bills := 0
	for event, err := range client.Watch(ctx, "alice", history.Position{}) {
		if err != nil {
			return err
		}
		if event.Type != history.ActivityCompleted {
			continue
		}
		bills++
		switch bills {
		case 1:
			err = cluster.Send(ctx, client, "alice", PriceChanged, 7, cluster.RequestID("price"))
		case 3:
			return cluster.Send(ctx, client, "alice", Unsubscribed, "too dear", cluster.RequestID("no"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
