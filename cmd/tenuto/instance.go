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
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

// An instance is an instance as -json shows it.
type instance struct {
	ID             string            `json:"id"`
	State          cluster.State     `json:"state"`
	Name           string            `json:"name"`
	Version        string            `json:"version,omitempty"`
	Execution      uint64            `json:"execution"`
	FirstExecution uint64            `json:"firstExecution"` // of the run
	Events         uint64            `json:"events"`         // of the execution
	CreatedAt      time.Time         `json:"createdAt"`
	UpdatedAt      time.Time         `json:"updatedAt"`
	Parent         string            `json:"parent,omitempty"`
	Attributes     map[string]string `json:"attributes,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	Summary        string            `json:"summary,omitempty"`
	Continued      string            `json:"continued,omitempty"` // with the cluster: restored or recovered
	ContinuedAt    *time.Time        `json:"continuedAt,omitempty"`
	// Lists do not have the fields below.
	Output       json.RawMessage `json:"output,omitempty"`
	CustomStatus json.RawMessage `json:"customStatus,omitempty"`
	Error        string          `json:"error,omitempty"`
	Mismatch     string          `json:"mismatch,omitempty"`
	Pending      []operation     `json:"pending,omitempty"`
}

// newInstance converts a status, without payloads.
func newInstance(s *cluster.Status) *instance {
	i := &instance{
		ID: s.InstanceID, State: s.State, Name: s.Name, Version: s.Version,
		Execution: s.Execution, FirstExecution: s.FirstExecution, Events: s.LastEventID,
		CreatedAt: s.CreatedAt.UTC(), UpdatedAt: s.UpdatedAt.UTC(),
		Parent: s.ParentID, Tags: s.Tags, Attributes: s.Attributes, Summary: s.Summary, Error: errorText(s.Err),
	}
	if s.Continued != "" {
		at := s.ContinuedAt.UTC()
		i.Continued, i.ContinuedAt = s.Continued, &at
	}
	if s.Mismatch != nil {
		i.Mismatch = s.Mismatch.Error()
	}
	return i
}

// addPayloads adds the output and the custom status. One that is not JSON is left out and named in
// notes.
func (i *instance) addPayloads(s *cluster.Status) (notes []string) {
	if s.State == cluster.Completed {
		if err := s.Output(&i.Output); err != nil {
			i.Output, notes = nil, append(notes, fmt.Sprintf("output: %v", err))
		}
	}
	if err := s.CustomStatus(&i.CustomStatus); err != nil {
		i.CustomStatus, notes = nil, append(notes, fmt.Sprintf("custom status: %v", err))
	}
	return notes
}

func (i *instance) addPending(operations []*cluster.OpenOperation) {
	for _, o := range operations {
		i.Pending = append(i.Pending, newOperation(o))
	}
}

func newOperation(o *cluster.OpenOperation) operation {
	return operation{
		Execution: o.Execution, EventID: o.EventID, EventType: o.EventType, Name: o.Name, Since: o.Since.UTC(),
		FireAt: timeOrNil(o.FireAt), Child: o.ChildID, Receiver: o.Receiver,
		State: string(o.State), FailedAttempts: o.FailedAttempts, LastError: errorText(o.LastError), NextAttempt: timeOrNil(o.NextAttempt),
		Held: o.Held, PausedBy: o.PausedBy, PausedReason: o.PausedReason, PausedSince: timeOrNil(o.PausedSince),
		Buffered: o.Buffered, Failures: newFailedAttempts(o.Failures), AttemptStarted: timeOrNil(o.AttemptStarted),
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// instanceColumns are the columns of tables of instances.
func instanceColumns(times output.Times) []output.Column[*instance] {
	return []output.Column[*instance]{
		{Name: "ID", Cell: func(i *instance) string { return output.Cell(i.ID) }},
		{Name: "STATE", Cell: func(i *instance) string { return output.Cell(string(i.State)) }},
		{Name: "NAME", Cell: func(i *instance) string { return output.Cell(i.Name) }},
		{Name: "VERSION", Cell: func(i *instance) string { return output.Cell(i.Version) }},
		{Name: "EXECUTION", Cell: func(i *instance) string { return fmt.Sprint(i.Execution) }},
		{Name: "EVENTS", Cell: func(i *instance) string { return fmt.Sprint(i.Events) }},
		{Name: "CREATED", Cell: func(i *instance) string { return times.Cell(i.CreatedAt) }},
		{Name: "UPDATED", Cell: func(i *instance) string { return times.Cell(i.UpdatedAt) }},
		{Name: "SUMMARY", Cell: func(i *instance) string { return output.Cell(i.Summary) }},
		{Name: "PARENT", Wide: true, Cell: func(i *instance) string { return output.Cell(i.Parent) }},
		{Name: "TAGS", Wide: true, Cell: func(i *instance) string { return output.Cell(pairs(i.Tags)) }},
		{Name: "ATTRIBUTES", Wide: true, Cell: func(i *instance) string { return output.Cell(pairs(i.Attributes)) }},
	}
}

// pairs returns the entries of a map as key=value, separated by commas.
func pairs(m map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key+"="+m[key])
	}
	return strings.Join(all, ",")
}

func get(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	pending := flags.Bool("pending", false, "also show what the instance waits for")
	readOptions := staleFlag(flags)
	usage := &usage{"get", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		first := true
		return s.forEach(ctx, ids, false, func(ctx context.Context, id string) error {
			i, err := s.getInstance(ctx, id, *pending, readOptions())
			if err != nil {
				return err
			}
			if !d.isTable() {
				return s.documents(d.format).Write(i)
			}
			if !first {
				fmt.Fprintln(s.out)
			}
			first = false
			return i.print(s.out, d.times())
		})
	})
}

// getInstance returns an instance with its payloads.
func (s *session) getInstance(ctx context.Context, id string, pending bool, options []replay.Option) (*instance, error) {
	status, err := s.Get(ctx, id, options...)
	if err != nil {
		return nil, err
	}
	i := newInstance(status)
	for _, note := range i.addPayloads(status) {
		printMessage(s.streams, note)
	}
	if pending {
		operations, err := s.Pending(ctx, id)
		if err != nil {
			return nil, err
		}
		i.addPending(operations)
	}
	return i, nil
}

// print writes an instance as a table.
func (i *instance) print(w io.Writer, times output.Times) error {
	table := output.NewRows(w)
	line := func(name, value string) {
		if value != "" {
			table.Add(name, output.Line(value))
		}
	}
	line("id", i.ID)
	line("state", string(i.State))
	line("name", i.Name)
	line("version", i.Version)
	line("execution", fmt.Sprint(i.Execution))
	line("events", fmt.Sprint(i.Events))
	line("created", times.Relative(i.CreatedAt))
	line("updated", times.Relative(i.UpdatedAt))
	line("parent", i.Parent)
	for _, key := range slices.Sorted(maps.Keys(i.Tags)) {
		line("tag", key+"="+i.Tags[key])
	}
	line("summary", i.Summary)
	if i.ContinuedAt != nil {
		line("cluster-"+i.Continued, times.Relative(*i.ContinuedAt))
	}
	for _, name := range slices.Sorted(maps.Keys(i.Attributes)) {
		line("attribute", name+"="+i.Attributes[name])
	}
	line("custom-status", payloadText(i.CustomStatus))
	line("output", payloadText(i.Output))
	line("error", i.Error)
	line("mismatch", i.Mismatch)
	for _, o := range i.Pending {
		line("pending", o.describe(times))
	}
	return table.Flush()
}

// payloadText returns a payload for people.
func payloadText(payload json.RawMessage) string {
	return cmp.Or(describeEncoded(payload), string(payload))
}
