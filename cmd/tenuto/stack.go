package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

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
