// Command subscription charges a customer month by month until the customer says
// no, for years if need be. A month is a second here.
//
//	go run ./examples/subscription            # in memory
//	go run ./examples/subscription -dir data  # goes on where it was when killed
//
// # When to use it
//
// Where something goes on without an end: subscriptions, leases, reminders, the
// supervision of a machine. Instead of a nightly job that looks for what is due,
// each customer has an instance that sleeps until something is.
//
// # What to look at
//
//   - Continue-as-new. A history that only grows makes every replay longer. Once
//     a month this execution ends and the next begins with an empty history, in
//     one append; what must be known of the past is in its input. The instance
//     keeps its ID, and callers notice nothing.
//   - Nothing is lost between two executions: events that came and were not
//     consumed are carried over in their order.
//   - The month ends at a date that is in the input, and not "a month after we have
//     come here": charges that are retried for two days do not shift the next one.
//   - Code that is new comes into old subscriptions with the next month:
//     continue-as-new takes the newest version that there is (replay.Version).
//   - A charge that cannot be made ends the subscription after three days of
//     trying, and the policy says so, not a loop.
//
// # When not to use it
//
// Where the work has an end within some thousand events, there is no need to
// continue as new. ctx.ShouldContinueAsNew tells when a history has become long,
// for loops that have no months. And for what is to happen at three in the morning
// whatever became of the day before, one instance that starts a detached one
// (OrchestrationHandle.Chain) each night keeps the nights apart.
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
	if err := behave(ctx, client); err != nil {
		return err
	}
	end, err := run.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "ended: %s, after %d months, %d paid\n", end.Why, end.Months, end.Paid)
	return nil
}

// behave does what happens to a subscription: after the first bill the price is
// raised, after the third the customer has had enough. The events have names, so
// that sending them again, after a crash of this program, has no effect.
func behave(ctx context.Context, client *cluster.Client) error {
	bills := 0
	for recorded, err := range client.Watch(ctx, "alice", cluster.Position{}) {
		if err != nil {
			return err
		}
		if recorded.Event.GetActivityCompleted() == nil {
			continue
		}
		bills++
		switch bills {
		case 1:
			err = cluster.Send(ctx, client, "alice", PriceChanged, 7, cluster.EventID("price"))
		case 3:
			return cluster.Send(ctx, client, "alice", Unsubscribed, "too dear", cluster.EventID("no"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
