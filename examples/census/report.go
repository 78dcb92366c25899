package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Totals are sums over files.
type Totals struct {
	Files int64
	Lines int64
	Bytes int64
}

func (t *Totals) add(more Totals) {
	t.Files += more.Files
	t.Lines += more.Lines
	t.Bytes += more.Bytes
}

// A Package is a directory in the report.
type Package struct {
	Path string
	Totals
}

// A Failure is a file or a directory that could not be read.
type Failure struct {
	Path   string
	Reason string
}

// Unreadable counts failures and lists the first ones by path, because a record cannot hold
// all.
type Unreadable struct {
	Count int
	First []Failure
}

// How many entries a report lists.
const (
	packagesMax = 10
	failuresMax = 20
)

// merge adds failures. The result does not depend on the order of calls.
func (u *Unreadable) merge(more Unreadable) {
	u.Count += more.Count
	u.First = append(u.First, more.First...)
	slices.SortFunc(u.First, func(a, b Failure) int { return cmp.Compare(a.Path, b.Path) })
	u.First = u.First[:min(len(u.First), failuresMax)]
}

// A Report is the output of the root.
type Report struct {
	Source      string
	Directories int
	Totals
	Languages  map[string]Totals
	Largest    []Package // the largest first
	Skipped    int
	Unreadable Unreadable
	// The SHA-256 of the lines "digest  path" of all directories, sorted by path.
	Digest string

	Began, Ended time.Time
}

// An aggregate collects the results of the root's children. The report does not depend on
// their order.
type aggregate struct {
	total    Report
	packages []Package
	digests  map[string]string
}

func newAggregate(source string, began time.Time) *aggregate {
	return &aggregate{
		total:   Report{Source: source, Began: began, Languages: make(map[string]Totals)},
		digests: make(map[string]string),
	}
}

func (ag *aggregate) add(path string, d Directory) {
	ag.total.Directories++
	ag.total.Totals.add(d.Totals)
	// A sum does not depend on the order of the map.
	for language, more := range d.Languages {
		of := ag.total.Languages[language]
		of.add(more)
		ag.total.Languages[language] = of
	}
	ag.total.Unreadable.merge(d.Unreadable)
	ag.packages = append(ag.packages, Package{path, d.Totals})
	ag.digests[path] = d.Digest
}

func (ag *aggregate) report(ended time.Time) Report {
	report := ag.total
	report.Ended = ended
	slices.SortFunc(ag.packages, func(a, b Package) int { return cmp.Compare(a.Path, b.Path) })
	lines := sha256.New()
	for _, p := range ag.packages {
		fmt.Fprintf(lines, "%s  %s\n", ag.digests[p.Path], p.Path)
	}
	report.Digest = hex.EncodeToString(lines.Sum(nil))
	// Stable: directories of equal size stay sorted by path.
	slices.SortStableFunc(ag.packages, func(a, b Package) int { return cmp.Compare(b.Bytes, a.Bytes) })
	report.Largest = slices.Clone(ag.packages[:min(len(ag.packages), packagesMax)])
	return report
}

const tableRow = "%11s  %13s  %15s  %s\n"

// write prints the report without its times.
func (r Report) write(out io.Writer) {
	fmt.Fprintf(out, "Census of %s\n\n", r.Source)
	heading := func(name string) { fmt.Fprintf(out, tableRow, "files", "lines", "bytes", name) }
	row := func(name string, t Totals) {
		fmt.Fprintf(out, tableRow, formatThousands(t.Files), formatThousands(t.Lines), formatThousands(t.Bytes), name)
	}
	heading("language")
	for _, language := range r.languages() {
		row(language, r.Languages[language])
	}
	row(fmt.Sprintf("all, in %s directories", formatThousands(int64(r.Directories))), r.Totals)
	fmt.Fprintln(out)
	heading(fmt.Sprintf("the %d largest packages", len(r.Largest)))
	for _, p := range r.Largest {
		row(p.Path, p.Totals)
	}
	r.writeOmissions(out)
	fmt.Fprintf(out, "\nDigest of all digests: %s\n", r.Digest)
}

func (r Report) writeOmissions(out io.Writer) {
	if r.Skipped > 0 {
		fmt.Fprintf(out, "\nSkipped: %s (symbolic links, devices, names that are not UTF-8)\n", formatThousands(int64(r.Skipped)))
	}
	if r.Unreadable.Count == 0 {
		return
	}
	fmt.Fprintf(out, "\nUnreadable: %s\n", formatThousands(int64(r.Unreadable.Count)))
	for _, failure := range r.Unreadable.First {
		fmt.Fprintf(out, "  %s: %s\n", failure.Path, failure.Reason)
	}
	if more := r.Unreadable.Count - len(r.Unreadable.First); more > 0 {
		fmt.Fprintf(out, "  and %s more\n", formatThousands(int64(more)))
	}
}

// languages returns the languages, the largest in bytes first.
func (r Report) languages() []string {
	names := slices.Sorted(maps.Keys(r.Languages))
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(r.Languages[b].Bytes, r.Languages[a].Bytes)
	})
	return names
}

// formatThousands formats 1234567 as 1,234,567.
func formatThousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func perSecond(n int64, d time.Duration) int64 {
	return int64(float64(n) / max(d.Seconds(), 1e-3))
}
