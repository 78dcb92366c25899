// Command bench measures Tenuto: loads on real nodes, with every write synced
// to disk, and in the same run what they stand on, the disk and the Raft library
// with nothing around it. Every figure is printed with its ratio to that.
//
//	go run ./bench                                  # everything on one node, once
//	go run ./bench -cases hello5 -nodes 3 -repeat 5
//	go run ./bench -repeat 5 -json run.json -html run.html
//
// The tables go to the standard output, as Markdown; what is being done, to the
// standard error. README.md says how to read them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"time"

	"github.com/tenuto-dev/tenuto/bench/cases"
	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/bench/report"
)

func main() {
	// With -nodes 3p this program is also the other nodes.
	wasNode, err := cases.RunAsNode()
	if !wasNode {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures as the arguments say. What was measured until something failed
// is written too.
func run(ctx context.Context, args []string, out, progress io.Writer) (err error) {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	if o.procs > 0 {
		runtime.GOMAXPROCS(o.procs)
	}
	stop, err := o.profile()
	if err != nil {
		return err
	}
	r, err := measured(ctx, o, progress)
	if err := errors.Join(err, stop()); r == nil {
		return err
	}
	return errors.Join(err, o.write(r, out))
}

func measured(ctx context.Context, o *options, progress io.Writer) (*report.Report, error) {
	recordBytes, err := cases.RecordBytes(ctx)
	if err != nil {
		return nil, err
	}
	line := &line{to: progress}
	plan := measure.Plan{
		Subjects: cases.Subjects(o.cases, cases.Env{
			Nodes: o.nodes, Groups: o.groups, N: o.n, C: o.c, Logger: slog.New(slog.DiscardHandler),
		}, recordBytes, 1),
		Repeat:   o.repeat,
		Dir:      o.dir,
		Progress: line.say,
	}
	r := &report.Report{
		Title:    "Tenuto, " + o.describeNodes(),
		When:     time.Now(),
		Machine:  measure.ThisMachine(o.dataDir()),
		Settings: o.settings(recordBytes),
		Bars:     cases.Bars(o.nodes),
	}
	r.Measured, err = plan.Rounds(ctx)
	line.end()
	return r, err
}

// write writes the report to where it is wanted.
func (o *options) write(r *report.Report, out io.Writer) error {
	return errors.Join(
		r.WriteMarkdown(out),
		writeFile(o.json, r.WriteJSON),
		writeFile(o.html, r.WriteHTML),
	)
}

// writeFile writes a file, unless it has no name.
func writeFile(name string, write func(io.Writer) error) (err error) {
	if name == "" {
		return nil
	}
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return write(file)
}
