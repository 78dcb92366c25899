// Command polling waits for a job in somebody else's system: it asks again and
// again, less and less often, until the job is done or its time is up.
//
//	go run ./examples/polling            # in memory
//	go run ./examples/polling -dir data  # goes on where it was when killed
//
// # When to use it
//
// Where the other system has no way to call back, and the answer may take hours:
// exports, video encoders, shipments, payments of a bank. A loop with a durable
// timer costs nothing while it waits. It needs no cron job, no table of open
// jobs, and it survives restarts of your service and theirs.
//
// # What to look at
//
//   - Beginning the job and asking for it are two activities, so that no failure
//     of the second begins another job. The first one passes its idempotency key
//     on, so that repeating it begins no other job either.
//   - The pauses grow by half up to a cap, and are spread by ctx.Random, which
//     yields the same numbers on every replay: a thousand instances that began
//     together do not ask together.
//   - The time limit is a scope. When it has passed, whatever is awaited in it
//     returns replay.ErrTimeout; ctx itself is not touched, and the job is called
//     off with it.
//   - An attempt to ask that fails is retried under its policy and is not a poll of
//     its own.
//
// # When not to use it
//
// If the other side can call back, let it: an activity that returns
// replay.ErrPending is completed from outside by its token, or the orchestration
// waits for an event. No poll is faster than that, or cheaper.
//
// If nothing is to be decided between two polls, let the retry policy poll: an
// activity that returns an error while the job is not done, called with
//
//	replay.Retry(replay.RetryPolicy{InitialInterval: time.Second, Backoff: 1.5, MaxInterval: time.Minute}),
//	replay.ScheduleToClose(time.Hour)
//
// is one operation with two events, however often it asks. The loop here adds four
// events for each poll (a day of one a minute: 5,760). It is for code that has
// something to do in between, here to publish how far the job is. One that polls
// for weeks continues as new now and then; see example subscription.
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
