package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"

	"github.com/tenuto-dev/tenuto/bench/cases"
	"github.com/tenuto-dev/tenuto/bench/report"
)

// stores are the available log stores.
var stores = []string{"bolt"}

type options struct {
	cases      []*cases.Case
	nodes      cases.Nodes
	partitions int
	store      string
	repeat     int
	c, n       int
	procs      int
	dir        string
	json       string
	html       string
	cpu        string
	allocs     string
}

func parse(args []string, usage io.Writer) (*options, error) {
	o := &options{}
	var names, nodes string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&names, "cases", "", "cases to run, as `name`,name,… (default all that fit the nodes)")
	flags.StringVar(&nodes, "nodes", string(cases.OneNode), "1, 3 (in this process), or 3p (in three processes)")
	flags.IntVar(&o.partitions, "partitions", 1, "number of partitions; must be 1 with -nodes 3p")
	flags.StringVar(&o.store, "store", stores[0], "store of the Raft log: "+strings.Join(stores, ", "))
	flags.IntVar(&o.repeat, "repeat", 1, "number of repetitions; the cases are interleaved")
	flags.IntVar(&o.c, "c", 0, "concurrency (default that of each case)")
	flags.IntVar(&o.n, "n", 0, "amount (default that of each case)")
	flags.IntVar(&o.procs, "procs", 0, "GOMAXPROCS (default unchanged)")
	flags.StringVar(&o.dir, "dir", "", "`directory` for temporary data of nodes (default that for temporary files); the case backup keeps its state there")
	flags.StringVar(&o.json, "json", "", "write all results to this `file`")
	flags.StringVar(&o.html, "html", "", "write a page with plots to this `file`")
	flags.StringVar(&o.cpu, "cpuprofile", "", "write a CPU profile of the whole run to this `file`")
	flags.StringVar(&o.allocs, "allocprofile", "", "write an allocation profile of the whole run to this `file`")
	flags.Usage = func() {
		_, _ = fmt.Fprintln(usage, "Usage of bench:")
		flags.PrintDefaults()
		_, _ = fmt.Fprintln(usage, "\nCases (-n sets N, -c sets C):")
		for _, c := range cases.All() {
			_, _ = fmt.Fprintf(usage, "  %-10s %s (N %d, C %d)\n", c.Name, c.Description, c.N, c.C)
		}
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q, see -help", flags.Arg(0))
	}
	o.nodes = cases.Nodes(nodes)
	if err := o.validate(); err != nil {
		return nil, err
	}
	return o, o.selectCases(names)
}

func (o *options) validate() error {
	switch {
	case !slices.Contains(cases.AllNodes, o.nodes):
		return fmt.Errorf("-nodes %s: must be 1, 3 or 3p", o.nodes)
	case o.partitions < 1, o.partitions > 1 && o.nodes == cases.ThreeProcesses:
		return fmt.Errorf("-partitions %d: must be at least 1, and 1 with -nodes 3p", o.partitions)
	case !slices.Contains(stores, o.store):
		return fmt.Errorf("-store %s: must be %s", o.store, strings.Join(stores, " or "))
	case o.repeat < 1:
		return fmt.Errorf("-repeat %d: must be at least 1", o.repeat)
	case min(o.c, o.n, o.procs) < 0:
		return errors.New("-c, -n and -procs must not be negative")
	}
	return nil
}

// selectCases selects the named cases, or all that fit the nodes. A named case that does not
// fit is an error.
func (o *options) selectCases(names string) error {
	var want []string
	if names != "" {
		want = strings.Split(names, ",")
	}
	selected, err := cases.Select(want)
	if err != nil {
		return fmt.Errorf("-cases: %w", err)
	}
	for _, c := range selected {
		switch {
		case c.Fits(o.nodes):
			o.cases = append(o.cases, c)
		case names != "":
			return fmt.Errorf("-cases: %s cannot run with -nodes %s", c.Name, o.nodes)
		}
	}
	return nil
}

func (o *options) dataDir() string {
	if o.dir == "" {
		return os.TempDir()
	}
	return o.dir
}

func (o *options) describeNodes() string {
	switch o.nodes {
	case cases.ThreeNodes:
		return "three nodes in one process"
	case cases.ThreeProcesses:
		return "three nodes in three processes"
	}
	return "one node"
}

func (o *options) settings(recordBytes int) []report.Setting {
	amount := func(n int) string {
		if n == 0 {
			return "default of each case"
		}
		return strconv.Itoa(n)
	}
	return []report.Setting{
		{Name: "nodes", Value: o.describeNodes()},
		{Name: "partitions", Value: strconv.Itoa(o.partitions)},
		{Name: "log store", Value: o.store + ", every write synced"},
		{Name: "n, c", Value: amount(o.n) + ", " + amount(o.c)},
		{Name: "records of the baselines", Value: fmt.Sprintf("%d bytes, the engine's mean for five activities", recordBytes)},
	}
}

// profile starts the requested profiles. stop writes them.
func (o *options) profile() (stop func() error, err error) {
	if o.allocs != "" {
		runtime.MemProfileRate = 4 << 10 // finer than the default
	}
	if o.cpu == "" {
		return o.writeAllocs, nil
	}
	file, err := os.Create(o.cpu)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return errors.Join(file.Close(), o.writeAllocs())
	}, nil
}

func (o *options) writeAllocs() error {
	return writeFile(o.allocs, func(w io.Writer) error { return pprof.Lookup("allocs").WriteTo(w, 0) })
}
