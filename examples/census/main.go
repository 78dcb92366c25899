// Command census summarizes a directory tree: SHA-256, lines, bytes and language of every
// file, for each directory and in total.
//
//	go run ./examples/census                  # the source tree of Go
//	go run ./examples/census -dir d -src ~/src
//
// Kill it at any moment, also with kill -9, and start it again with the same -dir: it continues
// where it was. The final digest equals that of an undisturbed run. If you start it again after
// that, it prints the report and counts nothing. (-delay 200ms gives you time to kill it.)
//
// # When to use it
//
// For work that is too large for one history: a root that knows the parts, a child for each
// part, an activity for each piece. Use it for more than some thousand pieces; below that
// example thumbnails is enough. Do not use it for work that one process does in a minute and
// can repeat: every step costs a disk sync.
//
// # What to look at
//
// The orchestrations are in census.go and read like a program that never crashes: list the
// directories, count each, add up. They get all external data from activities. A result is in the
// journal before the code receives it.
//
//	census           one instance, the root
//	├─ list directories      activity, a page at a time
//	└─ count directory       one child instance for each directory
//	   ├─ list files         activity, a page at a time
//	   └─ count file         one activity for each file
//
// Larger programs also need:
//
//   - Two-level fan-out. A child has its own history, so no history is longer than one directory
//     requires, and a child adds two events to its parent's history: its start and its sum.
//   - Limits. A result holds at most 1 MiB and one step of an orchestration at most 4 MiB, so
//     listings come in pages (see tree.go). The root counts -width directories at a time.
//   - Concurrency without locks. Coroutines of one instance run one at a time, in an order
//     that the history fixes. Those of the root take directories from a shared slice and add
//     to a shared sum.
//   - Errors as results. An unreadable file fails its activity with a non-retryable error.
//     The directory counts it as unreadable and continues.
//   - Display state outside the history. The code of the root sets the progress. It runs
//     again after a restart and so restores the display.
//
// # What is guaranteed
//
// An activity runs at least once: a file that was being counted during a kill is counted
// again. A file whose completion is recorded is not. To check this, use -ledger: each
// execution appends the path of its file to the ledger.
//
// The tree must not change while it is counted. A listing is recorded and not repeated. A
// listed file that is missing later is unreadable.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// censusID is the instance of the root. There is one census in a journal.
const censusID = "census"

type options struct {
	dir    string
	source string
	width  int
	delay  time.Duration
	ledger string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "census:", err)
		os.Exit(1)
	}
}

// run takes the census. The report goes to out, everything else to terminal.
func run(ctx context.Context, args []string, out io.Writer, terminal *os.File) error {
	o, err := parse(args, terminal)
	if err != nil {
		return err
	}
	ledger, err := openLedger(o.ledger)
	if err != nil {
		return err
	}
	defer ledger.close()

	progress := newProgress(terminal)
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	// The node must not stop when ctx ends: waiting calls would return its error instead of
	// that of their own context.
	node, err := cluster.Start(context.WithoutCancel(ctx), cluster.Config{
		Dir:         o.dir,
		Definitions: definitions(&tree{ledger: ledger, delay: o.delay}, progress),
		Logger:      slog.New(attemptFilter{slog.NewTextHandler(progress, &slog.HandlerOptions{Level: level})}),
	})
	if err != nil {
		return err
	}
	report, err := runCensus(ctx, node.Client(), o, progress)
	// After an interrupt the journal rejects attempts in progress, which is expected.
	level.Set(slog.LevelError)
	if err := errors.Join(err, node.Close()); err != nil {
		return err
	}
	report.write(out)
	fmt.Fprintf(out, "\n%s\n", durationText(report, progress))
	return nil
}

// runCensus starts the root, or finds it running, and waits for its report.
func runCensus(ctx context.Context, client *cluster.Client, o options, progress *progress) (Report, error) {
	before, err := client.Get(ctx, censusID)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return Report{}, err
	}
	// A start with the request ID of the existing instance is the same start. A census of
	// another tree has another request ID.
	root, err := cluster.StartRun(ctx, client, Census, censusID,
		Request{Source: o.source, Width: o.width}, cluster.RequestID(o.source))
	if errors.Is(err, cluster.ErrInstanceExists) {
		return Report{}, fmt.Errorf("%s contains the census of another tree than %s: set another -dir", o.dir, o.source)
	}
	if err != nil {
		return Report{}, err
	}
	progress.printLine("%s", greeting(before, o))
	defer progress.watch()()

	report, err := root.Wait(ctx)
	if ctx.Err() != nil {
		return report, errors.New("interrupted: start again with the same -dir to continue")
	}
	return report, err
}

// greeting describes the state before the start. before is nil if there is no census yet.
func greeting(before *cluster.Status, o options) string {
	switch {
	case before == nil:
		return fmt.Sprintf("The census of %s begins; its journal is in %s.", o.source, o.dir)
	case before.Ended():
		return fmt.Sprintf("The census of %s was taken already; remove %s to take it again.", o.source, o.dir)
	}
	return fmt.Sprintf("The census of %s continues; it began %s ago, and its journal is in %s.",
		o.source, time.Since(before.CreatedAt).Round(time.Second), o.dir)
}

// durationText describes the duration of the census and the speed of this process.
func durationText(report Report, progress *progress) string {
	since, executed := time.Since(progress.began), progress.executed.Load()
	whole := report.Ended.Sub(report.Began).Round(10 * time.Millisecond)
	if executed == 0 {
		return fmt.Sprintf("It took %v from beginning to end; this run had nothing left to do.", whole)
	}
	return fmt.Sprintf("It took %v from beginning to end; this run executed %s activities in %v, %s a second.",
		whole, formatThousands(executed), since.Round(10*time.Millisecond), formatThousands(perSecond(executed, since)))
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("census", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&o.dir, "dir", "", "`directory` of the journal; start again with the same one to continue\n"+
		"(default tenuto/census in the user's cache directory)")
	flags.StringVar(&o.source, "src", "", "the `tree` to count (default the source tree of Go)")
	flags.IntVar(&o.width, "width", 64, "number of directories counted at a time; recorded when the census\nbegins, cannot be changed later")
	flags.DurationVar(&o.delay, "delay", 0, "random `delay` up to this for each file, to have time to kill the program")
	flags.StringVar(&o.ledger, "ledger", "", "append the path of each counted file to this `file`, to check that none\nis counted twice")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q, see -help", flags.Arg(0))
	}
	if o.width < 1 {
		return o, fmt.Errorf("-width %d: must be at least 1", o.width)
	}
	return o, errors.Join(o.findSource(), o.findDir())
}

// findSource makes the path of the tree absolute, so that it means the same in every run.
func (o *options) findSource() error {
	if o.source == "" {
		root, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("find the source tree of Go (or set -src): %w", err)
		}
		o.source = filepath.Join(strings.TrimSpace(string(root)), "src")
	}
	path, err := filepath.Abs(o.source)
	if err != nil {
		return err
	}
	o.source, err = filepath.EvalSymlinks(path)
	return err
}

func (o *options) findDir() error {
	if o.dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("find a directory for the journal (or set -dir): %w", err)
		}
		o.dir = filepath.Join(cache, "tenuto", "census")
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if inside, err := filepath.Rel(o.source, o.dir); err == nil && filepath.IsLocal(inside) {
		return fmt.Errorf("-dir %s must not be in the counted tree", o.dir)
	}
	return nil
}
