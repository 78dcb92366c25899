// Command mutants shows that the tests can fail: it breaks a rule on purpose, one
// after the other, in a copy of the tree, and runs the test that must see it.
//
//	go run ./internal/chaos/mutants [NAME...]
//
// A mutant is a patch beside this file. Lines before the first difference that
// begin with # say what it does, which invariants it breaks, which test of which
// package must catch it, and what that needs:
//
//	# A timer fires a moment before its time.
//	# Breaks: S12
//	# Caught by: ./actors TestManyTimersFireWhenTheyAreDue
//	# Needs: TENUTO_SOMETHING=1
//
// It ends with status 1 unless every mutant was caught by its test, those aside
// whose test cannot run here.
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

const patches = "internal/chaos/mutants"

func main() {
	flag.Parse()
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tries the named mutants, or all, and prints a table.
func run(names []string) error {
	mutants, err := read(patches)
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
		return fmt.Errorf("copy the tree: %w", err)
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s %s\n", outcome, m.name, m.breaks, m.dir, m.test)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	tried := 0
	for outcome, n := range counts {
		fmt.Printf("%d %s\n", n, outcome)
		tried += n
	}
	if tried == 0 || counts[wasCaught]+counts[wasSkipped] < tried {
		return errors.New("not every mutant was caught")
	}
	return nil
}
