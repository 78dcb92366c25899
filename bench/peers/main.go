// Command peers measures Tenuto and other engines with the same load, on the same disk,
// interleaved. See README.md.
//
//	go -C bench/peers run . -repeat 5 -json peers.json -html peers.html
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
	"github.com/tenuto-dev/tenuto/bench/report"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// engines are the measured engines.
var engines = []engine{tenuto{}, temporal{historyShards: 1}, temporal{historyShards: 4}}

type options struct {
	repeat     int
	n, c       int
	dir        string
	json, html string
}

func parse(args []string, usage io.Writer) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.IntVar(&o.repeat, "repeat", 1, "number of repetitions, interleaved")
	flags.IntVar(&o.n, "n", 0, "number of orchestrations of five activities (default what each engine does in seconds)")
	flags.IntVar(&o.c, "c", 0, "concurrency (default the best of each engine)")
	flags.StringVar(&o.dir, "dir", "", "`directory` for temporary data (default that for temporary files)")
	flags.StringVar(&o.json, "json", "", "write all results to this `file`")
	flags.StringVar(&o.html, "html", "", "write a page with plots to this `file`")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if o.repeat < 1 || min(o.n, o.c) < 0 || flags.NArg() > 0 {
		return nil, errors.New("-repeat must be at least 1, -n and -c must not be negative, and there are no arguments")
	}
	return o, nil
}

// run measures as the arguments say. After an error it still writes the results so far.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	r := &report.Report{Title: "Tenuto and its peers, one node, every write synced", When: time.Now(), Machine: measure.ThisMachine(o.data())}
	for _, e := range engines {
		r.Settings = append(r.Settings, report.Setting{Name: e.name(), Value: e.settings()})
	}
	plan := measure.Plan{
		Subjects: subjects(engines, o),
		Repeat:   o.repeat,
		Dir:      o.dir,
		Progress: func(what string) { fmt.Fprintf(progress, "\r\x1b[K%s", what) },
	}
	r.Results, err = plan.Run(ctx)
	fmt.Fprintln(progress)
	return errors.Join(err, r.WriteMarkdown(out), writeFile(o.json, r.WriteJSON), writeFile(o.html, r.WriteHTML))
}

func (o *options) data() string {
	if o.dir == "" {
		return os.TempDir()
	}
	return o.dir
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
