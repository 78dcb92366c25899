package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/replay"
)

var scheduleCommands = []command{
	{"schedule create", "ID NAME", "create a schedule of runs of the orchestration NAME", 2, 2, noNames, true, createSchedule, ""},
	{"schedule list", "", "list schedules with their next due times", 0, 0, noNames, false, listSchedules, ""},
	{"schedule show", "ID", "show a schedule, its next due times and its last runs", 1, 1, scheduleIDs, false, showSchedule, ""},
	{"schedule update", "ID", "change when a schedule starts runs; what no flag names stays", 1, 1, scheduleIDs, true, updateSchedule, ""},
	{"schedule pause", "ID", "start no runs until the schedule is resumed", 1, 1, scheduleIDs, true, noteCommand(schedule.Pause), ""},
	{"schedule resume", "ID", "continue a paused schedule from now on", 1, 1, scheduleIDs, true, noteCommand(schedule.Resume), ""},
	{"schedule trigger", "ID", "start a run now", 1, 1, scheduleIDs, true, triggerSchedule, ""},
	{"schedule backfill", "ID FROM BEFORE", "start runs for past due times, between times like 2006-01-02T15:04:05Z", 3, 3, scheduleIDs, true, backfillSchedule, ""},
	{"schedule delete", "ID", "end a schedule; its runs continue", 1, 1, scheduleIDs, true, deleteSchedule, ""},
}

// specFlags declares the flags for a Spec. The result applies those that were given.
func specFlags(flags *flag.FlagSet) func(spec *schedule.Spec) {
	var given schedule.Spec
	var crons []string
	var calendars []schedule.Calendar
	flags.Func("cron", "cron `expression`; may be repeated; empty for none", func(text string) error {
		if text != "" {
			crons = append(crons, text)
		}
		return nil
	})
	flags.Func("calendar", "calendar as `JSON`, such as {\"Days\":[1,-1],\"Hours\":[6]}; may be repeated; empty for none", func(text string) error {
		if text == "" {
			return nil
		}
		var c schedule.Calendar
		err := unmarshalStrict(text, &c)
		calendars = append(calendars, c)
		return err
	})
	flags.DurationVar(&given.Every, "every", 0, "`interval`, such as 6h")
	flags.DurationVar(&given.Offset, "offset", 0, "`offset` of the interval")
	flags.StringVar(&given.TimeZone, "zone", "", "time `zone` of -cron and -calendar, such as Europe/Berlin (default UTC)")
	flags.Func("from", "first `time` to start a run, like 2006-01-02T15:04:05Z", parseMoment(&given.From))
	flags.Func("until", "`time` from which on no run starts", parseMoment(&given.Until))
	flags.Var(overlapChoice(&given.Overlap), "overlap", "`policy` while a run is not done: skip, buffer-one, buffer-all, cancel, terminate, allow (default skip)")
	flags.DurationVar(&given.CatchUp, "catch-up", 0, "how `late` a run may start after an outage (default 24h)")
	flags.DurationVar(&given.Jitter, "jitter", 0, "the most by which a start is `delayed`, to spread schedules")
	flags.StringVar(&given.RunID, "run-id", "", "`ID` of the runs, with {id} and {time} (default {id}-{time})")
	flags.StringVar(&given.Version, "version", "", "`version` of the orchestration (default the newest)")
	flags.StringVar(&given.Summary, "summary", "", "`text` about the runs")
	return func(spec *schedule.Spec) {
		apply := map[string]func(){
			"cron":     func() { spec.Cron = crons },
			"calendar": func() { spec.Calendars = calendars },
			"every":    func() { spec.Every = given.Every },
			"offset":   func() { spec.Offset = given.Offset },
			"zone":     func() { spec.TimeZone = given.TimeZone },
			"from":     func() { spec.From = given.From },
			"until":    func() { spec.Until = given.Until },
			"overlap":  func() { spec.Overlap = given.Overlap },
			"catch-up": func() { spec.CatchUp = given.CatchUp },
			"jitter":   func() { spec.Jitter = given.Jitter },
			"run-id":   func() { spec.RunID = given.RunID },
			"version":  func() { spec.Version = given.Version },
			"summary":  func() { spec.Summary = given.Summary },
		}
		flags.Visit(func(f *flag.Flag) {
			if set := apply[f.Name]; set != nil {
				set()
			}
		})
	}
}

