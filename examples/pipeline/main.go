// Command pipeline takes a file of measurements through three steps: fetch,
// convert, publish. The long one reports how far it is, and goes on from there
// when it is tried again.
//
//	go run ./examples/pipeline            # in memory
//	go run ./examples/pipeline -dir data  # goes on where it was when killed
//
// # When to use it
//
// Where data goes through steps that take minutes or hours, on machines that are
// restarted and against services that are down now and then: imports, encodings,
// training, migrations.
//
// # What to look at
//
//   - Each step has limits and a policy of its own, at its call. They are recorded
//     with it, so that changing them changes only what is called from then on.
//   - StartToClose is for one attempt, ScheduleToClose for all of them together.
//     HeartbeatTimeout finds an attempt that hangs long before either has passed.
//   - Heartbeat carries details: what an attempt has done. The next attempt, on
//     whatever node, has them from HeartbeatDetails. What was reported in the last
//     moments before a node died may be missing, so a step may do a little again.
//   - Heartbeat returns an error when there is no use in going on: the run was
//     cancelled, the limit has passed, the node stops. Return it.
//   - What no attempt can mend is replay.NonRetryable: a file that is no file of
//     measurements. The rest is tried again by itself.
//   - Steps pass references. The rows are never in the journal, only the names of
//     the files in which they are.
//
// # When not to use it
//
// For streams: a step here is a disk sync, so let one activity work on a
// thousand rows and not on one. A heartbeat is no progress bar either: it is
// recorded once a second at most. For people, publish a status.
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
		Definitions: definitions(&steps{out: out, stumbleAt: 700}),
	})
	if err != nil {
		return err
	}
	defer node.Close()
	report, err := cluster.Call(ctx, node.Client(), Pipeline, "pipeline",
		Source{URL: "https://example.org/weather.csv"}, cluster.Attach(), cluster.ReuseWhenEnded())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d rows are at %s\n", report.Rows, report.URL)
	return nil
}
