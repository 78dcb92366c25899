package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/schedule"
	"github.com/tenuto-dev/tenuto/replay"
)

var scheduleCommands = []command{
	{"schedule create", "ID NAME", "create a schedule of runs of the orchestration NAME", 2, 2, createSchedule},
	{"schedule list", "", "list schedules with their next due times", 0, 0, listSchedules},
	{"schedule show", "ID", "show a schedule, its next due times and its last runs", 1, 1, showSchedule},
	{"schedule update", "ID", "change when a schedule starts runs; what no flag names stays", 1, 1, updateSchedule},
	{"schedule pause", "ID", "start no runs until the schedule is resumed", 1, 1, noteCommand(schedule.Pause)},
	{"schedule resume", "ID", "continue a paused schedule from now on", 1, 1, noteCommand(schedule.Resume)},
	{"schedule trigger", "ID", "start a run now", 1, 1, triggerSchedule},
	{"schedule backfill", "ID FROM BEFORE", "start runs for past due times, between times like 2006-01-02T15:04:05Z", 3, 3, backfillSchedule},
	{"schedule delete", "ID", "end a schedule; its runs continue", 1, 1, deleteSchedule},
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
	flags.Func("from", "first `time` to start a run, like 2006-01-02T15:04:05Z", parseTimeInto(&given.From))
	flags.Func("until", "`time` from which on no run starts", parseTimeInto(&given.Until))
	flags.StringVar((*string)(&given.Overlap), "overlap", "", "`policy` while a run is not done: skip, buffer-one, buffer-all, cancel, terminate, allow (default skip)")
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

// unmarshalStrict decodes JSON and rejects fields that it does not know.
func unmarshalStrict(text string, value any) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}

func createSchedule(flags *flag.FlagSet) action {
	apply := specFlags(flags)
	input := flags.String("input", "null", "input of the runs, as `JSON`")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
		var spec schedule.Spec
		apply(&spec)
		if !json.Valid([]byte(*input)) {
			return &usageError{"-input is not JSON"}
		}
		target := replay.Orchestration[json.RawMessage, json.RawMessage](args[1])
		return schedule.Create(ctx, client, args[0], spec, target, json.RawMessage(*input))
	})
}

func updateSchedule(flags *flag.FlagSet) action {
	apply := specFlags(flags)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
		d, err := schedule.Describe(ctx, client, args[0])
		if err != nil {
			return err
		}
		apply(&d.Spec)
		return schedule.Update(ctx, client, args[0], d.Spec)
	})
}

func listSchedules(flags *flag.FlagSet) action {
	asJSON := flags.Bool("json", false, "one JSON object per line")
	after := flags.String("after", "", "schedules whose IDs sort after `id`")
	limit := flags.Int("limit", 100, "the maximum `number` of schedules, 1 to 1000")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		page, err := schedule.List(ctx, client, cluster.Filter{}, *after, *limit)
		if err != nil {
			return err
		}
		if *asJSON {
			err = writeScheduleLines(s, page)
		} else {
			err = writeScheduleTable(s.out, page)
		}
		if err == nil && page.Next != "" {
			printMessage(s, "more schedules follow: use -after "+page.Next)
		}
		return err
	})
}

func writeScheduleLines(s streams, page *schedule.Page) error {
	encoder := json.NewEncoder(s.out)
	for _, listed := range page.Schedules {
		if listed.Description == nil {
			printMessage(s, fmt.Sprintf("schedule %s does not answer: it is %s %s", listed.ID, listed.State, errorText(listed.Err)))
			continue
		}
		if err := encoder.Encode(listed.Description); err != nil {
			return err
		}
	}
	return nil
}

func writeScheduleTable(w io.Writer, page *schedule.Page) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTATE\tORCHESTRATION\tNEXT\tSTARTED\tSKIPPED\tMISSED\tRUNNING")
	for _, listed := range page.Schedules {
		d := listed.Description
		if d == nil {
			fmt.Fprintf(table, "%s\t%s\t-\t-\t-\t-\t-\t-\n", cell(listed.ID), cell(string(listed.State)))
			continue
		}
		state, next := string(listed.State), ""
		if d.Paused {
			state = "paused"
		}
		if len(d.Next) > 0 {
			next = formatTime(d.Next[0])
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", cell(d.ID), cell(state), cell(d.Orchestration), cell(next), d.Started, d.Skipped, d.Missed, len(d.Running))
	}
	return table.Flush()
}

func showSchedule(flags *flag.FlagSet) action {
	asJSON := flags.Bool("json", false, "one JSON object on one line")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		d, err := schedule.Describe(ctx, client, args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return json.NewEncoder(s.out).Encode(d)
		}
		return printSchedule(s.out, d)
	})
}

// printSchedule writes a schedule as a table.
func printSchedule(w io.Writer, d *schedule.Description) error {
	spec, err := json.Marshal(d.Spec)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s\t%s\n", name, value)
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
		line("next", formatTime(due))
	}
	for _, due := range d.Buffered {
		line("buffered", formatTime(due))
	}
	for _, start := range d.Running {
		line("running", describeStart(start))
	}
	for _, start := range d.Recent {
		line("recent", describeStart(start))
	}
	return table.Flush()
}

// describeStart describes a start in one line.
func describeStart(start schedule.Start) string {
	text := fmt.Sprintf("%s, %s %s, %s", cell(start.InstanceID), start.Cause, formatTime(start.Due), start.Outcome)
	if start.Error != "" {
		text += ": " + start.Error
	}
	return text
}

func noteCommand(do func(ctx context.Context, client *cluster.Client, id, note string) error) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		note := flags.String("note", "", "`text` that says why")
		return withClient(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
			return do(ctx, client, args[0], *note)
		})
	}
}

// overlapFlag declares the -overlap flag of commands that start runs.
func overlapFlag(flags *flag.FlagSet, byDefault string) *string {
	return flags.String("overlap", "", "`policy` while a run is not done (default "+byDefault+")")
}

func triggerSchedule(flags *flag.FlagSet) action {
	overlap := overlapFlag(flags, "that of the schedule")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		start, err := schedule.Trigger(ctx, client, args[0], schedule.Overlap(*overlap))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(s.out, describeStart(start))
		return err
	})
}

func backfillSchedule(flags *flag.FlagSet) action {
	overlap := overlapFlag(flags, "buffer-all")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		var from, before time.Time
		for i, into := range []*time.Time{&from, &before} {
			if err := parseTimeInto(into)(args[1+i]); err != nil {
				return &usageError{err.Error()}
			}
		}
		starts, err := schedule.Backfill(ctx, client, args[0], from, before, schedule.Overlap(*overlap))
		if err != nil {
			return err
		}
		for _, start := range starts {
			if _, err := fmt.Fprintln(s.out, describeStart(start)); err != nil {
				return err
			}
		}
		return nil
	})
}

func deleteSchedule(flags *flag.FlagSet) action {
	return withClient(flags, func(ctx context.Context, client *cluster.Client, _ streams, args []string) error {
		return schedule.Delete(ctx, client, args[0])
	})
}
