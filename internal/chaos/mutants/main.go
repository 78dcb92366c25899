// Command mutants shows that the tests can fail. It breaks one rule at a time in a copy of the
// repository, and runs the test that must notice.
//
//	go run ./internal/chaos/mutants [NAME...]
//
// A mutant is a patch in this directory. Lines before the first hunk that begin with # say what it
// does, which invariants it breaks, which test of which package must catch it, and which
// environment variable that test needs:
//
//	# A timer fires a moment before its time.
//	# Breaks: S12
//	# Caught by: ./actors TestTimer_ManyFireWhenDue
//	# Needs: TENUTO_SOMETHING=1
//
// It exits with status 1 unless every mutant was caught by its test, except for those whose test
// cannot run here.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

const patchDir = "internal/chaos/mutants"

func main() {
	flag.Parse()
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tries the named mutants, or all, and prints a table.
func run(names []string) error {
	mutants, err := readMutants(patchDir)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "tenuto-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	tree := filepath.Join(scratch, "tree")
	if err := copyTree(".", tree); err != nil {
		return fmt.Errorf("copy repository: %w", err)
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	counts := make(map[outcome]int)
	for _, m := range mutants {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		outcome, detail := m.try(tree)
		counts[outcome]++
		fmt.Fprintf(os.Stderr, "%s: %s\n%s", m.name, outcome, detail)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s %s\n", outcome, m.name, m.invariants, m.dir, m.test)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	tried := 0
	for outcome, n := range counts {
		fmt.Printf("%d %s\n", n, outcome)
		tried += n
	}
	if tried == 0 || counts[caught]+counts[skipped] < tried {
		return errors.New("not every mutant was caught")
	}
	return nil
}
