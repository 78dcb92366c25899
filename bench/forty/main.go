// Command forty runs an application of forty processes under load: five nodes, of which three vote,
// and 35 workers. It kills three voters one after the other, and five workers in the middle of
// activities, each like kill -9. It fails unless voters are restored each time without help, what
// ran on the killed workers runs again on others, and each orchestration has its result, with one
// completion of each activity.
//
//	make forty
//
// It prints how long the restorations took, where activities ran, and what an idle worker costs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

// options are the flags.
type options struct {
	workers int
	callers int
	idle    time.Duration
	dir     string
	verbose bool
}

func main() {
	if encoded := os.Getenv(processVariable); encoded != "" {
		exit(runProcess(encoded, os.Stdin, os.Stdout))
	}
	var o options
	flag.IntVar(&o.workers, "workers", 35, "number of worker processes")
	flag.IntVar(&o.callers, "callers", 24, "orchestrations that run at a time")
	flag.DurationVar(&o.idle, "idle", 30*time.Second, "how long the idle workers are measured")
	flag.StringVar(&o.dir, "dir", "", "directory of the nodes (default: a temporary one)")
	flag.BoolVar(&o.verbose, "v", false, "print the warnings of the processes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exit(run(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "forty:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run runs the application in a directory.
func run(ctx context.Context, o options) (err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "forty"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	a := newApplication(o)
	defer a.stop()
	if err := a.start(ctx); err != nil {
		return err
	}
	if err := a.measureIdleWorkers(ctx); err != nil {
		return err
	}
	load := a.newLoad(ctx)
	failed := a.killAll(ctx, load)
	if failed == nil {
		failed = load.finish(ctx)
	} else {
		load.cancel()
		load.callers.Wait()
	}
	return failed
}
