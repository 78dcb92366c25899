package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// An operation is an open operation, with the fields that apply to its type.
type operation struct {
	Instance       string     `json:"instance,omitempty"` // only "pending" sets it
	Execution      uint64     `json:"execution"`
	EventID        uint64     `json:"eventId"`
	EventType      string     `json:"eventType"` // type of the event that scheduled it
	Name           string     `json:"name,omitempty"`
	Since          time.Time  `json:"since"`
	FireAt         *time.Time `json:"fireAt,omitempty"`
	Child          string     `json:"child,omitempty"`
	Receiver       string     `json:"receiver,omitempty"`
	State          string     `json:"state,omitempty"`
	FailedAttempts int        `json:"failedAttempts,omitempty"`
	LastError      string     `json:"lastError,omitempty"`
	NextAttempt    *time.Time `json:"nextAttempt,omitempty"`
	Buffered       int        `json:"buffered,omitempty"` // events of that name
	Held           bool       `json:"held,omitempty"`
	// Who has paused the activities of that name, and why.
	PausedBy     string     `json:"pausedBy,omitempty"`
	PausedReason string     `json:"pausedReason,omitempty"`
	PausedSince  *time.Time `json:"pausedSince,omitempty"`
	// The latest failed attempts, and when the present attempt began.
	Failures       []failedAttempt `json:"failures,omitempty"`
	AttemptStarted *time.Time      `json:"attemptStarted,omitempty"`
}

// failedAttempt is a failed attempt of an activity.
type failedAttempt struct {
	Number    int       `json:"number"`
	StartedAt time.Time `json:"startedAt"`
	EndedAt   time.Time `json:"endedAt"`
	Code      string    `json:"code,omitempty"`
	Message   string    `json:"message"`
}

func newFailedAttempts(failures []history.FailedAttempt) []failedAttempt {
	var all []failedAttempt
	for _, f := range failures {
		all = append(all, failedAttempt(f))
	}
	return all
}

func pending(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.Wide, output.JSON, output.YAML)
	usage := &usage{"pending", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		printer := output.NewPrinter(s.out, d.format, operationColumns(d.times()), nil)
		err = s.forEach(ctx, ids, false, func(ctx context.Context, id string) error {
			open, err := s.Pending(ctx, id)
			if err != nil {
				return err
			}
			for _, o := range open {
				shown := newOperation(o)
				shown.Instance = id
				if err := printer.Write(&shown); err != nil {
					return err
				}
			}
			return nil
		})
		return cmp.Or(err, printer.Flush())
	})
}

func operationColumns(times output.Times) []output.Column[*operation] {
	at := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return times.Cell(*t)
	}
	return []output.Column[*operation]{
		{Name: "ID", Cell: func(o *operation) string { return output.Cell(o.Instance) }},
		{Name: "EVENT", Cell: func(o *operation) string { return fmt.Sprint(o.EventID) }},
		{Name: "TYPE", Cell: func(o *operation) string { return output.Cell(o.EventType) }},
		{Name: "NAME", Cell: func(o *operation) string { return output.Cell(o.Name) }},
		{Name: "STATE", Cell: func(o *operation) string { return output.Cell(o.stateText()) }},
		{Name: "AGE", Cell: func(o *operation) string { return ageCell(times, o.Since) }},
		{Name: "FAILED", Cell: func(o *operation) string { return fmt.Sprint(o.FailedAttempts) }},
		{Name: "NEXT", Cell: func(o *operation) string { return at(cmp.Or(o.NextAttempt, o.FireAt)) }},
		{Name: "LAST-ERROR", Cell: func(o *operation) string { return output.Cell(o.LastError) }},
		{Name: "EXECUTION", Wide: true, Cell: func(o *operation) string { return fmt.Sprint(o.Execution) }},
		{Name: "SINCE", Wide: true, Cell: func(o *operation) string { return times.Cell(o.Since) }},
		{Name: "OTHER", Wide: true, Cell: func(o *operation) string { return output.Cell(cmp.Or(o.Child, o.Receiver)) }},
		{Name: "RUNS-SINCE", Wide: true, Cell: func(o *operation) string { return at(o.AttemptStarted) }},
		{Name: "PAUSED-BY", Wide: true, Cell: func(o *operation) string { return output.Cell(o.PausedBy) }},
		{Name: "PAUSED-REASON", Wide: true, Cell: func(o *operation) string { return output.Cell(o.PausedReason) }},
	}
}

// ageCell returns how long ago a time was, "-" for the zero time.
func ageCell(times output.Times, since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	return output.Duration(max(0, times.Now.Sub(since)))
}

// stateText returns what the operation is doing or waits for.
func (o *operation) stateText() string {
	switch {
	case o.Buffered > 0:
		return fmt.Sprintf("buffered:%d", o.Buffered)
	case o.Held && o.State != "" && o.State != "held":
		return o.State + ",held"
	case o.Held:
		return "held"
	}
	return o.State
}

// describe describes the operation in one line.
func (o *operation) describe(times output.Times) string {
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
		text += ", due " + times.Relative(*o.FireAt)
	}
	if o.NextAttempt != nil {
		text += ", next attempt " + times.Relative(*o.NextAttempt)
	}
	if o.Held && o.State != "held" {
		text += ", held"
	}
	if o.PausedSince != nil {
		text += fmt.Sprintf(", paused since %s by %s: %s", times.Cell(*o.PausedSince), cmp.Or(o.PausedBy, "unknown"), o.PausedReason)
	}
	return text
}

// A coroutine is the JSON form of a [replay.Coroutine].
type coroutine struct {
	Call     string      `json:"call,omitempty"` // none: the instance is hung
	WaitsFor []operation `json:"waitsFor,omitempty"`
	Since    time.Time   `json:"since"`
	Source   string      `json:"source,omitempty"`
	Stack    string      `json:"stack"`
}

func stack(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		coroutines, err := client.Stack(ctx, args[0])
		if err != nil {
			return err
		}
		for _, c := range coroutines {
			shown := newCoroutine(c)
			if d.isTable() {
				err = shown.print(s.out, d.times())
			} else {
				err = s.documents(d.format).Write(shown)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func newCoroutine(c replay.Coroutine) *coroutine {
	shown := &coroutine{Call: c.Call, Since: c.Since.UTC(), Source: c.Source, Stack: c.Stack}
	for _, awaited := range c.WaitsFor {
		o := operation{EventID: awaited.EventID, EventType: awaited.Type, Name: awaited.Name, Since: c.Since.UTC()}
		if awaited.Type == "MessageSent" {
			o.Receiver = awaited.Instance
		} else {
			o.Child = awaited.Instance
		}
		shown.WaitsFor = append(shown.WaitsFor, o)
	}
	return shown
}

// print writes a coroutine as a line and its stack.
func (c *coroutine) print(w io.Writer, times output.Times) error {
	line := "hung since " + times.Relative(c.Since)
	if c.Call != "" {
		line = fmt.Sprintf("%s at %s since %s", c.Call, c.Source, times.Relative(c.Since))
	}
	for _, o := range c.WaitsFor {
		line += "; " + o.describe(times)
	}
	_, err := fmt.Fprintf(w, "%s\n%s", output.Line(line), output.Lines(indent(c.Stack)))
	return err
}

// indent indents every line of a stack.
func indent(stack string) string {
	return "\t" + strings.ReplaceAll(strings.TrimSuffix(stack, "\n"), "\n", "\n\t") + "\n"
}
