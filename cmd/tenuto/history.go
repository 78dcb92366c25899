package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/pairing"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

func showHistory(flags *flag.FlagSet) action {
	execution := flags.Uint64("execution", 0, "execution to show, counted from 1; 0 for the latest")
	following := flags.Bool("follow", false, "also write the events to come, until the run ends")
	limit := flags.Duration("for", 0, "the longest `duration` to follow (default until the end of the run)")
	color := "auto"
	flags.Var(&choice{[]string{"auto", "always", "never"}, false, func(value string) { color = value }},
		"color", "`when` to use colors: auto (on a terminal, unless NO_COLOR is set), always, never")
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	readOptions := staleFlag(flags)
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		colored := color == "always" || color == "auto" && s.terminal && s.env("NO_COLOR") == "" && s.env("TERM") != "dumb"
		h, err := s.exportHistory(ctx, args[0], *execution, readOptions())
		if err != nil {
			return err
		}
		table := newHistoryTable(s.streams, d, colored)
		table.pair(h.Events)
		write := s.eventWriter(args[0], d, table)
		for _, event := range h.Events {
			if err := write(event); err != nil {
				return err
			}
		}
		if err := table.rows.Flush(); err != nil || !*following || len(h.Events) == 0 {
			return err
		}
		return s.follow(ctx, args[0], h.Events[len(h.Events)-1].Next(), *limit, func(e history.Event) error {
			return cmp.Or(write(e), table.rows.Flush())
		})
	})
}

// exportHistory reads a history with its payloads as recorded.
func (s *session) exportHistory(ctx context.Context, id string, execution uint64, options []replay.Option) (*history.History, error) {
	ctx, cancel := s.limited(ctx)
	defer cancel()
	var text bytes.Buffer
	if err := s.Export(ctx, id, execution, &text, options...); err != nil {
		return nil, err
	}
	return history.Read(&text)
}

// eventWriter returns a function that writes events of an instance. Rows of a table are written
// when that is flushed.
func (s *session) eventWriter(id string, d *display, table *historyTable) func(history.Event) error {
	if d.isTable() {
		return func(e history.Event) error {
			table.add(e)
			return nil
		}
	}
	return func(e history.Event) error {
		opened, err := e.Open(replay.PayloadConverter{Codec: foreignCodec{}})
		if err != nil {
			opened = e
		}
		return s.documents(d.format).Write(newWatchedEvent(id, opened))
	}
}

// A historyTable shows events with the pairs of scheduling events and completions.
type historyTable struct {
	rows    *output.Rows
	times   output.Times
	colored bool
	first   time.Time
	pairs   *pairing.Pairs
}

func newHistoryTable(s streams, d *display, colored bool) *historyTable {
	t := &historyTable{rows: output.NewRows(s.out), times: d.times(), colored: colored, pairs: pairing.New()}
	if d.isTable() {
		t.rows.Add("EVENT", "TIME", "AFTER", "TYPE", "PAIR", "TOOK", "DETAILS")
	}
	return t
}

// pair adds the events that are known, so that a scheduling event has its completion.
func (t *historyTable) pair(events []history.Event) {
	for _, e := range events {
		t.pairs.Add(e)
	}
}

func (t *historyTable) add(e history.Event) {
	t.pairs.Add(e)
	if t.first.IsZero() {
		t.first = e.Time
	}
	pair, took := "-", "-"
	other, at := t.pairs.Of(e)
	switch {
	case e.Operation() > 0:
		pair = fmt.Sprintf("←%d", e.Operation())
	case pairing.Scheduling[e.Type] && other > 0:
		pair = fmt.Sprintf("→%d", other)
	case pairing.Scheduling[e.Type]:
		pair = "open"
	case other > 0:
		pair = fmt.Sprintf("←%d", other)
		if !at.IsZero() {
			took = output.Duration(max(0, e.Time.Sub(at)))
		}
	}
	t.rows.Add(fmt.Sprintf("%d/%d", e.Execution, e.EventID), t.times.Cell(e.Time), "+"+output.Duration(e.Time.Sub(t.first)),
		t.paint(e, output.Cell(string(e.Type))), pair, took, detailsOf(e))
}

// detailsOf returns the fields of an event but its type and its pair.
func detailsOf(e history.Event) string {
	text := strings.TrimSpace(strings.TrimPrefix(e.String(), string(e.Type)))
	if source, rest, _ := strings.Cut(text, " "); strings.HasPrefix(source, "source_event_id=") {
		text = rest
	}
	return cmp.Or(output.Line(text), "-")
}

// The colors of a terminal.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
	bold   = "1"
)

func (t *historyTable) paint(e history.Event, cell string) string {
	if !t.colored {
		return cell
	}
	color := bold
	switch e.Type {
	case history.ActivityFailed, history.SubOrchestrationFailed, history.OrchestrationFailed, history.OrchestrationTerminated, history.MessageRejected:
		color = red
	case history.ActivityCompleted, history.SubOrchestrationCompleted, history.TimerFired, history.MessageDelivered, history.OrchestrationCompleted:
		color = green
	case history.ExternalEvent, history.OperationControlled, history.CancelRequested, history.OrchestrationCancelRequested,
		history.OrchestrationSuspended, history.OrchestrationResumed, history.OrchestrationCanceled:
		color = yellow
	}
	if pairing.Scheduling[e.Type] {
		color = cyan
	}
	return "\x1b[" + color + "m" + cell + "\x1b[0m"
}

func exportHistory(flags *flag.FlagSet) action {
	execution := flags.Uint64("execution", 0, "execution to export, counted from 1; 0 for the latest")
	file := flags.String("o", "", "`file` to write to instead of the standard output")
	readOptions := staleFlag(flags)
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ctx, cancel := s.limited(ctx)
		defer cancel()
		if *file == "" {
			return s.Export(ctx, args[0], *execution, s.out, readOptions()...)
		}
		var text bytes.Buffer
		if err := s.Export(ctx, args[0], *execution, &text, readOptions()...); err != nil {
			return err
		}
		return os.WriteFile(*file, text.Bytes(), 0o666)
	})
}

func checkHistories(*flag.FlagSet) action {
	return func(_ context.Context, s streams, files []string) error {
		invalid := 0
		for _, file := range files {
			h, err := readHistory(s, file)
			if err == nil {
				err = pairing.Check(h)
			}
			if err != nil {
				invalid++
				fmt.Fprintf(s.out, "%s: %s\n", file, output.Line(err.Error()))
				continue
			}
			fmt.Fprintf(s.out, "%s: ok: %s/%d, events: %d, last: %s\n", file, output.Line(h.Instance), h.Execution, len(h.Events), h.Events[len(h.Events)-1].Type)
		}
		if invalid > 0 {
			return fmt.Errorf("%d of %d files failed the check", invalid, len(files))
		}
		return nil
	}
}

// readHistory reads a file, or the standard input for "-".
func readHistory(s streams, file string) (*history.History, error) {
	if file == fromInput {
		return history.Read(s.in)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return history.Read(bytes.NewReader(text))
}
