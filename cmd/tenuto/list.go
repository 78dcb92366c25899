package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

// pageMax is the maximum number of instances in one call.
const pageMax = 1000

// limitDefault is the maximum number of instances that a list shows.
const limitDefault = 100

// A selection says which instances to list.
type selection struct {
	filter  cluster.Filter
	after   string
	limit   int
	display *display
}

func list(flags *flag.FlagSet) action {
	s := new(selection)
	filterOf := filterFlags(flags)
	flags.StringVar(&s.after, "after", "", "instances that follow a `place`: what an earlier list named, or in the order by ID any ID")
	flags.IntVar(&s.limit, "limit", limitDefault, "the maximum `number` of instances; 0 for all, the default with -o ids")
	onlyCount := flags.Bool("count", false, "show only the number of instances")
	s.display = displayFlags(flags, output.Table, output.Wide, output.JSON, output.YAML, output.IDs)
	readOptions := staleFlag(flags)
	return withSession(flags, func(ctx context.Context, to *session, _ []string) (err error) {
		limited := false
		flags.Visit(func(f *flag.Flag) { limited = limited || f.Name == "limit" })
		if s.display.format == output.IDs && !limited {
			s.limit = 0 // a command that reads them must not miss any
		}
		if s.limit < 0 {
			return &usageError{"-limit must be 0 or more"}
		}
		if s.filter, err = filterOf(to.streams); err != nil {
			return err
		}
		if *onlyCount {
			return writeCount(ctx, to, s.filter, s.display, readOptions())
		}
		return s.writeInstances(ctx, to, readOptions())
	})
}

// stateNames are the states by which instances are selected.
const stateNames = "running, hung, stalled, suspended, waiting-for-code, completed, failed, canceled, terminated"

// filterFlags declares the flags that select instances. The result returns the filter after they
// are parsed.
func filterFlags(flags *flag.FlagSet) func(to streams) (cluster.Filter, error) {
	var f cluster.Filter
	var query, order string
	flags.StringVar(&query, "query", "", "instances that match a `text` such as \"state=failed name=checkout updated<2h\"; see package cluster/filter")
	flags.Var(&choice{strings.Split(stateNames, ", "), true, func(state string) {
		f.States = append(f.States, cluster.State(strings.ReplaceAll(state, "-", " ")))
	}}, "state", "instances in a `state`: "+stateNames+"; may be repeated")
	flags.StringVar(&f.Name, "name", "", "instances of the orchestration `name`")
	flags.StringVar(&f.Version, "version", "", "instances of that `version`")
	flags.StringVar(&f.IDPrefix, "prefix", "", "instances whose IDs begin with `prefix`")
	flags.StringVar(&f.ParentID, "parent", "", "children of the instance `id`")
	flags.Func("tag", "instances with the tag `key=value`; may be repeated", func(tag string) error {
		if f.Tags == nil {
			f.Tags = make(map[string]string)
		}
		return addTag(f.Tags, tag)
	})
	flags.Func("from", "created at or after a `time` like 2006-01-02T15:04:05Z, or an age like 2h", parseTimeInto(&f.CreatedFrom))
	flags.Func("before", "created before a `time` or an age", parseTimeInto(&f.CreatedBefore))
	flags.Var(&choice{[]string{"id", "created", "updated", "ended", "timer", "-id", "-created", "-updated", "-ended", "-timer"}, true, func(value string) { order = value }},
		"order", "the `order`: id, created, updated, ended or timer; -updated is the reverse")
	return func(to streams) (cluster.Filter, error) {
		f.Order, f.Descending = strings.CutPrefix(order, "-")
		if query == "" {
			return f, nil
		}
		// The flags are more words, so that one that is also in the text is an error.
		words := []string{query, filter.Format(f)}
		if order == "id" {
			words = append(words, "order=id") // Format leaves out the default
		}
		combined, err := filter.Parse(strings.TrimSpace(strings.Join(words, " ")), time.Now())
		var syntax *filter.SyntaxError
		if errors.As(err, &syntax) {
			fmt.Fprintln(to.err, syntax.Caret())
			return f, &usageError{err.Error()}
		}
		return combined, err
	}
}