func createSchedule(flags *flag.FlagSet) action {
	apply := specFlags(flags)
	input := flags.String("input", "null", "input of the runs, as `JSON`, @FILE, or - for the standard input")
	c := changeFlags(flags, confirmNever)
	reasonFlag(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		var spec schedule.Spec
		apply(&spec)
		value, err := readValue(s, "-input", *input)
		if err != nil {
			return err
		}
		detail := ""
		if c.dryRun {
			if detail, err = dueTimes(spec); err != nil {
				return err
			}
			if _, err := client.Get(ctx, args[0]); !errors.Is(err, cluster.ErrNotFound) {
				return cmp.Or(err, fmt.Errorf("create schedule %s: %w", args[0], cluster.ErrInstanceExists))
			}
		}
		target := replay.Orchestration[json.RawMessage, json.RawMessage](args[1])
		return c.one(s, args[0], detail, func() error { return schedule.Create(ctx, client, args[0], spec, target, value) })
	})
}

// dueTimes returns the next due times of a Spec in one line.
func dueTimes(spec schedule.Spec) (string, error) {
	next, err := schedule.Times(spec, time.Now(), 5)
	if err != nil {
		return "", err
	}
	text := "next due times:"
	for _, due := range next {
		text += " " + output.Times{UTC: true}.Cell(due)
	}
	return text, nil
}

func updateSchedule(flags *flag.FlagSet) action {
	apply := specFlags(flags)
	c := changeFlags(flags, confirmNever)
	reasonFlag(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		d, err := schedule.Describe(ctx, client, args[0])
		if err != nil {
			return err
		}
		apply(&d.Spec)
		detail := ""
		if c.dryRun {
			if detail, err = dueTimes(d.Spec); err != nil {
				return err
			}
		}
		return c.one(s, args[0], detail, func() error { return schedule.Update(ctx, client, args[0], d.Spec) })
	})
}

func listSchedules(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.Wide, output.JSON, output.YAML, output.IDs)
	after := flags.String("after", "", "schedules whose IDs sort after `id`")
	limit := flags.Int("limit", 100, "the maximum `number` of schedules, 1 to 1000")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		page, err := schedule.List(ctx, client, cluster.Filter{}, *after, *limit)
		if err != nil {
			return err
		}
		if d.format == output.JSON || d.format == output.YAML {
			err = writeScheduleDocuments(s, d, page)
		} else {
			err = writeScheduleTable(s, d, page)
		}
		if err == nil && page.Next != "" {
			printMessage(s, "more schedules follow: use -after "+page.Next)
		}
		return err
	})
}

func writeScheduleDocuments(s streams, d *display, page *schedule.Page) error {
	for _, listed := range page.Schedules {
		if listed.Description == nil {
			printMessage(s, fmt.Sprintf("schedule %s does not answer: it is %s %s", listed.ID, listed.State, errorText(listed.Err)))
			continue
		}
		if err := s.documents(d.format).Write(listed.Description); err != nil {
			return err
		}
	}
	return nil
}

