// Command pipeline takes a file of measurements through three steps: fetch, convert,
// publish. The long step reports its progress, and a retry continues from there.
//
//	go run ./examples/pipeline            # in memory
//	go run ./examples/pipeline -dir data  # continues after a kill
//
// # When to use it
//
// When data goes through steps of minutes or hours, on machines that restart and with
// services that fail sometimes: imports, encodings, training, migrations.
//
// # What to look at
//
//   - Each call has its own timeouts and retry policy. They are recorded with the call, so a
//     change affects only later calls.
//   - StartToClose bounds one attempt, ScheduleToClose all attempts together.
//     HeartbeatTimeout detects a hanging attempt long before either.
//   - Heartbeat carries details: the progress of an attempt. The next attempt, on any node,
//     gets them from HeartbeatDetails. The last details before a node died may be missing, so
//     a step may repeat some work.
//   - Heartbeat returns an error when the attempt should stop: the run was canceled, a
//     timeout has passed, or the node stops. Return it.
//   - replay.NonRetryable marks errors that a retry cannot fix, such as a wrong file. Other
//     errors are retried automatically.
//   - Steps pass references. The journal contains file names, never the rows.
//
// # When not to use it
//
// For streams: a step costs a disk sync, so let an activity process a thousand rows, not one. Do
// not use heartbeats to show progress to people: they are recorded at most once a second. Use a
// custom status for that.
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
		Definitions: definitions(&steps{out: out, failAtRow: 700}),
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
