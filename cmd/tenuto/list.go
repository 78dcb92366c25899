package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
)

// pageMax is how many instances one call brings.
const pageMax = 1000

// A selection is which instances are listed.
type selection struct {
	filter cluster.Filter
	after  string
	limit  int
	count  bool
	asJSON bool
}

func list(flags *flag.FlagSet) action {
	s := new(selection)
	filter := &s.filter
	flags.Func("state", "in that `state`: running, stalled, suspended, waiting-for-code, completed, failed, cancelled, terminated; may be repeated", func(state string) error {
		filter.States = append(filter.States, cluster.State(strings.ReplaceAll(state, "-", " ")))
		return nil
	})
	flags.StringVar(&filter.Name, "name", "", "of that orchestration")
	flags.StringVar(&filter.Version, "version", "", "of that version")
	flags.StringVar(&filter.IDPrefix, "prefix", "", "whose ID begins so")
	flags.StringVar(&filter.ParentID, "parent", "", "children of that instance")
	flags.Func("tag", "with that tag, `key=value`; may be repeated", func(tag string) error { return addTag(filter, tag) })
	flags.Func("from", "created then or later, a `time` like 2006-01-02T15:04:05Z", timeInto(&filter.CreatedFrom))
	flags.Func("before", "created before that `time`", timeInto(&filter.CreatedBefore))
	flags.StringVar(&s.after, "after", "", "whose ID is behind that one")
	flags.IntVar(&s.limit, "limit", 100, "at most that many; 0 for all")
	flags.BoolVar(&s.count, "count", false, "only how many there are")
	flags.BoolVar(&s.asJSON, "json", false, "one JSON object a line")
	reading := staleFlag(flags)
	return called(flags, func(ctx context.Context, client *cluster.Client, to streams, _ []string) error {
		if s.limit < 0 {
			return &usageError{"-limit has to be 0 or more"}
		}
		if s.count {
			return s.writeCount(ctx, client, to, reading())
		}
		return s.list(ctx, client, to, reading())
	})
}

// writeCount writes how many there are.
func (s *selection) writeCount(ctx context.Context, client *cluster.Client, to streams, options []cluster.ReadOption) error {
	n, err := client.Count(ctx, s.filter, options...)
	switch {
	case err != nil:
		return err
	case s.asJSON:
		return json.NewEncoder(to.out).Encode(counted{n})
	}
	_, err = fmt.Fprintln(to.out, n)
	return err
}

// counted is the number of instances as -json shows it.
type counted struct {
	Count int `json:"count"`
}

func addTag(filter *cluster.Filter, tag string) error {
	key, value, ok := strings.Cut(tag, "=")
	if !ok {
		return fmt.Errorf("is not key=value")
	}
	if filter.Tags == nil {
		filter.Tags = make(map[string]string)
	}
	filter.Tags[key] = value
	return nil
}

func timeInto(t *time.Time) func(string) error {
	return func(text string) (err error) {
		*t, err = time.Parse(time.RFC3339, text)
		return err
	}
}

// list writes page after page.
func (s *selection) list(ctx context.Context, client *cluster.Client, to streams, options []cluster.ReadOption) error {
	table := tabwriter.NewWriter(to.out, 0, 0, 2, ' ', 0)
	encoder := json.NewEncoder(to.out)
	if !s.asJSON {
		fmt.Fprintln(table, "ID\tSTATE\tNAME\tVERSION\tEXECUTION\tEVENTS\tCREATED\tUPDATED")
	}
	for after, left := s.after, s.limit; ; {
		size := pageMax
		if s.limit > 0 {
			size = min(size, left)
		}
		page, err := client.List(ctx, s.filter, after, size, options...)
		if err != nil {
			return err
		}
		for _, status := range page.Instances {
			if err := s.write(table, encoder, status); err != nil {
				return err
			}
		}
		after, left = page.Next, left-len(page.Instances)
		if err := table.Flush(); err != nil || after == "" {
			return err
		}
		if s.limit > 0 && left <= 0 {
			say(to, fmt.Sprintf("there are more: -after %s, or -limit 0 for all", after))
			return nil
		}
	}
}

func (s *selection) write(table *tabwriter.Writer, encoder *json.Encoder, status *cluster.Status) error {
	if s.asJSON {
		return encoder.Encode(shown(status))
	}
	_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", cell(status.InstanceID), cell(string(status.State)), cell(status.Name), cell(status.Version),
		status.Execution, status.LastEventID, formatted(status.CreatedAt), formatted(status.UpdatedAt))
	return err
}