func writeScheduleTable(s streams, d *display, page *schedule.Page) error {
	times := d.times()
	// described makes a cell of a function that needs the description.
	described := func(cell func(d *schedule.Description) string) func(schedule.Listed) string {
		return func(l schedule.Listed) string {
			if l.Description == nil {
				return "-"
			}
			return output.Cell(cell(l.Description))
		}
	}
	printer := output.NewPrinter(s.out, d.format, []output.Column[schedule.Listed]{
		{Name: "ID", Cell: func(l schedule.Listed) string { return output.Cell(l.ID) }},
		{Name: "STATE", Cell: func(l schedule.Listed) string {
			if l.Description != nil && l.Description.Paused {
				return "paused"
			}
			return output.Cell(string(l.State))
		}},
		{Name: "ORCHESTRATION", Cell: described(func(d *schedule.Description) string { return d.Orchestration })},
		{Name: "NEXT", Cell: described(func(d *schedule.Description) string {
			if len(d.Next) == 0 {
				return ""
			}
			return times.Cell(d.Next[0])
		})},
		{Name: "STARTED", Cell: described(func(d *schedule.Description) string { return fmt.Sprint(d.Started) })},
		{Name: "SKIPPED", Cell: described(func(d *schedule.Description) string { return fmt.Sprint(d.Skipped) })},
		{Name: "MISSED", Cell: described(func(d *schedule.Description) string { return fmt.Sprint(d.Missed) })},
		{Name: "RUNNING", Cell: described(func(d *schedule.Description) string { return fmt.Sprint(len(d.Running)) })},
		{Name: "NOTE", Wide: true, Cell: described(func(d *schedule.Description) string { return d.Note })},
		{Name: "PROBLEM", Wide: true, Cell: described(func(d *schedule.Description) string { return d.Problem })},
	}, func(l schedule.Listed) string { return l.ID })
	for _, listed := range page.Schedules {
		if err := printer.Write(listed); err != nil {
			return err
		}
	}
	return printer.Flush()
}

func showSchedule(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		described, err := schedule.Describe(ctx, client, args[0])
		if err != nil {
			return err
		}
		if !d.isTable() {
			return s.documents(d.format).Write(described)
		}
		return printSchedule(s.out, described, d.times())
	})
}

// printSchedule writes a schedule as a table.
func printSchedule(w io.Writer, d *schedule.Description, times output.Times) error {
	spec, err := json.Marshal(d.Spec)
	if err != nil {
		return err
	}
	table := output.NewRows(w)
	line := func(name, value string) {
		if value != "" {
			table.Add(name, output.Line(value))
		}
	}
	line("id", d.ID)
	line("orchestration", d.Orchestration)
	line("input", string(d.Input))
	line("spec", string(spec))
	if d.Paused {
		line("paused", "true")
	}
	if d.Ended {
		line("ended", "true")
	}
	line("note", d.Note)
	line("problem", d.Problem)
	line("counts", fmt.Sprintf("started %d, skipped %d, missed %d", d.Started, d.Skipped, d.Missed))
	for _, due := range d.Next {
		line("next", times.Cell(due))
	}
	for _, due := range d.Buffered {
		line("buffered", times.Cell(due))
	}
	for _, start := range d.Running {
		line("running", describeStart(start, times))
	}
	for _, start := range d.Recent {
		line("recent", describeStart(start, times))
	}
	return table.Flush()
}

// describeStart describes a start in one line.
func describeStart(start schedule.Start, times output.Times) string {
	text := fmt.Sprintf("%s, %s %s, %s", output.Cell(start.InstanceID), start.Cause, times.Cell(start.Due), start.Outcome)
	if start.Error != "" {
		text += ": " + start.Error
	}
	return output.Line(text)
}

// planned runs a change of a schedule. A dry run checks that the schedule has not ended.
func (c *change) planned(ctx context.Context, client *cluster.Client, s streams, id string, do func() error) error {
	detail := ""
	if c.dryRun {
		d, err := schedule.Describe(ctx, client, id)
		if err != nil {
			return err
		}
		if d.Ended {
			return fmt.Errorf("%s %s: %w", c.verb, id, cluster.ErrEnded)
		}
		detail = fmt.Sprintf("it starts %s, paused: %t, in progress: %d", d.Orchestration, d.Paused, len(d.Running))
	}
	return c.one(s, id, detail, do)
}

