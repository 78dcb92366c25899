package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/replay"
)

// pageMax is the maximum number of instances in one call.
const pageMax = 1000

// A selection says which instances to list.
type selection struct {
	filter cluster.Filter
	after  string
	limit  int
	count  bool
	asJSON bool
}

func list(flags *flag.FlagSet) action {
	s := new(selection)
	filterOf := filterFlags(flags)
	flags.StringVar(&s.after, "after", "", "instances that follow a `place`: what an earlier list named, or in the order by ID any ID")
	flags.IntVar(&s.limit, "limit", 100, "the maximum `number` of instances; 0 for all")
	flags.BoolVar(&s.count, "count", false, "show only the number of instances")
	flags.BoolVar(&s.asJSON, "json", false, "one JSON object per line")
	readOptions := staleFlag(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, to streams, _ []string) (err error) {
		if s.limit < 0 {
			return &usageError{"-limit must be 0 or more"}
		}
		if s.filter, err = filterOf(to); err != nil {
			return err
		}
		if s.count {
			return s.writeCount(ctx, client, to, readOptions())
		}
		return s.writeInstances(ctx, client, to, readOptions())
	})
}

// filterFlags declares the flags that select instances. The result returns the filter after they
// are parsed.
func filterFlags(flags *flag.FlagSet) func(to streams) (cluster.Filter, error) {
	var f cluster.Filter
	var query, order string
	flags.StringVar(&query, "query", "", "instances that match a `text` such as \"state=failed name=checkout updated<2h\"; see package cluster/filter")
	flags.Func("state", "instances in a `state`: running, hung, stalled, suspended, waiting-for-code, completed, failed, canceled, terminated; may be repeated", func(state string) error {
		f.States = append(f.States, cluster.State(strings.ReplaceAll(state, "-", " ")))
		return nil
	})
	flags.StringVar(&f.Name, "name", "", "instances of the orchestration `name`")
	flags.StringVar(&f.Version, "version", "", "instances of that `version`")
	flags.StringVar(&f.IDPrefix, "prefix", "", "instances whose IDs begin with `prefix`")
	flags.StringVar(&f.ParentID, "parent", "", "children of the instance `id`")
	flags.Func("tag", "instances with the tag `key=value`; may be repeated", func(tag string) error { return addTag(&f, tag) })
	flags.Func("from", "created at or after a `time` like 2006-01-02T15:04:05Z", parseTimeInto(&f.CreatedFrom))
	flags.Func("before", "created before a `time`", parseTimeInto(&f.CreatedBefore))
	flags.StringVar(&order, "order", "", "the `order`: id, created, updated, ended or timer; -updated is the reverse")
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

// writeCount writes the number of instances.
func (s *selection) writeCount(ctx context.Context, client *cluster.Client, to streams, options []replay.Option) error {
	n, err := client.Count(ctx, s.filter, options...)
	switch {
	case err != nil:
		return err
	case s.asJSON:
		return json.NewEncoder(to.out).Encode(countResult{n})
	}
	_, err = fmt.Fprintln(to.out, n)
	return err
}

// countResult is the number of instances as -json shows it.
type countResult struct {
	Count int `json:"count"`
}

func addTag(f *cluster.Filter, tag string) error {
	key, value, ok := strings.Cut(tag, "=")
	if !ok {
		return fmt.Errorf("is not key=value")
	}
	if f.Tags == nil {
		f.Tags = make(map[string]string)
	}
	f.Tags[key] = value
	return nil
}

func parseTimeInto(t *time.Time) func(string) error {
	return func(text string) (err error) {
		*t, err = time.Parse(time.RFC3339, text)
		return err
	}
}

// writeInstances writes the instances, page by page.
func (s *selection) writeInstances(ctx context.Context, client *cluster.Client, to streams, options []replay.Option) error {
	table := tabwriter.NewWriter(to.out, 0, 0, 2, ' ', 0)
	encoder := json.NewEncoder(to.out)
	if !s.asJSON {
		fmt.Fprintln(table, "ID\tSTATE\tNAME\tVERSION\tEXECUTION\tEVENTS\tCREATED\tUPDATED\tSUMMARY")
	}
	for after, remaining := s.after, s.limit; ; {
		size := pageMax
		if s.limit > 0 {
			size = min(size, remaining)
		}
		page, err := client.List(ctx, s.filter, after, size, options...)
		if err != nil {
			return err
		}
		for _, status := range page.Instances {
			if err := s.writeInstance(table, encoder, status); err != nil {
				return err
			}
		}
		after, remaining = page.Next, remaining-len(page.Instances)
		if err := table.Flush(); err != nil || after == "" {
			return err
		}
		if s.limit > 0 && remaining <= 0 {
			printMessage(to, fmt.Sprintf("more instances follow: use -after %s, or -limit 0 for all", after))
			return nil
		}
	}
}

func (s *selection) writeInstance(table *tabwriter.Writer, encoder *json.Encoder, status *cluster.Status) error {
	if s.asJSON {
		return encoder.Encode(newInstance(status))
	}
	_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", cell(status.InstanceID), cell(string(status.State)), cell(status.Name), cell(status.Version),
		status.Execution, status.LastEventID, formatTime(status.CreatedAt), formatTime(status.UpdatedAt), cell(status.Summary))
	return err
}
