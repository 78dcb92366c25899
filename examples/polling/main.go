// Command polling waits for a job in an external system: it polls with backoff until the job
// is done or a deadline passes.
//
//	go run ./examples/polling            # in memory
//	go run ./examples/polling -dir data  # continues after a kill
//
// # When to use it
//
// When the other system cannot call back and the answer may take hours: exports, video
// encoders, shipments, bank payments. A loop with a durable timer costs nothing while it
// waits, needs no cron job or table of open jobs, and survives restarts on both sides.
//
// # What to look at
//
//   - Starting the job and polling it are two activities, so that a failed poll does not
//     start another job. The first one passes on its idempotency key, so that a retry does
//     not start another job either.
//   - The pauses grow by half up to a maximum. ctx.Random adds jitter and yields the same
//     numbers on every replay, so a thousand instances that began together do not poll
//     together.
//   - The deadline is a scope. After the deadline, every await in the scope returns
//     replay.ErrTimeout. The outer ctx is unaffected, so the code can cancel the job with it.
//   - A failed attempt to poll is retried under its policy and does not count as a poll.
//
// # When not to use it
//
// If the other side can call back, let it: an activity that returns replay.ErrResultPending
// is completed from outside by its token, or the orchestration waits for an event. That is
// faster and cheaper than polling.
//
// If nothing is decided between two polls, let the retry policy poll: an activity that
// returns an error while the job is not done, called with
//
//	replay.Retry(replay.RetryPolicy{
//		InitialInterval: time.Second, Backoff: 1.5, MaxInterval: time.Minute,
//	}),
//	replay.ScheduleToClose(time.Hour)
//
// is one operation with two events, however often it polls. The loop here adds four events
// per poll (5,760 a day at one a minute), because it publishes the progress in between. A
// loop that polls for weeks must continue as new; see example subscription.
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
	dir := flag.String("dir", "", "`directory` of the journal (default: in memory)")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn)
	if err := run(context.Background(), *dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, out io.Writer) error {
	node, err := cluster.Start(ctx, cluster.Config{Dir: dir, InMemory: dir == "", Definitions: definitions(newExporter(out, 5))})
	if err != nil {
		return err
	}
	defer node.Close()
	file, err := cluster.Call(ctx, node.Client(), Export, "export", Request{
		What: "orders", First: 50 * time.Millisecond, Longest: 400 * time.Millisecond, Limit: time.Minute,
	}, cluster.Attach(), cluster.ReuseWhenEnded())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "exported to", file)
	return nil
}
