// Command census counts a directory tree: every file's SHA-256, lines, bytes
// and language, summed up for each directory and for the whole.
//
//	go run ./examples/census                  # the source tree of Go itself
//	go run ./examples/census -dir d -src ~/src
//
// Kill it at any moment, with kill -9 if you like, and start it again with the
// same -dir: it goes on where it was. The digest that it ends with is that of a
// run that nobody disturbed. Started once more, it prints the report again and
// counts nothing. (Are you too slow to kill it in time? Try -delay 200ms.)
//
// # When to use it
//
// This shape is for work that is too large for one history: a root that knows the
// parts, a child for each part, an activity for each piece. Take it when there are
// more than some thousand pieces; below that example thumbnails is enough. It is
// not for work that a single process does in a minute and can do again: what makes
// it safe is a disk sync for each step.
//
// # What to look at
//
// The orchestrations are in census.go and read like a program that never dies:
// list the directories, count each, add up. What makes them survive is that
// whatever they learn about the world they learn from activities, whose results
// are in the journal before anything follows from them.
//
//	census           one instance, the root
//	├─ list directories      activity, a page at a time
//	└─ count directory       one child instance for each directory
//	   ├─ list files         activity, a page at a time
//	   └─ count file         one activity for each file
//
// Five things are shown that a larger program needs as well:
//
//   - Fan-out in two levels. A child has a history of its own, so that no
//     history is longer than one directory asks for, and what a child did is one
//     event for its parent: the sum.
//   - Bounds. A result holds at most 1 MiB and one step of an orchestration at
//     most 4 MiB, so the listings come in pages (tree.go says how large). The
//     root counts -width directories at a time, not all at once.
//   - Concurrency without locks. Coroutines of one instance run one at a time,
//     in an order that the history fixes: those of the root take directories
//     from a common slice and add to a common sum.
//   - Errors that are results. A file that cannot be read ends its activity
//     with an error that is not retried; the directory counts it as unreadable
//     and goes on.
//   - What is for eyes only stays outside of the history. The progress on the
//     terminal is set by the code of the root, which runs again when the program
//     is started again, and so brings the display back to where it was.
//
// # What is promised
//
// An activity runs at least once: a file that was being counted when the
// program was killed is counted again, because nobody knows what became of it.
// A file whose completion is recorded never is. The option -ledger lets you
// check it: each execution appends the path of its file to the ledger.
//
// The tree is expected to keep still while it is counted. What was listed is
// recorded and not listed again; a file that is gone when its turn comes is
// unreadable.
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

// censusID is the instance of the root: there is one census in a directory.
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

// run takes the census: the report goes to out, all that is said meanwhile to
// terminal.
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
	// The node must not stop by itself when ctx ends: those who wait for it
	// would get its end for an answer and not their own.
	node, err := cluster.Start(context.WithoutCancel(ctx), cluster.Config{
		Dir:         o.dir,
		Definitions: definitions(&tree{ledger: ledger, delay: o.delay}, progress),
		Logger:      slog.New(exceptAttempts{slog.NewTextHandler(progress, &slog.HandlerOptions{Level: level})}),
	})
	if err != nil {
		return err
	}
	report, err := take(ctx, node.Client(), o, progress)
	// What is under way when an interrupt comes is refused by the journal. That
	// is as it should be, and no news.
	level.Set(slog.LevelError)
	if err := errors.Join(err, node.Close()); err != nil {
		return err
	}
	report.write(out)
	fmt.Fprintf(out, "\n%s\n", took(report, progress))
	return nil
}

// take starts the root, or finds it where it is, and waits for its report.
func take(ctx context.Context, client *cluster.Client, o options, progress *progress) (Report, error) {
	before, err := client.Get(ctx, censusID)
	if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return Report{}, err
	}
	// A start with the request ID of the instance that exists is the same
	// start. A census of another tree would be another request.
	root, err := cluster.StartRun(ctx, client, Census, censusID,
		Request{Source: o.source, Width: o.width}, cluster.RequestID(o.source))
	if errors.Is(err, cluster.ErrInstanceExists) {
		return Report{}, fmt.Errorf("%s holds the census of another tree than %s: name another -dir", o.dir, o.source)
	}
	if err != nil {
		return Report{}, err
	}
	progress.say("%s", greeting(before, o))
	defer progress.watch()()

	report, err := root.Wait(ctx)
	if ctx.Err() != nil {
		return report, errors.New("interrupted: start it again with the same -dir, and it goes on")
	}
	return report, err
}

// greeting says what there is to go on from. before is nil when there is
// nothing.
func greeting(before *cluster.Status, o options) string {
	switch {
	case before == nil:
		return fmt.Sprintf("The census of %s begins; its journal is in %s.", o.source, o.dir)
	case before.Ended():
		return fmt.Sprintf("The census of %s was taken already; remove %s to take it again.", o.source, o.dir)
	}
	return fmt.Sprintf("The census of %s goes on where it was; it was begun %s ago, its journal is in %s.",
		o.source, time.Since(before.CreatedAt).Round(time.Second), o.dir)
}

// took says how long it all took, and how fast this process was.
func took(report Report, progress *progress) string {
	since, executed := time.Since(progress.began), progress.executed.Load()
	whole := report.Ended.Sub(report.Began).Round(10 * time.Millisecond)
	if executed == 0 {
		return fmt.Sprintf("It took %v from beginning to end; this run had nothing left to do.", whole)
	}
	return fmt.Sprintf("It took %v from beginning to end; this run executed %s activities in %v, %s a second.",
		whole, grouped(executed), since.Round(10*time.Millisecond), grouped(perSecond(executed, since)))
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("census", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&o.dir, "dir", "", "where the `journal` is; start again with the same one to go on\n"+
		"(default tenuto/census in the user's cache directory)")
	flags.StringVar(&o.source, "src", "", "the `tree` to count (default the source tree of Go)")
	flags.IntVar(&o.width, "width", 64, "how many directories are counted at a time; it is recorded\nwhen the census begins and cannot be changed later")
	flags.DurationVar(&o.delay, "delay", 0, "wait up to so `long` with each file, to have time for killing the program")
	flags.StringVar(&o.ledger, "ledger", "", "append the path of each file to this `file` whenever it is counted,\nto see that none is counted twice")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("%q: there are only flags, see -help", flags.Arg(0))
	}
	if o.width < 1 {
		return o, fmt.Errorf("-width %d: at least 1 directory must be counted at a time", o.width)
	}
	return o, errors.Join(o.findSource(), o.findDir())
}

// findSource makes the tree's path one that means the same in every run.
func (o *options) findSource() error {
	if o.source == "" {
		root, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("find the source tree of Go, name a tree with -src: %w", err)
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
			return fmt.Errorf("find a place for the journal, name one with -dir: %w", err)
		}
		o.dir = filepath.Join(cache, "tenuto", "census")
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if inside, err := filepath.Rel(o.source, o.dir); err == nil && filepath.IsLocal(inside) {
		return fmt.Errorf("-dir %s lies in the tree that is to be counted: the census would count itself", o.dir)
	}
	return nil
}
