package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/tenuto-dev/tenuto/cluster"
)

func get(flags *flag.FlagSet) action {
	asJSON := flags.Bool("json", false, "one JSON object on one line")
	pending := flags.Bool("pending", false, "also show what the instance waits for")
	readOptions := staleFlag(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		status, err := client.Get(ctx, args[0], readOptions()...)
		if err != nil {
			return err
		}
		i := newInstance(status)
		for _, note := range i.addPayloads(status) {
			printMessage(s, note)
		}
		if *pending {
			operations, err := client.Pending(ctx, args[0])
			if err != nil {
				return err
			}
			i.addPending(operations)
		}
		if *asJSON {
			return json.NewEncoder(s.out).Encode(i)
		}
		return i.print(s.out)
	})
}

// print writes an instance as a table.
func (i *instance) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s\t%s\n", name, value)
		}
	}
	line("id", i.ID)
	line("state", string(i.State))
	line("name", i.Name)
	line("version", i.Version)
	line("execution", fmt.Sprint(i.Execution))
	line("events", fmt.Sprint(i.Events))
	line("created", formatTime(i.CreatedAt))
	line("updated", formatTime(i.UpdatedAt))
	line("parent", i.Parent)
	for _, key := range slices.Sorted(maps.Keys(i.Tags)) {
		line("tag", key+"="+i.Tags[key])
	}
	line("summary", i.Summary)
	for _, name := range slices.Sorted(maps.Keys(i.Attributes)) {
		line("attribute", name+"="+i.Attributes[name])
	}
	line("custom-status", string(i.CustomStatus))
	line("output", string(i.Output))
	line("error", i.Error)
	line("mismatch", i.Mismatch)
	for _, o := range i.Pending {
		line("pending", o.String())
	}
	return table.Flush()
}

// String describes the operation in one line.
func (o *operation) String() string {
	if o.Buffered > 0 {
		return fmt.Sprintf("buffered events, %s: %d", o.Name, o.Buffered)
	}
	text := fmt.Sprintf("event %d, %s", o.EventID, o.EventType)
	for _, part := range []struct{ name, value string }{
		{"", o.Name}, {"child ", o.Child}, {"", o.State}, {"last error: ", o.LastError},
	} {
		if part.value != "" {
			text += ", " + part.name + part.value
		}
	}
	if o.FailedAttempts > 0 {
		text += fmt.Sprintf(", failed attempts: %d", o.FailedAttempts)
	}
	if o.FireAt != nil {
		text += ", due " + formatTime(*o.FireAt)
	}
	if o.NextAttempt != nil {
		text += ", next attempt " + formatTime(*o.NextAttempt)
	}
	if o.Held && o.State != "held" {
		text += ", held"
	}
	if o.PausedSince != nil {
		text += fmt.Sprintf(", paused since %s by %s: %s", formatTime(*o.PausedSince), cmp.Or(o.PausedBy, "unknown"), o.PausedReason)
	}
	return text
}
