// Command bench measures Tenuto: loads on real nodes, with every write synced to disk, and in
// the same run their baselines, the disk and the bare Raft library. Each result is printed
// with its ratio to a baseline.
//
//	go run ./bench                                  # everything on one node, once
//	go run ./bench -cases hello5 -nodes 3 -repeat 5
//	go run ./bench -repeat 5 -json run.json -html run.html
//
// Tables go to standard output as Markdown, progress to standard error. README.md says how to
// read them.
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
	// With -nodes 3p this program also runs the other nodes.
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

// run measures as the arguments say. After an error it still writes the results so far.
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
	r, err := measureAll(ctx, o, progress)
	if err := errors.Join(err, stop()); r == nil {
		return err
	}
	return errors.Join(err, o.write(r, out))
}

func measureAll(ctx context.Context, o *options, progress io.Writer) (*report.Report, error) {
	recordBytes, err := cases.RecordBytes(ctx)
	if err != nil {
		return nil, err
	}
	line := &progressLine{to: progress}
	plan := measure.Plan{
		Subjects: cases.Subjects(o.cases, cases.Env{
			Nodes: o.nodes, Partitions: o.partitions, Keep: o.dir, N: o.n, C: o.c, Logger: slog.New(slog.DiscardHandler),
		}, recordBytes, 1),
		Repeat:   o.repeat,
		Dir:      o.dir,
		Progress: line.update,
	}
	r := &report.Report{
		Title:    "Tenuto, " + o.describeNodes(),
		When:     time.Now(),
		Machine:  measure.ThisMachine(o.dataDir()),
		Settings: o.settings(recordBytes),
		Targets:  cases.Targets(o.nodes),
	}
	r.Results, err = plan.Run(ctx)
	line.erase()
	return r, err
}

// write writes the report to its outputs.
func (o *options) write(r *report.Report, out io.Writer) error {
	return errors.Join(
		r.WriteMarkdown(out),
		writeFile(o.json, r.WriteJSON),
		writeFile(o.html, r.WriteHTML),
	)
}

// writeFile writes a file, unless name is empty.
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