func addTag(tags map[string]string, tag string) error {
	key, value, ok := strings.Cut(tag, "=")
	if !ok {
		return fmt.Errorf("is not key=value")
	}
	tags[key] = value
	return nil
}

// writeInstances writes the instances, page by page.
func (s *selection) writeInstances(ctx context.Context, to *session, options []replay.Option) error {
	printer := output.NewPrinter(to.out, s.display.format, instanceColumns(s.display.times()), func(i *instance) string { return i.ID })
	for after, remaining := s.after, s.limit; ; {
		size := pageMax
		if s.limit > 0 {
			size = min(size, remaining)
		}
		page, err := to.listPage(ctx, s.filter, after, size, options)
		if err != nil {
			return err
		}
		for _, status := range page.Instances {
			if err := printer.Write(newInstance(status)); err != nil {
				return err
			}
		}
		after, remaining = page.Next, remaining-len(page.Instances)
		if err := printer.Flush(); err != nil || after == "" {
			return err
		}
		if s.limit > 0 && remaining <= 0 {
			printMessage(to.streams, fmt.Sprintf("more instances follow: use -after %s, or -limit 0 for all", after))
			return nil
		}
	}
}

func (s *session) listPage(ctx context.Context, f cluster.Filter, after string, size int, options []replay.Option) (*cluster.Page, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	return s.List(ctx, f, after, size, options...)
}

// group is a number of instances as -o json shows it.
type group struct {
	// By holds the value of each dimension.
	By    map[string]string `json:"by,omitempty"`
	Count uint64            `json:"count"`
}

func count(flags *flag.FlagSet) action {
	filterOf := filterFlags(flags)
	by := flags.String("by", "", "count by `dimensions`, separated by commas: state, name, version, error, tag:KEY, attr:KEY")
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	readOptions := staleFlag(flags)
	return withSession(flags, func(ctx context.Context, s *session, _ []string) error {
		f, err := filterOf(s.streams)
		if err != nil {
			return err
		}
		if *by == "" {
			return writeCount(ctx, s, f, d, readOptions())
		}
		return writeGroups(ctx, s, f, strings.Split(*by, ","), d, readOptions())
	})
}

// writeCount writes the number of instances.
func writeCount(ctx context.Context, s *session, f cluster.Filter, d *display, options []replay.Option) error {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	n, err := s.Count(ctx, f, options...)
	switch {
	case err != nil:
		return err
	case d.format == output.JSON || d.format == output.YAML:
		return s.documents(d.format).Write(group{Count: uint64(n)})
	}
	_, err = fmt.Fprintln(s.out, n)
	return err
}

// writeGroups writes the number of instances in each group.
func writeGroups(ctx context.Context, s *session, f cluster.Filter, dimensions []string, d *display, options []replay.Option) error {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	groups, err := s.CountBy(ctx, f, dimensions, options...)
	if err != nil {
		return err
	}
	var columns []output.Column[group]
	for _, dimension := range dimensions {
		columns = append(columns, output.Column[group]{Name: output.Cell(strings.ToUpper(dimension)), Cell: func(g group) string { return output.Cell(g.By[dimension]) }})
	}
	columns = append(columns, output.Column[group]{Name: "COUNT", Cell: func(g group) string { return fmt.Sprint(g.Count) }})
	printer := output.NewPrinter(s.out, d.format, columns, nil)
	for _, g := range groups {
		shown := group{By: make(map[string]string), Count: g.Count}
		for i, value := range g.Values {
			shown.By[dimensions[i]] = value
		}
		if err := printer.Write(shown); err != nil {
			return err
		}
	}
	return printer.Flush()
}