func noteCommand(do func(ctx context.Context, client *cluster.Client, id, note string) error) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		note := flags.String("note", "", "`text` that says why")
		c := changeFlags(flags, confirmNever)
		reasonFlag(flags)
		return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
			return c.planned(ctx, client, s, args[0], func() error { return do(ctx, client, args[0], *note) })
		})
	}
}

// overlapFlag declares the -overlap flag of commands that start runs.
func overlapFlag(flags *flag.FlagSet, byDefault string) *schedule.Overlap {
	overlap := new(schedule.Overlap)
	flags.Var(overlapChoice(overlap), "overlap", "`policy` while a run is not done (default "+byDefault+")")
	return overlap
}

func overlapChoice(overlap *schedule.Overlap) *choice {
	c := &choice{open: true, set: func(value string) { *overlap = schedule.Overlap(value) }}
	for _, policy := range []schedule.Overlap{schedule.Skip, schedule.BufferOne, schedule.BufferAll, schedule.Cancel, schedule.Terminate, schedule.Allow} {
		c.choices = append(c.choices, string(policy))
	}
	return c
}

// A startWriter writes the starts that a command has made.
type startWriter struct {
	*display
	dryRun *bool
}

func startWriterFlags(flags *flag.FlagSet) startWriter {
	dryRun := flags.Bool("dry-run", false, "say what would be done, after checking that it is possible, and do nothing")
	return startWriter{displayFlags(flags, output.Table, output.JSON, output.YAML, output.IDs), dryRun}
}

func (w startWriter) write(s streams, starts ...schedule.Start) error {
	for _, start := range starts {
		var err error
		switch w.format {
		case output.JSON, output.YAML:
			err = s.documents(w.format).Write(start)
		case output.IDs:
			_, err = fmt.Fprintln(s.out, start.InstanceID)
		default:
			_, err = fmt.Fprintln(s.out, describeStart(start, w.times()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func triggerSchedule(flags *flag.FlagSet) action {
	overlap, w := overlapFlag(flags, "that of the schedule"), startWriterFlags(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		if *w.dryRun {
			return (&change{verb: "trigger schedule", dryRun: true}).planned(ctx, client, s, args[0], nil)
		}
		start, err := schedule.Trigger(ctx, client, args[0], *overlap)
		if err != nil {
			return err
		}
		return w.write(s, start)
	})
}

func backfillSchedule(flags *flag.FlagSet) action {
	overlap, w := overlapFlag(flags, "buffer-all"), startWriterFlags(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		var from, before time.Time
		for i, into := range []*time.Time{&from, &before} {
			if err := parseTimeInto(into)(args[1+i]); err != nil {
				return &usageError{fmt.Sprintf("%s: %v", args[1+i], err)}
			}
		}
		if *w.dryRun {
			return describeBackfill(ctx, client, s, args[0], from, before, w.times())
		}
		starts, err := schedule.Backfill(ctx, client, args[0], from, before, *overlap)
		if err != nil {
			return err
		}
		return w.write(s, starts...)
	})
}

// describeBackfill writes the due times of an interval.
func describeBackfill(ctx context.Context, client *cluster.Client, s streams, id string, from, before time.Time, times output.Times) error {
	d, err := schedule.Describe(ctx, client, id)
	if err != nil {
		return err
	}
	due, err := schedule.Times(d.Spec, from.Add(-1), 1001)
	if err != nil {
		return err
	}
	for _, at := range due {
		if !at.Before(before) {
			break
		}
		if _, err := fmt.Fprintf(s.out, "would start %s for %s\n", output.Line(d.Orchestration), times.Cell(at)); err != nil {
			return err
		}
	}
	return nil
}

func deleteSchedule(flags *flag.FlagSet) action {
	c := changeFlags(flags, confirmNever)
	reasonFlag(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		return c.planned(ctx, client, s, args[0], func() error { return schedule.Delete(ctx, client, args[0]) })
	})
}
