package main

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// A choice is a flag whose values are known.
type choice struct {
	choices []string
	open    bool // other values are checked elsewhere
	set     func(value string)
}

func (c *choice) String() string { return "" }

// Set implements [flag.Value].
func (c *choice) Set(value string) error {
	if !c.open && !slices.Contains(c.choices, value) {
		return fmt.Errorf("must be one of: %s", strings.Join(c.choices, ", "))
	}
	c.set(value)
	return nil
}

// formatFlag declares the flag -o, and -json for -o json. The first format is the default.
func formatFlag(flags *flag.FlagSet, format *output.Format, allowed ...output.Format) {
	*format = allowed[0]
	c := &choice{set: func(value string) { *format = output.Format(value) }}
	for _, f := range allowed {
		c.choices = append(c.choices, string(f))
	}
	flags.Var(c, "o", "`format` of the output: "+strings.Join(c.choices, ", "))
	if slices.Contains(allowed, output.JSON) {
		flags.BoolFunc("json", "the same as -o json", func(string) error { return c.Set(string(output.JSON)) })
	}
}

// A display holds the flags of a command that shows something.
type display struct {
	format output.Format
	utc    bool
}

// displayFlags declares the flags -o and -utc.
func displayFlags(flags *flag.FlagSet, allowed ...output.Format) *display {
	d := new(display)
	formatFlag(flags, &d.format, allowed...)
	flags.BoolVar(&d.utc, "utc", false, "show times in UTC in tables, instead of the local zone")
	return d
}

// times returns how to show times in tables.
func (d *display) times() output.Times { return output.Times{UTC: d.utc, Now: time.Now()} }

// isTable reports whether the output is for people.
func (d *display) isTable() bool { return d.format == output.Table || d.format == output.Wide }

// documents returns a writer of documents. All of one command share it.
func (s streams) documents(format output.Format) *output.Documents {
	if *s.written == nil {
		*s.written = output.NewDocuments(s.out, format)
	}
	return *s.written
}

// parseTime reads a time like those of filters: a date, a time as in RFC 3339, or an age such as
// 2h.
func parseTime(text string) (time.Time, error) {
	now := time.Now()
	if strings.ContainsAny(text, " \"") { // it would be more than one word of a filter
		text = ""
	}
	if f, err := filter.Parse("created>="+text, now); err == nil && !f.CreatedFrom.IsZero() {
		return f.CreatedFrom, nil
	}
	if f, err := filter.Parse("created<"+text, now); err == nil && !f.CreatedFrom.IsZero() {
		return f.CreatedFrom, nil
	}
	return time.Time{}, fmt.Errorf("must be a time like 2006-01-02T15:04:05Z, a date, or an age like 2h")
}

func parseTimeInto(t *time.Time) func(string) error {
	return func(text string) (err error) {
		*t, err = parseTime(text)
		return err
	}
}
