package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// WriteMarkdown writes tables: machine and settings, targets, metrics.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", r.Title)
	for _, s := range r.Facts() {
		fmt.Fprintf(&b, "- %s: %s\n", s.Name, s.Value)
	}
	r.writeTargets(&b)
	for _, m := range r.Results {
		writeResults(&b, m)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Facts returns the machine and the settings.
func (r *Report) Facts() []Setting {
	m := r.Machine
	return append([]Setting{
		{"when", r.When.UTC().Format("2006-01-02 15:04 MST")},
		{"commit", m.Commit},
		{"machine", fmt.Sprintf("%d × %s, GOMAXPROCS %d", m.Cores, m.CPU, m.GOMAXPROCS)},
		{"system", fmt.Sprintf("%s, kernel %s, data on %s, %s", m.OS, m.Kernel, m.FileSystem, m.Go)},
	}, r.Settings...)
}

func (r *Report) writeTargets(b *strings.Builder) {
	results := r.TargetResults()
	if len(results) == 0 {
		return
	}
	b.WriteString("\n### Targets\n\n| target | required | result (min–max) | met |\n|---|---|---|---|\n")
	for _, v := range results {
		fmt.Fprintf(b, "| %s | %s | %s (%s–%s) | %s |\n", v.Text, formatTarget(v),
			format(v.Median, v.Unit), format(v.Min, v.Unit), format(v.Max, v.Unit), yesNo(v))
	}
}

func formatTarget(v TargetResult) string {
	if v.AtMost {
		return "at most " + format(v.Limit, v.Unit)
	}
	return "at least " + format(v.Limit, v.Unit)
}

func yesNo(v TargetResult) string {
	if v.Met() {
		return "yes"
	}
	return "no"
}

func writeResults(b *strings.Builder, m *measure.SubjectResults) {
	rows := Rows(m)
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n### %s\n\n%s. %d times.\n\n", m.Name, m.Description, len(m.Results))
	b.WriteString("| metric | median | min | max | ÷ baseline |\n|---|---|---|---|---|\n")
	for _, row := range rows {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", label(row.Metric),
			format(row.Value, row.Unit), format(row.Min, row.Unit), format(row.Max, row.Unit), ratio(row))
	}
	for _, note := range notes(m) {
		fmt.Fprintf(b, "\n(%s)\n", note)
	}
}

func ratio(row Row) string {
	if row.Ratio == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%s–%s) × %s", significant(row.Ratio), significant(row.RatioMin), significant(row.RatioMax), row.Baseline)
}

// notes returns the distinct notes of the runs.
func notes(m *measure.SubjectResults) []string {
	var all []string
	seen := make(map[string]bool)
	for _, result := range m.Results {
		if result.Note != "" && !seen[result.Note] {
			seen[result.Note] = true
			all = append(all, result.Note)
		}
	}
	return all
}
